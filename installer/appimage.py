"""The one-file program: onefile.c, compiled, in front of an image of the payload. It is an AppImage of type 2.

Needs gcc, mksquashfs, and the static libraries squashfuse, zstd and md (Debian: squashfs-tools, libsquashfuse-dev,
libzstd-dev, libmd-dev). onefile.c describes the file and the folder that it unpacks itself into.

    AppRun                       what a start runs
    llama-appliance/             the payload
    llama-appliance.desktop, llama-appliance.svg, .DirIcon      for desktops that put AppImages into their menus
    licenses/COMPONENT/          the licences of what is linked into the beginning of the file
"""

from __future__ import annotations

import hashlib
import shutil
import struct
import sys
from pathlib import Path

from payload import HERE, MACHINES, NAME, PACKAGES, PAYLOAD, ROOT, Payload, copy_licenses, run, settle

sys.path.insert(0, str(ROOT))
from appliance.core.one_file import MAGIC, RECORD, RECORD_NAME

APP_RUN = """\
#!/bin/sh
# A double click gives no words and no terminal: that starts the program of the desktop.
here=${0%/*}/llama-appliance
[ $# -gt 0 ] || [ -t 1 ] || [ ! -x "$here/llama-appliance-desktop" ] || exec "$here/llama-appliance-desktop"
exec "$here/llama-appliance" "$@"
"""
LINKED = ("libsquashfuse.a", "libzstd.a", "libmd.a", "libc.a", "libgcc.a")


def make_appimage(payload: Payload) -> Path:
    """Build the one file."""
    work = ROOT / "build" / "appimage"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    image = image_of(filled(work / "AppDir", payload))
    made = PACKAGES / f"{NAME}-{payload.version}-{MACHINES[payload.platform][1]}.AppImage"
    made.write_bytes(joined(compiled(work / "onefile"), image, payload.version))
    made.chmod(0o755)
    return made


def joined(beginning: bytes, image: bytes, version: str) -> bytes:
    """Return the one file: the program, told of the image behind it."""
    told = bytearray(beginning)
    at, digest = told.find(RECORD_NAME), hashlib.sha256(image).hexdigest()
    RECORD.pack_into(told, at, RECORD_NAME, version.encode(), digest.encode(), len(told), len(image))
    told[8 : 8 + len(MAGIC)] = MAGIC
    return bytes(told) + image


def compiled(program: Path) -> bytes:
    """Compile the beginning; tools find the image behind it by the end of its table of sections."""
    command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-s", "-o", str(program)]
    run([*command, str(HERE / "onefile.c"), "-lsquashfuse", "-lzstd", "-lmd"])
    made = program.read_bytes()
    table, size, entries = struct.unpack_from("<40xQ10xHH", made)
    if table + size * entries != len(made):
        sys.exit("error: gcc put something behind the table of sections, so tools would not find the image")
    return made


def filled(tree: Path, payload: Payload) -> Path:
    """Lay out everything that is unpacked."""
    shutil.copytree(PAYLOAD, tree / NAME, symlinks=True)
    (tree / "AppRun").write_text(APP_RUN, "utf-8")
    (tree / "AppRun").chmod(0o755)
    for kind in ("desktop", "svg"):
        shutil.copyfile(HERE / f"{NAME}.{kind}", tree / f"{NAME}.{kind}")
    (tree / ".DirIcon").symlink_to(f"{NAME}.svg")
    linked = [Path(run(["gcc", f"-print-file-name={name}"]).strip()).resolve() for name in LINKED]
    copy_licenses(tree / "licenses", linked)
    settle(tree, payload.time)
    return tree


def image_of(tree: Path) -> bytes:
    image = tree.with_name("image")
    run(["mksquashfs", str(tree), str(image), "-comp", "zstd", "-all-root", "-no-xattrs", "-noappend", "-no-progress"])
    return image.read_bytes()
