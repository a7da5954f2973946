"""`service` on macOS: the real program as a launchd job, under a launchctl of the tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import trio

from appliance.errors import UsageError
from appliance.features.service.core.launchd import HOME, KEY
from appliance.features.service.launchd import Launchd
from appliance.features.service.systemd import ServiceFailed
from appliance.features.service.verb import page_of

FAKE = Path(__file__).with_name("launchctl.py")

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="asks /proc; the release workflow asks the real launchctl"
)


@pytest.fixture
def launchd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launchd:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "launchctl").write_text(f"#!/bin/sh\nexec '{sys.executable}' -I -S '{FAKE}' \"$@\"\n")
    (programs / "launchctl").chmod(0o755)
    (tmp_path / "jobs").mkdir()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("LAUNCHCTL_STATE", str(tmp_path / "jobs"))
    return Launchd(user=True, home=tmp_path / "home")


COMMAND = [sys.executable, "-m", "appliance", "serve", "--port", "0", "--no-stores"]


async def opened(launchd: Launchd, folder: Path) -> str:
    """As a double click on the app does it."""
    return await page_of(
        lambda user: launchd if user else Launchd(user=False), [*COMMAND, "--home", str(folder / "data")]
    )


async def health(url: str) -> bytes:
    stream = await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2]))
    async with stream:
        await stream.send_all(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        return await stream.receive_some()


@pytest.mark.slow
async def test_a_job_from_install_to_uninstall(launchd: Launchd, tmp_path: Path) -> None:
    assert (await launchd.status()).installed is False
    with pytest.raises(UsageError, match="service install --user"):
        await launchd.steer("start")
    try:
        url = await opened(launchd, tmp_path)
        running = await launchd.status()
        assert (running.state, running.enabled, running.restarts) == ("active", True, 0)
        assert running.said == f"listening on {url}"
        with trio.fail_after(60):
            assert (await health(url)).startswith(b"HTTP/1.1 200")
        await launchd.steer("start")
        assert (await launchd.status()).pid == running.pid
        await launchd.steer("restart")
        again = await launchd.status()
        assert again.state == "active"
        assert again.pid != running.pid
        assert await opened(launchd, tmp_path) == again.said.removeprefix("listening on ")
    finally:
        await launchd.steer("stop")
    stopped = await launchd.status()
    assert (stopped.state, stopped.pid, stopped.installed) == ("inactive", None, True)
    assert await launchd.uninstall(purge=False) == []
    assert not launchd.unit.exists()


async def test_a_job_that_ends_at_once_is_reported_with_its_log(launchd: Launchd) -> None:
    try:
        with pytest.raises(ServiceFailed, match=r"exit 2.*service\.log may say more"):
            await launchd.install([*COMMAND, "--no-such-option"], start=True)
        assert (await launchd.status()).state == "failed"
        with trio.fail_after(60), pytest.raises(ServiceFailed):
            await launchd.steer("restart")
    finally:
        await launchd.uninstall(purge=False)


@pytest.mark.parametrize("place", ["/Users/x/llama-appliance", "/Volumes/usb/llama-appliance"])
def test_the_machines_service_is_not_installed_from_a_users_folder(place: str) -> None:
    with pytest.raises(UsageError, match="/Applications"):
        Launchd(user=False).text([place, "serve"])


def test_no_service_is_made_of_an_app_that_macos_has_set_apart() -> None:
    with pytest.raises(UsageError, match="move it to Applications"):
        Launchd(user=True).text(["/private/var/folders/x/AppTranslocation/1/d/x.app/llama-appliance", "serve"])


def test_the_plist_is_shown_without_writing_it() -> None:
    text = Launchd(user=False).text(["/Applications/x/llama-appliance", "serve"])
    assert f"<string>{HOME}</string>" in text
    assert f"<string>--api-key-file</string>\n\t\t<string>{KEY}</string>" in text
    for own in (["--api-key", "x"], ["--allow-unauthenticated"]):
        assert KEY not in Launchd(user=False).text(["/Applications/x/llama-appliance", "serve", *own])
    assert KEY not in Launchd(user=True).text(["/Applications/x/llama-appliance", "serve"])
