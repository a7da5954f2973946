"""core.programs: which payload may follow, and which version a start leads to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.engines.events import RolledBack, StepDone, UpdateBegun, reduce
from appliance.core.engines.state import TRIAL, BuildLine, EngineState
from appliance.core.payload import Payload, PayloadFile
from appliance.core.programs import (
    TrialRun,
    chosen,
    failure_of,
    matching,
    misplaced,
    model_to_ask,
    refusal,
    trial_end,
    words_for_trial,
)

OLD, NEW = "programs/0.2.0-aaaaaaaaaaaa", "programs/0.3.0-bbbbbbbbbbbb"
FILES = (PayloadFile(path="llama-appliance", size=1, executable=True),)


def payload(*, version: str = "0.3.0", platform: str = "linux-x64", files: tuple[PayloadFile, ...] = FILES) -> Payload:
    return Payload(
        format=1,
        name="llama-appliance",
        version=version,
        commit="",
        platform=platform,
        made="",
        engines=(),
        files=files,
    )


def switched(at: float) -> EngineState:
    state = reduce(EngineState(), UpdateBegun(build=NEW, old=OLD, at=at))
    while state.journal is not None:
        state = reduce(state, StepDone(at))
    return state


@pytest.mark.parametrize(
    ("new", "why"),
    [
        (payload(), ""),
        (payload(version="0.2.0"), ""),
        (payload(version="0.1.9"), "--force takes the older one"),
        (payload(platform="windows-x64"), "take the payload for linux-x64"),
        (payload(files=()), "it has no program"),
        (payload(files=(*FILES, PayloadFile(path="../x"))), "'../x'"),
        (payload(files=(*FILES, PayloadFile(path="a", link="/etc/passwd"))), "'a'"),
        (payload(files=(*FILES, PayloadFile(path="a/b", link="../../c"))), "'a/b'"),
        (payload(files=(*FILES, *FILES)), "'llama-appliance'"),
    ],
)
def test_a_payload_that_cannot_follow_is_refused_in_words(new: Payload, why: str) -> None:
    told = refusal(new, platform="linux-x64", own="0.2.0", program=NEW, state=EngineState(), force=False)
    assert why in told
    assert bool(why) == bool(told)


def test_a_version_that_was_given_up_needs_force() -> None:
    state = reduce(switched(0), RolledBack(backend=None, here=(OLD, NEW), why="too slow"))
    facts = {"platform": "linux-x64", "own": "0.2.0", "program": NEW, "state": state}
    assert "too slow" in refusal(payload(), **facts, force=False)  # type: ignore[arg-type]
    assert refusal(payload(), **facts, force=True) == ""  # type: ignore[arg-type]


@given(st.text(max_size=12), st.text(max_size=12))
def test_no_path_of_a_list_leads_out_of_the_folder(path: str, link: str) -> None:
    if misplaced(payload(files=(PayloadFile(path=path, link=link),))) == "":
        place: list[str] = []
        for part in (*path.split("/")[:-1], *(link or path.rpartition("/")[2]).split("/")):
            if part == "..":
                place.pop()  # fails where it would leave the folder
            elif part not in ("", "."):
                place.append(part)
        assert place
        assert not path.startswith("/")
        assert not link.startswith("/")


def test_a_start_leads_to_the_newest_version_that_is_here() -> None:
    state = switched(0)
    assert chosen(state, (OLD, NEW)) == NEW
    assert chosen(state, (OLD,)) == OLD
    assert chosen(state, ()) is None
    assert chosen(EngineState(), (OLD,)) is None


@given(st.integers(-10, int(2 * TRIAL)), st.booleans())
def test_only_a_crash_within_the_first_hour_leads_back(after: int, same_boot: bool) -> None:
    state = switched(1000.0)
    run = TrialRun(program=NEW, pid=1, boot="b", at=1000.0 + after, until=0.0)
    event = failure_of(run, "b" if same_boot else "another")
    if event is not None:
        state = reduce(state, event)
    is_early = 0 <= after < TRIAL
    assert trial_end(switched(1000.0), NEW, run.at) == (1000.0 + TRIAL if is_early else None)
    assert chosen(state, (OLD, NEW)) == (OLD if is_early and same_boot else NEW)
    assert (NEW in state.withdrawn) == (is_early and same_boot)
    assert state.probations == ()


def test_the_first_version_of_all_has_no_trial() -> None:
    alone = EngineState().with_line(BuildLine(name="programs", current=OLD, switched_at=5.0))
    assert trial_end(alone, OLD, 6.0) is None


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ([], []),
        (["--listen", "0.0.0.0:80", "--config", "a"], ["--config", "a"]),
        (["--listen=0.0.0.0:80", "--models-max=2"], ["--models-max=2"]),
        (["--port", "0", "--", "--port", "9", "--ctx-size", "8"], ["--", "--port", "9", "--ctx-size", "8"]),
        (["--ready-file"], []),
    ],
)
def test_a_trial_has_the_words_of_the_server_without_its_place(words: list[str], kept: list[str]) -> None:
    assert words_for_trial(words) == kept


def test_a_version_is_named_by_a_beginning_and_asked_with_the_starter_model() -> None:
    assert matching("0.3", (OLD, NEW)) == [NEW]
    assert matching("0.", (OLD, NEW)) == [OLD, NEW]
    assert matching("0.2.0-aaaaaaaaaaaa", (OLD, f"{OLD}b")) == [OLD]
    assert model_to_ask(["big", "starter"]) == "starter"
    assert model_to_ask(["big"]) == "big"
    assert model_to_ask([]) is None
