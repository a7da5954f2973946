"""Upgrade of the program and the way back, with real payloads, their real programs, and real servers."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import psutil
import pytest
from homes import Home
from payload_folders import NAME, make_payload, name_of, write_key
from program import Server, http, wait_gone
from waiting import wait

from appliance.errors import UsageError
from appliance.features.programs.trial import running
from appliance.start import refuse_packaged

if sys.platform == "win32":
    pytest.skip("'upgrade' refuses to work there", allow_module_level=True)

TIME = 120.0


class Machine(Home):
    """A user's machine: the program unpacked in a folder, and a publisher's key."""

    def __init__(self, folder: Path) -> None:
        self.base = folder / "apps" / "llama"
        super().__init__(folder, program=self.base / NAME)
        if not self.base.exists():
            make_payload(self.base, "0.2.0")
        self.key = write_key(folder / "publisher.pub")
        self.programs = folder / "xdg_data_home" / NAME / "programs"

    def install(self, source: Path, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run("upgrade", "install", source, "--key", self.key, *words)

    def take(self, version: str) -> Path:
        """Install a payload of this version."""
        payload = make_payload(self.folder / version, version)
        self.good("upgrade", "install", payload, "--key", self.key)
        return payload

    def versions(self) -> dict[str, str]:
        """Names of the versions here, and their roles."""
        return {row["name"]: row["role"] for row in self.json("upgrade", "list")}

    def started(self) -> tuple[Path, str]:
        """The folder of the program that a start leads to, found out by a start, and the errors of that."""
        done = self.run("--version", env={"STARTED": str(self.folder / "started")})
        assert done.returncode == 0
        return Path((self.folder / "started").read_text().splitlines()[-1]).resolve().parent, done.stderr

    def used(self) -> str:
        return self.started()[0].name


def folder_of(server: Server) -> str:
    return Path(psutil.Process(server.process.pid).cmdline()[1]).resolve().parent.name


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture(scope="module")
def upgraded_once(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine with an upgrade behind it, to be copied."""
    machine = Machine(tmp_path_factory.mktemp("upgraded") / "home")
    machine.take("0.3.0")
    return machine


@pytest.fixture
def upgraded(upgraded_once: Machine, tmp_path: Path) -> Machine:
    shutil.copytree(upgraded_once.folder, tmp_path, symlinks=True, dirs_exist_ok=True)
    machine = Machine(tmp_path)
    link = machine.programs / name_of(machine.base)
    link.unlink()
    link.symlink_to(machine.base)
    return machine


def test_tried_beside_the_running_server_then_every_start_leads_to_it(machine: Machine) -> None:
    """The new version takes the running server's options, and an archive is as good as a folder."""
    config = machine.folder / "my.yaml"
    config.write_text("store: {path: activity.db}\nlogLevel: info\n", "utf-8")
    new = make_payload(machine.folder / "llama-appliance-0.3.0", "0.3.0")
    archive = machine.folder / "llama-appliance-0.3.0.tar.gz"
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
    with closing(sqlite3.connect(machine.folder / "activity.db.v1")) as kept:
        assert kept.execute("SELECT count(*) FROM activity").fetchone() == (1,)
    assert machine.install(new).returncode == 0, "it is in use already"
    machine.good("upgrade", "rollback")
    assert machine.used() == machine.base.name
    machine.bad("upgrade", "rollback")
    assert "given up" in machine.bad("upgrade", "install", new, "--key", machine.key)


ASKED: dict[str, object] = {"model": "starter", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


@pytest.mark.slow
def test_what_is_not_taken_changes_nothing(machine: Machine) -> None:
    """Each refusal names what is wrong; the version in use stays."""
    new = make_payload(machine.folder / "new", "0.3.0")
    assert "--key" in machine.bad("upgrade", "install", new, status=1)
    foreign = make_payload(machine.folder / "foreign", "0.3.0", seed=bytes(32))
    changed = make_payload(machine.folder / "changed", "0.3.0")
    (changed / "licenses" / "LICENSE").write_text("of O.3.0\n")
    more = make_payload(machine.folder / "more", "0.3.0")
    (more / "evil.so").write_bytes(b"\x7fELF")
    dead = make_payload(machine.folder / "dead", "0.3.0", before="sys.exit('no such library')")
    deaf = make_payload(machine.folder / "deaf", "0.3.0", before="sys.argv[1:] = ['ls']")
    for payload, why in (
        (foreign, "was not signed with the key"),
        (changed, "LICENSE is not what its list says"),
        (more, "evil.so is not in its list"),
        (dead, "no such library"),
        (deaf, "ended at its start"),
    ):
        told = machine.bad("upgrade", "install", payload, "--key", machine.key, status=1)
        assert why in told
        assert "stays in use" in told
    for payload, why in (
        (make_payload(machine.folder / "old", "0.1.9"), "--force takes the older one"),
        (make_payload(machine.folder / "mac", "0.3.0", system="macos-arm64"), "it is for macos-arm64"),
        (machine.folder / "apps", "has no payload.json"),
    ):
        assert why in machine.bad("upgrade", "install", payload, "--key", machine.key)
    assert machine.versions() == {name_of(machine.base): ""}
    assert sorted(path.name for path in machine.programs.iterdir() if path.is_dir()) == [name_of(machine.base)]
    assert machine.used() == machine.base.name


@pytest.mark.slow
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
        assert "failed within its first hour: it crashed, or was killed; " in server.told()
        assert http(server, "POST", "/v1/chat/completions", ASKED).status == 200
    assert upgraded.versions()[new] == "withdrawn"


@pytest.mark.slow
def test_two_before_are_kept_and_a_version_that_is_gone_is_passed_over(upgraded: Machine) -> None:
    upgraded.take("0.4.0")
    upgraded.take("0.5.0")
    upgraded.good("upgrade", "switch", "0.3")
    roles = {name.partition("-")[0]: role for name, role in upgraded.versions().items()}
    assert roles == {"0.2.0": "", "0.3.0": "current", "0.4.0": "previous", "0.5.0": "previous"}
    [newest] = upgraded.programs.glob("0.3.0-*")
    newest.rename(upgraded.folder / "moved")
    assert upgraded.used().startswith("0.5.0-")


@pytest.mark.slow
def test_a_later_version_may_change_the_data_and_the_way_back_finds_its_own(upgraded: Machine) -> None:
    """The trial of an upgrade has copied the data; a later schema is set aside for the copy, and nothing is lost."""
    config = upgraded.folder / "my.yaml"
    config.write_text("store: {path: activity.db}\n", "utf-8")
    with upgraded.serve("--config", "my.yaml").wait_listening() as server:
        assert http(server, "POST", "/v1/chat/completions", ASKED).status == 200
        upgraded.take("0.4.0")
    with closing(sqlite3.connect(upgraded.folder / "activity.db")) as database:
        database.execute("ALTER TABLE activity RENAME TO happenings")
        database.execute("PRAGMA user_version = 2")
    assert upgraded.run("upgrade", "rollback").returncode == 0
    with upgraded.serve("--config", "my.yaml").wait_listening() as server:
        rows = http(server, "GET", "/api/metrics/activity").json()["data"]
        assert [row["model"] for row in rows] == ["starter"]
    with closing(sqlite3.connect(upgraded.folder / "activity.db.v2-1")) as aside:
        assert aside.execute("SELECT count(*) FROM happenings").fetchone() == (1,)


NOBODY = 65534
root_only = pytest.mark.needs("root")


@pytest.mark.slow
def test_a_bundle_of_the_version_that_was_unpacked_does_not_stop_upgrades(machine: Machine) -> None:
    """The import's copy has the place where a link to the user's folder would be; starts from there are led all the
    same."""
    machine.good("bundle", "export", "-o", "b")
    machine.good("bundle", "import", "b", "--unsigned")
    place = machine.programs / name_of(machine.base)
    assert place.is_dir()
    machine.take("0.3.0")
    assert not place.is_symlink()
    assert machine.used().startswith("0.3.0")
    machine.good("upgrade", "rollback")
    assert machine.started()[0] == place


@pytest.mark.slow
def test_several_keys_are_trusted_each_given_once(machine: Machine) -> None:
    other = bytes(32)
    machine.take("0.3.0")
    new = make_payload(machine.folder / "0.4.0", "0.4.0", seed=other)
    assert "was not signed with the key" in machine.bad("upgrade", "install", new, status=1)
    machine.good("upgrade", "install", new, "--key", write_key(machine.folder / "other.pub", other))
    machine.good("upgrade", "install", make_payload(machine.folder / "0.5.0", "0.5.0"))
    assert machine.used().startswith("0.5.0")


@pytest.mark.slow
@root_only
@pytest.mark.parametrize("which", ["all of them", "the one in use"])
def test_root_is_not_led_to_versions_of_another_user(upgraded: Machine, which: str) -> None:
    """As with a `sudo` that keeps HOME: what lies there could be anybody's program."""
    new = next(upgraded.programs / name for name, role in upgraded.versions().items() if role == "current")
    foreign = upgraded.programs if which == "all of them" else new
    os.chown(foreign, NOBODY, NOBODY)
    started, told = upgraded.started()
    assert started == upgraded.base
    assert f"{foreign} belongs to another user (number {NOBODY})" in told
    if foreign == upgraded.programs:
        trusted = (upgraded.programs / "trusted.pub").read_bytes()
        for words in (("list",), ("rollback",), ("check", "--key", write_key(upgraded.folder / "k", bytes(32)))):
            assert "LLAMA_APPLIANCE_PROGRAMS_DIR" in upgraded.bad("upgrade", *words)
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


@pytest.mark.slow
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
            time.sleep(1.1)  # Linux tells the start of the machine, from which it counts, in whole seconds
            running_now.enter_context(pretending(folder, own, "--port", number))
        running_now.enter_context(pretending(folder, own, "--trial", "x"))
        found = running([folder])
        assert (found.words, found.cwd) == (("--port", "2"), str(folder))


class _Publisher(SimpleHTTPRequestHandler):
    """Serves a folder, and notes what is asked for."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.slow
def test_looks_for_newer_versions_are_off_until_an_address_is_named(machine: Machine) -> None:
    published = make_payload(machine.folder / "published", "0.3.0")
    _Publisher.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Publisher, directory=str(published))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_port}"
            off = r"is switched off; '\S*llama-appliance upgrade check --at URL --key FILE' switches it on\n"
            assert re.search(off, machine.bad("upgrade", "check"))
            assert "--key" in machine.bad("upgrade", "check", "--at", address)
            assert _Publisher.asked == []
            assert machine.json("upgrade", "check", "--key", machine.key)["newer"] is True
            with machine.serve().wait_listening() as running:
                running.wait_for(lambda: f"version 0.3.0 is at {address}" in running.told())
            (published / "payload.json").write_text((published / "payload.json").read_text() + " ")
            assert "was not signed" in machine.bad("upgrade", "check", status=1)
            machine.good("upgrade", "check", "--off")
            machine.bad("upgrade", "check")
        finally:
            server.shutdown()
            thread.join()


def test_what_somebody_else_upgrades_is_left_to_them(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, why in ((None, "from its sources"), (Path("/usr/lib/llama-appliance"), "'apt install")):
        with pytest.raises(UsageError, match=why):
            refuse_packaged(folder)
    assert refuse_packaged(machine.base) == machine.base
    monkeypatch.setenv("LLAMA_APPLIANCE_FILE", "/media/llama-appliance.run")
    with pytest.raises(UsageError, match="put the newer one in its place"):
        refuse_packaged(machine.base)
