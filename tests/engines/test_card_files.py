"""What the doctor reads of cards: from folders laid out like Linux'."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from file_trees import card

from appliance.core.examination import BusCard
from appliance.engines.findings import cards_here


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links")
def test_cards_with_and_without_a_driver(tmp_path: Path) -> None:
    card(tmp_path, "0000:01:00.0", "0x10de", "0x2684", "nouveau")
    card(tmp_path, "0000:02:00.0", "0x1002", "0x744c", kind="0x038000")
    card(tmp_path, "0000:03:00.0", "0x8086", "0x100e", "e1000", kind="0x020000")
    assert cards_here(tmp_path)[0] == (
        BusCard(pci="0000:01:00.0", vendor="NVIDIA", driver="nouveau"),
        BusCard(pci="0000:02:00.0", vendor="AMD", driver=""),
    )


@pytest.mark.skipif(sys.platform == "win32", reason="permissions are others there")
def test_files_of_cards_and_who_may_use_them(tmp_path: Path) -> None:
    folder = tmp_path / "dev" / "dri"
    folder.mkdir(parents=True)
    for name in ("renderD128", "card0"):
        (folder / name).touch()
    _, (file,) = cards_here(tmp_path)
    assert file.path == str(folder / "renderD128")
    assert file.usable
    assert file.group
    if os.geteuid() != 0:
        (folder / "renderD128").chmod(0)
        assert not cards_here(tmp_path)[1][0].usable
