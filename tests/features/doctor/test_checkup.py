"""What the doctor reads of a system: from folders laid out like Linux', and from this machine."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest
from file_trees import card

from appliance.core.examination import BusCard
from appliance.features.doctor.system import checkup, port_owner


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links")
def test_cards_with_and_without_a_driver(tmp_path: Path) -> None:
    card(tmp_path, "0000:01:00.0", "0x10de", "0x2684", "nouveau")
    card(tmp_path, "0000:02:00.0", "0x1002", "0x744c", kind="0x038000")
    card(tmp_path, "0000:03:00.0", "0x8086", "0x100e", "e1000", kind="0x020000")
    assert checkup({}, tmp_path).cards == (
        BusCard(pci="0000:01:00.0", vendor="NVIDIA", driver="nouveau"),
        BusCard(pci="0000:02:00.0", vendor="AMD", driver=""),
    )


@pytest.mark.skipif(sys.platform == "win32", reason="permissions are others there")
def test_files_of_cards_and_who_may_use_them(tmp_path: Path) -> None:
    folder = tmp_path / "dev" / "dri"
    folder.mkdir(parents=True)
    for name in ("renderD128", "card0"):
        (folder / name).touch()
    (file,) = checkup({}, tmp_path).device_files
    assert file.path == str(folder / "renderD128")
    assert file.usable
    assert file.group
    if os.geteuid() != 0:
        (folder / "renderD128").chmod(0)
        assert not checkup({}, tmp_path).device_files[0].usable


def test_a_folder_that_is_not_there_yet_is_on_the_disk_of_its_parent(tmp_path: Path) -> None:
    folders = {"models": tmp_path / "a" / "b", "downloads": tmp_path / "c"}
    (disk,) = checkup(folders).disks
    assert (disk.what, disk.path) == ("models", str(tmp_path / "a" / "b"))
    assert 0 < disk.total >= disk.free


def test_this_machine_has_processors_and_memory() -> None:
    found = checkup({})
    assert found.cores >= 1
    assert found.memory > 1 << 28


def test_who_listens_on_a_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        owner = port_owner(port)
        assert owner.pid == os.getpid()
        assert owner.name
    assert port_owner(port) is None
