"""Verbs that ask a running server, what cannot be done, and chat streams that a real process breaks."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from command_line import Command
from gguf_files import write_model
from kept_files import DATA, kept_one, opened
from serving import Serve, followed

from appliance.cli.remote import CHAT_PATH, Ask, ChatRequest, RunMessage, stream_answer, whole_answer
from appliance.core.engine import Engine
from appliance.core.models.model import Model
from appliance.core.settings import FleetSettings
from appliance.errors import UpstreamFailed
from appliance.features.contexts.files import context_places
from appliance.fleet.owner import Fleet, open_fleet
from appliance.platform.home import users_data
from appliance.upstream.client import HttpAnswer, HttpCall

ONE = FleetSettings(models_max=1, stop_timeout=2.0)
SAID = "Once upon a time a small llama carried"
NOW = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
SESSION = [
    ("ps", "", "no model is running; .*"),
    ("speed --span 1h", "", "no request has ended in the last 1h"),
    ("cache --span 1h", "", "no request whose tokens are known has ended in the last 1h"),
    ("top --once", "", "nothing is under way"),
    ("load alpha", r"alpha: loaded after [\d.]+ s", ""),
    ("ps", "MODEL STATE ENGINE\nalpha loaded :CPU", ""),
    ("run alpha hi --temp 0", SAID, ""),
    ("run alpha hi --temp 0 --json", rf'\{{"choices":.*"content":"{SAID}".*\}}', ""),
    ("load beta", "beta: loaded after .* s", ""),
    ("run beta hi", SAID, ""),
    ("ls", r"ID ARCHITECTURE .* LAST USED\nalpha - .* unloaded .*\nbeta - .* loaded .*", "Models folder: .*"),
    (
        "speed",
        r"MODEL REQUESTS PROMPT/S TOKENS/S FIRST .*\n"
        r"alpha 2 [\d.]+ [\d.]+ [\d.]+ s [\d.]+ s [\d.]+ s 0% -\nbeta 1 .*",
        "",
    ),
    (
        "cache --by model",
        r"MODEL REQUESTS PROMPT CACHED SHARE AGAIN SAVED LOST\nalpha 2 6 0 0% 0 - -\nbeta 1 3 .*\nall 3 9 .*\n\n"
        rf"MODEL SLOT CONVERSATION CLIENT TOKENS CACHED LAST USE\nbeta [-0] - 127.0.0.1 11 0 of 3 {NOW}\nalpha .*\n\n"
        rf"{NOW} 3 beta loaded 0 of 3 prompt tokens .*\n{NOW} 2 alpha unknown .*\n{NOW} 1 alpha loaded .*",
        "",
    ),
    ("logs beta", r"(\S+ I srv .*\n)*\S+ I srv .*: listening on .*", ""),
    ("logs", r"\[alpha\] (.*\n\[alpha\] )*.*(\n\[beta\] .*)+", ""),
    ("logs --json", r'"\[alpha\] .*"(\n".*")*\n"\[beta\] .*"', ""),
    ("unload beta", "beta: unloaded", ""),
]


@pytest.fixture
def cli(command: Command, serve: Serve) -> Command:
    """Verbs that ask a server on which one model may run."""
    return command.at(serve(fleet=ONE).url)


def test_what_each_verb_prints_in_one_session(cli: Command) -> None:
    for line, out, err in SESSION:
        found = cli(*line.split())
        assert found.status == 0, found
        for pattern, text in ((out, found.out), (err, found.err)):
            told = re.sub(" +", " ", text).strip()
            assert re.fullmatch(pattern, told, re.S if "\n" not in pattern else 0), (line, pattern, text)


def test_programs_get_json(cli: Command) -> None:
    assert cli.json("ps") == {"running": [], "failed": []}
    assert cli.json("load", "al")["state"] == "loaded"
    assert [each["id"] for each in cli.json("ps")["running"]] == ["alpha"]
    listed = cli.json("ls")
    assert [(each["id"], each["state"]) for each in listed["models"]] == [("alpha", "loaded"), ("beta", "unloaded")]
    assert ("--url", listed["server"]) == cli.last
    cli.good("run", "alpha", "hi")
    cli.good("load", "beta")
    [curve] = cli.json("speed", "--by", "client", "--model", "alpha")["curves"]
    assert sum(curve["points"]["requests"]) == curve["total"]["requests"] == 1
    cache = cli.json("cache")
    assert ([miss["miss"] for miss in cache["misses"]], cache["total"]["requests"]) == (["loaded"], 1)
    assert cli.json("unload", "beta") == {"model": "beta", "state": "unloaded"}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("speed --span long", "span must be a time such as 30m"),
        ("cache --span long", "span must be a time such as 30m"),
        ("top --cancel 99", "no request '99' is under way"),
        ("unload alpha", "not running"),
        *(
            (f"{verb} alfa{more}", "alfa")
            for verb, more in (("run", " hi"), ("load", ""), ("logs", ""), ("logs -f", ""))
        ),
        ("unload alfa", "not found"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(cli: Command, command: Command, line: str, told: str) -> None:
    """And where there is no server, how to start one."""
    for status, where, words in ((2, cli, told), (1, command.at("http://127.0.0.1:9"), "llama-appliance serve")):
        found = where(*line.split())
        assert (found.status, found.out) == (status, ""), found
        assert re.fullmatch("llama-appliance: error: .*\n", found.err)
        assert words in found.err


def test_a_key_lets_in_who_has_it(command: Command, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    cli = command.at(serve(api_keys=("secret",)).url)
    assert "--api-key" in cli.bad("ps")
    cli.bad("ps", "--api-key", "wrong")
    cli.good("ps", "--api-key", "secret")
    monkeypatch.setenv("LLAMA_APPLIANCE_API_KEY", "secret")
    cli.good("ps")


def test_what_is_followed_comes_at_once(command: Command, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_APPLIANCE_URL", serve().url)
    command.good("load", "alpha")
    before = command.good("logs", "alpha").splitlines()
    with followed("logs", "-f", "alpha") as lines:
        assert [next(lines).rstrip() for _ in before] == before
        command.good("load", "beta")
        command.good("unload", "alpha")
        assert "cleaning up" in next(lines)


def test_kept_contexts_are_shown_and_cleared_with_and_without_a_server(
    command: Command, serve: Serve, tmp_path: Path
) -> None:
    """And removed with their model."""

    def keep_two(folder: Path) -> None:
        async def keep() -> None:
            async with opened(folder) as kept:
                for model in ("a", "b"):
                    await kept_one(kept, model=model)

        trio.run(keep)

    places = context_places(users_data())
    keep_two(places["disk"].folder)
    assert sorted(row[:3] for row in command.rows("cache")[1:]) == [["a", "-", "5"], ["b", "-", "5"]]
    assert sorted(each["model"] for each in command.json("cache")["kept"]) == ["a", "b"]
    write_model(users_data() / "models" / "a.gguf")
    command.good("rm", "a", "--yes")
    assert command.json("cache", "clear", "a") == {"contexts": 0, "size": 0}
    assert command.json("cache", "clear") == {"contexts": 1, "size": len(DATA)}
    for words, where in ((("cache",), command), (("cache", "clear"), command.at("http://127.0.0.1:9"))):
        assert "no server answers" in where.bad(*words, status=1)
    keep_two(tmp_path / "contexts")
    cli = command.at(serve().url)
    assert sorted(row[:3] for row in cli.rows("cache")[-2:]) == [["a", "-", "5"], ["b", "-", "5"]]
    assert "removed 1 kept contexts" in cli.good("cache", "clear", "a")
    assert cli.json("cache", "clear") == {"contexts": 1, "size": len(DATA)}
    assert cli.json("cache")["kept"] == []


REQUEST = ChatRequest(model="m", messages=(RunMessage(role="user", content="Tell me a story."),))


@asynccontextmanager
async def ask(fleet: Fleet, model: Model, body: bytes) -> AsyncGenerator[HttpAnswer]:
    async with (
        fleet.lease(model) as address,
        HttpCall(address, "POST", CHAT_PATH, [(b"Content-Type", b"application/json")], body) as response,
    ):
        yield response


@pytest.fixture
async def asked(fake_llama_server: tuple[str, ...], fake_model: Path) -> AsyncGenerator[Ask]:
    engine = Engine(name="fake", backend="cpu", version=None, command=fake_llama_server, source="tests")
    async with open_fleet(FleetSettings(stop_timeout=1), engine) as fleet:
        yield partial(ask, fleet, Model(id="m", source="path", path=str(fake_model)))


async def test_pieces_arrive_one_by_one_and_make_the_answer(asked: Ask) -> None:
    pieces: list[str] = []
    answer = await stream_answer(asked, REQUEST, pieces.append)
    assert "".join(pieces) == answer.text
    assert answer.chunks == len(pieces) > 3
    assert answer.finish_reason in ("stop", "length")
    assert answer.text.strip().encode() in await whole_answer(asked, REQUEST)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("FAKE_DIE_AFTER_TOKENS", "3", "ended early|broke the connection"),
        ("FAKE_CLOSE_AFTER_TOKENS", "3", "ended early|broke the connection"),
        ("FAKE_ERROR_RECORD", "3", "."),
        ("FAKE_CLOSE_WITHOUT_ANSWER", "1", "without an answer|ended early"),
        ("FAKE_NOT_HTTP", "1", "not HTTP"),
    ],
)
async def test_a_broken_stream_is_an_error_and_what_came_before_was_written(
    name: str, value: str, why: str, monkeypatch: pytest.MonkeyPatch, asked: Ask
) -> None:
    monkeypatch.setenv(name, value)
    pieces: list[str] = []
    with pytest.raises(UpstreamFailed) as caught:
        await stream_answer(asked, REQUEST, pieces.append)
    assert caught.value.model == "m"
    assert re.search(why, caught.value.why)
    if value == "3":
        assert len(pieces) == 3
