"""What kept contexts save with a real llama-server: the wait after a swap, and the prompts of a coding agent.

`python3 bootstrap.py test --gains 8192 -s` prints the tables of docs/context.md. Other work of the machine makes both
sides of a row slower, so the ratios count, and not the seconds.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest
from agent_pattern import VOCABULARY, AgentMessage, AgentRequest, Began, agent_pattern
from hollow_models import dense
from kept_conversations import CHAT, Conversation, KeptHome, Kind, told, wait_kept
from needs import compiled
from program import Server, answer
from random_models import VOCABULARY as TOKENS
from random_models import random_dense

pytestmark = [pytest.mark.slow, pytest.mark.needs("cpu-build")]

SHORTEST = 2048
"""Tokens of the shortest prompt, which is not much above those of which nothing is kept."""
SLOW = Kind(random_dense(width=512, layers=8, context=32768), 1)
"""A model that takes seconds to read a prompt."""
QUICK = Kind(dense(layers=1, width=64, heads=2, kv_heads=1, head=32, forward=128, vocabulary=TOKENS, context=65536), 1)
"""One that reads an agent's prompts within minutes."""
WORDLESS = 259
"""The first tokens, which are bytes. An answer without them is read again as the tokens that it was written as."""
AGENT_OPTIONS = ("--parallel", "2", "--kv-unified", "--ctx-size", "114688")
WAYS = {
    "off, --cache-ram 0": ("off", "0"),
    "off": ("off", ""),
    "ram, --cache-ram 0": ("ram", "0"),
    "ram": ("ram", ""),
}
"""`keepContext`, and llama-server's own cache of prompts."""
FASTER, FEWER = 5, 3
"""How much is saved at least: of the wait at 8,192 tokens, and of an agent's tokens."""


@pytest.fixture
def longest(request: pytest.FixtureRequest) -> int:
    return request.config.getoption("--gains") or SHORTEST


@pytest.fixture
def is_whole(longest: int) -> bool:
    """The numbers are to be those of the document."""
    return longest >= 8192


def test_the_wait_after_a_swap(tmp_path: Path, longest: int, *, is_whole: bool) -> None:
    """Two models of which one is loaded at a time, and a conversation with one of them, before and after the other."""
    print("\n| tokens | read again | given back | ratio |\n|---|---|---|---|")
    ratio, tokens = 0.0, SHORTEST
    with ExitStack() as stack:
        servers = {
            keep: stack.enter_context(started(tmp_path / keep, SLOW, keep, options("", 2 * longest)))
            for keep in ("off", "ram")
        }
        while tokens <= longest:
            seconds = dict[str, float]()
            for keep, server in servers.items():
                conversation = Conversation(tokens, tokens, 10)
                found = conversation.turn(server)
                if keep != "off":
                    wait_kept(server, found)
                Conversation(0, 20).turn(server, "b")
                seconds[keep] = first_token(server, conversation)
                came_back = "came back" in told(server)
                assert came_back == (keep == "ram"), server.told()
            ratio = seconds["off"] / seconds["ram"]
            print(f"| {tokens} | {seconds['off']:.2f} s | {seconds['ram']:.2f} s | {ratio:.1f} |")
            tokens *= 2
    assert ratio > (FASTER if is_whole else 1)


def test_prompts_of_an_agent(tmp_path: Path, *, is_whole: bool) -> None:
    """A main session and its helpers on two slots; see `agent_pattern`."""
    requests, seeds = (200, (0, 1, 2)) if is_whole else (30, (0,))
    print(f"\n{requests} requests\n\n| seed | prompts | {' | '.join(WAYS)} |\n|---|---{'|---' * len(WAYS)}|")
    for seed in seeds:
        read, prompts = list[int](), 0
        for way, (keep, cache) in WAYS.items():
            words = options(cache, 0)
            with started(tmp_path / f"{seed}-{len(read)}", QUICK, keep, words) as server:
                prompts, found = asked(server, seed, requests)
            read.append(found)
            print(f"... {way}: {found}", flush=True)
        print(f"| {seed} | {prompts:,} | {' | '.join(f'{each:,} ({read[0] / each:.1f})' for each in read)} |")
        assert read[0] > (FEWER if is_whole else 1) * read[2]


@contextmanager
def started(folder: Path, kind: Kind, keep: str, words: Sequence[str]) -> Generator[Server]:
    home = KeptHome(folder, str(next(compiled("cpu"))), kind)
    home.learn()
    try:
        with home.start(keep=keep, options=words) as server:
            yield server
    finally:
        shutil.rmtree(home.memory, ignore_errors=True)


def options(cache: str, context: int) -> Sequence[str]:
    size = ("--parallel", "1", "--ctx-size", str(context)) if context else AGENT_OPTIONS
    return (*size, *(("--cache-ram", cache) if cache else ()))


def first_token(server: Server, conversation: Conversation) -> float:
    """Return the seconds from a request to its first word."""
    began, first = time.monotonic(), 0.0
    connection = HTTPConnection(server.host, server.port, timeout=300)
    body = {"model": "a", "messages": conversation.messages, "max_tokens": 8, "temperature": 0, "stream": True}
    connection.request("POST", CHAT, json.dumps(body), {"Content-Type": "application/json"})
    for line in connection.getresponse():
        if not first and b'"content":"' in line:
            first = time.monotonic() - began
    connection.close()
    assert first, server.told()
    return first


def asked(server: Server, seed: int, requests: int) -> tuple[int, int]:
    """Send an agent's requests. Return the tokens of their prompts, and how many of those were read."""
    answers, prompts, read, threads = dict[AgentMessage, str](), list[int](), list[int](), dict[int, threading.Thread]()

    def send(request: AgentRequest) -> None:
        messages = [{"role": each.role, "content": answers.get(each) or words_of(each)} for each in request.messages]
        found = answer(
            server,
            CHAT,
            model="a",
            messages=messages,
            session_id=request.session,
            max_tokens=request.answer.words,
            ignore_eos=True,
            temperature=0,
            logit_bias=[[token, False] for token in range(WORDLESS)],
        )
        answers[request.answer] = found["choices"][0]["message"]["content"]
        read.append(found["timings"]["prompt_n"])
        prompts.append(found["timings"]["cache_n"] + read[-1])

    for event in agent_pattern(seed, requests):
        if isinstance(event, Began):
            thread = threads[event.number] = threading.Thread(target=send, args=(event.request,), daemon=True)
            thread.start()
            time.sleep(0.01)  # the requests arrive in the order in which they began
        else:
            threads[event.number].join()
    assert len(read) == requests, server.told()
    return sum(prompts), sum(read)


def words_of(message: AgentMessage) -> str:
    return "".join(f"t{100 + VOCABULARY.index(word)}" for word in message.content.split())
