"""Conversations with models of random weights on a home that keeps contexts: what is read again, and which words come.

A word is one token of these models, so that texts of any language would do.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from hollow_models import Hollow
from homes import Home
from program import Server, http
from random_models import EXACT, random_dense, random_hybrid, random_window, write_random
from waiting import wait

CHAT = "/v1/chat/completions"
WORDS = 2000
"""Of a conversation's first message: more than the 8 KiB of a short request, of which nothing is kept."""
GROWTH = 300
"""Of each message after it: as much as makes a context be saved again."""
LONGEST_ANSWER = 16
ADDED = 150
"""Tokens that an answer and a chat template add to a message, at most."""
OPTIONS = ("--parallel", "2", "--ctx-size", "16384", *EXACT)
"""Said, because a first start may be planned otherwise than later ones, and a context fits one plan."""


class Kind(NamedTuple):
    """A kind of memory that engines have for what they read."""

    model: Hollow
    seed: int
    """One whose words depend on the prompt."""


KINDS = {
    "dense": Kind(random_dense(), 1),
    "sliding window": Kind(random_window(), 7),
    "hybrid": Kind(random_hybrid(), 3),
}


class Turn(NamedTuple):
    """An answer: its words, and the tokens of its prompt that were in the slot, or had to be read."""

    text: str
    cached: int
    read: int

    @property
    def prompt(self) -> int:
        return self.cached + self.read


class Conversation:
    """It grows with each turn; the same seed and answers make the same messages."""

    def __init__(self, seed: int, words: int = WORDS, growth: int = GROWTH) -> None:
        self._chance, self._growth = random.Random(seed), growth
        self.messages = [said("system", self._chance, 30), said("user", self._chance, words)]

    def ask(self, server: Server, model: str = "a", **more: object) -> Turn:
        body = {"model": model, "messages": self.messages, "max_tokens": 8, "temperature": 0, **more}
        found = http(server, "POST", CHAT, body)
        assert found.status == 200, (found.body, server.told())
        return turn_of(found.json())

    def go_on(self, answer: str) -> None:
        """Add what the model said, and the next message."""
        self.messages = [
            *self.messages,
            {"role": "assistant", "content": answer},
            said("user", self._chance, self._growth),
        ]

    def turn(self, server: Server, model: str = "a", **more: object) -> Turn:
        found = self.ask(server, model, **more)
        self.go_on(found.text)
        return found


class KeptHome(Home):
    """A home with the models ``a`` and ``b``, of which one runs at a time. Contexts are kept in its own folder.

    With an empty ``engine`` the program chooses among all that it finds.
    """

    def __init__(self, folder: Path, engine: str, kind: Kind = KINDS["dense"]) -> None:
        super().__init__(folder)
        self.engine = engine
        self.paths = [write_random(folder / f"{name}.gguf", *kind) for name in "ab"]
        data = folder / "xdg_data_home" / "llama-appliance"
        self.contexts = data / "contexts"
        digest = hashlib.sha256(os.fsencode(data)).hexdigest()[:8]
        self.memory = Path(f"/dev/shm/llama-appliance-{os.getuid()}-{digest}")
        """Contexts of the tier ``ram``: a test that has some removes it."""

    def start(self, *words: str, options: Sequence[str] = OPTIONS, keep: str = "disk") -> Server:
        models = [word for path in self.paths for word in ("--model", f"{path.stem}={path}")]
        engine = ("--engine", self.engine) if self.engine else ()
        argv = (*engine, "--threads", "1", "--models-max", "1", "--no-starter", *models)
        return self.serve(*argv, "--keep-context", keep, *words, "--", *options).wait_listening()

    def learn(self) -> None:
        """Until the program knows its engine's devices. A process that was started before has contexts of its own."""
        with self.start(keep="off") as server:
            Conversation(0, 1).turn(server)
            server.wait_for(lambda: not any(seat["id"].endswith(":") for seat in seats(server)))

    def files(self, suffix: str = ".kv") -> list[Path]:
        return sorted(self.contexts.glob(f"*{suffix}")) if self.contexts.exists() else []


def said(role: str, chance: random.Random, words: int) -> dict[str, str]:
    return {"role": role, "content": text_of(chance, words)}


def text_of(chance: random.Random, words: int) -> str:
    return "".join(f"t{chance.randrange(1700)}" for _ in range(words))


def turn_of(answer: Any) -> Turn:
    """Read an answer of the chat API, or of the completions with timings."""
    choice = answer["choices"][0]
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    return Turn(text, answer["timings"]["cache_n"], answer["timings"]["prompt_n"])


def kept(server: Server) -> list[Any]:
    """Return the contexts of which the server tells."""
    return http(server, "GET", "/api/cache").json()["kept"]


def wait_kept(server: Server, turn: Turn) -> None:
    """Until the context of a conversation is kept whose latest turn this is."""
    tokens = range(turn.prompt, turn.prompt + LONGEST_ANSWER)
    server.wait_for(lambda: any(each["tokens"] in tokens for each in kept(server)), within=20)


def newest(server: Server) -> Any:
    """Return the latest row of the activity log."""
    return http(server, "GET", "/api/metrics/activity?limit=1").json()["data"][0]


def told(server: Server) -> str:
    """Return what the activity log says of the latest request's prompt."""
    return newest(server)["metadata"]["prompt_cache"]


def seats(server: Server) -> list[Any]:
    """Return the places where engines can run."""
    return [seat for build in http(server, "GET", "/api/engines").json()["builds"] for seat in build["seats"]]


def unload(server: Server, model: str = "a") -> None:
    assert http(server, "POST", "/models/unload", {"model": model}).status == 200
    wait(lambda: not engines(server))


def engines(server: Server) -> list[psutil.Process]:
    """Return the processes of models."""
    found: list[psutil.Process] = []
    for each in server.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [each] if "--alias" in each.cmdline() else []
    return found
