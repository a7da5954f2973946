"""``cache``: two conversations on the one slot of a real engine, and contexts in files, with a server and without."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from gguf_files import write_model
from homes import Home
from kept_files import DATA, kept_one, opened
from program import StartServer, answer

Verb = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize("engine", ["embedded"], indirect=True)
def test_one_conversation_takes_the_slot_of_another(serve: StartServer, engine: str, verb: Verb) -> None:
    server = serve("--", "--parallel", "1", "--cache-ram", "0", engine=engine)
    server.wait_listening()

    def asks(name: str, text: str) -> None:
        words = f"{name} {text} " + " ".join(map(str, range(60)))
        messages = [{"role": "user", "content": words}]
        answer(
            server, "/v1/chat/completions", model="starter", messages=messages, prompt_cache_key=name, max_tokens=4,
            temperature=0,
        )  # fmt: skip

    def cache(*argv: str) -> subprocess.CompletedProcess[str]:
        return verb("cache", "--url", server.url, *argv)

    nothing = cache("--span", "1h")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "no request whose tokens are known has ended in the last 1h" in nothing.stderr
    for name, text in (("a", "one"), ("a", "one"), ("b", "longer text"), ("a", "one"), ("a", "all is different")):
        asks(name, text)
    told = json.loads(cache("--json").stdout)
    assert [miss["miss"] for miss in told["misses"]] == ["changed", "evicted", "new", "loaded"]
    assert told["misses"][1]["why"].endswith(": conversation 'b' took the model's only slot")
    assert told["total"]["cached"] > 60, "the same question again"
    assert told["total"]["again"] > 120, "evicted, and changed"
    assert told["total"]["saved_seconds"] > 0
    assert [(each["conversation"], each["slot"]) for each in told["sessions"]] == [("a", 0), ("b", None)]
    head, *lines = cache("--by", "model").stdout.splitlines()
    assert head.split() == ["MODEL", "REQUESTS", "PROMPT", "CACHED", "SHARE", "AGAIN", "SAVED", "LOST"]
    assert [line.split()[:2] for line in lines[:2]] == [["starter", "5"], ["all", "5"]]
    assert lines[4].split()[:3] == ["starter", "0", "a"]
    wrong = cache("--span", "long")
    assert wrong.returncode != 0
    assert "span must be a time such as 30m" in wrong.stderr


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_contexts_are_cleared_with_and_without_a_server_and_by_another_setting(home: Home) -> None:
    folder = home.folder / "xdg_data_home" / "llama-appliance" / "contexts"
    if sys.platform == "win32":
        folder = folder.parent / "llama-appliance" / "contexts"

    def left() -> set[str]:
        return {each.suffix for each in folder.iterdir()} - {""} if folder.exists() else set()

    def keep_two() -> None:
        async def keep() -> None:
            async with opened(folder) as kept:
                for model in ("a", "b"):
                    await kept_one(kept, model=model)

        trio.run(keep)

    keep_two()
    assert sorted(row.split()[:3] for row in home.good("cache").splitlines()[1:]) == [["a", "-", "5"], ["b", "-", "5"]]
    assert sorted(each["model"] for each in home.json("cache")["kept"]) == ["a", "b"]
    assert home.json("cache", "clear", "a") == {"contexts": 1, "size": len(DATA)}
    assert home.json("cache", "clear", "a") == {"contexts": 0, "size": 0}
    with home.serve("--keep-context", "disk").wait_listening() as server:
        refused = home.bad("cache", "clear", "--url", "http://127.0.0.1:9", status=1)
        assert "no server answers" in refused
        table = home.run("cache", "--url", server.url).stdout
        assert table.splitlines()[-1].split()[:3] == ["b", "-", "5"]
        assert "removed 1 kept contexts" in home.good("cache", "clear", "--url", server.url)
        assert left() == set()
    keep_two()
    write_model(folder.with_name("models") / "a.gguf")
    home.good("rm", "a", "--yes")
    assert home.json("cache", "clear") == {"contexts": 1, "size": len(DATA)}
    assert "no server answers" in home.bad("cache", status=1)
    keep_two()
    with home.serve("--keep-context", "off").wait_listening() as server:
        assert left() == set()
        assert home.json("cache", "--url", server.url)["kept"] == []
