"""A new version is tried: it serves once, beside the running server and with the user's own settings, and is asked.

This is the side of the version in use; `cli.trial` is the new version's. The two only agree on ``serve --trial DIR``,
on ``DIR/ready.json``, and on the variable with the key: they are of different versions.
"""

from __future__ import annotations

import secrets
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec
import psutil
import trio
from msgspec import Struct

from appliance.core.lenient_json import decoded
from appliance.core.openai import ChatCompletion
from appliance.core.programs import NAME, SERVES
from appliance.core.settings import KEY_VARIABLE
from appliance.errors import Busy, UpstreamFailed
from appliance.features.programs.rules import model_to_ask, words_for_trial
from appliance.platform.children import Child, Children, describe_status
from appliance.platform.console import is_frozen, outer_environment
from appliance.platform.ports import LOOPBACK
from appliance.platform.process import Command, LineSink, StopSteps, before_end, open_process, text_of
from appliance.upstream.client import Address, HttpCall

READY = "ready.json"
START_TIME = 180.0  # seconds until it must listen, which includes copying the data
CHAT_TIME = 300.0  # seconds for the answer, which includes loading the model
ENDING = StopSteps(asked=30.0)
LOOK_EVERY = 0.05
SHOWN_LINES = 5
MAX_ANSWER = 16 << 20
JSON_HEADERS = ((b"Content-Type", b"application/json"),)

T = TypeVar("T")


class ImitatedServer(Struct, frozen=True, kw_only=True):
    """A server to imitate: its words after ``serve``, and its folder."""

    words: tuple[str, ...] = ()
    cwd: str | None = None


class _Ready(Struct, frozen=True):
    url: str


class _Model(Struct, frozen=True):
    id: str


class _Models(Struct, frozen=True):
    data: list[_Model]


class _Failed(Exception):
    """Why the version is not taken."""


def running(folders: Sequence[Path]) -> ImitatedServer | None:
    """Return this user's server whose program lies in one of these folders; it waits for /proc.

    A process may call itself anything, so only its real program counts. Of several the newest is taken: its words are
    the last that the user chose, and an older one may be about to end.
    """
    user = psutil.Process().username()
    found = list(psutil.process_iter(["cmdline", "create_time", "exe", "username"]))
    found.sort(key=lambda one: (float(one.info["create_time"] or 0), one.pid), reverse=True)  # a clock of hundredths
    for process in found:
        words: list[str] = process.info["cmdline"] or []
        at = words.index(SERVES[0]) if SERVES[0] in words[:3] else 0
        if not at or "--trial" in words or process.info["username"] != user:
            continue
        program = Path(process.info["exe"] or "")
        if not is_frozen() and program == Path(sys.executable).resolve():
            program = Path(words[1])  # the interpreter's, as this one is
        if any(program.resolve().is_relative_to(folder.resolve()) for folder in folders):
            try:
                return ImitatedServer(words=tuple(words[at + 1 :]), cwd=process.cwd())
            except psutil.Error:
                continue
    return None


async def try_version(
    folder: Path,
    serving: ImitatedServer,
    work: Path,
    children: Children,
    tell: Callable[[str], None],
) -> str:
    """Start the version in ``folder``, ask it a chat, and end it; why it is not taken, or empty.

    ``work`` is a new folder, for its copies. The starter model is asked, or the first one where that is not served.
    """
    key = secrets.token_urlsafe(24)
    argv = (str(folder / NAME), "serve", "--trial", str(work), *words_for_trial(serving.words))
    env = outer_environment() | {KEY_VARIABLE: key}
    command = Command(argv=argv, env=env, cwd=serving.cwd, ending=ENDING)
    lines: deque[str] = deque(maxlen=SHOWN_LINES)
    output = LineSink(lambda line: lines.append(text_of(line)))
    try:
        async with open_process(children, command, output) as child:
            try:
                await _try(child, work / READY, key, tell)
            except _Failed as cause:
                said = f"; it said: {' | '.join(lines)}" if lines else ""
                return f"{cause}{said}"
    except (OSError, ValueError) as cause:
        return f"it cannot be started: {cause}"
    return ""


async def _try(child: Child, ready: Path, key: str, tell: Callable[[str], None]) -> None:
    """Raises _Failed."""
    try:
        with trio.fail_after(START_TIME):
            url = await before_end(child, partial(_url, ready))
    except trio.TooSlowError:
        raise _Failed(f"it did not listen within {START_TIME:.0f} s") from None
    if url is None:
        raise _Failed(f"it ended at its start ({describe_status(await child.wait())})")
    address = Address(LOOPBACK, urlsplit(url).port or 0, key, url)
    try:
        with trio.fail_after(CHAT_TIME):
            tell(await _chat(address))
    except trio.TooSlowError:
        raise _Failed(f"it did not answer within {CHAT_TIME:.0f} s") from None
    except (UpstreamFailed, Busy) as cause:
        raise _Failed(f"it broke off while it was asked: {cause}") from None
    child.terminate()
    with trio.move_on_after(ENDING.asked):
        if status := await child.wait():
            raise _Failed(f"it did not end in good order when it was asked to ({describe_status(status)})")
        return
    raise _Failed(f"it did not end within {ENDING.asked:.0f} s when it was asked to")


async def _url(ready: Path) -> str:
    """Return the address once the version listens."""
    while (found := _read(ready)) is None:  # noqa: ASYNC110  a file tells nobody
        await trio.sleep(LOOK_EVERY)
    return found.url


def _read(ready: Path) -> _Ready | None:
    with suppress(OSError):
        return decoded(_Ready, ready.read_bytes())
    return None


async def _chat(address: Address) -> str:
    """Ask one question; return the result, in words. Raises _Failed, UpstreamFailed, Busy."""
    models = await _asked(address, "GET", "/v1/models", _Models)
    model = model_to_ask([each.id for each in models.data])
    if model is None:
        return "it serves; there is no model that it could be asked with"
    question: dict[str, object] = {
        "model": model, "max_tokens": 16, "temperature": 0, "messages": [{"role": "user", "content": "Hello!"}]
    }  # fmt: skip
    answer = await _asked(address, "POST", "/v1/chat/completions", ChatCompletion, question)
    if not answer.choices:
        raise _Failed(f"{model} gave an empty answer")
    return f"it serves, and {model} answers"


async def _asked(address: Address, method: str, path: str, kind: type[T], body: object = None) -> T:
    sent = b"" if body is None else msgspec.json.encode(body)
    async with HttpCall(address, method, path, JSON_HEADERS, sent) as response:
        answer = await response.read(MAX_ANSWER)
    if response.status != 200 or (found := decoded(kind, answer)) is None:
        raise _Failed(f"{method} {path} was answered with {response.status}: {answer[:300].decode('utf-8', 'replace')}")
    return found
