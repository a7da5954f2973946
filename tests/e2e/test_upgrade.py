"""Upgrade of the program and the way back, with real payloads, their real programs, and real servers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import psutil
import pytest
from payload_folders import NAME, make_payload, name_of, write_key
from program import Server, fresh_environment, http, wait_gone
from waiting import wait

from appliance.errors import UsageError
from appliance.programs.shelf import refuse_packaged
from appliance.programs.trial import running

if sys.platform == "win32":
    pytest.skip("'upgrade' refuses to work there", allow_module_level=True)

TIME = 120.0


class Machine:
    """A user's machine: the program unpacked in a folder, and a publisher's key."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.base = home / "apps" / "llama"
        if not self.base.exists():
            make_payload(self.base, "0.2.0")
        self.key = write_key(home / "publisher.pub")
        self.programs = home / "xdg_data_home" / NAME / "programs"

    def run(self, *words: str, started: Path | None = None) -> subprocess.CompletedProcess[str]:
        """The user's command, whatever version it leads to."""
        return subprocess.run(
            [str(self.base / NAME), *words],
            cwd=self.home,
            env=fresh_environment(self.home) | ({"STARTED": str(started)} if started is not None else {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIME,
        )

    def install(self, source: Path, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run("upgrade", "install", str(source), "--key", str(self.key), *words)

    def serve(self, *words: str, env: Mapping[str, str] | None = None) -> Server:
        return MachineServer(self, words, env or {})

    def versions(self) -> dict[str, str]:
        """Names of the versions here, and their roles."""
        done = self.run("upgrade", "list", "--json")
        assert done.returncode == 0, done.stderr
        return {row["name"]: row["role"] for row in json.loads(done.stdout)}

    def used(self) -> str:
        """The folder of the version that a start leads to, found out by a start."""
        assert self.run("--version", started=self.home / "started").returncode == 0
        return Path((self.home / "started").read_text().splitlines()[-1]).resolve().parent.name


class MachineServer(Server):
    """A server that was started by the user's command."""

    def __init__(self, machine: Machine, words: tuple[str, ...], env: Mapping[str, str]) -> None:
        self.cwd = machine.home
        self.errors = machine.home / f"server-{time.monotonic_ns()}.err"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [str(machine.base / NAME), "serve", "--listen", "127.0.0.1:0", *words],
                cwd=machine.home,
                env={**fresh_environment(machine.home), **env},
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
            )
        self.host, self.port = "", 0


def folder_of(server: Server) -> str:
    return Path(psutil.Process(server.process.pid).cmdline()[1]).resolve().parent.name


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture(scope="module")
def upgraded_once(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine with an upgrade behind it, to be copied."""
    machine = Machine(tmp_path_factory.mktemp("upgraded") / "home")
    done = machine.install(make_payload(machine.home / "new", "0.3.0"))
    assert done.returncode == 0, done.stderr
    return machine


@pytest.fixture
def upgraded(upgraded_once: Machine, tmp_path: Path) -> Machine:
    shutil.copytree(upgraded_once.home, tmp_path, symlinks=True, dirs_exist_ok=True)
    machine = Machine(tmp_path)
    link = machine.programs / name_of(machine.base)
    link.unlink()
    link.symlink_to(machine.base)
    return machine


def test_tried_beside_the_running_server_then_every_start_leads_to_it(machine: Machine) -> None:
    """The new version takes the running server's options, and an archive is as good as a folder."""
    config = machine.home / "my.yaml"
    config.write_text("store: {path: activity.db}\nlogLevel: info\n", "utf-8")
    new = make_payload(machine.home / "llama-appliance-0.3.0", "0.3.0")
    archive = machine.home / "llama-appliance-0.3.0.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(new, new.name)
    with machine.serve("--config", "my.yaml").wait_listening() as server:
        assert http(server, "POST", "/v1/chat/completions", ASKED).status == 200
        done = machine.install(archive)
        assert done.returncode == 0, done.stderr
        assert "--config my.yaml" in done.stderr
        assert "starter answers" in done.stderr
        assert "restart it" in done.stderr
        assert folder_of(server) == machine.base.name  # what runs goes on
        assert http(server, "POST", "/v1/chat/completions", ASKED).status == 200
    assert machine.used() == name_of(new)
    assert machine.versions() == {name_of(machine.base): "previous", name_of(new): "current"}
    with closing(sqlite3.connect(machine.home / "activity.db.v1")) as kept:
        assert kept.execute("SELECT count(*) FROM activity").fetchone() == (1,)
    assert machine.install(new).returncode == 0, "it is in use already"
    again = machine.run("upgrade", "rollback")
    assert again.returncode == 0, again.stderr
    assert machine.used() == machine.base.name
    assert machine.run("upgrade", "rollback").returncode == 2
    refused = machine.install(new)
    assert refused.returncode == 2
    assert "given up" in refused.stderr


ASKED: dict[str, object] = {"model": "starter", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


def test_what_is_not_taken_changes_nothing(machine: Machine) -> None:
    """Each refusal names what is wrong; the version in use stays."""
    new = make_payload(machine.home / "new", "0.3.0")
    no_key = machine.run("upgrade", "install", str(new))
    assert no_key.returncode == 1
    assert "--key" in no_key.stderr
    foreign = make_payload(machine.home / "foreign", "0.3.0", seed=bytes(32))
    changed = make_payload(machine.home / "changed", "0.3.0")
    (changed / "licenses" / "LICENSE").write_text("of O.3.0\n")
    more = make_payload(machine.home / "more", "0.3.0")
    (more / "evil.so").write_bytes(b"\x7fELF")
    dead = make_payload(machine.home / "dead", "0.3.0", before="sys.exit('no such library')")
    deaf = make_payload(machine.home / "deaf", "0.3.0", before="sys.argv[1:] = ['ls']")
    for payload, why in (
        (foreign, "was not signed with the key"),
        (changed, "LICENSE is not what its list says"),
        (more, "evil.so is not in its list"),
        (dead, "no such library"),
        (deaf, "ended at its start"),
    ):
        done = machine.install(payload)
        assert done.returncode == 1, done.stderr
        assert why in done.stderr, done.stderr
        assert "stays in use" in done.stderr
    for payload, why in (
        (make_payload(machine.home / "old", "0.1.9"), "--force takes the older one"),
        (make_payload(machine.home / "mac", "0.3.0", system="macos-arm64"), "it is for macos-arm64"),
        (machine.home / "apps", "has no payload.json"),
    ):
        done = machine.install(payload)
        assert done.returncode == 2, done.stderr
        assert why in done.stderr
    assert machine.versions() == {name_of(machine.base): ""}
    assert sorted(path.name for path in machine.programs.iterdir() if path.is_dir()) == [name_of(machine.base)]
    assert machine.used() == machine.base.name


def test_a_version_that_crashes_within_its_first_hour_gives_way(upgraded: Machine) -> None:
    new = next(name for name, role in upgraded.versions().items() if role == "current")
    with upgraded.serve().wait_listening() as server:
        assert folder_of(server) == new
        assert len(list((upgraded.programs / ".runs").iterdir())) == 1
        server.process.send_signal(signal.SIGTERM)
        assert server.wait(TIME) == 0
    assert list((upgraded.programs / ".runs").iterdir()) == [], "it ended in good order"
    with upgraded.serve().wait_listening() as server:
        children = server.children()
        server.process.kill()
        server.wait(TIME)
        wait_gone(children)
    with upgraded.serve().wait_listening() as server:
        assert folder_of(server) == upgraded.base.name
        assert "within its first hour" in server.told()
        assert http(server, "POST", "/v1/chat/completions", ASKED).status == 200
    assert upgraded.versions()[new] == "withdrawn"


def test_what_a_power_cut_ended_and_what_ends_after_the_first_hour_has_not_failed(upgraded: Machine) -> None:
    state, runs = upgraded.programs / "state.json", upgraded.programs / ".runs"
    with upgraded.serve().wait_listening() as server:
        new = folder_of(server)
        [run] = runs.iterdir()
        note = json.loads(run.read_text())
        server.process.kill()
        server.wait(TIME)
    run.write_text(json.dumps({**note, "boot": "the one before"}))
    assert upgraded.used() == new
    assert list(runs.iterdir()) == []
    content = json.loads(state.read_text())
    content["state"]["lines"][0]["switched_at"] = time.time() - 3600 + 5
    state.write_text(json.dumps(content))
    with upgraded.serve().wait_listening() as server:
        assert folder_of(server) == new
        wait(lambda: list(runs.iterdir()), lambda left: not left)
        server.process.kill()
        server.wait(TIME)
    assert upgraded.used() == new


def test_two_before_are_kept_and_a_version_that_is_gone_is_passed_over(upgraded: Machine) -> None:
    for version in ("0.4.0", "0.5.0"):
        done = upgraded.install(make_payload(upgraded.home / version, version))
        assert done.returncode == 0, done.stderr
    done = upgraded.run("upgrade", "switch", "0.3")
    assert done.returncode == 0, done.stderr
    roles = {name.partition("-")[0]: role for name, role in upgraded.versions().items()}
    assert roles == {"0.2.0": "", "0.3.0": "current", "0.4.0": "previous", "0.5.0": "previous"}
    [newest] = upgraded.programs.glob("0.3.0-*")
    newest.rename(upgraded.home / "moved")
    assert upgraded.used().startswith("0.5.0-")


def test_a_copy_in_another_application_is_left_alone(upgraded: Machine) -> None:
    other = make_payload(upgraded.home / "editor" / "resources", "0.2.0", before="# the editor's own")
    with subprocess.Popen(
        [str(other / NAME), "serve", "--port", "0", "--ready-file", str(upgraded.home / "ready")],
        env=fresh_environment(upgraded.home),
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            wait(lambda: (upgraded.home / "ready").exists())
            assert Path(psutil.Process(process.pid).cmdline()[1]).parent == other
        finally:
            process.terminate()


def test_a_later_version_may_change_the_data_and_the_way_back_finds_its_own(upgraded: Machine) -> None:
    """The trial of an upgrade has copied the data; a later schema is set aside for the copy, and nothing is lost."""
    config = upgraded.home / "my.yaml"
    config.write_text("store: {path: activity.db}\n", "utf-8")
    with upgraded.serve("--config", "my.yaml").wait_listening() as server:
        assert http(server, "POST", "/v1/chat/completions", ASKED).status == 200
        done = upgraded.install(make_payload(upgraded.home / "0.4.0", "0.4.0"))
        assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(upgraded.home / "activity.db")) as database:
        database.execute("ALTER TABLE activity RENAME TO happenings")
        database.execute("PRAGMA user_version = 2")
    assert upgraded.run("upgrade", "rollback").returncode == 0
    with upgraded.serve("--config", "my.yaml").wait_listening() as server:
        rows = http(server, "GET", "/api/metrics/activity").json()["data"]
        assert [row["model"] for row in rows] == ["starter"]
    with closing(sqlite3.connect(upgraded.home / "activity.db.v2-1")) as aside:
        assert aside.execute("SELECT count(*) FROM happenings").fetchone() == (1,)


NOBODY = 65534
root_only = pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="gives files to another user")


@root_only
@pytest.mark.parametrize("which", ["all of them", "the one in use"])
def test_root_is_not_led_to_versions_of_another_user(upgraded: Machine, which: str) -> None:
    """As with a `sudo` that keeps HOME: what lies there could be anybody's program."""
    new = next(upgraded.programs / name for name, role in upgraded.versions().items() if role == "current")
    foreign = upgraded.programs if which == "all of them" else new
    os.chown(foreign, NOBODY, NOBODY)
    done = upgraded.run("--version", started=upgraded.home / "started")
    assert Path((upgraded.home / "started").read_text().splitlines()[-1]).resolve().parent == upgraded.base
    assert f"{foreign} belongs to another user (number {NOBODY})" in done.stderr
    if foreign == upgraded.programs:
        trusted = (upgraded.programs / "trusted.pub").read_bytes()
        for words in (("list",), ("rollback",)):
            refused = upgraded.run("upgrade", *words)
            assert refused.returncode == 2, refused.stderr
            assert "LLAMA_APPLIANCE_PROGRAMS_DIR" in refused.stderr
        assert (upgraded.programs / "trusted.pub").read_bytes() == trusted


@contextmanager
def pretending(folder: Path, program: str, *words: str, user: int | None = None) -> Generator[None]:
    """A shell that runs a script named `serve`, which is what a server of this program looks like."""
    command = [str(folder / NAME), "serve", *words]
    (folder / "serve").write_text("read forever")
    with subprocess.Popen(command, executable=program, cwd=folder, stdin=subprocess.PIPE, user=user) as process:
        wait(lambda: psutil.Process(process.pid).cmdline() == command)
        try:
            yield
        finally:
            process.kill()


def test_the_server_to_imitate_is_the_users_newest_that_runs_from_the_folder() -> None:
    shell = str(Path("/bin/sh").resolve())
    with tempfile.TemporaryDirectory(dir="/var/tmp") as top, ExitStack() as running_now:
        folder = Path(top)
        folder.chmod(0o755)
        own = str(shutil.copy(shell, folder / NAME))
        running_now.enter_context(pretending(folder, shell, "--config", "a name alone"))
        assert running([folder]) is None
        if os.geteuid() == 0:
            running_now.enter_context(pretending(folder, own, "--config", "another user's", user=NOBODY))
            assert running([folder]) is None
        for number in ("1", "2"):
            running_now.enter_context(pretending(folder, own, "--port", number))
        running_now.enter_context(pretending(folder, own, "--trial", "x"))
        found = running([folder])
        assert found is not None
        assert (found.words, found.cwd) == (("--port", "2"), str(folder))


def test_what_somebody_else_upgrades_is_left_to_them(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, why in ((None, "from its sources"), (Path("/usr/lib/llama-appliance"), "'apt install")):
        with pytest.raises(UsageError, match=why):
            refuse_packaged(folder)
    assert refuse_packaged(machine.base) == machine.base
    monkeypatch.setenv("LLAMA_APPLIANCE_FILE", "/media/llama-appliance.run")
    with pytest.raises(UsageError, match="put the newer one in its place"):
        refuse_packaged(machine.base)
