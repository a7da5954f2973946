"""Commands beside a server that runs: without an address and without a key they find it, and work with its files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from gguf_files import write_model
from homes import Home
from hub_process import FakeHub, fake_hub
from program import ANY_PORT, COMMAND, Server, fresh_environment
from waiting import wait

from appliance.catalog.sources import STARTER
from appliance.store.model_files import occupied

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Python has no Unix sockets on Windows")
TINY, TINY_FILE = "acme/Tiny-GGUF:Q8_0", "acme/Tiny-GGUF/Tiny-Q8_0.gguf"


def models(home: Home) -> dict[str, dict[str, object]]:
    return {row["id"]: row for row in home.json("ls")["models"]}


@contextmanager
def new_home() -> Generator[Home]:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="h") as folder:
        yield Home(Path(folder))


@contextmanager
def serving(home: Home, **env: str) -> Generator[Server]:
    words = ("serve", *ANY_PORT, "--threads", "1", "--engine", "embedded", "--api-key", "sesame")
    with Server(words, home.folder, env) as running:
        yield running.wait_listening()


@pytest.fixture(scope="module")
def home() -> Generator[Home]:
    with new_home() as home:
        yield home


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Generator[FakeHub]:
    root = tmp_path_factory.mktemp("hub")
    file = root / TINY_FILE
    file.parent.mkdir(parents=True)
    shutil.copyfile(STARTER, file)
    with fake_hub(root) as running:
        yield running


@pytest.fixture(scope="module")
def server(home: Home, hub: FakeHub) -> Generator[Server]:
    """The server of the home, for tests that leave it without a model of the hub."""
    with serving(home, HF_ENDPOINT=hub.url) as running:
        yield running


def test_from_pull_to_rm_without_an_address_or_a_key(home: Home, server: Server) -> None:
    """The hub is known to the server alone: a command that downloaded for itself would find nothing."""
    server.wait_for(lambda: "run starter" in server.told())
    assert "--url" not in server.told()  # what it advises needs none
    assert TINY in home.good("pull", "acme/Tiny-GGUF")
    assert TINY in home.good("pull", "acme/Tiny-GGUF"), "what is here is not fetched again"
    assert models(home)[TINY]["state"] == "unloaded"
    assert home.good("run", TINY, "What is your name?").strip()
    assert TINY in home.good("ps")
    assert f"'{TINY}' is running" in home.bad("rm", TINY)
    home.good("unload", TINY)
    assert f"removed {TINY}" in home.good("rm", "acme/Tiny-GGUF")
    assert TINY not in models(home)
    assert "no repository acme/None" in home.bad("pull", "acme/None")


def test_a_file_in_the_folder_that_ls_names_is_there_in_the_next_ls_and_goes_with_rm(
    home: Home, server: Server
) -> None:
    folder = next(line for line in home.good("ls").splitlines() if line.startswith("Models folder: "))[15:]
    shutil.copyfile(STARTER, Path(folder) / "mine.gguf")
    assert models(home)["mine"]["source"] == "models_dir"
    assert home.good("run", "mine", "Hello").strip()
    home.good("unload", "mine")
    home.good("rm", "mine", "--yes")
    assert not (Path(folder) / "mine.gguf").exists()
    if os.geteuid() != 0:  # which may read everything
        (Path(folder) / "closed.gguf").touch(0o000)
        assert "'sudo chmod a+r" in home.good("ls")


def test_rm_names_every_file_of_a_model_with_a_server_and_without() -> None:
    with new_home() as home:
        check_rm(home)


def check_rm(home: Home) -> None:
    folder = Path(home.json("ls")["models_dir"])
    parts = [folder / f"big-Q8_0-0000{number}-of-00002.gguf" for number in (1, 2)]

    def check_removed() -> None:
        for part in parts:
            write_model(part, split__count=2)
        size = sum(occupied(part.stat()) for part in parts)
        assert home.json("rm", "big-Q8_0") == {
            "model": "big-Q8_0",
            "paths": [str(part) for part in parts],
            "size": size,
        }
        assert not any(part.exists() for part in parts)

    check_removed()
    with home.serve().wait_listening():
        check_removed()


def test_who_stops_a_pull_pauses_the_servers_download_and_the_same_command_goes_on(
    home: Home, server: Server, hub: FakeHub
) -> None:
    hub.behave(rate=400_000)
    before = hub.sent()
    command = [str(COMMAND), "pull", "acme/Tiny-GGUF", "--json"]
    with subprocess.Popen(
        command, cwd=home.folder, env=fresh_environment(home.folder), stdout=subprocess.PIPE, text=True
    ) as pull:
        assert json.loads(pull.stdout.readline())["event"] == "plan"
        wait(lambda: hub.sent() > before + 100_000, within=30)
        pull.send_signal(signal.SIGINT)
        assert json.loads(pull.stdout.read().splitlines()[-1])["event"] == "cancelled"
        assert pull.wait(30) == 130
    had = hub.sent()
    hub.behave()
    assert TINY in home.good("pull", "acme/Tiny-GGUF")
    assert hub.sent() < had + STARTER.stat().st_size - 50_000, "it began from nothing"
    home.good("rm", "acme/Tiny-GGUF")


def test_the_command_says_which_server_it_asks_and_can_be_told_another() -> None:
    with new_home() as home, serving(home) as server:
        check_choice(home, server)


def check_choice(home: Home, server: Server) -> None:
    data = Path(fresh_environment(home.folder)["XDG_DATA_HOME"])
    socket = f"unix:{data / 'llama-appliance' / 'server.sock'}"
    assert f"server: {socket} (your own server runs)" in home.good("ps", "-v")
    assert f"server: {server.url} (--url)" in home.good("ps", "-v", "--url", server.url, "--api-key", "sesame")
    assert f"server: {socket} (LLAMA_APPLIANCE_URL)" in home.run("ps", "-v", env={"LLAMA_APPLIANCE_URL": socket}).stderr
    assert "there is no service on this machine" in home.bad("ls", "--system")
    assert "--limit-rate" in home.bad("pull", TINY, "--limit-rate", "1M", "--url", socket)
    server.process.kill()
    server.process.wait(10)
    assert "server: http://127.0.0.1:8080 (the default" in home.good("ls", "-v"), "a dead server's file is no server"
