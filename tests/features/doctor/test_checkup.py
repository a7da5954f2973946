"""What the doctor reads of a system: from folders laid out like Linux', and from this machine."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from appliance.features.doctor.system import checkup, port_owner


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
