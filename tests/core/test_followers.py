"""Followers are called in the order in which they came, until they leave."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from appliance.core.followers import Followers
from appliance.core.records.history import Happening, NoTimeline


def test_followers_are_called_in_their_order_until_they_leave() -> None:
    followers, heard = Followers[Callable[[int], None]](), list[tuple[str, int]]()

    def tell(number: int) -> None:
        for call in followers.calls:
            call(number)

    one, other = (partial(lambda name, number: heard.append((name, number)), name) for name in ("one", "other"))
    tell(1)
    with followers.follow(one):
        with followers.follow(other):
            tell(2)
        tell(3)
    tell(4)
    assert heard == [("one", 2), ("other", 2), ("one", 3)]


def test_a_timeline_that_keeps_nothing_has_followers_too() -> None:
    timeline, heard = NoTimeline(), list[str]()
    with timeline.follow(lambda entry: heard.append(entry.model)):
        timeline.add(Happening(kind="loaded", model="a"))
    timeline.add(Happening(kind="loaded", model="b"))
    assert heard == ["a"]
