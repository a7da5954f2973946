"""Which views of the page a run plays: each landing has something of everything, and many have it all."""

from __future__ import annotations

from collections import Counter
from hashlib import sha1
from itertools import pairwise

import pytest
from page_views import LOOKS, SELDOM, drawn, possible, touched

FLOWS = [f"test_a_scenario[-{number}]" for number in range(30)]
LANDINGS = [sha1(str(number).encode()).hexdigest() for number in range(300)]


def test_a_landing_has_every_look_and_browser_and_each_flow_in_chromium_once():
    for seed in LANDINGS:
        views = [drawn(scenario, seed, main_flow=True) for scenario in FLOWS]
        assert all([view.startswith("chromium-") for view in each] in ([True], [True, False]) for each in views)
        assert {view for each in views for view in each} >= {f"chromium-{look}" for look in LOOKS}
    assert drawn(FLOWS[0], LANDINGS[0], main_flow=True) == drawn(FLOWS[0], LANDINGS[0], main_flow=True)


@pytest.mark.parametrize("main_flow", [True, False])
def test_each_scenario_meets_each_of_its_views_as_often_as_it_is_promised(main_flow: bool):
    """Of another hash another half is drawn: scenarios do not change their looks together."""
    for scenario in FLOWS:
        met = Counter(view for seed in LANDINGS for view in drawn(scenario, seed, main_flow=main_flow))
        assert met.keys() == set(possible(main_flow=main_flow, environment={}))
        for look in LOOKS:
            assert met[f"chromium-{look}"] == pytest.approx(len(LANDINGS) / 2, rel=0.25)
            if main_flow:
                assert met[f"firefox-{look}"] == pytest.approx(len(LANDINGS) / 2 / SELDOM, rel=0.6)
    alike = sum(
        drawn(scenario, a, main_flow=False) == drawn(scenario, b, main_flow=False)
        for a, b in pairwise(LANDINGS)
        for scenario in FLOWS
    )
    assert alike == pytest.approx(len(FLOWS) * len(LANDINGS) / 2, rel=0.05)


def test_a_view_is_chosen_for_looking():
    assert possible(main_flow=True, environment={"LOOK": "de-light-400"}) == [
        "chromium-de-light-400",
        "firefox-de-light-400",
    ]
    assert possible(main_flow=False, environment={"PAGE_BROWSER": "firefox"}) == [f"firefox-{look}" for look in LOOKS]


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("tests/web/scenarios/talking.mjs", set()),
        ("appliance/web/src/screens/why/Why.svelte", {"machine"}),
        ("appliance/web/src/screens/Machine.svelte", {"machine"}),
        ("appliance/web/src/screens/Chat.svelte", {"machine", "talking"}),
        ("appliance/web/src/screens/list.ts", set()),
        ("appliance/web/src/lib/chat.svelte.ts", set()),
        ("docs/page.md", set()),
    ],
)
def test_a_change_touches_a_scenario_that_changed_or_names_the_screen_that_did(path: str, names: set[str]):
    sources = {"machine": "goto(`${url}/#/machine/why`); goto(`${url}/#/chat`)", "talking": "goto(`${url}/#/chat/x`)"}
    assert touched([path], sources) == names
