"""SIGKILL of engines and of the program while contexts are saved and given back: never a wrong word.

``--kills N`` makes N kills.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPException
from pathlib import Path

import pytest
from kept_conversations import CHAT, Conversation, KeptHome, Turn, engines, kept, turn_of
from needs import compiled
from program import Server, http
from waiting import wait

if sys.platform == "win32":
    pytest.skip("signals as POSIX has them", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.needs("cpu-build")]

CLIENTS = ((1, 2, 3), (4, 5, 6))
"""The conversations of each client: more than there are slots, so that each change of the two moves contexts."""
TURNS = 8
REPEATED = 60.0
"""Seconds within which a request that was refused is answered."""
FEW_AT_LEAST = 10


class Stage:
    """The server that runs now, and what its clients were told."""

    def __init__(self, home: KeptHome) -> None:
        self.home = home
        self.server = home.start()
        self.program_kills = 0
        self.over = threading.Event()
        self.refused: list[str] = []
        self.turns: list[Turn] = []

    def kill(self, *, program: bool) -> None:
        if not program:
            for engine in engines(self.server):
                engine.kill()
            return
        self.program_kills += 1
        self.server.process.kill()
        self.server.wait(10)
        self.server = self.home.start()

    def wait_answer(self) -> None:
        """Until one more comes: kills that follow each other faster would show how a load ends, and nothing else."""
        before = len(self.turns)
        wait(lambda: len(self.turns) > before, within=REPEATED, told=self.server.told)

    def is_replaced(self, server: Server) -> bool:
        return self.server is not server

    def ask(self, conversation: Conversation, model: str) -> Turn:
        """Repeat a request until it is answered. Only a program that was killed may break off without a reason."""
        until = time.monotonic() + REPEATED
        while True:
            server = self.server
            try:
                found = http(server, "POST", CHAT, asked(conversation, model))
            except (OSError, HTTPException):
                wait(partial(self.is_replaced, server), within=REPEATED, told=server.told)
            else:
                if found.status == 200:
                    return turn_of(found.json())
                self.refused.append(found.json()["error"]["message"])
            assert time.monotonic() < until, (self.refused[-1:], server.told())
            time.sleep(0.1)

    def talk(self, seeds: Sequence[int], expected: dict[int, list[str]], chance: random.Random) -> None:
        """Go on with one conversation or another until it is over; from its beginning after its last turn."""
        conversations = {seed: (Conversation(seed, growth=100), 0) for seed in seeds}
        while not self.over.is_set():
            seed = chance.choice(seeds)
            conversation, number = conversations[seed]
            found, right = self.ask(conversation, "a"), expected[seed][number]
            assert found.text == right, (seed, number, found, right, self.server.told())
            self.turns.append(found)
            conversation.go_on(right)
            is_last = number + 1 == TURNS
            conversations[seed] = (Conversation(seed, growth=100), 0) if is_last else (conversation, number + 1)
            if chance.random() < 0.1:
                self.ask(Conversation(0, 20), "b")
            if chance.random() < 0.3:
                time.sleep(3 * chance.random())  # long enough for a save, now and then


def test_kills_while_contexts_move(tmp_path: Path, kills: int, chance: random.Random) -> None:
    kills = max(kills, FEW_AT_LEAST)
    home = KeptHome(tmp_path, str(next(compiled("cpu"))))
    home.learn()
    with home.start(keep="off") as server:
        expected = {seed: uninterrupted(server, seed) for seeds in CLIENTS for seed in seeds}
    stage = Stage(home)
    try:
        with ThreadPoolExecutor(len(CLIENTS)) as clients:
            talks = [clients.submit(stage.talk, seeds, expected, random.Random(chance.random())) for seeds in CLIENTS]
            try:
                for _ in range(kills):
                    stage.wait_answer()
                    time.sleep(3 * chance.random())  # a kill comes at any moment
                    stage.kill(program=chance.random() < 0.3)
            finally:
                stage.over.set()
                for talk in talks:
                    talk.result()
    finally:
        with stage.server:
            pass
    with home.start() as server:
        assert home.files(".part") == []
        assert [each.stem for each in home.files()] == [each.stem for each in home.files(".json")]
        came_back = sum(each["saved_tokens"] for each in kept(server))
    print(
        f"{kills} kills, {stage.program_kills} of them of the program: {len(stage.turns)} right answers, "
        f"{len(stage.refused)} refusals; the contexts that are left have saved {came_back} tokens"
    )
    print(*sorted({each.partition("; ")[0] for each in stage.refused}), sep="\n")
    assert came_back > 0


def uninterrupted(server: Server, seed: int) -> list[str]:
    """Return the words of each turn."""
    conversation = Conversation(seed, growth=100)
    return [conversation.turn(server).text for _ in range(TURNS)]


def asked(conversation: Conversation, model: str) -> dict[str, object]:
    """Return the body. It is another one each time: one that has killed engines would be refused."""
    body = {"model": model, "messages": conversation.messages, "max_tokens": 8, "temperature": 0}
    return {**body, "user": str(time.monotonic_ns())}
