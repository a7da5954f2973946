"""What a chain of plugins adds to a request: four that do nothing, against the same request without commands.

Both kinds of request take turns on one kept-alive connection to the program, so that what else the machine does hits
both; the upstream answers at once. Streams are read to their first text, then left.
"""

from __future__ import annotations

import http.client
import json
import statistics
import time
from typing import NamedTuple

from contestants import STARTER, serve
from peers import MODEL, Peers
from processes import HOST, START_TIMEOUT, Failed, free_port, running, wait_listening

NAMES = ("one", "two", "three", "four")
COMMANDS = " ".join(f"/{name}" for name in NAMES)
DOES_NOTHING = """
async def on_request(request, context):
    return None


async def on_response(response, context):
    return None


async def on_stream(events, context):
    async for event in events:
        yield event
"""
WHOLE, FIRST = "whole answer", "first token"
WARM_UP = 20


class Added(NamedTuple):
    """Medians in milliseconds, and the median of the differences of neighbours."""

    plain: float
    chained: float
    extra: float

    @property
    def ratio(self) -> float:
        return self.chained / self.plain


def chain(peers: Peers, pairs: int) -> dict[str, Added]:
    """What the chain adds to a whole answer and to the first token of a stream, each measured ``pairs`` times."""
    plugins = peers.folder / "plugins"
    for name in NAMES:
        (plugins / name).mkdir(parents=True, exist_ok=True)
        (plugins / name / "agent.py").write_text(DOES_NOTHING, encoding="utf-8")
        (plugins / name / "config.json").write_text("{}", encoding="utf-8")
    port = free_port()
    argv = serve(port, str(peers.upstream), {MODEL: STARTER}, "--plugins", str(plugins))
    with running(argv, peers.folder / "serve.log") as process:
        wait_listening(process, port)
        _wait_loaded(port)
        return {WHOLE: _compared(port, pairs, stream=False), FIRST: _compared(port, pairs, stream=True)}


def _wait_loaded(port: int) -> None:
    """Plugins are read beside the start, which is not what is measured here."""
    until = time.monotonic() + START_TIMEOUT
    while time.monotonic() < until:
        connection = http.client.HTTPConnection(HOST, port, timeout=5)
        try:
            connection.request("GET", "/api/agents")
            states = {agent["name"]: agent["state"] for agent in json.loads(connection.getresponse().read())["agents"]}
        finally:
            connection.close()
        if all(states[name] == "ready" for name in NAMES):
            return
        time.sleep(0.01)
    raise Failed(f"the plugins were not there after {START_TIMEOUT:g} s")


def _compared(port: int, pairs: int, *, stream: bool) -> Added:
    plain: list[float] = []
    chained: list[float] = []
    once = _first_token if stream else _whole
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    try:
        for number in range(pairs + WARM_UP):
            # Each of the two is first every other time.
            for commands in ("", COMMANDS) if number % 2 else (COMMANDS, ""):
                took = once(connection, f"{commands} Hello".lstrip()) * 1000
                if number >= WARM_UP:
                    (chained if commands else plain).append(took)
    finally:
        connection.close()
    extra = [with_chain - without for with_chain, without in zip(chained, plain, strict=True)]
    return Added(statistics.median(plain), statistics.median(chained), statistics.median(extra))


def _whole(connection: http.client.HTTPConnection, prompt: str) -> float:
    """Seconds from a request to the end of its answer."""
    began = time.perf_counter()
    response = _ask(connection, prompt, stream=False)
    received = response.read()
    took = time.perf_counter() - began
    if b'"Hello there"' not in received:
        raise Failed(f"the answer is not the upstream's: {received[:200].decode(errors='replace')}")
    return took


def _first_token(connection: http.client.HTTPConnection, prompt: str) -> float:
    """Seconds from a request to the first text of its stream. The rest is left, with the connection."""
    connection.connect()
    began = time.perf_counter()
    response = _ask(connection, prompt, stream=True)
    received = b""
    while b'" llama"' not in received:
        part = response.read1(1 << 16)
        if not part:
            raise Failed(f"the stream has no text: {received[:200].decode(errors='replace')}")
        received += part
    took = time.perf_counter() - began
    connection.close()
    return took


def _ask(connection: http.client.HTTPConnection, prompt: str, *, stream: bool) -> http.client.HTTPResponse:
    body = {"model": MODEL, "messages": [{"role": "user", "content": prompt}], "stream": stream}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise Failed(f"{prompt!r} was answered {response.status}: {response.read()[:200].decode(errors='replace')}")
    return response


def table(found: dict[str, Added]) -> list[str]:
    """The lines of the report."""
    lines = [f"  {'medians, ms':<30}{'no command':>12}{'four plugins':>14}{'ratio':>8}{'added':>8}"]
    for name, added in found.items():
        lines.append(f"  {name:<30}{added.plain:>12.2f}{added.chained:>14.2f}{added.ratio:>8.2f}{added.extra:>+8.2f}")
    return lines
