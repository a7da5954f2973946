"""The page's first minutes, and what it says of an answer while it comes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf_files import write_model
from hub_process import FakeHub
from page_fixtures import Play, ServeFake, in_both
from program import Server, StartServer, http

from appliance.engines.embedded import available
from appliance.engines.found import EMBEDDED, ENGINE_VARIABLE

WORDS = Path(__file__).resolve().parents[2] / "appliance" / "web" / "src" / "i18n"


@pytest.fixture
def serve_demo(start_server: StartServer, fake_engine: Path, hub: FakeHub, tmp_path: Path) -> Callable[[], Server]:
    """A server as it is after the installation, on the scripted engine, and with a hub."""
    env = {ENGINE_VARIABLE: str(fake_engine), "HF_HUB_CACHE": str(tmp_path / "cache"), "MODEL_ENDPOINT": hub.url}
    return lambda: start_server("serve", "--listen", "127.0.0.1:0", "--no-stores", env=env)


@in_both
@pytest.mark.parametrize("scenario", ["starting.dismissed", "starting.tried", "starting.real"])
def test_the_demo_is_not_taken_for_a_model(play: Play, serve_demo: Callable[[], Server], scenario: str) -> None:
    play(scenario, serve_demo())


@in_both
def test_without_a_hub_the_cards_say_what_to_carry(play: Play, serve_demo: Callable[[], Server], hub: FakeHub) -> None:
    play("starting.carried", serve_demo(), gone=hub.stop)


def test_an_answer_says_what_it_is_at(play: Play, serve_fake: ServeFake) -> None:
    slow = {"FAKE_LOAD_DELAY": "3", "FAKE_SLOW_PROMPT": "1", "FAKE_STALL_AFTER_TOKENS": "5"}
    play("starting.phases", serve_fake(**slow))


def test_a_caret_stands_at_the_end_of_the_text(play: Play, serve_fake: ServeFake) -> None:
    ends = (
        "one\n\nthe end", "- one\n- the end", "- one\n  - two\n- three\n  - the end", "- one\n\n- two\n\n  the end",
        "~~~python\nthe_end()\n~~~", "| one |\n|---|\n| the end |", "## the end", "- one\n  - two\n\n\nthe end",
    )  # fmt: skip
    play("starting.carets", serve_fake(FAKE_SCRIPT=json.dumps([{"text": text, "stall": True} for text in ends])))


def test_an_answer_in_the_queue_says_its_place(play: Play, serve_fake: ServeFake, tmp_path: Path) -> None:
    write_model(tmp_path / "models" / "other.gguf")
    slow = {"FAKE_TOKENS": "4000", "FAKE_TOKEN_DELAY": "0.05", "FAKE_LOAD_DELAY": "1"}
    play("starting.queued", serve_fake("--models-dir", "models", "--models-max", "1", **slow))


def test_the_demo_answers_the_questions_that_the_page_offers(start_server: StartServer) -> None:
    """The first words of its answers: it has one for each thing that it knows."""
    if not available():
        pytest.skip("the embedded engine is not on this machine")
    server = start_server("serve", "--listen", "127.0.0.1:0", "--engine", EMBEDDED, "--threads", "1", "--no-stores")
    known = ("Llama Appliance is a program", "Your text stays on this computer", "GGUF is a file", "Once upon a time")
    for language in ("en", "de"):
        asked = re.findall(r'^  demo\d: "(.*)",$', (WORDS / f"{language}.ts").read_text("utf-8"), re.MULTILINE)
        assert len(asked) == len(known)
        for question, answer in zip(asked, known, strict=True):
            body = {"model": "starter", "messages": [{"role": "user", "content": question}]}
            said = http(server, "POST", "/v1/chat/completions", body).json()["choices"][0]["message"]["content"]
            assert said.startswith(answer), question
