"""``engines``: every verb, with builds that can be told to lie."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from command_line import Command
from engine_folders import Lie, Listed, make_build, pack, tell
from fake_nvml_library import build as build_nvml
from hub_process import FakeHub
from program import ANY_PORT, COMMAND, Server, StartServer, answer
from serving import two_sizes
from waiting import wait

if sys.platform == "win32":
    pytest.skip("the lying engine is a shell script", allow_module_level=True)

CPU = "linux-x64-cpu"
CARD = Listed(name="Vulkan0", description="Test Card 9000")
NOWHERE = "http://127.0.0.1:9/llama-b1.tar.gz"
ENGINES = "LLAMA_APPLIANCE_ENGINES_DIR"


class Machine(Command):
    """``engines`` on a user's machine; builds are installed into ``root``."""

    def __init__(self, capfd: pytest.CaptureFixture[str], folder: Path) -> None:
        super().__init__(capfd, ("engines",))
        self.folder, self.root = folder, folder / "engines"

    def install(self, *builds: str) -> None:
        """Take in builds for the processor by these names."""
        for build in builds:
            self.good("install", "--from", self.build(build))

    def build(self, build: str) -> str:
        """A folder with a build for the processor."""
        return str(make_build(self.folder / "source", build=build))

    def table(self) -> dict[str, Any]:
        return self.json("ls")

    def used(self) -> str:
        return self.table()["used"]

    def seats(self) -> dict[str, str]:
        return {seat["id"]: seat["standing"] for build in self.table()["builds"] for seat in build["seats"]}


@pytest.fixture
def machine(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    machine = Machine(command.capfd, tmp_path)
    monkeypatch.setenv(ENGINES, str(machine.root))
    return machine


@pytest.mark.needs("libvulkan")
def test_install_use_pin_and_back(machine: Machine, tmp_path: Path) -> None:
    assert "works, at 1000 and 100 tokens/s" in machine.good("install", "--from", machine.build("b100"))
    fast = Lie(prompt_speed=9000, generation_speed=900)
    archive = pack(make_build(tmp_path / "source", "vulkan", "b100", devices=[CARD], lie=fast), tmp_path / "v.tar.gz")
    machine.good("install", "vulkan", "--from", archive)
    table = machine.table()
    assert table["used"] == "linux-x64-vulkan/b100:Vulkan0"
    assert re.fullmatch(r"the best of \d that are proven here", table["reason"])
    machine.good("use", "cpu")
    table = machine.table()
    assert (table["used"], table["reason"]) == (f"{CPU}/b100:CPU", "'cpu' was asked for by 'engines use'")
    machine.good("use", "vulkan", "--model", "starter")
    assert machine.table()["models"] == {"starter": "vulkan"}
    machine.good("pin", "vulkan")
    table = machine.table()
    assert (table["used"], table["pinned"]) == ("linux-x64-vulkan/b100:Vulkan0", True)
    assert "is pinned to 'vulkan'" in machine.bad("update", "--yes")
    machine.good("use", "auto")
    machine.good("use", "auto", "--model", "starter")
    table = machine.table()
    assert (table["use"], table["pinned"], table["models"]) == (None, False, {})


def test_words_that_mean_nothing_are_told_with_what_there_is(machine: Machine) -> None:
    machine.install("b100")
    for line, told in (
        ("use cuda", "'cuda' is not an engine of this machine; it has cpu"),
        ("pin nonsense", "not an engine of this machine"),
        ("pin auto", "cannot be pinned"),
        ("prove nonsense", "no engine 'nonsense' here; there is"),
        ("forget nonsense", "no build 'nonsense' here"),
        ("rollback", "nothing to go back to"),
        ("remove nonsense", "'nonsense' is not a build that was installed here"),
        ("install nonsense", "is not a build; write a backend"),
        ("install cpu --from nowhere", "no such file or folder"),
        ("install cpu/b1 --from http://localhost:1/a.zip", "give its sum with --sha256"),
        ("install cpu/b1 --from http://localhost:1/a.zip --sha256 1", "64 digits"),
        ("update vulkan --yes", "no vulkan build works here"),
        (f"update --from {machine.build('b200')}", "add --yes"),
        ("update --channel nightly", "nightly"),
        ("update --channel stable --from .", "--from names a build"),
    ):
        assert told in machine.bad(*line.split())
    assert machine.table()["channel"] == "latest"
    told = machine.bad("install", "cpu/b1", "--from", NOWHERE, "--sha256", "0" * 64, status=1)
    for words in (f"{NOWHERE} could not be fetched", "--from llama-b1.tar.gz"):
        assert words in told, "how to carry the archive"
    assert "model hub" not in told


def test_a_build_for_another_machine_is_refused_before_it_comes(machine: Machine, tmp_path: Path) -> None:
    folder = make_build(tmp_path / "source", "cuda12", "b100")
    told = machine.bad("install", "--from", folder)
    assert "linux-x64-cuda12/b100 cannot run here: it needs a graphics card of NVIDIA" in told
    other = make_build(tmp_path / "source", "cpu", "b100")
    (other / "engine.json").write_text((other / "engine.json").read_text().replace("linux-x64", "windows-x64"))
    assert "this build is for windows-x64" in machine.bad("install", "--from", other)
    assert not list(machine.root.glob("*/*"))
    machine.good("install", "--from", other, "--platform", "windows-x64")
    assert (machine.root / "windows-x64-cpu" / "b100" / "engine.json").is_file()


@pytest.mark.slow
def test_the_only_working_build_and_the_chosen_one_stay(machine: Machine) -> None:
    machine.install("b100", "b200")
    machine.good("use", f"{CPU}/b200")
    assert "was chosen with" in machine.bad("remove", f"{CPU}/b200")
    machine.good("use", "auto")
    machine.good("prove", f"{CPU}/b100", f"{CPU}/b200")
    machine.good("remove", f"{CPU}/b200")
    assert "the only engine that is known to work here" in machine.bad("remove", f"{CPU}/b100")
    assert list(machine.root.glob("*/*/engine.json")) == [machine.root / CPU / "b100" / "engine.json"]


@pytest.mark.slow
@pytest.mark.needs("libvulkan")
def test_an_archive_is_checked_although_its_build_is_installed_already(machine: Machine, tmp_path: Path) -> None:
    """A sum that is given is compared, or the output says that it was not; and a build that fails is no success."""
    archive = pack(make_build(tmp_path / "source", build="b1"), tmp_path / "llama-b1.tar.gz")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    machine.good("install", "--from", archive)
    assert "has another sum than 0000" in machine.bad("install", "--from", archive, "--sha256", "0" * 64, status=1)
    assert "is installed already" in machine.good("install", "--from", archive, "--sha256", digest)
    found = machine.good("install", "cpu/b1", "--from", NOWHERE, "--sha256", "0" * 64)
    assert f"{NOWHERE} was not fetched" in found
    bad = make_build(tmp_path / "bad", "vulkan", "b1", devices=[CARD], lie=Lie(work="garbage"))
    for _ in range(2):
        assert "does not work on this machine" in machine.bad("install", "--from", bad, status=1)


def test_a_choice_that_cannot_be_written_is_not_reported_as_made(machine: Machine) -> None:
    machine.install("b100")
    blocked = machine.root / ".state.json.new"
    blocked.mkdir()  # where a folder is, no file can be written
    for words in (("use", "cpu"), ("pin", "cpu"), ("forget",)):
        assert "nothing has changed" in machine.bad(*words, status=1)
    assert machine.table()["use"] is None
    blocked.rmdir()
    machine.good("use", "cpu")
    assert machine.table()["use"] == "cpu"


def test_what_was_left_and_cannot_be_cleared_up_keeps_nobody_from_looking(machine: Machine) -> None:
    machine.install("b100")
    (machine.root / ".work").mkdir()
    lock = machine.root / ".change.lock"
    lock.unlink()
    lock.mkdir()
    assert "cannot be removed" in machine.good("ls")
    told = machine.bad("use", "cpu", status=1)
    assert str(machine.root) in told
    assert ENGINES in told


@pytest.mark.slow
def test_updates_follow_the_channel_that_was_chosen(machine: Machine) -> None:
    """llama.cpp 0.6.0 is b11429; b11457 is the newest build of the list."""
    machine.install("b11429")
    assert f"{CPU}/b11457 would replace {CPU}/b11429; add --yes" in machine.bad("update")
    assert machine.json("update", "--channel", "stable") == {
        "changed": False,
        "build": f"{CPU}/b11429",
        "release": "0.6.0",
        "before": f"{CPU}/b11429",
        "channel": "stable",
        "why": f"{CPU}/b11429 is in use already",
    }
    found = machine.table()
    assert (found["channel"], found["builds"][0]["release"]) == ("stable", "0.6.0")
    shown = machine.good("ls")
    assert "installed, 0.6.0" in shown
    assert "Updates: stable builds alone" in shown
    assert f"{CPU}/b11429 is in use already" in machine.good("update"), "it is remembered"
    assert "add --yes" in machine.bad("update", "--channel", "latest")
    assert machine.table()["channel"] == "stable", "what was not agreed to is not remembered"
    done = machine.json("update", "--from", machine.build("b11457"), "--yes")
    assert (done["changed"], done["build"], done["release"], done["channel"]) == (True, f"{CPU}/b11457", "", "stable")
    assert f"{CPU}/b11429 is older than {CPU}/b11457" in machine.good("update")
    unknown = ("update", "--from", machine.build("0.7.0"), "--yes")
    assert f"does not say whether {CPU}/0.7.0 is newer than {CPU}/b11457; --force takes it" in machine.good(*unknown)
    machine.good(*unknown, "--force")
    assert machine.used() == f"{CPU}/0.7.0:CPU"


@pytest.mark.slow
def test_an_update_is_taken_back_by_hand_and_not_offered_again(machine: Machine) -> None:
    machine.install("b100")
    update = ("update", "--from", machine.build("b200"), "--yes")
    for words, told, used in (
        (update, "100 tokens/s, before 100", "b200"),
        (("rollback",), "", "b100"),
        (update, "was rolled back", "b100"),
        ((*update, "--force"), "", "b200"),
    ):
        assert told in machine.good(*words)
        assert machine.used() == f"{CPU}/{used}:CPU"


@pytest.mark.slow
def test_a_download_that_is_killed_goes_on_where_it_was(machine: Machine, hub: FakeHub, tmp_path: Path) -> None:
    size, place = 24 << 20, hub.root / "acme" / "builds"
    folder = make_build(tmp_path / "source", build="b100")
    (folder / "libggml.so").write_bytes(os.urandom(size))
    place.mkdir()
    archive = pack(folder, place / "llama-b100-bin.tar.gz")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    commit = hashlib.sha1(f"{archive.name} {digest}\n".encode()).hexdigest()
    url = f"{hub.url}/acme/builds/resolve/{commit}/{archive.name}"
    words = ("install", "cpu/b100", "--from", url, "--sha256", digest)
    hub.behave(rate=12_000_000)
    with subprocess.Popen([COMMAND, "engines", *words], stderr=subprocess.DEVNULL) as process:
        try:
            wait(lambda: hub.sent() >= size // 2 or process.poll() is not None, within=60)
        finally:
            process.kill()
    assert not list(machine.root.glob("*/*/engine.json"))
    hub.behave()
    assert "already here" in machine.good(*words)
    assert machine.seats()[f"{CPU}/b100:CPU"] == "proven"
    last = [entry for entry in hub.requests("cdn") if entry["sent"] and entry["range"]][-1]
    assert int(re.findall(r"\d+", last["range"])[0]) > size // 4


def chat(server: Server) -> None:
    answer(server, "/v1/chat/completions", model="starter", messages=[{"role": "user", "content": "Hi"}], max_tokens=4)


@pytest.mark.slow
def test_a_running_server_follows_and_leaves_a_new_build_that_fails_in_its_first_hour(
    machine: Machine, command: Command, start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = f"{CPU}/b100", f"{CPU}/b200"
    machine.install("b100")
    machine.good("update", "--from", machine.build("b200"), "--yes")
    with start_server("serve", *ANY_PORT, env={ENGINES: str(machine.root)}) as server:
        monkeypatch.setenv("LLAMA_APPLIANCE_URL", server.url)
        chat(server)
        table = machine.table()
        assert (table["server"], table["running"]) == (server.url, {"starter": f"{new}:CPU"})
        assert "a running model uses" in machine.bad("remove", new)
        for choice, used in ((old, old), ("auto", new)):
            machine.good("use", choice)
            assert machine.used() == f"{used}:CPU"
        command.good("unload", "starter")
        tell(machine.root / new, Lie(load="abort"))
        chat(server)
        table = machine.table()
        assert (table["used"], table["running"]) == (f"{old}:CPU", {"starter": f"{old}:CPU"})
        builds = {build["id"]: build for build in table["builds"]}
        assert (builds[old]["role"], builds[old]["withdrawn"], builds[new]["role"]) == ("current", "", "withdrawn")
        assert "after the switch" in builds[new]["withdrawn"]
    monkeypatch.delenv("LLAMA_APPLIANCE_URL")
    assert machine.used() == f"{old}:CPU"
    machine.good("remove", new, "--force")
    assert [build["id"] for build in machine.table()["builds"] if build["id"].startswith(CPU)] == [old]


class Proving(Server):
    """``engines prove`` under way, for a user of its own; engines and the cache are those of all."""

    def __init__(self, machine: Machine, name: str) -> None:
        folder = machine.folder / name
        folder.mkdir()
        own = {ENGINES: str(machine.root), "XDG_CACHE_HOME": str(machine.folder / "cache")}
        with (folder / "output").open("wb") as output:
            super().__init__(("engines", "prove", "--json", f"{CPU}/b1"), folder, own, output=output.fileno())

    def trials(self) -> list[psutil.Process]:
        found = list[psutil.Process]()
        for child in self.children():
            with suppress(psutil.Error):  # it ended while we looked
                found += [child] if "--port" in child.cmdline() else []
        return found

    def ended_well(self) -> Any:
        assert self.wait(60) == 0, self.told()
        return json.loads((self.cwd / "output").read_text())


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[FakeHub]:
    with two_sizes(tmp_path, monkeypatch) as running:
        yield running


@pytest.fixture
def proving(machine: Machine) -> Generator[Callable[[str], Proving]]:
    with ExitStack() as begun:
        yield lambda name: begun.enter_context(Proving(machine, name))


@pytest.mark.slow
def test_programs_try_engines_one_after_the_other_and_a_dead_one_holds_nobody_up(
    machine: Machine, proving: Callable[[str], Proving]
) -> None:
    """What one of them has proven meanwhile is not proven again by the next."""
    build = make_build(machine.root, build="b1", lie=Lie(load="hang"))
    first = proving("first")
    wait(first.trials, within=60)
    others = [proving("second"), proving("third")]
    for each in others:
        each.wait_for(lambda each=each: "another program tries engines on this machine" in each.told())
        assert not each.trials()
    tell(build, Lie())
    first.process.kill()
    told = [each.ended_well() for each in others]
    assert told[0]["ok"]
    assert told[0] == told[1], "also the time of the trial"


@pytest.mark.slow
def test_a_build_that_came_since_the_last_look_is_asked_for_its_cards_and_proven(machine: Machine) -> None:
    make_build(machine.root, "cpu", "b1")
    assert machine.seats()[f"{CPU}/b1:CPU"] == "untried"
    make_build(machine.root, "cuda13", "b2", devices=[Listed(name="CUDA0")], lie=Lie(prompt_speed=9e4))
    assert machine.seats()["linux-x64-cuda13/b2:CUDA0"] == "untried"
    make_build(machine.root, "cuda12", "b3", devices=[Listed(name="CUDA0")])
    proofs = machine.json("prove")["proofs"]
    assert {proof["build"] for proof in proofs if proof["device"].startswith("CUDA0")} == {
        "linux-x64-cuda13/b2", "linux-x64-cuda12/b3",
    }  # fmt: skip
    assert machine.used() == "linux-x64-cuda13/b2:CUDA0"


@pytest.mark.needs("cc")
@pytest.mark.skipif(sys.platform != "linux", reason="the driver's library is made for Linux")
def test_a_card_that_nothing_uses_is_offered_the_build_that_runs_here(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By a driver's library that tells of two cards of NVIDIA's, and the real list of builds."""
    build_nvml(tmp_path / "lib")
    (tmp_path / "lib" / "libvulkan.so.1").symlink_to("libnvidia-ml.so.1")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "lib"))
    assert "  graphics   NVIDIA Fake 1 (nvidia 570.86, 8.6 GB)\n" in machine.good("probe")
    [first, _] = machine.table()["offers"]
    assert (first["card"], first["word"]) == ("NVIDIA Fake 1", "vulkan")
    assert first["size"] > 10_000_000
    assert "cuda12" in first["problems"][0]
    told = machine.bad("install")
    assert "NVIDIA Fake 1 computes nothing here: linux-x64-vulkan/" in told
    assert "'engines install vulkan'" in told
    assert "say which build" in told  # nobody could agree here
    make_build(machine.root, "vulkan", "b9", devices=[CARD])
    assert not machine.table()["offers"]
