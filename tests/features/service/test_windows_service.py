"""The service of Windows, on a service control manager of our own whose calls have the recorded types."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from links import needs_links
from service_control import CALLER, ServiceControl
from windows_headers import STRUCTURES, check_calls

from appliance.core.installed import NAME
from appliance.errors import UsageError
from appliance.features.service import windows_calls as windows
from appliance.features.service.core.windows import ADVICE, home_rights
from appliance.features.service.windows import (
    EVENTS,
    ServiceEnded,
    ServiceSession,
    WindowsService,
    end_programs,
    run_service,
    serve_words,
)
from appliance.features.service.windows_calls import SIGNATURES
from appliance.platform.win32 import Win32, WindowsRefused

FAKE = Path(__file__).with_name("service_control.py")
LIMIT = 60
COMMAND = [r"C:\Program Files\Llama Appliance\llama-appliance.exe", "service", "run", "--", "--port", "8081"]
LINE = r'"C:\Program Files\Llama Appliance\llama-appliance.exe" service run -- --port 8081'


def api(scm: ServiceControl) -> Win32:
    return Win32(scm.calls, scm.error, ADVICE)


def entry(scm: ServiceControl, home: Path) -> WindowsService:
    return WindowsService(api(scm), {"ProgramData": str(home), "USERPROFILE": r"C:\Users\ada"})


def test_every_call_has_the_types_of_windows() -> None:
    check_calls(SIGNATURES)


def test_every_structure_has_the_size_of_windows() -> None:
    ours = {
        "SERVICE_STATUS": windows.ScmStatus,
        "SERVICE_STATUS_PROCESS": windows.ProcessStatus,
        "QUERY_SERVICE_CONFIGW": windows.ServiceConfig,
        "SERVICE_TABLE_ENTRYW": windows.ServiceTableEntry,
        "SC_ACTION": windows.Action,
        "SERVICE_FAILURE_ACTIONSW": windows.ServiceFailureActions,
        "SERVICE_DESCRIPTIONW": windows.ServiceText,
        "SERVICE_PRESHUTDOWN_INFO": windows.ServiceNumber,
        "SECURITY_ATTRIBUTES": windows.Security,
    }
    assert {name: ctypes.sizeof(each) for name, each in ours.items()} == STRUCTURES


async def test_a_service_is_installed_steered_and_removed(tmp_path: Path) -> None:
    scm = ServiceControl()
    service = entry(scm, tmp_path)
    assert (await service.status()).installed is False
    await service.install(COMMAND, start=False)
    assert (await service.status()).state == "inactive"  # and not failed: it was never started
    await service.install(COMMAND, start=True)
    made = scm.services[NAME]
    assert (made["command"], made["account"], made["start"]) == (LINE, rf"NT SERVICE\{NAME}", 2)
    assert made["levels"][2] == (86400, [1, 2000, 1, 10000, 1, 60000])
    assert (made["levels"][4], made["levels"][7]) == (1, 60000)
    assert scm.folders == {str(tmp_path / NAME): home_rights(NAME)}
    assert scm.registry[EVENTS]["TypesSupported"] == b"\7\0\0\0"
    assert b"E\0" in scm.registry[EVENTS]["EventMessageFile"]
    status = await service.status()
    assert (status.installed, status.enabled, status.state, status.pid) == (True, True, "active", 4242)
    assert status.unit == LINE
    assert scm.services[NAME]["error"] == 0
    await service.install([*COMMAND, "--verbose"], start=False)  # an upgrade changes the entry and keeps the data
    assert scm.services[NAME]["command"] == f"{LINE} --verbose"
    await service.steer("stop")
    await service.steer("stop")
    assert (await service.status()).state == "inactive"
    await service.steer("start")
    await service.steer("start")
    (tmp_path / NAME / "data").mkdir()
    assert await service.uninstall(purge=False) == [str(tmp_path / NAME)]
    assert (scm.services, scm.registry, scm.open_handles) == ({}, {}, 0)
    await service.install(COMMAND, start=False)
    assert await service.uninstall(purge=True) == []
    assert not (tmp_path / NAME).exists()


async def test_what_windows_refuses_is_told_in_words(tmp_path: Path) -> None:
    scm = ServiceControl(administrator=False)
    with pytest.raises(WindowsRefused, match="Run as administrator"):
        await entry(scm, tmp_path).install(COMMAND, start=False)
    with pytest.raises(WindowsRefused, match="service install"):
        await entry(scm, tmp_path).steer("start")
    with pytest.raises(UsageError, match=r"cannot read C:\\Users"):
        await entry(scm, tmp_path).install([r"C:\Users\ada\llama-appliance.exe"], start=False)
    assert (scm.services, scm.open_handles, scm.folders) == ({}, 0, {})


async def test_a_new_service_has_a_key_unless_its_options_say_who_may_ask(tmp_path: Path) -> None:
    key = tmp_path / NAME / "key"
    for words in (["--api-key-file", "x"], ["--api-key=x"], ["--allow-unauthenticated"]):
        scm = ServiceControl()
        await entry(scm, tmp_path).install([*COMMAND, *words], start=False)
        await entry(scm, tmp_path).install(COMMAND, start=False)  # as before: an upgrade forces no key on it
        assert not key.exists()
        assert serve_words(key.parent, ["--port", "1"]) == ["serve", "--home", str(key.parent), "--port", "1"]
    service = entry(ServiceControl(), tmp_path)
    await service.install(COMMAND, start=False)
    assert service.key == key
    made = key.read_text("utf-8")
    assert len(made) > 30
    assert serve_words(key.parent, [])[-2:] == ["--api-key-file", str(key)]
    assert serve_words(key.parent, ["--api-key", "x"])[-2:] == ["--api-key", "x"]
    await entry(ServiceControl(), tmp_path).install(COMMAND, start=False)
    assert key.read_text("utf-8") == made


async def test_a_folder_that_another_user_made_beforehand_is_refused(tmp_path: Path) -> None:
    """Everybody may make folders in ProgramData. The maker would choose the engines that the service runs."""
    scm, home = ServiceControl(), tmp_path / NAME
    home.mkdir()
    scm.owners[str(home)] = "S-1-5-21-1-2-3-1001"
    with pytest.raises(UsageError, match=r"(?s)S-1-5-21-1-2-3-1001.*takeown"):
        await entry(scm, tmp_path).install(COMMAND, start=True)
    assert scm.services == {}
    for owner in ("S-1-5-18", "S-1-5-32-544", CALLER):
        scm.owners[str(home)] = owner
        await entry(scm, tmp_path).install(COMMAND, start=False)
    assert (scm.folders, scm.open_handles) == ({}, 0)
    assert not scm._allocated


@needs_links
async def test_a_folder_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    """The owner of the link could lead it to another folder later."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is a link to"):
        await entry(ServiceControl(), tmp_path).install(COMMAND, start=True)


async def test_a_service_that_ends_at_its_start_tells_why(tmp_path: Path) -> None:
    scm = ServiceControl(exits=2)
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "service.log").write_text("llama-appliance: error: no such port\n", "utf-8")
    with pytest.raises(ServiceEnded, match="status 2 instead of starting: llama-appliance: error: no such port"):
        await entry(scm, tmp_path).install(COMMAND, start=True)
    status = await entry(scm, tmp_path).status()
    assert (status.state, status.detail) == ("failed", "stopped, status 2")
    assert status.said == "llama-appliance: error: no such port"


def test_an_exception_is_reported_as_a_failed_service() -> None:
    def fail() -> int:
        raise RuntimeError("nobody foresaw this")

    scm = ServiceControl()
    with pytest.raises(RuntimeError):
        ServiceSession(api(scm)).run(fail)
    assert [(each["state"], each["error"], each["own"]) for each in scm.reports] == [(2, 0, 0), (1, 1066, 70)]


@pytest.mark.skipif(sys.platform == "win32", reason="it copies sleep(1), which Windows lacks")
def test_programs_of_a_folder_are_ended_and_no_others(tmp_path: Path) -> None:
    sleep = shutil.which("sleep")
    copy = shutil.copy(Path(sleep).resolve(), tmp_path / "napping")
    with subprocess.Popen([copy, "600"]) as inside, subprocess.Popen([sleep, "600"]) as outside:
        try:
            assert end_programs(tmp_path) == 1
            inside.wait(LIMIT)  # it would nap for ten minutes
            assert outside.poll() is None
            assert end_programs(tmp_path) == 0
        finally:
            inside.kill()
            outside.kill()


def test_only_the_service_manager_can_start_it(tmp_path: Path) -> None:
    scm = ServiceControl()
    scm.started_by_scm = False
    with pytest.raises(WindowsRefused, match="service start"):
        run_service(api(scm), lambda: 0, tmp_path)
    assert scm.reports == []


def served(home: Path, controls: str, *words: str) -> tuple[list[dict[str, int]], dict[str, Any]]:
    """Be a service with the real program: its reports, and how it ended."""
    options = ("--home", str(home), "--no-stores", *words)
    done = subprocess.run(
        [sys.executable, str(FAKE), str(home), controls, *options],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert told, done.stderr
    assert "status" in told[-1], done.stderr
    return [each["report"] for each in told if "report" in each], told[-1]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has a service manager of its own")
@pytest.mark.parametrize("stop", ["1", "15,1"])
def test_the_program_runs_as_a_service_from_listening_to_its_end(tmp_path: Path, stop: str) -> None:
    reports, end = served(tmp_path, f"4,13:18,3,{stop}", "--listen", "127.0.0.1:0")
    states = [each["state"] for each in reports]
    assert (states[:2], states[-2:]) == ([2, 4], [3, 1])
    assert (end["status"], end["answers"][:4], end["mode"]) == (0, [0, 0, 120, 0], 0x8003)
    assert reports[-1]["error"] == 0
    [(kind, text)] = end["events"]
    assert kind == 4
    assert text.startswith("listening on http://127.0.0.1:")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has a service manager of its own")
def test_a_mistake_in_its_words_ends_it_with_an_error_that_the_event_log_has(tmp_path: Path) -> None:
    reports, end = served(tmp_path, "1", "--listen", "nowhere:port")
    assert [(each["state"], each["error"], each["own"]) for each in reports] == [(2, 0, 0), (1, 1066, 2)]
    [(kind, text)] = end["events"]
    assert kind == 1
    assert text.startswith("ended with status 2: llama-appliance: error: ")
    assert "nowhere:port" in text
