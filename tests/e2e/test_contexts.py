"""Kept contexts with real engines: what is read again, and that every answer has the words of an uninterrupted run.

`python3 bootstrap.py test tests/e2e/test_contexts.py -k reused -s` prints the table of docs/context.md.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import pytest
from kept_conversations import (
    ADDED,
    CHAT,
    GROWTH,
    KINDS,
    OPTIONS,
    WORDS,
    Conversation,
    KeptHome,
    engines,
    kept,
    newest,
    told,
    unload,
    wait_kept,
)
from program import Server, http
from waiting import wait

pytestmark = pytest.mark.slow

EMBEDDED = "embedded"
posix_only = pytest.mark.skipif(sys.platform == "win32", reason="signals and modes as POSIX has them")
only_embedded = pytest.mark.parametrize("engine", [EMBEDDED], indirect=True)


@pytest.fixture
def home(tmp_path: Path, engine: str) -> KeptHome:
    home = KeptHome(tmp_path, engine)
    home.learn()
    return home


def uninterrupted(home: KeptHome, seed: int, turns: int) -> list[str]:
    """Return the words of a conversation that nothing comes between, and for which nothing is kept."""
    with home.start(keep="off") as server:
        conversation = Conversation(seed)
        return [conversation.turn(server).text for _ in range(turns)]


# ---- what comes between two turns ----


def swapped(server: Server) -> None:
    Conversation(99, 20).turn(server, "b")


def killed(server: Server) -> None:
    (engine,) = engines(server)
    engine.kill()
    wait(lambda: not http(server, "GET", "/running").json()["running"])


def stopped(server: Server) -> None:
    server.process.terminate()
    assert server.wait(15) == 0, server.told()


def seat_of(server: Server) -> str:
    """Return where the model ``a`` runs; empty where it does not."""
    return http(server, "GET", "/api/engines").json()["running"].get("a", "")


def killed_itself(server: Server) -> None:
    server.process.kill()
    server.wait(10)


BETWEEN = {
    "swap": swapped,
    "unload": unload,
    "kill of the engine": killed,
    "stop of the program": stopped,
    "kill of the program": killed_itself,
}


@posix_only
def test_a_conversation_goes_on_where_it_was(home: KeptHome) -> None:
    expected = uninterrupted(home, 1, 1 + len(BETWEEN))
    conversation, server = Conversation(1), home.start()
    try:
        found = conversation.turn(server)
        assert found.text == expected[0]
        for number, (what, come_between) in enumerate(BETWEEN.items(), 1):
            wait_kept(server, found)
            come_between(server)
            if server.process.poll() is not None:
                server = home.start()
            found = conversation.turn(server)
            assert found.text == expected[number], what
            assert found.read <= GROWTH + ADDED, (what, found)
            assert f"{found.cached} of {found.prompt} prompt tokens came back" in told(server)
    finally:
        with server:
            pass


# ---- what a build does with a kind of model ----

FULL, DROPPED = "all of it and more", "another answer"
REUSED = {
    ("embedded", "dense"): (True, True),
    ("embedded", "sliding window"): (True, True),
    ("embedded", "hybrid"): (True, True),
    ("built", "dense"): (True, True),
    ("built", "sliding window"): (False, False),
    ("built", "hybrid"): (True, False),
}
"""Whether a context is of use that was given back, for a prompt that begins with all of it, and with its prompt."""


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_reused(tmp_path: Path, engine: str, kind: str) -> None:
    home = KeptHome(tmp_path, engine, KINDS[kind])
    home.learn()
    name = EMBEDDED if engine == EMBEDDED else "built"
    found = list[bool]()
    for seed, what in ((1, FULL), (2, DROPPED)):
        with home.start() as server:
            conversation = Conversation(seed)
            before = conversation.turn(server)
            wait_kept(server, before)
            unload(server)
            if what == DROPPED:
                conversation.messages[-2] = {"role": "assistant", "content": "t5t6t7t8"}
            after = conversation.ask(server)
            print(f"{name}, {kind}, {what}: {after.cached} of {before.read} tokens")
            cold = conversation.ask(server, cache_prompt=False)
            assert cold.cached == 0
            assert after.text == cold.text
            found.append(after.cached >= 0.9 * before.read)
        home.good("cache", "clear")
    assert tuple(found) == REUSED[name, kind]


def test_a_build_that_does_not_help_is_remembered(tmp_path: Path, cpu_build: Path) -> None:
    name = f"{cpu_build.parent.name}/{cpu_build.name}"
    cached = tmp_path / "xdg_cache_home" / "llama-appliance" / "engines" / name
    cached.parent.mkdir(parents=True)
    cached.symlink_to(cpu_build)  # a build by its name, which the doctor knows
    home = KeptHome(tmp_path, name, KINDS["sliding window"])
    home.learn()

    def saves(server: Server) -> bool:
        """The engine is started so that contexts can be kept."""
        return any("--slot-save-path" in each.cmdline() for each in engines(server))

    with home.start() as server:
        for seed in range(2):
            conversation = Conversation(seed)
            wait_kept(server, conversation.turn(server))
            unload(server)
            assert saves(server) is False
            turn = conversation.turn(server)
            assert saves(server) is True
            assert f"0 of {turn.prompt} prompt tokens came back from a file" in told(server)
            if seed == 0:
                home.good("cache", "clear", "--url", server.url)
        assert server.told().count("contexts of gemma3 models are not kept") == 1
        unload(server)
        conversation.turn(server)
        assert saves(server) is False
    (finding,) = (each for each in home.json("doctor")["findings"] if each["id"] == "context-not-kept")
    home.good(*finding["commands"][0].split()[1:])
    assert all(each["id"] != "context-not-kept" for each in home.json("doctor")["findings"])
    with home.start() as server:
        conversation.turn(server)
        assert saves(server) is True


# ---- every way of asking ----


NOTHING: Mapping[str, Any] = MappingProxyType({})


class Way(NamedTuple):
    path: str = CHAT
    prompt: Literal["messages", "input", "prompt"] = "messages"
    more: Mapping[str, object] = NOTHING
    headers: Mapping[str, str] = NOTHING
    placed: bool = True
    """It takes one slot, whose context is kept."""


WAYS = {
    "two answers": Way(more={"n": 2}, placed=False),
    "no name": Way(),
    "X-Conversation-Id": Way(headers={"X_Conversation_Id": "one"}),
    "prompt_cache_key": Way(more={"prompt_cache_key": "two"}),
    "session_id": Way(more={"session_id": "three"}),
    "stream": Way(more={"stream": True, "session_id": "four"}),
    "stream with X-Conversation-Id": Way(more={"stream": True}, headers={"X_Conversation_Id": "five"}),
    "slot of its own choice": Way(more={"id_slot": 1}),
    "completion": Way("/completion", "prompt"),
    "stream of a completion": Way("/completion", "prompt", {"stream": True}),
    "completions": Way("/v1/completions", "prompt"),
    "messages": Way("/v1/messages"),
    "stream of messages": Way("/v1/messages", more={"stream": True}),
    "responses": Way("/v1/responses", "input"),
    "stream of responses": Way("/v1/responses", "input", {"stream": True}),
}


def test_every_way_of_asking_has_its_context_back(home: KeptHome) -> None:
    def ask_all(server: Server) -> tuple[list[bytes], list[int]]:
        """Return the words of each answer, and the tokens of its prompt that did not have to be read."""
        words, cached = list[bytes](), list[int]()
        for way, conversation in zip(WAYS.values(), conversations, strict=True):
            body = {"model": "a", "temperature": 0, "max_tokens": 8, "max_output_tokens": 8, **way.more}
            prompt: object = conversation.messages
            if way.prompt == "prompt":
                prompt = "".join(each["content"] for each in conversation.messages)
            elif way.path != CHAT:  # these have other forms for a system prompt and an answer
                prompt = [each for each in conversation.messages if each["role"] == "user"]
            found = http(server, "POST", way.path, {**body, way.prompt: prompt}, **way.headers)
            assert found.status == 200, (way, found.body, server.told())
            words.append(b"".join(re.findall(rb'"(?:content|text|delta)": ?"([^"]*)"', found.body)))
            assert len(words[-1]) > 8, (way, found.body)
            cached.append(newest(server)["tokens"]["cache_tokens"])
        return words, cached

    lengths = [WORDS + 50 * number for number in range(len(WAYS))]
    expected: list[bytes] = []
    for keep in ("off", "disk"):
        conversations = [Conversation(length, length) for length in lengths]
        with home.start(keep=keep) as server:
            before, _ = ask_all(server)
            for each in conversations:
                each.go_on("t5t6t7")
            if keep != "off":
                server.wait_for(lambda: len(kept(server)) >= sum(way.placed for way in WAYS.values()), within=15)
            unload(server)
            after, cached = ask_all(server)
            expected = expected or before + after
            assert before + after == expected
    for (name, way), tokens, length in zip(WAYS.items(), cached, lengths, strict=True):
        assert tokens >= length or not way.placed, (name, cached)


# ---- files that are damaged, or do not fit ----


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


@only_embedded
def test_a_damaged_file_is_not_given_back(home: KeptHome) -> None:
    with home.start() as server:
        for number, damage in enumerate((cut, flip, Path.unlink), 1):
            conversation = Conversation(number, WORDS + 100 * number)
            wait_kept(server, conversation.turn(server))
            unload(server)
            for path in home.files():
                damage(path)
            found = conversation.ask(server)
            assert found.cached == 0, damage
            assert home.files() == []
            assert server.told().count("its file has changed") == number
            assert found.text == conversation.ask(server, cache_prompt=False).text
            unload(server)
            home.good("cache", "clear", "--url", server.url)


@only_embedded
def test_a_context_fits_one_size_of_context(home: KeptHome) -> None:
    conversation = Conversation(1)
    with home.start() as server:
        wait_kept(server, conversation.turn(server))
    (before,) = home.files()
    with home.start(options=(*OPTIONS, "--ctx-size", "8192")) as server:
        found = conversation.ask(server)
        assert found.cached == 0
        assert not before.exists()
        assert server.told().count("its model is started with another option on the same devices") == 1


def test_a_model_that_returns_to_its_seat_finds_its_contexts(tmp_path: Path, cpu_build: Path) -> None:
    """As it does some time after its engine has died. What it reads elsewhere meanwhile is kept also."""
    build = f"{cpu_build.parent.name}/{cpu_build.name}"
    cached = tmp_path / "xdg_cache_home" / "llama-appliance" / "engines" / build
    cached.parent.mkdir(parents=True)
    cached.symlink_to(cpu_build)
    home = KeptHome(tmp_path, "")
    home.learn()
    conversation, seats = Conversation(1), (f"{build}:CPU", "embedded:CPU")
    home.good("engines", "use", seats[0])
    with home.start() as server:
        for number, seat in enumerate((*seats, *seats)):
            home.good("engines", "use", seat, "--url", server.url)
            wait(lambda seat=seat: seat_of(server) in ("", seat), told=server.told)
            found = conversation.turn(server)
            assert seat_of(server) == seat
            assert (found.cached > WORDS) == (number >= len(seats)), (seat, found)
            wait_kept(server, found)


@pytest.mark.needs("root")
@pytest.mark.skipif(sys.platform != "linux", reason="mounts as Linux has them")
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("ro", "Read-only file system"),
        ("size=1m", "there is no room"),
        ("nr_inodes=2", "the engine did not write it"),
        ("nr_inodes=3", "No space left on device"),
    ],
)
@only_embedded
def test_a_folder_that_takes_no_more(home: KeptHome, options: str, why: str) -> None:
    conversation = Conversation(1)
    with mounted(home.contexts, options), home.start() as server:
        words = conversation.turn(server).text
        server.wait_for(lambda: why in server.told(), within=20)
        again = Conversation(1).ask(server)
        assert again.text == words
        assert again.cached > WORDS, "the slot has it still"
        Conversation(2).turn(server)
        assert home.files() == home.files(".part") == []
        assert server.told().count("WARNING") <= 1, server.told()


@contextmanager
def mounted(folder: Path, options: str) -> Generator[None]:
    """An empty file system in memory."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=0700,{options}", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


# ---- more clients than slots ----


def test_an_answer_has_no_words_of_another_one(home: KeptHome) -> None:
    """Requests name slots that others use: half of their clients do, and the program."""
    conversations = [Conversation(seed, 20) for seed in range(6)]
    with home.start() as server:
        expected = [each.ask(server).text for each in conversations]
        assert len(set(expected)) > 1

        def client(number: int) -> list[tuple[str, str]]:
            at = [(number + turn) % len(conversations) for turn in range(40)]
            names = {"id_slot": number % 4} if number % 2 else {}
            return [(conversations[each].ask(server, **names).text, expected[each]) for each in at]

        with ThreadPoolExecutor(5) as clients:
            for found, right in chain(*clients.map(client, range(5))):
                assert found == right


# ---- who may read them, and whether there are any ----


@posix_only
@only_embedded
def test_contexts_in_memory_are_their_users(home: KeptHome) -> None:
    if not home.memory.parent.exists():
        pytest.skip("this system has no /dev/shm")
    try:
        with home.start(keep="ram") as server:
            wait_kept(server, Conversation(1).turn(server))
            assert stat.S_IMODE(home.memory.stat().st_mode) == 0o700
            files = [each for each in home.memory.iterdir() if each.suffix]
            assert {each.suffix for each in files} == {".kv", ".json"}
            assert {stat.S_IMODE(each.stat().st_mode) for each in files} == {0o600}
            home.good("cache", "clear", "--url", server.url)
            assert not any(each.suffix for each in home.memory.iterdir())
    finally:
        shutil.rmtree(home.memory, ignore_errors=True)


@only_embedded
def test_nothing_is_kept_without_leave(home: KeptHome) -> None:
    with home.start(keep="off") as server:
        Conversation(1).turn(server)
        (engine,) = engines(server)
        assert "--slot-save-path" not in engine.cmdline()
        assert kept(server) == []
    assert not home.contexts.exists()
    assert not home.memory.exists()
