"""Make the Linux packages from the payload that `bootstrap.py freeze` left in dist/llama-appliance/.

    python3 bootstrap.py package [deb] [rpm] [tar]      all of them, if none is named; tar packs any system's payload

They land in dist/packages/. Needs dpkg-deb for .deb, rpmbuild for .rpm, objdump for both. Equal payloads give equal
.deb and .tar.gz files: names are sorted, owners are root, times are the commit's.

    /usr/lib/llama-appliance/      the payload
    /usr/bin/llama-appliance       a link to its program
    /usr/lib/systemd/, sysusers.d  the services of the system and of users, and the system service's own user
    /etc/default/llama-appliance   more options of the service; kept as edited
    /usr/share/                    man page, completions, desktop entry, icon, licences
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
NAME = "llama-appliance"
PAYLOAD = ROOT / "dist" / NAME
PACKAGES = ROOT / "dist" / "packages"
PLACE = f"usr/lib/{NAME}"
SUMMARY = "private AI server: runs language models with llama.cpp"
DESCRIPTION = """\
One program that turns a machine into a private AI server. It owns llama.cpp
engines, picks the build that works on this machine, swaps models on demand, and
serves the OpenAI, Anthropic, llama.cpp and llama-swap APIs on this machine.
"""
MACHINES = {"linux-x64": ("amd64", "x86_64"), "linux-arm64": ("arm64", "aarch64")}
"""Platform to what Debian and RPM call the machine."""
SHELLS = {
    "bash": f"usr/share/bash-completion/completions/{NAME}",
    "zsh": f"usr/share/zsh/vendor-completions/_{NAME}",
    "fish": f"usr/share/fish/vendor_completions.d/{NAME}.fish",
}
OPTIONAL = {"libvulkan.so.1": "libvulkan1"}
"""Libraries that one engine needs and the others do not; without them the program uses another engine."""


@dataclass(frozen=True)
class Payload:
    """The facts of payload.json that packages state. ``time`` in seconds since 1970."""

    version: str
    platform: str
    time: int


def main() -> None:
    makers = {"deb": make_deb, "rpm": make_rpm, "tar": make_tar}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="deb, rpm, tar")
    kinds: list[str] = parser.parse_args().kinds or list(makers)
    if unknown := [kind for kind in kinds if kind not in makers]:
        parser.error(f"there is no package kind {unknown[0]!r}; the kinds are {', '.join(makers)}")
    payload = read_payload(any_system=kinds == ["tar"])
    os.environ["SOURCE_DATE_EPOCH"] = str(payload.time)
    PACKAGES.mkdir(parents=True, exist_ok=True)
    stage = ROOT / "build" / "package"
    shutil.rmtree(stage, ignore_errors=True)
    if kinds != ["tar"]:
        fill(stage)
        settle(stage, payload.time)
    for kind in kinds:
        made = makers[kind](stage, payload)
        print(f"  {made.stat().st_size / 1e6:7.1f} MB  {made}")


def read_payload(*, any_system: bool) -> Payload:
    """Return the payload's facts; ends with an error where there is none."""
    try:
        facts = json.loads((PAYLOAD / "payload.json").read_bytes())
    except OSError:
        sys.exit(f"error: there is no {PAYLOAD / 'payload.json'}; 'python3 bootstrap.py freeze' makes it")
    made = datetime.datetime.strptime(facts["made"], "%Y-%m-%dT%H:%M:%S%z")
    if facts["platform"] not in MACHINES and not any_system:
        sys.exit(f"error: the payload is for {facts['platform']}; Linux packages are for {', '.join(MACHINES)}")
    return Payload(facts["version"], facts["platform"], int(made.timestamp()))


# ---- the tree --------------------------------------------------------------------------------------------------------


def fill(stage: Path) -> None:
    """Lay out every file of the packages below ``stage``."""
    shutil.copytree(PAYLOAD, stage / PLACE, symlinks=True)
    link = stage / "usr/bin" / NAME
    link.parent.mkdir(parents=True)
    link.symlink_to(f"../lib/{NAME}/{NAME}")
    unit = ("service", "unit", "--program", f"/{PLACE}/{NAME}")
    write(stage / f"usr/lib/systemd/system/{NAME}.service", said(*unit))
    write(stage / f"usr/lib/systemd/user/{NAME}.service", said(*unit, "--user"))
    write(stage / f"usr/lib/sysusers.d/{NAME}.conf", said("service", "unit", "--sysusers"))
    write(stage / f"etc/default/{NAME}", (HERE / "default").read_text("utf-8"))
    write(stage / f"usr/share/applications/{NAME}.desktop", (HERE / f"{NAME}.desktop").read_text("utf-8"))
    write(stage / f"usr/share/icons/hicolor/scalable/apps/{NAME}.svg", (HERE / f"{NAME}.svg").read_text("utf-8"))
    write(stage / f"usr/share/doc/{NAME}/copyright", copyright_text())
    for shell, place in SHELLS.items():
        write(stage / place, said(environment={"_LLAMA_APPLIANCE_COMPLETE": f"{shell}_source"}))
    page = gzip.compress(man_page().encode(), 9, mtime=0)
    (stage / "usr/share/man/man1").mkdir(parents=True)
    (stage / f"usr/share/man/man1/{NAME}.1.gz").write_bytes(page)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def said(*argv: str, environment: dict[str, str] | None = None) -> str:
    """Return what the payload's program prints; ends with an error if it fails."""
    env = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "COLUMNS": "80"} | (environment or {})
    done = subprocess.run([str(PAYLOAD / NAME), *argv], env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not done.stdout:
        sys.exit(f"error: '{NAME} {' '.join(argv)}' failed: {done.stderr.strip() or 'it printed nothing'}")
    return done.stdout


def copyright_text() -> str:
    return (ROOT / "LICENSE").read_text("utf-8") + f"\nThe licences of everything inside: /{PLACE}/licenses/\n"


def man_page() -> str:
    """Return the manual page, made of the help of every command."""
    whole = said("--help")
    verbs = re.findall(r"^  ([a-z][a-z-]*)  ", whole.partition("Commands:")[2], re.MULTILINE)
    parts = [f'.TH {NAME.upper()} 1 "" "{said("--version").strip()}"', ".SH NAME", f"{NAME} \\- {SUMMARY}"]
    parts += [".SH SYNOPSIS", f".B {NAME}", "COMMAND [OPTIONS]", ".SH DESCRIPTION", DESCRIPTION.strip(), ".SH COMMANDS"]
    for verb in verbs:
        parts += [f".SS {NAME} {verb}", ".nf", roff(said(verb, "--help")), ".fi"]
    parts += [".SH FILES", ".nf", roff((HERE / "files.txt").read_text("utf-8")), ".fi"]
    parts += [".SH EXIT STATUS", "0: done. 1: it failed. 2: a mistake in the command. 70: a bug. 130: interrupted."]
    return "\n".join(parts) + "\n"


def roff(text: str) -> str:
    """Escape text for troff: backslashes, hyphens that are meant as such, lines that begin like a request."""
    escaped = text.rstrip().replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in escaped.splitlines())


def settle(stage: Path, seconds: int) -> None:
    """Give every file the commit's time and plain modes."""
    for path in (stage, *stage.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
        os.utime(path, (seconds, seconds), follow_symlinks=False)


# ---- what the system must have ---------------------------------------------------------------------------------------


def needed(stage: Path) -> tuple[set[str], str]:
    """Return the shared libraries that the payload expects of the system, and the least version of glibc."""
    wanted: set[str] = set()
    floor = (2, 17)
    files = [path for path in (stage / PLACE).rglob("*") if path.is_file() and not path.is_symlink()]
    for path in files:
        with path.open("rb") as file:
            if file.read(4) != b"\x7fELF":
                continue
        shown = subprocess.run(["objdump", "-p", str(path)], capture_output=True, text=True, check=True).stdout
        wanted |= set(re.findall(r"NEEDED\s+(\S+)", shown))
        versions = re.findall(r"GLIBC_(\d+)\.(\d+)", shown)
        floor = max([floor, *((int(major), int(minor)) for major, minor in versions)])
    inside = {path.name for path in (stage / PLACE).rglob("*.so*")}
    return wanted - inside, f"{floor[0]}.{floor[1]}"


def debian_packages(libraries: set[str]) -> Iterator[str]:
    """Return the Debian packages of libraries, found in this machine's own."""
    for library in sorted(libraries - set(OPTIONAL)):
        command = ["dpkg-query", "--search", f"*/{library}"]
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        owners = {line.partition(":")[0] for line in found.splitlines() if line.endswith(f"linux-gnu/{library}")}
        owners |= {
            line.partition(":")[0] for line in found.splitlines() if line.partition(": ")[2].startswith("/lib64/")
        }
        if not owners:
            sys.exit(f"error: the payload needs {library}, and no Debian package here has it")
        yield sorted(owners)[0]


# ---- packages --------------------------------------------------------------------------------------------------------


def make_deb(stage: Path, payload: Payload) -> Path:
    """Build the package for Debian and Ubuntu."""
    libraries, glibc = needed(stage)
    packages = sorted({*debian_packages(libraries)} - {"libc6"})
    control = stage / "DEBIAN"
    control.mkdir()
    machine = MACHINES[payload.platform][0]
    size = sum(path.stat().st_size for path in stage.rglob("*") if path.is_file() and not path.is_symlink())
    fields = {
        "Package": NAME,
        "Version": payload.version,
        "Architecture": machine,
        "Maintainer": "Llama Appliance <llama-appliance@localhost>",
        "Installed-Size": str(size // 1024),
        "Depends": ", ".join([f"libc6 (>= {glibc})", *packages]),
        "Recommends": ", ".join(["systemd", *(OPTIONAL[name] for name in sorted(libraries & set(OPTIONAL)))]),
        "Section": "science",
        "Priority": "optional",
        "Description": SUMMARY + "\n" + "".join(f" {line}\n" for line in DESCRIPTION.splitlines()).rstrip(),
    }
    (control / "control").write_text("".join(f"{key}: {value}\n" for key, value in fields.items()), "utf-8")
    (control / "conffiles").write_text(f"/etc/default/{NAME}\n", "utf-8")
    functions = (HERE / "functions.sh").read_text("utf-8")
    for script in ("postinst", "prerm", "postrm"):
        (control / script).write_text(f"#!/bin/sh\n{functions}\n" + (HERE / f"deb-{script}.sh").read_text("utf-8"))
        (control / script).chmod(0o755)
    settle(control, payload.time)
    made = PACKAGES / f"{NAME}_{payload.version}_{machine}.deb"
    command = ["dpkg-deb", "--root-owner-group", "-Zxz", "-z3", "--build", str(stage), str(made)]
    run(command)
    shutil.rmtree(control)
    return made


def make_rpm(stage: Path, payload: Payload) -> Path:
    """Build the package for Fedora, RHEL, openSUSE and their kin."""
    libraries, glibc = needed(stage)
    machine = MACHINES[payload.platform][1]
    top = ROOT / "build" / "rpm"
    shutil.rmtree(top, ignore_errors=True)
    top.mkdir(parents=True)
    functions = (HERE / "functions.sh").read_text("utf-8")
    requires = [f"libc.so.6(GLIBC_{glibc})(64bit)"]
    requires += [
        f"{name}()(64bit)" for name in sorted(libraries - set(OPTIONAL)) if not name.startswith(("libc.", "ld-"))
    ]
    values = {
        "VERSION": payload.version,
        "MACHINE": machine,
        "SUMMARY": SUMMARY,
        "DESCRIPTION": DESCRIPTION,
        "REQUIRES": "\n".join(f"Requires: {each}" for each in requires),
        "FUNCTIONS": functions,
        "FILES": "\n".join(sorted(listed(stage))),
    }
    spec = (HERE / "rpm.spec").read_text("utf-8")
    for word, value in values.items():
        spec = spec.replace(f"@{word}@", value)
    (top / f"{NAME}.spec").write_text(spec, "utf-8")
    command = ["rpmbuild", "-bb", "--quiet", "--target", machine, "--define", f"_topdir {top}"]
    run([*command, "--define", f"stage {stage}", str(top / f"{NAME}.spec")])
    [built] = (top / "RPMS").rglob("*.rpm")
    return Path(shutil.move(built, PACKAGES / built.name))


def listed(stage: Path) -> Iterator[str]:
    """Return the lines of the spec's list of files."""
    yield f"%dir /{PLACE}"
    yield f"%dir /usr/share/doc/{NAME}"
    for path in sorted((stage / PLACE).iterdir()):
        yield f"/{path.relative_to(stage)}"
    for path in sorted(stage.rglob("*")):
        name = path.relative_to(stage).as_posix()
        if not name.startswith(PLACE) and (path.is_symlink() or path.is_file()):
            yield f"%config(noreplace) /{name}" if name.startswith("etc/") else f"/{name}"


def make_tar(_stage: Path, payload: Payload) -> Path:
    """Pack the payload itself, for machines where it is unpacked by hand."""
    folder = f"{NAME}-{payload.version}-{payload.platform}"
    made = PACKAGES / f"{folder}.tar.gz"

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mtime = payload.time
        return entry

    with (
        made.open("wb") as file,
        gzip.GzipFile("", "wb", 6, file, mtime=payload.time) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in (PAYLOAD, *sorted(PAYLOAD.rglob("*"))):
            name = Path(folder) / path.relative_to(PAYLOAD)
            archive.add(path, name.as_posix(), recursive=False, filter=plain)
    return made


def run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError as cause:
        sys.exit(f"error: {command[0]} is needed: {cause}")
    if done.returncode != 0:
        sys.exit(f"error: {command[0]} failed:\n{(done.stdout + done.stderr).strip()}")


if __name__ == "__main__":
    main()
