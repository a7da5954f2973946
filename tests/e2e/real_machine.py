"""A user's home with real builds in it, and the starter model's known answers, asked for through a server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec
from homes import Home
from msgspec import structs
from program import Server, answer, http

from appliance.core.builds import MANIFEST
from appliance.engines.builds import read_build
from appliance.features.engines.core.trials import KNOWN, KnownCompletion

PROOFS_TIME = 400.0
"""Seconds for ``engines prove``; with a cold shader cache a software renderer takes one minute, and two on a busy
machine."""


class Machine(Home):
    """A home. ``cached`` builds are found in its cache, as those that `llama-builds/build.py` makes."""

    apart = True

    def __init__(self, folder: Path, cached: Sequence[Path], env: Mapping[str, str]) -> None:
        super().__init__(folder, {**env, "PATH": "/usr/bin:/bin"})
        self.cached = tuple(cached)
        self.installed = folder / "xdg_data_home" / "llama-appliance" / "engines"
        for build in self.cached:
            place = folder / "xdg_cache_home" / "llama-appliance" / "engines" / build.parent.name
            place.mkdir(parents=True)
            (place / build.name).symlink_to(build)

    def with_the_same_book(self, folder: Path) -> Machine:
        """Another home, in which the same is known."""
        other = Machine(folder, self.cached, self.env)
        shutil.copytree(self.installed, other.installed)
        return other

    def table(self) -> dict[str, Any]:
        return self.json("engines", "ls")

    def doctor(self) -> dict[str, Any]:
        """``doctor --json``, where no server runs; it may find something."""
        return json.loads(self.run("doctor", "--json", "--url", "http://127.0.0.1:9").stdout)

    def serve(self, *words: str, env: Mapping[str, str] | None = None) -> Server:
        return super().serve("--threads", "1", *words, env=env)


def seats_of(table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Each seat's entry in the table of engines, by its id."""
    return {seat["id"]: seat for build in table["builds"] for seat in build["seats"]}


def copy_without(build: Path, to: Path, name: str, left_out: Collection[str]) -> Path:
    """A build like this one, with a true ``engine.json``, and without some of its files."""
    folder = to / build.parent.name / name
    shutil.copytree(build, folder, ignore=lambda _, names: [each for each in names if each in left_out])
    manifest = read_build(build)
    files = tuple(file for file in manifest.files if file.path not in left_out)
    assert len(files) == len(manifest.files) - len(left_out)
    (folder / MANIFEST).write_bytes(msgspec.json.encode(structs.replace(manifest, build=name, files=files)))
    return folder


def assert_knows(server: Server, answers: Sequence[KnownCompletion] = KNOWN) -> None:
    """Fail unless the model says, token for token, these answers that the starter is known to give."""
    for known in answers:
        body = {"model": "starter", "prompt": known.prompt, "n_predict": len(known.tokens), "temperature": 0}
        said = answer(server, "/completion", **body, return_tokens=True, cache_prompt=False)
        assert tuple(said["tokens"]) == known.tokens


def seat_of(server: Server) -> str:
    """Where the starter model runs."""
    return http(server, "GET", "/api/engines").json()["running"].get("starter", "")


@contextmanager
def streamed(server: Server, body: Mapping[str, object]) -> Generator[Generator[dict[str, Any]]]:
    """The records of a streamed answer, as they come."""
    connection = HTTPConnection(server.host, server.port, timeout=60)
    try:
        text = json.dumps({"model": "starter", "stream": True, **body})
        connection.request("POST", "/completion", text, {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200, response.read()

        def records() -> Generator[dict[str, Any]]:
            while line := response.readline():
                if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                    yield json.loads(line[6:])

        yield records()
    finally:
        connection.close()
