"""Make the Windows installers from a payload that was frozen on Windows: NSIS for desktops, MSI for fleets.

    python3 bootstrap.py package nsis [msi] [--payload FOLDER] [--into FOLDER]

They land in dist/packages/; the name of one whose payload has no engine says so. Runs on any system that has makensis
(3.08 or newer) and wixl with msibuild. Both installers remove exactly the files of the payload's list, and what they
added themselves.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from xml.sax.saxutils import quoteattr

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "packaging"))
from contents import named

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
NAME = "llama-appliance"
STAGE = ROOT / "build" / "windows-installer"


def main() -> None:
    packages = ROOT / "dist" / "packages"
    makers = {"nsis": make_nsis, "msi": make_msi}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="+", metavar="KIND", choices=list(makers), help="nsis, msi")
    parser.add_argument(
        "--payload", type=Path, default=ROOT / "dist" / NAME, metavar="FOLDER", help="frozen on Windows"
    )
    parser.add_argument("--into", type=Path, default=packages, metavar="FOLDER", help="default: dist/packages")
    parser.add_argument(
        "--quick", action="store_true", help="a larger NSIS installer in a tenth of the time, for tests"
    )
    args = parser.parse_args()
    payload: Path = args.payload.absolute()
    version, made = facts(payload)
    os.environ["SOURCE_DATE_EPOCH"] = str(made)
    into: Path = args.into.absolute()
    into.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(STAGE, ignore_errors=True)
    STAGE.mkdir(parents=True)
    for kind in args.kinds:
        package = makers[kind](payload, version, "zlib" if args.quick else "/SOLID lzma")
        path = named(Path(shutil.move(package, into / package.name)), [payload])
        print(f"  {path.stat().st_size / 1e6:7.1f} MB  {path}")


def facts(payload: Path) -> tuple[str, int]:
    """Return the payload's version and time. Ends with an error for one that is not of Windows."""
    try:
        told = json.loads((payload / "payload.json").read_bytes())
    except OSError:
        sys.exit(f"error: there is no {payload / 'payload.json'}; 'python bootstrap.py freeze' on Windows makes it")
    if told["platform"] != "windows-x64":
        sys.exit(f"error: the payload is for {told['platform']}; the Windows installers are for windows-x64")
    made = datetime.datetime.strptime(told["made"], "%Y-%m-%dT%H:%M:%S%z")
    return told["version"], int(made.timestamp())


def files_of(payload: Path) -> list[PurePosixPath]:
    """Return every file of the payload, in order. Ends with an error for a name that no installer script can hold."""
    files = [PurePosixPath(path.relative_to(payload).as_posix()) for path in payload.rglob("*") if path.is_file()]
    if strange := [str(path) for path in files if re.search(r'["$`]', str(path))]:
        sys.exit(f"error: the names of {', '.join(strange)} cannot stand in an installer's script; rename them")
    return sorted(files)


def folders_of(files: list[PurePosixPath]) -> list[PurePosixPath]:
    """Return every folder that the files lie in, the deepest first, without the top."""
    found = {parent for path in files for parent in path.parents if parent.parts}
    return sorted(found, key=lambda path: (-len(path.parts), path))


def make_nsis(payload: Path, version: str, compressor: str) -> Path:
    """Build the installer for desktops."""
    files = files_of(payload)
    listed = STAGE / "files.nsh"
    listed.write_text("\n".join(nsis_lines(payload, files)) + "\n", "utf-8")
    made = STAGE / f"{NAME}-{version}-windows-x64-setup.exe"
    words = {
        "OUT": str(made),
        "COMPRESSOR": compressor,
        "VERSION": version,
        "FOUR": ".".join([*re.findall(r"\d+", version)[:4], "0", "0", "0", "0"][:4]),
        "FILES": str(listed),
        "KIB": str(sum((payload / path).stat().st_size for path in files) // 1024),
    }
    script = STAGE / f"{NAME}.nsi"
    script.write_text(filled("windows.nsi", words), "utf-8")
    run(["makensis", "-V2", "-INPUTCHARSET", "UTF8", str(script)])
    return made


def filled(template: str, words: dict[str, str]) -> str:
    text = (HERE / template).read_text("utf-8")
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    return text


def nsis_lines(payload: Path, files: list[PurePosixPath]) -> Iterator[str]:
    """Yield three macros: one installs every file, one finds a file that cannot be deleted, one deletes all of them."""
    yield "!macro install_files"
    folder = None
    for path in sorted(files, key=lambda each: (each.parent, each)):
        if path.parent != folder:
            folder = path.parent
            yield f'  SetOutPath "$INSTDIR{backslashed(folder)}"'
        yield f'  File "{payload / path}"'
    yield "!macroend"
    yield "!macro find_used_file"
    for path in files:
        yield f'  !insertmacro find_used "$INSTDIR{backslashed(path)}"'
    yield "!macroend"
    yield "!macro remove_files"
    for path in files:
        yield f'  Delete "$INSTDIR{backslashed(path)}"'
    for each in folders_of(files):
        yield f'  RMDir "$INSTDIR{backslashed(each)}"'
    yield "!macroend"


def backslashed(path: PurePosixPath) -> str:
    return "".join(f"\\{part}" for part in path.parts)


# ---- MSI -------------------------------------------------------------------------------------------------------------

SPACE = uuid.UUID("0b7c2a3e-53d5-5a0f-9a5f-6a5b7f0f4a11")
"""Any fixed number. The identifiers of the product's line and of its parts are derived from it, so that they repeat."""
SECURE = "SecureCustomProperties"
"""The property that names those which reach the part of an installation that runs with rights."""
FROM_FILE, SET_PROPERTY, IGNORED, DEFERRED, AS_SYSTEM = 18, 51, 64, 1024, 2048
"""Kinds of custom actions (Windows Installer, "Custom Action Types")."""
BY_USER = FROM_FILE | DEFERRED
BY_SYSTEM = BY_USER | AS_SYSTEM
QUIETLY = BY_SYSTEM | IGNORED
"""There may be no service."""
UNINSTALL = 'REMOVE="ALL" AND NOT UPGRADINGPRODUCTCODE'
"""The user removes the program; a newer version that takes its place keeps the service and PATH."""
ACTIONS = (
    # name, kind, source, target, place in the sequence, condition
    ("KeyWords", SET_PROPERTY, "KEYWORDS", '--api-key-file "[KEYFILE]"', 1010, "KEYFILE"),
    ("RemoveService", QUIETLY, "program", "service uninstall", 3410, f"{UNINSTALL} AND ALLUSERS=1"),
    ("StopService", QUIETLY, "program", "service stop", 3411, "UPGRADINGPRODUCTCODE AND ALLUSERS=1"),
    ("OffPath", BY_SYSTEM, "program", "service off-path", 3420, f"{UNINSTALL} AND ALLUSERS=1"),
    ("OffPathUser", BY_USER, "program", "service off-path --user", 3421, f"{UNINSTALL} AND NOT ALLUSERS=1"),
    ("EndPrograms", BY_SYSTEM, "program", "service end-programs", 3430, 'REMOVE="ALL"'),
    ("OnPath", BY_SYSTEM, "program", "service on-path", 4010, "NOT Installed AND ALLUSERS=1"),
    ("OnPathUser", BY_USER, "program", "service on-path --user", 4011, "NOT Installed AND NOT ALLUSERS=1"),
    (
        *("MakeService", BY_SYSTEM, "program", "service install -- --port [PORT] [KEYWORDS] [SERVE]", 4020),
        "NOT Installed AND ALLUSERS=1 AND SERVICE=1",
    ),
    (
        *("StartService", QUIETLY, "program", "service start", 4021),
        "NOT Installed AND ALLUSERS=1 AND WIX_UPGRADE_DETECTED AND NOT SERVICE=1",
    ),
)
"""The program does the work, as for the other installer. Deferred actions run between 1500 and 6600; files come at 4000
and go at 3500."""


def make_msi(payload: Path, version: str, _compressor: str) -> Path:
    """Build the installer for fleets. wixl knows no actions, so msibuild adds them to its tables."""
    files = files_of(payload)
    source = STAGE / f"{NAME}.wxs"
    source.write_text("\n".join(wix_lines(files, version)) + "\n", "utf-8")
    made = STAGE / f"{NAME}-{version}-windows-x64.msi"
    run(["wixl", "-a", "x64", "-o", str(made), str(source)], payload)  # it finds files by their relative paths alone
    table = STAGE / "CustomAction.idt"
    rows = [f"{name}\t{kind}\t{where}\t{target}" for name, kind, where, target, _, _ in ACTIONS]
    head = ["Action\tType\tSource\tTarget", "s72\ti2\tS72\tS255", "CustomAction\tAction"]
    table.write_bytes("".join(f"{line}\r\n" for line in [*head, *rows]).encode())
    run(["msibuild", str(made), "-i", str(table)])
    allowed = "WIX_DOWNGRADE_DETECTED;WIX_UPGRADE_DETECTED;INSTALLDIR;SERVICE;PORT;KEYFILE;SERVE"
    run(["msibuild", str(made), "-q", f"UPDATE `Property` SET `Value` = '{allowed}' WHERE `Property` = '{SECURE}'"])
    desktop = f"[#f{_part(PurePosixPath(f'{NAME}-desktop.exe'))}]"  # wixl names the feature: an advertised shortcut
    run(["msibuild", str(made), "-q", f"UPDATE `Shortcut` SET `Target` = '{desktop}' WHERE `Shortcut` = 'menu'"])
    into = "INSERT INTO `InstallExecuteSequence` (`Action`, `Condition`, `Sequence`) VALUES"
    for name, _, _, _, place, condition in ACTIONS:
        run(["msibuild", str(made), "-q", f"{into} ('{name}', '{condition}', {place})"])
    return made


def wix_lines(files: list[PurePosixPath], version: str) -> Iterator[str]:
    """Yield the source for wixl: every file is a part of its own, so that a newer version replaces exactly that."""
    line = uuid.uuid5(SPACE, "line")
    yield '<?xml version="1.0" encoding="utf-8"?>'
    yield '<Wix xmlns="http://schemas.microsoft.com/wix/2006/wi">'
    yield f'<Product Id="{uuid.uuid5(SPACE, version)}" Name="Llama Appliance" Language="1033" Version="{version}"'
    yield f'  Manufacturer="Llama Appliance" UpgradeCode="{line}">'
    yield '<Package InstallerVersion="500" Compressed="yes" InstallScope="perMachine" Description="Llama Appliance"/>'
    yield '<MajorUpgrade DowngradeErrorMessage="A newer version is installed."/>'
    yield '<Media Id="1" Cabinet="files.cab" EmbedCab="yes"/>'
    yield '<Property Id="SERVICE" Value="0"/>'
    yield '<Property Id="PORT" Value="8080"/>'
    yield '<Directory Id="TARGETDIR" Name="SourceDir"><Directory Id="ProgramFiles64Folder">'
    yield '<Directory Id="INSTALLDIR" Name="Llama Appliance">'
    yield from _folder(files, PurePosixPath())
    yield '</Directory></Directory><Directory Id="ProgramMenuFolder"/></Directory>'
    yield '<Feature Id="Program" Level="1">'
    yield from (f'<ComponentRef Id="{_part(path)}"/>' for path in files)
    yield "</Feature></Product></Wix>"


def _folder(files: list[PurePosixPath], folder: PurePosixPath) -> Iterator[str]:
    inside = [path for path in files if path.is_relative_to(folder) and path != folder]
    for path in inside:
        if path.parent == folder:
            key = "program" if path.name == f"{NAME}.exe" else f"f{_part(path)}"
            yield f'<Component Id="{_part(path)}" Guid="{uuid.uuid5(SPACE, str(path))}" Win64="yes">'
            name, source = quoteattr(path.name), quoteattr(str(path))
            yield f'<File Id="{key}" Name={name} Source={source} KeyPath="yes">'
            if path.name == f"{NAME}-desktop.exe":
                yield '<Shortcut Id="menu" Directory="ProgramMenuFolder" Name="Llama Appliance"/>'
            yield "</File>"
            yield "</Component>"
    depth = len(folder.parts)
    for name in sorted({path.parts[depth] for path in inside if len(path.parts) > depth + 1}):
        yield f'<Directory Id="d{_part(folder / name)}" Name={quoteattr(name)}>'
        yield from _folder(files, folder / name)
        yield "</Directory>"


def _part(path: PurePosixPath) -> str:
    """Return an identifier; those of Windows Installer have no room for paths."""
    return f"p{uuid.uuid5(SPACE, str(path)).hex}"


def run(command: list[str], folder: Path = ROOT) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except OSError as cause:
        sys.exit(f"error: {command[0]} is needed: {cause}")
    if done.returncode != 0:
        sys.exit(f"error: {command[0]} failed:\n{(done.stdout + done.stderr).strip()[-4000:]}")


if __name__ == "__main__":
    main()
