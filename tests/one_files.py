"""One-file programs with an image of a few lines: installer/onefile.c, compiled, in front of an AppRun."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path

import pytest

INSTALLER = Path(__file__).resolve().parents[1] / "installer"
LIBRARIES = ("squashfuse/squashfuse.h", "zstd.h", "sha2.h")


def missing() -> str:
    """What this machine lacks to make one; empty: nothing."""
    if sys.platform != "linux":
        return "needs Linux"
    tools = [tool for tool in ("gcc", "mksquashfs") if shutil.which(tool) is None]
    headers = [name for name in LIBRARIES if not Path("/usr/include", name).exists()]
    return f"needs {', '.join((*tools, *headers))}" if tools or headers else ""


def make_one_file(made: Path, app_run: str, work: Path) -> Path:
    """Write the file and return it; ``work`` is a folder for what it is made of."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(INSTALLER))
        appimage = importlib.import_module("appimage")
        tree = work / "AppDir"
        tree.mkdir()
        (tree / "AppRun").write_text(app_run, "utf-8")
        (tree / "AppRun").chmod(0o755)
        made.write_bytes(appimage.joined(appimage.compiled(work / "beginning"), appimage.image_of(tree), "0.1"))
    made.chmod(0o755)
    return made
