"""``llama-appliance engines``: every verb, with builds that can be told to lie."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine_folders import Lie, Listed, make_build, pack, tell
from fake_nvml_library import build as build_nvml
from homes import Home
from hub_process import FakeHub, fake_hub
from program import COMMAND, Server, fresh_environment, http
from waiting import wait

if sys.platform == "win32":
    pytest.skip("the lying engine is a shell script", allow_module_level=True)

CPU = "linux-x64-cpu"
CARD = Listed(name="Vulkan0", description="Test Card 9000")
SIZE = 24 << 20


class Machine(Home):
    """``engines`` on a user's machine; builds are installed into ``root``."""

    front = ("engines",)

    def __init__(self, folder: Path) -> None:
        self.root = folder / "engines"
        super().__init__(folder, {"LLAMA_APPLIANCE_ENGINES_DIR": str(self.root)})

    def install(self, *builds: str) -> None:
        """Take in builds for the processor by these names."""
        for build in builds:
            self.good("install", "--from", self.build(build))

    def build(self, build: str) -> str:
        """A folder with a build for the processor."""
        return str(make_build(self.folder / "source", build=build))

    def table(self) -> dict[str, Any]:
        return self.json("ls")

    def seats(self) -> dict[str, str]:
        return {seat["id"]: seat["standing"] for build in self.table()["builds"] for seat in build["seats"]}


class Command:
    """``engines`` under way, with a cache that several machines may share."""

    def __init__(self, machine: Machine, cache: Path, *words: str) -> None:
        self._output, self._errors = machine.folder / "output", machine.folder / "errors"
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [str(COMMAND), "engines", *words],
                cwd=machine.folder,
                env=fresh_environment(machine.folder) | machine.env | {"XDG_CACHE_HOME": str(cache)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
            )

    def trials(self) -> list[psutil.Process]:
        found = list[psutil.Process]()
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error):  # it ended while we looked
                found += [child] if "--port" in child.cmdline() else []
        return found

    def wait_waiting(self) -> None:
        wait(lambda: "another program tries engines on this machine" in self._errors.read_text(), within=60)

    def ended_well(self) -> Any:
        assert self.process.wait(60) == 0, self._errors.read_text()
        return json.loads(self._output.read_text())


@contextmanager
def proving(machine: Machine, cache: Path) -> Generator[Command]:
    command = Command(machine, cache, "prove", "--json", f"{CPU}/b1")
    try:
        yield command
    finally:
        command.process.kill()
        command.process.wait(10)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "home")


@pytest.mark.needs("libvulkan")
def test_install_use_pin_and_back(machine: Machine, tmp_path: Path) -> None:
    source = tmp_path / "source"
    assert "works, at 1000 and 100 tokens/s" in machine.good("install", "--from", str(make_build(source, build="b100")))
    fast = Lie(prompt_speed=9000, generation_speed=900)
    archive = pack(make_build(source, "vulkan", "b100", devices=[CARD], lie=fast), tmp_path / "vulkan.tar.gz")
    machine.good("install", "vulkan", "--from", str(archive))
    table = machine.table()
    assert table["used"] == "linux-x64-vulkan/b100:Vulkan0"
    assert re.fullmatch(r"the best of \d that are proven here", table["reason"])
    machine.good("use", "cpu")
    assert machine.table()["used"] == f"{CPU}/b100:CPU"
    assert machine.table()["reason"] == "'cpu' was asked for by 'engines use'"
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


def test_words_that_mean_nothing_are_told_with_what_there_is(machine: Machine, tmp_path: Path) -> None:
    machine.install("b100")
    assert "'cuda' is not an engine of this machine; it has cpu" in machine.bad("use", "cuda")
    assert "not an engine of this machine" in machine.bad("pin", "nonsense")
    assert "cannot be pinned" in machine.bad("pin", "auto")
    assert "no engine 'nonsense' here; there is" in machine.bad("prove", "nonsense")
    assert "no build 'nonsense' here" in machine.bad("forget", "nonsense")
    assert "nothing to go back to" in machine.bad("rollback")
    assert "'nonsense' is not a build that was installed here" in machine.bad("remove", "nonsense")
    assert "is not a build; write a backend" in machine.bad("install", "nonsense")
    assert "no such file or folder" in machine.bad("install", "cpu", "--from", "nowhere")
    assert "give its sum with --sha256" in machine.bad("install", "cpu/b1", "--from", "http://localhost:1/a.zip")
    assert "64 digits" in machine.bad("install", "cpu/b1", "--from", "http://localhost:1/a.zip", "--sha256", "1")
    assert "no vulkan build works here" in machine.bad("update", "vulkan", "--yes")
    assert "add --yes" in machine.bad("update", "--from", machine.build("b200"))


def test_a_build_for_another_machine_is_refused_before_it_comes(machine: Machine, tmp_path: Path) -> None:
    folder = make_build(tmp_path / "source", "cuda12", "b100")
    told = machine.bad("install", "--from", str(folder))
    assert "linux-x64-cuda12/b100 cannot run here: it needs a graphics card of NVIDIA" in told
    other = make_build(tmp_path / "source", "cpu", "b100")
    (other / "engine.json").write_text((other / "engine.json").read_text().replace("linux-x64", "windows-x64"))
    assert "this build is for windows-x64" in machine.bad("install", "--from", str(other))
    assert not list(machine.root.glob("*/*"))
    machine.good("install", "--from", str(other), "--platform", "windows-x64")
    assert (machine.root / "windows-x64-cpu" / "b100" / "engine.json").is_file()


def test_the_only_working_build_and_the_chosen_one_stay(machine: Machine, tmp_path: Path) -> None:
    machine.install("b100", "b200")
    machine.good("use", f"{CPU}/b200")
    assert "was chosen with" in machine.bad("remove", f"{CPU}/b200")
    machine.good("use", "auto")
    machine.good("prove", f"{CPU}/b100", f"{CPU}/b200")
    machine.good("remove", f"{CPU}/b200")
    assert "the only engine that is known to work here" in machine.bad("remove", f"{CPU}/b100")
    assert list(machine.root.glob("*/*/engine.json")) == [machine.root / CPU / "b100" / "engine.json"]


@pytest.mark.needs("libvulkan")
def test_an_archive_is_checked_although_its_build_is_installed_already(machine: Machine, tmp_path: Path) -> None:
    """A sum that is given is compared, or the output says that it was not; and a build that fails is no success."""
    archive = pack(make_build(tmp_path / "source", build="b100"), tmp_path / "llama-b100.tar.gz")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    machine.good("install", "--from", str(archive))
    assert "has another sum than 0000" in machine.bad("install", "--from", str(archive), "--sha256", "0" * 64, status=1)
    assert "is installed already" in machine.good("install", "--from", str(archive), "--sha256", digest)
    url = "http://127.0.0.1:9/llama-b100.tar.gz"
    assert f"{url} was not fetched" in machine.good("install", "cpu/b100", "--from", url, "--sha256", "0" * 64)
    bad = make_build(tmp_path / "bad", "vulkan", "b100", devices=[CARD], lie=Lie(work="garbage"))
    machine.run("install", "--from", str(bad))
    assert "does not work on this machine" in machine.bad("install", "--from", str(bad), status=1)


def test_a_choice_that_cannot_be_written_is_not_reported_as_made(machine: Machine, tmp_path: Path) -> None:
    machine.install("b100")
    blocked = machine.root / ".state.json.new"
    blocked.mkdir()  # where a folder is, no file can be written
    for words in (("use", "cpu"), ("pin", "cpu"), ("forget",)):
        assert "nothing has changed" in machine.bad(*words, status=1)
    assert machine.table()["use"] is None
    blocked.rmdir()
    machine.good("use", "cpu")
    assert machine.table()["use"] == "cpu"


def test_what_was_left_and_cannot_be_cleared_up_keeps_nobody_from_looking(machine: Machine, tmp_path: Path) -> None:
    machine.install("b100")
    (machine.root / ".work").mkdir()
    lock = machine.root / ".change.lock"
    lock.unlink()
    lock.mkdir()
    assert "cannot be removed" in machine.good("ls")
    told = machine.bad("use", "cpu", status=1)
    assert str(machine.root) in told
    assert "LLAMA_APPLIANCE_ENGINES_DIR" in told


def test_without_a_way_to_the_server_the_error_says_how_to_carry_the_archive(machine: Machine) -> None:
    words = ("install", "cpu/b1", "--from", "http://127.0.0.1:9/llama-b1.tar.gz", "--sha256", "0" * 64)
    told = machine.bad(*words, status=1)
    assert "http://127.0.0.1:9/llama-b1.tar.gz could not be fetched" in told
    assert "--from llama-b1.tar.gz" in told
    assert "model hub" not in told


def test_updates_follow_the_channel_that_was_chosen(machine: Machine, tmp_path: Path) -> None:
    """llama.cpp 0.6.0 is b11429; b11457 is the newest build of the list."""
    machine.install("b11429")
    machine.bad("update", "--channel", "nightly")
    assert "--from names a build" in machine.bad("update", "--channel", "stable", "--from", str(tmp_path))
    assert machine.table()["channel"] == "latest"
    assert f"{CPU}/b11457 would replace {CPU}/b11429; add --yes" in machine.bad("update")
    stays = json.loads(machine.good("update", "--channel", "stable", "--json"))
    assert stays == {
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
    newer = machine.build("b11457")
    done = json.loads(machine.good("update", "--from", newer, "--yes", "--json").partition("}")[0] + "}")
    assert (done["changed"], done["build"], done["release"], done["channel"]) == (True, f"{CPU}/b11457", "", "stable")
    assert f"{CPU}/b11429 is older than {CPU}/b11457" in machine.good("update")
    unknown = machine.build("0.7.0")
    told = machine.good("update", "--from", unknown, "--yes")
    assert f"does not say whether {CPU}/0.7.0 is newer than {CPU}/b11457; --force takes it" in told
    machine.good("update", "--from", unknown, "--yes", "--force")
    assert machine.table()["used"] == f"{CPU}/0.7.0:CPU"


def test_an_update_is_taken_back_by_hand_and_not_offered_again(machine: Machine, tmp_path: Path) -> None:
    machine.install("b100")
    new = machine.build("b200")
    assert "100 tokens/s, before 100" in machine.good("update", "--from", new, "--yes")
    assert machine.table()["used"] == f"{CPU}/b200:CPU"
    machine.good("rollback")
    assert machine.table()["used"] == f"{CPU}/b100:CPU"
    assert "was rolled back" in machine.good("update", "--from", new, "--yes")
    assert machine.table()["used"] == f"{CPU}/b100:CPU"
    machine.good("update", "--from", new, "--yes", "--force")
    assert machine.table()["used"] == f"{CPU}/b200:CPU"


# ---- downloads -------------------------------------------------------------------------------------------------------


def served(hub: FakeHub, archive: Path) -> tuple[str, str]:
    """The archive's address at the hub, and its sum."""
    commit = hashlib.sha1(f"{archive} {hashlib.sha256(archive.read_bytes()).hexdigest()}\n".encode()).hexdigest()
    return f"{hub.url}/acme/builds/resolve/{commit}/{archive.name}", hashlib.sha256(archive.read_bytes()).hexdigest()


def large_archive(hub: FakeHub, tmp_path: Path) -> Path:
    folder = make_build(tmp_path / "source", build="b100")
    (folder / "libggml.so").write_bytes(os.urandom(SIZE))
    place = hub.root / "acme" / "builds"
    place.mkdir(parents=True)
    return pack(folder, place / "llama-b100-bin.tar.gz")


def test_a_download_that_is_killed_goes_on_where_it_was(machine: Machine, tmp_path: Path) -> None:
    with fake_hub(tmp_path / "hub") as hub:
        archive = large_archive(hub, tmp_path)
        url, sha256 = served(hub, archive)
        hub.behave(rate=12_000_000)
        words = ["engines", "install", "cpu/b100", "--from", url, "--sha256", sha256]
        environment = {**fresh_environment(machine.folder), **machine.env}
        with subprocess.Popen(
            [str(COMMAND), *words], cwd=machine.folder, env=environment, stderr=subprocess.DEVNULL
        ) as process:
            try:
                wait(lambda: not (hub.sent() < SIZE // 2 and process.poll() is None), within=60)
            finally:
                process.kill()
        assert not list(machine.root.glob("*/*/engine.json"))
        hub.behave()
        told = machine.good(*words[1:])
        assert "already here" in told
        assert machine.seats()[f"{CPU}/b100:CPU"] == "proven"
        second = [entry for entry in hub.requests("cdn") if entry["sent"] and entry["range"]]
        assert second
        assert int(re.findall(r"\d+", second[-1]["range"])[0]) > SIZE // 4


# ---- beside a running server -----------------------------------------------------------------------------------------


def chat(server: Server) -> Any:
    body = {"model": "starter", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    return http(server, "POST", "/v1/chat/completions", body)


def test_a_running_server_follows_and_its_engine_is_not_removed(machine: Machine, tmp_path: Path) -> None:
    machine.install("b100", "b200")
    machine.good("prove", f"{CPU}/b100", f"{CPU}/b200")
    with machine.serve().wait_listening() as server:
        machine.env["LLAMA_APPLIANCE_URL"] = server.url
        assert machine.table()["server"] == server.url
        assert chat(server).status == 200
        used = machine.table()["running"]["starter"].partition(":")[0]
        assert used in (f"{CPU}/b100", f"{CPU}/b200")
        assert "a running model uses" in machine.bad("remove", used)
        other = f"{CPU}/b100" if used.endswith("b200") else f"{CPU}/b200"
        machine.good("use", other)
        assert machine.table()["used"] == f"{other}:CPU"
        machine.good("use", "auto")
        machine.good("remove", other, "--force")
        assert other not in [build["id"] for build in machine.table()["builds"]]


def test_a_new_build_that_fails_in_its_first_hour_gives_way_to_the_old_one(machine: Machine, tmp_path: Path) -> None:
    machine.install("b100")
    machine.good("update", "--from", machine.build("b200"), "--yes")
    with machine.serve().wait_listening() as server:
        machine.env["LLAMA_APPLIANCE_URL"] = server.url
        assert machine.table()["used"] == f"{CPU}/b200:CPU"
        tell(machine.root / CPU / "b200", Lie(load="abort"))
        assert chat(server).status == 200, server.told()
        table = machine.table()
        assert table["used"] == f"{CPU}/b100:CPU"
        assert table["running"] == {"starter": f"{CPU}/b100:CPU"}
        roles = {build["id"]: (build["role"], build["withdrawn"]) for build in table["builds"]}
        assert roles[f"{CPU}/b100"] == ("current", "")
        assert roles[f"{CPU}/b200"][0] == "withdrawn"
        assert "after the switch" in roles[f"{CPU}/b200"][1]
    del machine.env["LLAMA_APPLIANCE_URL"]
    assert machine.table()["used"] == f"{CPU}/b100:CPU"


def test_programs_try_engines_one_after_the_other_and_a_dead_one_holds_nobody_up(tmp_path: Path) -> None:
    machines = [Machine(tmp_path / name) for name in ("first", "second")]
    for machine, lie in zip(machines, (Lie(load="hang"), Lie()), strict=True):
        make_build(machine.root, build="b1", lie=lie)
    with proving(machines[0], tmp_path / "cache") as first:
        wait(first.trials, within=60)
        with proving(machines[1], tmp_path / "cache") as second:
            second.wait_waiting()
            assert not second.trials()
            first.process.kill()
            assert second.ended_well()["ok"]


def test_what_another_program_has_proven_meanwhile_is_not_proven_again(machine: Machine, tmp_path: Path) -> None:
    make_build(machine.root, build="b1", lie=Lie(load_delay=2.0))  # long enough to be seen at a look in half a second
    other = Machine(tmp_path / "other")
    other.env = machine.env
    with proving(machine, tmp_path / "cache") as first:
        (trial,) = wait(first.trials, within=60)
        trial.send_signal(signal.SIGSTOP)
        with proving(other, tmp_path / "cache") as second:
            second.wait_waiting()
            trial.send_signal(signal.SIGCONT)
            assert first.ended_well() == second.ended_well()


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
    assert machine.table()["used"] == "linux-x64-cuda13/b2:CUDA0"


@pytest.mark.needs("cc")
@pytest.mark.skipif(sys.platform != "linux", reason="the driver's library is made for Linux")
def test_a_card_that_nothing_uses_is_offered_the_build_that_runs_here(machine: Machine, tmp_path: Path) -> None:
    """By a driver's library that tells of two cards of NVIDIA's, and the real list of builds."""
    build_nvml(tmp_path / "lib")
    (tmp_path / "lib" / "libvulkan.so.1").symlink_to("libnvidia-ml.so.1")
    machine.env["LD_LIBRARY_PATH"] = str(tmp_path / "lib")
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
