"""The page loses nothing that is written, and answers can be stopped and read: `tests/web/scenarios/keeping.mjs`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf_files import write_model
from page_fixtures import Play, ServeFake, in_both
from program import Server

SLOW = {"FAKE_TOKENS": "4000", "FAKE_TOKEN_DELAY": "0.02"}


@pytest.fixture
def killable(serve_fake: ServeFake) -> Callable[..., tuple[Server, dict[str, Callable[[], object]]]]:
    """A server, and the steps that kill it and start it again at its place."""

    def serve(**env: str) -> tuple[Server, dict[str, Callable[[], object]]]:
        running: list[Server] = [serve_fake(**env)]
        place = f"{running[0].host}:{running[0].port}"

        def kill() -> None:
            running[-1].process.kill()
            running[-1].process.wait(10)

        return running[0], {"kill": kill, "start": lambda: running.append(serve_fake(listen=place, **env))}

    return serve


@pytest.mark.parametrize("existing", ["0", "1"])
@pytest.mark.parametrize("after", ["0", "1"])
def test_a_kill_at_any_request_loses_no_question(
    play: Play,
    killable: Callable[..., tuple[Server, dict[str, Callable[[], object]]]],
    monkeypatch: pytest.MonkeyPatch,
    after: str,
    existing: str,
) -> None:
    """``after``: the server has the request, and the page does not hear of it."""
    monkeypatch.setenv("AFTER", after)
    monkeypatch.setenv("EXISTING", existing)
    server, steps = killable()
    play("keeping.between", server, **steps)


@in_both
@pytest.mark.parametrize("scenario", ["drafts", "rescued"])
def test_a_dead_server_takes_nothing_along(
    play: Play, killable: Callable[..., tuple[Server, dict[str, Callable[[], object]]]], scenario: str
) -> None:
    server, steps = killable(**SLOW)
    play(f"keeping.{scenario}", server, **steps)


def test_an_answer_is_asked_for_though_news_of_it_come_first(play: Play, serve_fake: ServeFake) -> None:
    play("keeping.overtaken", serve_fake())


def test_nothing_is_stored_of_a_question_that_cannot_be_asked(play: Play, serve_fake: ServeFake) -> None:
    play("keeping.refused", serve_fake())


def test_every_stored_conversation_opens(play: Play, serve_fake: ServeFake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEED", os.environ.get("SEED", "7"))
    play("keeping.odd", serve_fake())


@in_both
def test_stop_ends_everything_that_was_asked(play: Play, serve_fake: ServeFake, tmp_path: Path) -> None:
    for name in ("other", "third"):
        write_model(tmp_path / f"{name}.gguf")
    play("keeping.stops", serve_fake("--model", "other.gguf", "--model", "third.gguf", **SLOW))


@in_both
def test_a_fast_answer_is_followed_to_its_end(play: Play, serve_fake: ServeFake) -> None:
    play("keeping.scrolling", serve_fake(FAKE_TOKENS="1500", FAKE_TOKEN_DELAY="0.0005"))


def test_the_view_stays_where_somebody_reads(play: Play, serve_fake: ServeFake) -> None:
    play("keeping.reading", serve_fake(FAKE_TOKENS="9000", FAKE_TOKEN_DELAY="0.005"))


def test_a_full_context_can_be_summed_up(play: Play, serve_fake: ServeFake) -> None:
    refusal = "request (9000 tokens) exceeds the available context size (4096 tokens), try increasing it"
    script = [
        {"text": "One."},
        {"raw": f"data: {json.dumps({'error': {'code': 400, 'message': refusal}})}\n\n", "done": False},
    ]
    play("keeping.full", serve_fake(FAKE_SCRIPT=json.dumps(script)))


def test_a_call_that_is_passed_over_is_named(play: Play, serve_fake: ServeFake, tmp_path: Path) -> None:
    call = {"name": "write_file", "id": "c1", "arguments": json.dumps({"path": "note.txt", "content": "hi"})}
    tools = ("--tools", "write_file", "--tools-root", str(tmp_path))
    play("keeping.passing", serve_fake(*tools, FAKE_SCRIPT=json.dumps([{"calls": [call]}, {"text": "Fine."}])))
