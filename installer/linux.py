"""Make the Linux packages from the payload that `bootstrap.py freeze` left in dist/llama-appliance/.

    python3 bootstrap.py package [KIND...] [--homepage URL]     deb, rpm, tar, appimage, oci; all, if none is named

deb-vulkan, rpm-vulkan and so on (cuda, cuda12, cuda13, rocm) are packages of one more engine, for the main one.

They land in dist/packages/; the name of one whose payload has no engine says so. Needs dpkg-deb for .deb, rpmbuild for
.rpm, objdump for both; appimage.py and oci.py say what they need. Equal payloads give equal files, but for .rpm: names
are sorted, owners are root, times are the commit's.

    /usr/lib/llama-appliance/      the payload
    /usr/bin/llama-appliance       a link to its program
    /usr/lib/systemd/, sysusers.d  the services of the system and of users, and the system service's own user
    /etc/default/llama-appliance   more options of the service; kept as edited
    /usr/share/                    man page, completions, desktop entry, icons, what software centres show, licences
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "packaging"))
import contents
import freeze
import resvg_py
from appimage import make_appimage
from manifests import HOMEPAGE
from oci import make_oci
from payload import (
    HERE,
    MACHINES,
    MAKERS,
    NAME,
    OPTIONAL,
    PACKAGES,
    PAYLOAD,
    PLACE,
    ROOT,
    Payload,
    library,
    needed,
    needed_of_system,
    pack,
    read_payload,
    run,
    settle,
    write,
)

SUMMARY = "private AI server: runs language models with llama.cpp"
DESCRIPTION = """\
One program that turns a machine into a private AI server. It owns llama.cpp
engines, picks the build that works on this machine, swaps models on demand, and
serves the OpenAI, Anthropic, llama.cpp and llama-swap APIs on this machine.
"""
ENGINES = ("vulkan", "cuda", "cuda12", "cuda13", "rocm")
"""Engines that have a package of their own beside the main one."""
ENGINE_SUMMARY = "llama.cpp with {} for llama-appliance"
ENGINE_DESCRIPTION = """\
An engine beside those of llama-appliance. The program tries it on this machine,
and uses it where it works and is the best.
"""
ICON_SIZES = (48, 64, 128, 256)
"""Beside the SVG, for software centres and menus that read pictures alone."""
METAINFO = "io.llama_appliance.LlamaAppliance"
"""The name of metainfo.xml in the catalogues of software centres."""
SHELLS = {
    "bash": f"usr/share/bash-completion/completions/{NAME}",
    "zsh": f"usr/share/zsh/vendor-completions/_{NAME}",
    "fish": f"usr/share/fish/vendor_completions.d/{NAME}.fish",
}


def main() -> None:
    makers: dict[str, Callable[[Payload], Path]] = {
        "deb": make_deb,
        "rpm": make_rpm,
        "tar": make_tar,
        "appimage": make_appimage,
        "oci": make_oci,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(makers))
    parser.add_argument("--homepage", default="", metavar="URL", help="the project's address, which deb and rpm state")
    args = parser.parse_args()
    kinds: list[str] = args.kinds or list(makers)
    for word in ENGINES:
        makers[f"deb-{word}"] = partial(make_engine_deb, word)
        makers[f"rpm-{word}"] = partial(make_engine_rpm, word)
    if unknown := [kind for kind in kinds if kind not in makers]:
        parser.error(f"there is no package kind {unknown[0]!r}; the kinds are {', '.join(makers)}")
    homepage: str = args.homepage
    if homepage and not HOMEPAGE.fullmatch(homepage):
        parser.error(f"--homepage {homepage} is not an address; give one such as https://example.org/llama-appliance")
    payload = replace(read_payload(any_system=kinds == ["tar"]), homepage=homepage)
    os.environ["SOURCE_DATE_EPOCH"] = str(payload.time)
    PACKAGES.mkdir(parents=True, exist_ok=True)
    for kind in kinds:
        made = contents.named(makers[kind](payload), [PAYLOAD])
        print(f"  {made.stat().st_size / 1e6:7.1f} MB  {made}")


# ---- the tree --------------------------------------------------------------------------------------------------------


@cache
def filled(payload: Payload) -> Path:
    """Lay out every file of .deb and .rpm in a folder, and return it."""
    stage = ROOT / "build" / "package"
    shutil.rmtree(stage, ignore_errors=True)
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
    write(stage / f"usr/share/metainfo/{METAINFO}.metainfo.xml", metainfo(payload))
    drawing = (HERE / f"{NAME}.svg").read_text("utf-8")
    write(stage / f"usr/share/icons/hicolor/scalable/apps/{NAME}.svg", drawing)
    for size in ICON_SIZES:
        picture = stage / f"usr/share/icons/hicolor/{size}x{size}/apps/{NAME}.png"
        picture.parent.mkdir(parents=True)
        picture.write_bytes(bytes(resvg_py.svg_to_bytes(svg_string=drawing, width=size, height=size)))
    write(stage / f"usr/share/doc/{NAME}/copyright", copyright_text())
    for shell, place in SHELLS.items():
        write(stage / place, said(environment={"_LLAMA_APPLIANCE_COMPLETE": f"{shell}_source"}))
    page = gzip.compress(man_page().encode(), 9, mtime=0)
    (stage / "usr/share/man/man1").mkdir(parents=True)
    (stage / f"usr/share/man/man1/{NAME}.1.gz").write_bytes(page)
    settle(stage, payload.time)
    return stage


def said(*argv: str, environment: dict[str, str] | None = None) -> str:
    """Return what the payload's program prints; ends with an error if it fails."""
    env = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "COLUMNS": "80"} | (environment or {})
    done = subprocess.run([str(PAYLOAD / NAME), *argv], env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not done.stdout:
        sys.exit(f"error: '{NAME} {' '.join(argv)}' failed: {done.stderr.strip() or 'it printed nothing'}")
    return done.stdout


def metainfo(payload: Payload) -> str:
    """Return what software centres show of the program."""
    text = (HERE / "metainfo.xml").read_text("utf-8")
    if not payload.homepage:
        text = re.sub(r" *<url .*@HOMEPAGE@.*\n", "", text)
    date = datetime.datetime.fromtimestamp(payload.time, datetime.UTC).date().isoformat()
    words = {"MAKERS": MAKERS, "VERSION": payload.version, "DATE": date, "HOMEPAGE": payload.homepage}
    return re.sub(r"@(\w+)@", lambda found: words[found[1]], text)


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


# ---- packages --------------------------------------------------------------------------------------------------------


def debian_package(name: str) -> str:
    found = library(name)
    if found is None:
        sys.exit(f"error: the payload needs {name}, and no Debian package here has it")
    return found[0]


def make_deb(payload: Payload) -> Path:
    """Build the package for Debian and Ubuntu."""
    stage = filled(payload)
    libraries, glibc = needed_of_system()
    functions = (HERE / "functions.sh").read_text("utf-8")
    scripts = {
        script: f"{functions}\n" + (HERE / f"deb-{script}.sh").read_text("utf-8")
        for script in ("postinst", "prerm", "postrm")
    }
    recommended = ["systemd", *(OPTIONAL[name] for name in sorted(libraries & set(OPTIONAL)))]
    fields = {
        "Package": NAME,
        "Version": payload.version,
        "Depends": ", ".join([f"libc6 (>= {glibc})", *debian_packages(libraries - set(OPTIONAL))]),
        "Recommends": ", ".join(recommended),
        "Description": described(SUMMARY, DESCRIPTION),
    }
    return build_deb(stage, payload, fields, {**scripts, "conffiles": f"/etc/default/{NAME}\n"})


def debian_packages(libraries: Iterable[str]) -> list[str]:
    return sorted({debian_package(name) for name in libraries} - {"libc6"})


def described(summary: str, text: str) -> str:
    return summary + "\n" + "".join(f" {line}\n" for line in text.splitlines()).rstrip()


def build_deb(stage: Path, payload: Payload, fields: Mapping[str, str], control_files: Mapping[str, str]) -> Path:
    """Pack a laid-out tree. Control files but ``conffiles`` are scripts for the shell."""
    control = stage / "DEBIAN"
    control.mkdir()
    machine = MACHINES[payload.platform][0]
    size = sum(path.stat().st_size for path in stage.rglob("*") if path.is_file() and not path.is_symlink())
    known = {
        **fields,
        "Architecture": machine,
        "Maintainer": MAKERS,
        **({"Homepage": payload.homepage} if payload.homepage else {}),
        "Installed-Size": str(size // 1024),
        "Section": "science",
        "Priority": "optional",
    }
    (control / "control").write_text("".join(f"{key}: {value}\n" for key, value in known.items()), "utf-8")
    for name, text in control_files.items():
        is_script = name != "conffiles"
        (control / name).write_text(f"#!/bin/sh\n{text}" if is_script else text, "utf-8")
        (control / name).chmod(0o755 if is_script else 0o644)
    settle(control, payload.time)
    made = PACKAGES / f"{fields['Package']}_{fields['Version']}_{machine}.deb"
    command = ["dpkg-deb", "--root-owner-group", "-Zxz", "-z3", "--build", str(stage), str(made)]
    run(command)
    shutil.rmtree(control)
    return made


def make_rpm(payload: Payload) -> Path:
    """Build the package for Fedora, RHEL, openSUSE and their kin."""
    stage = filled(payload)
    libraries, glibc = needed_of_system()
    values = {
        "VERSION": payload.version,
        "SUMMARY": SUMMARY,
        "DESCRIPTION": DESCRIPTION,
        "REQUIRES": rpm_requires(libraries - set(OPTIONAL), glibc),
        "FUNCTIONS": (HERE / "functions.sh").read_text("utf-8"),
        "FILES": "\n".join(sorted(listed(stage))),
    }
    return build_rpm(stage, payload, "rpm.spec", values)


def rpm_requires(libraries: Iterable[str], glibc: str) -> str:
    names = [f"{name}()(64bit)" for name in sorted(libraries) if not name.startswith(("libc.", "ld-"))]
    return "\n".join(f"Requires: {each}" for each in [f"libc.so.6(GLIBC_{glibc})(64bit)", *names])


def build_rpm(stage: Path, payload: Payload, spec_name: str, values: Mapping[str, str]) -> Path:
    """Pack a laid-out tree by the words of a spec."""
    machine = MACHINES[payload.platform][1]
    top = ROOT / "build" / "rpm"
    shutil.rmtree(top, ignore_errors=True)
    top.mkdir(parents=True)
    common = {"MAKERS": MAKERS, "URL": f"URL: {payload.homepage}" if payload.homepage else ""}
    spec = (HERE / spec_name).read_text("utf-8")
    for word, value in {**common, **values}.items():
        spec = spec.replace(f"@{word}@", value)
    (top / spec_name).write_text(spec, "utf-8")
    command = ["rpmbuild", "-bb", "--quiet", "--target", machine, "--define", f"_topdir {top}"]
    run([*command, "--define", f"stage {stage}", str(top / spec_name)])
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


def engine_tree(payload: Payload, word: str) -> tuple[Path, str, str]:
    """Lay out the package of one more engine. Return its folder, its name and its version."""
    name = f"{NAME}-engine-{word}"
    stage = ROOT / "build" / name
    shutil.rmtree(stage, ignore_errors=True)
    place = freeze.copy_engine(freeze.find_engine(word), stage / PLACE / "engines")
    write(
        stage / f"usr/share/doc/{name}/copyright",
        f"The licences of everything inside: /{place.relative_to(stage)}/licenses/\n",
    )
    settle(stage, payload.time)
    return stage, name, f"{payload.version}+{place.name}"


def engine_needs(stage: Path) -> tuple[set[str], str]:
    """Return the libraries and the glibc that an engine needs of the system; the card's driver comes with the card."""
    files = [path for path in stage.rglob("*") if path.is_file()]
    wanted, floor = needed(files)
    return wanted - {path.name for path in files} - {"libcuda.so.1"}, f"{floor[0]}.{floor[1]}"


def make_engine_deb(word: str, payload: Payload) -> Path:
    stage, name, version = engine_tree(payload, word)
    libraries, glibc = engine_needs(stage)
    fields = {
        "Package": name,
        "Version": version,
        "Depends": ", ".join([NAME, f"libc6 (>= {glibc})", *debian_packages(libraries)]),
        "Description": described(ENGINE_SUMMARY.format(word), ENGINE_DESCRIPTION),
    }
    notify = (HERE / "engine-notify.sh").read_text("utf-8")
    return build_deb(stage, payload, fields, {"postinst": notify, "postrm": notify})


def make_engine_rpm(word: str, payload: Payload) -> Path:
    stage, name, version = engine_tree(payload, word)
    libraries, glibc = engine_needs(stage)
    values = {
        "NAME": name,
        "VERSION": version,
        "SUMMARY": ENGINE_SUMMARY.format(word),
        "DESCRIPTION": ENGINE_DESCRIPTION,
        "REQUIRES": rpm_requires(libraries, glibc),
        "NOTIFY": (HERE / "engine-notify.sh").read_text("utf-8"),
    }
    return build_rpm(stage, payload, "rpm-engine.spec", values)


def make_tar(payload: Payload) -> Path:
    """Pack the payload itself, for machines where it is unpacked by hand."""
    folder = f"{NAME}-{payload.version}-{payload.platform}"
    made = PACKAGES / f"{folder}.tar.gz"
    with made.open("wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=payload.time) as packed:
        pack(packed, PAYLOAD, payload.time, lambda path: (str(Path(folder, path.relative_to(PAYLOAD))), 0))
    return made


if __name__ == "__main__":
    main()
