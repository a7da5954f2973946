"""installer/linux.py: what packages say of the project, and what software centres show."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as Xml

import pytest
from two_users import STRANGER, open_folder

ROOT = Path(__file__).resolve().parents[1]
INSTALLER = ROOT / "installer"
HOMEPAGE = "https://example.org/llama-appliance"
MADE = 1_700_000_000


@pytest.fixture
def linux(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(INSTALLER))
    return importlib.import_module("linux")


@pytest.mark.parametrize("homepage", ["", HOMEPAGE])
def test_software_centres_are_told_of_this_version_and_of_an_address_that_is_known(
    linux: ModuleType, homepage: str
) -> None:
    told = Xml.fromstring(linux.metainfo(linux.Payload("1.2.3", "linux-x64", MADE, homepage)))
    release = told.find("releases/release")
    assert release.attrib == {"version": "1.2.3", "date": "2023-11-14"}
    assert [each.text for each in told.findall("url")] == ([homepage] if homepage else [])
    assert (told.findtext("developer_name") or "-") in (ROOT / "LICENSE").read_text("utf-8")
    assert (INSTALLER / (told.findtext("launchable") or "-")).is_file()
    entry = (INSTALLER / f"{linux.NAME}.desktop").read_text("utf-8")
    assert f"\nIcon={told.findtext('icon')}\n" in entry
    assert f"\nCategories={''.join(f'{each.text};' for each in told.findall('categories/category'))}\n" in entry


@pytest.mark.needs("appstreamcli")
@pytest.mark.parametrize("homepage", ["", HOMEPAGE])
def test_appstream_finds_no_mistake(linux: ModuleType, tmp_path: Path, homepage: str) -> None:
    file = tmp_path / f"{linux.METAINFO}.metainfo.xml"
    file.write_text(linux.metainfo(linux.Payload("1.2.3", "linux-x64", MADE, homepage)), "utf-8")
    done = subprocess.run(
        ["appstreamcli", "validate", "--no-net", "--no-color", file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert f"<id>{linux.METAINFO}</id>" in file.read_text("utf-8")


def test_an_address_that_would_break_the_packages_is_refused() -> None:
    command = [sys.executable, str(INSTALLER / "linux.py"), "deb", "--homepage", "https://example.org/\nDepends: x"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is not an address; give one such as" in done.stderr


@pytest.mark.needs("root", "setpriv")
@pytest.mark.parametrize("target", [".", "/etc", "own", "nothing"])
@pytest.mark.parametrize("command", ["make_models", 'as_service touch "$state/models/.removed" || true'])
def test_root_follows_no_link_of_the_services_user(target: str, command: str) -> None:
    with open_folder() as folder:
        script = (INSTALLER / "functions.sh").read_text("utf-8").replace("/var/lib/llama-appliance", f"{folder}/home")
        script = re.sub(r"(-o|-g|--reuid|--regid|passwd) llama-appliance", rf"\1 {STRANGER}", script)
        (folder / "own").mkdir()
        (folder / "home").mkdir()
        os.chown(folder / "home", STRANGER, STRANGER)
        link = folder / "home" / "models"
        link.symlink_to(folder / target)
        before = [(path.lstat().st_uid, path.lstat().st_mode) for path in (folder, folder / "own", Path("/etc"))]
        shell = ["sh", "-c", f"getent() {{ true; }}\n{script}\n{command}"]
        subprocess.run(shell, check=True, capture_output=True)
        assert [(p.lstat().st_uid, p.lstat().st_mode) for p in (folder, folder / "own", Path("/etc"))] == before
        assert not (folder / target / ".removed").exists()
