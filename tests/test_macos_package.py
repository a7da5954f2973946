"""installer/macos.py and packaging/codesign.py: the app's layout, its plists, signed payloads, missing secrets."""

from __future__ import annotations

import hashlib
import importlib
import json
import plistlib
import re
import struct
import subprocess
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as Xml

import pytest

from appliance.features.service.core.launchd import LABEL

ROOT = Path(__file__).resolve().parents[1]
CODE = struct.pack("<4I", 0xFEEDFACF, 0x0100000C, 0, 2) + bytes(16)
"""The beginning of a program for Apple's processors."""
LIBRARY = struct.pack("<4I", 0xFEEDFACF, 0x0100000C, 0, 6) + bytes(16)
FAT = struct.pack(">5I", 0xCAFEBABE, 2, 0x01000007, 3, 64) + bytes(44) + CODE


@pytest.fixture
def macos(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "installer"))
    return importlib.import_module("macos")


@pytest.fixture
def payloads(tmp_path: Path, macos: ModuleType) -> dict[str, Path]:
    contents = macos.codesign.contents
    found: dict[str, Path] = {}
    for platform, kind in macos.KINDS.items():
        folder = tmp_path / platform
        engine = folder / "engines" / f"{platform}-cpu" / "b1"
        engine.mkdir(parents=True)
        (folder / "llama-appliance").write_bytes(CODE)
        (folder / "llama-appliance").chmod(0o755)
        (folder / "llama-server").symlink_to("llama-appliance")
        (engine / "llama-server").write_bytes(CODE)
        facts = {"name": "x", "platform": platform, "backend": "cpu", "build": "b1"}
        macos.codesign.write_manifest(engine, facts)
        parts = [contents.Component("llama-appliance", "1", "application", licence="MIT")]
        made_from = contents.Commit("c0ffee", 1_700_000_000, True)
        contents.write_sbom(folder, parts, made_from)
        contents.write_list(folder, platform, made_from)
        found[kind] = folder
    return found


def test_the_app_holds_both_payloads_a_program_an_icon_and_its_plist(
    macos: ModuleType, payloads: dict[str, Path], tmp_path: Path
) -> None:
    opener = tmp_path / macos.OPENER
    opener.write_bytes(FAT)
    opener.chmod(0o755)
    found, version = macos.read_payloads(list(payloads.values()))
    app = tmp_path / "Llama Appliance.app"
    for _ in range(2):  # the second takes the place of the first
        macos.make_app(app, found, version, opener)
    told = plistlib.loads((app / "Contents" / "Info.plist").read_bytes())
    assert (app / "Contents" / "MacOS" / told["CFBundleExecutable"]).stat().st_mode & 0o111
    assert (app / "Contents" / "Resources" / told["CFBundleIconFile"]).read_bytes()[:4] == b"icns"
    assert (told["CFBundleIdentifier"], told["CFBundleVersion"]) == (LABEL, version)
    for kind in ("arm64", "x64"):
        assert (app / "Contents" / "Resources" / kind / "llama-server").readlink() == Path("llama-appliance")
        assert f'"{kind}"' in (ROOT / "installer" / "macos-open.c").read_text("utf-8")


def test_every_picture_of_the_icon_has_the_size_of_its_type(macos: ModuleType) -> None:
    icon = macos.icon()
    assert struct.unpack_from(">4sI", icon) == (b"icns", len(icon))
    place, sizes = 8, {}
    while place < len(icon):
        kind, length = struct.unpack_from(">4sI", icon, place)
        picture = icon[place + 8 : place + length]
        assert picture.startswith(b"\x89PNG\r\n\x1a\n")
        sizes[kind] = struct.unpack_from(">II", picture, 16)
        place += length
    assert sizes == {kind: (size, size) for kind, size in macos.ICON_SIZES.items()}


def test_a_payload_states_the_sums_of_its_signed_files(macos: ModuleType, payloads: dict[str, Path]) -> None:
    payload = payloads["arm64"]
    engine = payload / "engines" / "macos-arm64-cpu" / "b1"
    (engine / "llama-server").write_bytes(CODE + b"signature")
    (payload / "payload.json.sig").write_bytes(bytes(64))
    before = json.loads((payload / "payload.json").read_bytes())
    macos.codesign.restate(payload)
    sums = {
        path.relative_to(payload).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in payload.rglob("*")
        if path.is_file() and not path.is_symlink()
    }
    listed = json.loads((payload / "payload.json").read_bytes())
    assert {each["path"]: each["sha256"] for each in listed["files"] if "sha256" in each} == {
        path: value for path, value in sums.items() if path != "payload.json"
    }
    assert {**listed, "files": 0} == {**before, "files": 0}
    assert (
        json.loads((engine / "engine.json").read_bytes())["files"][0]["sha256"]
        == sums["engines/macos-arm64-cpu/b1/llama-server"]
    )
    for thing in json.loads((payload / "sbom.cdx.json").read_bytes())["components"]:
        for stated in thing.get("hashes", ()):
            assert stated["content"] == sums[thing["name"]]


@pytest.mark.parametrize(
    ("content", "kind"),
    [(CODE, "program"), (LIBRARY, "library"), (FAT, "program"), (b"#!/bin/sh\necho so it is a script\n", None),
     (b"", None), (b"\xca\xfe\xba\xbe\0\0\0\x34" + bytes(40), None), (FAT[:30], None), (b"\x7fELF" + bytes(40), None)],
)  # fmt: skip
def test_machine_code_is_known_by_its_first_bytes(
    macos: ModuleType, tmp_path: Path, content: bytes, kind: str | None
) -> None:
    (tmp_path / "file").write_bytes(content)
    assert macos.codesign.kind_of(tmp_path / "file") == kind


def test_a_missing_secret_is_named_before_anything_is_done(macos: ModuleType) -> None:
    given: dict[str, str] = {}
    for name in macos.codesign.SECRETS:
        with pytest.raises(SystemExit, match=rf"the secret {name} is not set: .*--unsigned"):
            macos.codesign.check_secrets(given)
        given[name] = "x"
    macos.codesign.check_secrets(given)


@pytest.mark.parametrize(
    ("change", "said"),
    [({"platform": "linux-x64"}, "is for linux-x64"), ({"version": "9"}, "of different commits"),
     ({"platform": "macos-x64"}, "both for macos-x64")],
)  # fmt: skip
def test_payloads_that_do_not_fit_are_refused(
    macos: ModuleType, payloads: dict[str, Path], change: dict[str, str], said: str
) -> None:
    file = payloads["arm64"] / "payload.json"
    file.write_text(json.dumps(json.loads(file.read_bytes()) | change))
    with pytest.raises(SystemExit, match=said):
        macos.read_payloads(list(payloads.values()))


def test_the_package_has_two_parts_and_only_one_is_chosen(macos: ModuleType) -> None:
    script = Xml.fromstring(macos.distribution("1.2.3", ["arm64", "x64"]))
    assert script.find("options").attrib["hostArchitectures"] == "arm64,x86_64"
    chosen = {each.attrib["id"]: each.attrib.get("start_selected", "true") for each in script.findall("choice")}
    assert chosen == {"program": "true", "service": "false"}
    assert {each.text for each in script.findall("pkg-ref")} == {"program.pkg", "service.pkg"}
    assert [line.attrib["choice"] for line in script.iter("line")] == ["program", "service"]
    assert plistlib.loads(plistlib.dumps(macos.components("x.app")))[0]["BundleIsRelocatable"] is False


def test_scripts_of_the_package_know_the_jobs_label() -> None:
    for script in sorted((ROOT / "installer").glob("macos-*.sh")):
        assert subprocess.run(["sh", "-n", script], capture_output=True).returncode == 0
        label = re.search(r"^label=(.*)$", script.read_text("utf-8"), re.MULTILINE)
        assert label is None or label[1] == LABEL, script


def test_a_missing_tool_is_named(macos: ModuleType) -> None:
    with pytest.raises(SystemExit, match="no-such-tool is needed, which a Mac with Xcode's command line tools has"):
        macos.codesign.run("no-such-tool", "--password", "x")
    with pytest.raises(SystemExit, match="'false --password' failed"):
        macos.codesign.run("false", "--password", "secret")
