"""The icon of the program's files on Windows, drawn from the one of every system."""

from __future__ import annotations

import struct
from pathlib import Path

SIZES = (16, 24, 32, 48, 64, 256)
ENTRY = struct.Struct("<BBBBHHII")


def write_icon(root: Path, folder: Path) -> str:
    """Write the project's drawing as an icon of Windows into the folder; return its path."""
    import resvg_py  # of use on Windows alone

    text = (root / "installer" / "llama-appliance.svg").read_text("utf-8")
    pictures = [bytes(resvg_py.svg_to_bytes(svg_string=text, width=size, height=size)) for size in SIZES]
    at = 6 + ENTRY.size * len(SIZES)
    entries = b""
    for size, picture in zip(SIZES, pictures, strict=True):
        entries += ENTRY.pack(size % 256, size % 256, 0, 0, 1, 32, len(picture), at)  # 0 stands for 256
        at += len(picture)
    file = folder / "llama-appliance.ico"
    file.write_bytes(struct.pack("<HHH", 0, 1, len(SIZES)) + entries + b"".join(pictures))
    return str(file)
