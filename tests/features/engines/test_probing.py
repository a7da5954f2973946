"""Asking builds for their devices: programs that list, and programs that crash, hang, flood or are not there."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import trio

from appliance.core.engine import Engine
from appliance.core.sizes import MIB
from appliance.features import embedded
from appliance.features.engines import probing
from appliance.features.engines.core.listing import Device, DeviceListing
from appliance.features.engines.probing import list_devices
from appliance.platform.children import open_children

posix = pytest.mark.skipif(sys.platform == "win32", reason="the programs are shell scripts")
LIST = "echo 'Available devices:'; echo '  CUDA0: Card (8192 MiB, 8000 MiB free)'"


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Engine]:
    """A program that does what these lines of shell say."""

    def write(lines: str) -> Engine:
        path = tmp_path / "llama-server"
        path.write_text(f"#!/bin/sh\n{lines}\n")
        path.chmod(0o755)
        return engine(str(path))

    return write


def engine(*command: str) -> Engine:
    return Engine(name="x", backend="cpu", version=None, command=command, source="a test")


async def ask(one: Engine) -> DeviceListing:
    with trio.fail_after(30):
        async with open_children() as children:
            return await list_devices(one, children)


@posix
async def test_devices_with_what_the_log_says_of_them(
    script: Callable[[str], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("LLAMA_ARG_HOST", "0.0.0.0")
    line = "echo '  Device 0: Card, compute capability 8.6, VMM: yes' >&2"
    listing = await ask(
        script(f'[ "$CUDA_VISIBLE_DEVICES$LLAMA_ARG_HOST $*" = "1 -lv 5 --list-devices" ] || exit 9; {line}; {LIST}')
    )
    assert listing.devices == (Device(name="CUDA0", description="Card", total=8192 * MIB, free=8000 * MIB),)
    assert (listing.fault, listing.targets) == (None, {"CUDA0": "8.6"})


@posix
async def test_a_program_that_does_not_know_how_to_say_more(script: Callable[[str], Engine]) -> None:
    listing = await ask(script(f'[ "$1" = -lv ] && {{ echo "error: invalid argument: -lv" >&2; exit 1; }}; {LIST}'))
    assert listing.fault is None
    assert [device.name for device in listing.devices] == ["CUDA0"]


@posix
@pytest.mark.parametrize(
    ("lines", "fault", "words"),
    [
        ("kill -SEGV $$", "crash", "SIGSEGV"),
        ("echo ggml-cuda.cu:1: oops >&2; kill -ABRT $$", "crash", "oops"),
        ("kill -ILL $$", "crash", "not for this processor"),
        ("exit 139", "crash", "SIGSEGV"),
        ("echo no such thing >&2; exit 1", "list", "exit status 1 when asked for its devices: no such thing"),
        (
            "echo 'x: error while loading shared libraries: libcudart.so.13: cannot open' >&2; exit 127",
            "missing",
            "cudart",
        ),
        ('exec "$0.missing"', "damaged", "cannot be executed"),
        ("echo hello", "list", "hello"),
        ("true", "list", "nothing"),
        ("echo 'Available devices:'; echo '  CUDA0: Card (0 MiB, 9 MiB free)'", "memory", "CUDA0"),
        (f"{LIST}; kill -SEGV $$", "crash", "SIGSEGV"),
    ],
)
async def test_faults(script: Callable[[str], Engine], lines: str, fault: str, words: str) -> None:
    listing = await ask(script(lines))
    assert (listing.fault, listing.devices) == (fault, ())
    assert words in listing.why
    assert "\n" not in listing.why


@posix
async def test_one_that_hangs_is_ended_with_what_it_started(
    script: Callable[[str], Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "LIMIT", 0.5)
    began = time.monotonic()
    listing = await ask(script(f"trap '' TERM; sleep 60 & echo $! > {tmp_path}/pid; {LIST}; sleep 60"))
    assert (listing.fault, listing.devices) == ("hang", ())
    assert "0.5 s" in listing.why
    assert time.monotonic() - began < 10
    left = int((tmp_path / "pid").read_text())
    with suppress(psutil.NoSuchProcess):
        assert psutil.Process(left).status() == psutil.STATUS_ZOMBIE


@posix
async def test_one_that_ends_and_leaves_its_output_open_is_not_waited_for(script: Callable[[str], Engine]) -> None:
    assert (await ask(script(f"{LIST}; sleep 60 & exit 0"))).fault is None


@posix
@pytest.mark.parametrize("where", ["", ">&2"])
async def test_one_that_prints_without_end_is_ended(script: Callable[[str], Engine], where: str) -> None:
    listing = await ask(script(f"while :; do echo 'Available devices: and so on and on and on' {where}; done"))
    assert (listing.fault, listing.devices) == ("list", ())
    assert "MiB" in listing.why


async def test_one_that_is_not_there(tmp_path: Path) -> None:
    listing = await ask(engine(str(tmp_path / "llama-server")))
    assert (listing.fault, listing.devices) == ("damaged", ())


async def test_the_embedded_engine_has_no_devices_and_no_fault() -> None:
    if not embedded.available():
        pytest.skip("the embedded engine is not installed")
    listing = await ask(engine(*embedded.command()))
    assert (listing.fault, listing.devices) == (None, ())
