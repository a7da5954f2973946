"""``events``: the timeline of a running server in the terminal, for people and for programs, and as it comes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from program import COMMAND, Server, StartServer, fresh_environment
from waiting import PATIENCE

Verb = Callable[..., subprocess.CompletedProcess[str]]


@contextmanager
def following(server: Server, folder: Path, *words: str) -> Generator[subprocess.Popen[str]]:
    argv = [COMMAND, "events", "--follow", "--json", "--url", server.url, *words]
    with subprocess.Popen(
        argv, cwd=folder, env=fresh_environment(folder), stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ) as reader:
        try:
            yield reader
        finally:
            reader.terminate()
            reader.wait(PATIENCE)


def lines(reader: subprocess.Popen[str], number: int) -> list[dict[str, object]]:
    assert reader.stdout is not None
    return [json.loads(reader.stdout.readline()) for _ in range(number)]


def test_events(serve_fake: StartServer, verb: Verb, tmp_path: Path) -> None:
    server = serve_fake("--models-max", "1", "--model", "other.gguf")

    def cli(*argv: str) -> subprocess.CompletedProcess[str]:
        return verb(*argv, "--url", server.url)

    nothing = cli("events")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "nothing has happened yet" in nothing.stderr
    for model in ("small", "other"):
        assert cli("load", model).returncode == 0
    shown = cli("events").stdout.splitlines()
    assert [line[21:30].rstrip() for line in shown] == ["loading", "loaded", "evicted", "loading", "loaded"]
    assert "small went for other: 1 model may run at once, least recently used, idle 0 s" in shown[2]
    told = [json.loads(line) for line in cli("events", "--json", "--since", "1h").stdout.splitlines()]
    assert [entry["why"] for entry in told] == [line[31:] for line in shown]
    chosen = cli("events", "--json", "--model", "small", "--kind", "evicted", "--kind", "loaded").stdout.splitlines()
    assert [json.loads(line) for line in chosen] == told[1:3]
    assert cli("events", "--since", "2100-01-01T00:00:00Z").stdout == ""
    wrong = cli("events", "--since", "yesterday")
    assert wrong.returncode == 2
    assert "--since yesterday: expected 30m" in wrong.stderr

    with following(server, tmp_path, "--model", "small") as reader:
        assert lines(reader, 3) == told[:3], "what has happened to small"
        assert cli("unload", "other").returncode == 0
        assert cli("load", "small").returncode == 0
        loading, loaded = lines(reader, 2)
        assert (loading["kind"], loaded["kind"]) == ("loading", "loaded")
        assert loading["id"] > told[-1]["id"]
