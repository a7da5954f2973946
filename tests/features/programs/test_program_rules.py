"""Which payload may follow the running program, and how a new version is named and tried."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.payload import Payload, PayloadFile
from appliance.features.engines.core.state import EngineState
from appliance.features.programs.rules import matching, misplaced, model_to_ask, refusal, words_for_trial

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
    state = EngineState(withdrawn={NEW: "too slow"})
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
