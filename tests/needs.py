"""Things that a fresh machine lacks, and how a test says that it needs one: ``@pytest.mark.needs("openssl")``.

A fresh machine has Python, this checkout, and what `bootstrap.py` installs. Where something else is missing, its tests
are skipped; with ``--all-needs`` they fail. `.ci/in-debian --bare` shows that no test lacks its marker, and `.ci/run`
then runs those that have one, with ``--all-needs``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
FIREFOX = Path(os.environ.get("FIREFOX", "/usr/bin/firefox-esr"))
PAGE_PACKAGES = ROOT / "appliance" / "web" / "node_modules"
EXPORT_TOOLS = Path(os.environ.get("EXPORT_TOOLS", ROOT / "build" / "export-tools")) / "bin"
RENDERERS = Path("/usr/share/vulkan/icd.d")
SYSTEM_PROGRAMS = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
"""Where a program is looked for: servers lie in folders that only root has on its PATH."""

DEBIAN = {
    "appstreamcli": "appstream",
    "apt-ftparchive": "apt-utils",
    "apt-get": "apt",
    "cc": "gcc",
    "createrepo_c": "createrepo-c",
    "dbus-daemon": "dbus",
    "dpkg-deb": "dpkg",
    "ip": "iproute2",
    "ninja": "ninja-build",
    "node": "nodejs",
    "promtool": "prometheus",
    "setpriv": "util-linux",
    "systemd-analyze": "systemd",
    "systemd-nspawn": "systemd-container",
    "unshare": "util-linux",
    "unsquashfs": "squashfs-tools",
    "Xvfb": "xvfb",
}
"""The packages of programs; others have the program's name."""


def compiled(backend: str = "") -> Iterator[Path]:
    """Yield the programs of llama.cpp that were built and are whole, those for the processor first."""
    from appliance.core.engine import EMBEDDED
    from appliance.features.engines.found import list_engines  # not at the top: most tests do without

    found = [each for each in list_engines() if each.name != EMBEDDED and not each.damage]
    for engine in sorted(found, key=lambda engine: engine.backend != "cpu"):
        if backend in ("", engine.backend):
            yield Path(engine.command[0])


def _has_loader() -> bool:
    from appliance.platform.libraries import loaders

    return bool(loaders()["vulkan"])


def _has_worker() -> bool:
    from appliance.features.engines.rpc_server import PROGRAM

    return any(program.resolve().with_name(PROGRAM).is_file() for program in compiled("cpu"))


def _has_namespaces() -> bool:
    words = ["unshare", "--net", "--mount", "true"]
    may = sys.platform == "linux" and os.geteuid() == 0 and shutil.which("unshare")
    return bool(may) and subprocess.run(words, capture_output=True, check=False).returncode == 0


BUILD = "python3 llama-builds/build.py"
OTHERS: dict[str, tuple[Callable[[], object], str]] = {
    "root": (lambda: sys.platform != "win32" and os.geteuid() == 0, "run the tests as root"),
    "namespaces": (_has_namespaces, "run the tests as root, where the kernel allows them"),
    "chromium": (CHROMIUM.exists, "apt-get install chromium, or CHROMIUM=FILE"),
    "firefox": (FIREFOX.exists, "apt-get install firefox-esr, or FIREFOX=FILE"),
    "export-tools": (
        (EXPORT_TOOLS / "smg").exists,
        "python3 -m venv build/export-tools && build/export-tools/bin/pip install -r requirements/export.txt",
    ),
    "page-packages": ((PAGE_PACKAGES / ".lock.sha256").exists, "python3 bootstrap.py web"),
    "libvulkan": (_has_loader, "apt-get install libvulkan1"),
    "lavapipe": (lambda: any(RENDERERS.glob("lvp_icd*.json")), "apt-get install mesa-vulkan-drivers"),
    "llama-server": (lambda: any(compiled()), BUILD),
    "cpu-build": (lambda: any(compiled("cpu")), BUILD),
    "vulkan-build": (lambda: any(compiled("vulkan")), f"{BUILD} --backend vulkan"),
    "ggml-rpc-server": (_has_worker, BUILD),
}
"""Needs that are more than a program: whether they are here, and how to get them."""

FIXTURES: dict[str, tuple[str, ...]] = {
    "built_engine": ("llama-server",),
    "certificate": ("openssl",),
    "cpu_build": ("cpu-build",),
    "every_engine": ("llama-server",),
    "lavapipe": ("lavapipe",),
    "play": ("node", "chromium", "page-packages"),
    "vulkan_build": ("vulkan-build",),
}
"""What every test with one of these fixtures needs: those that many tests share."""


@cache
def is_here(need: str) -> bool:
    found = OTHERS[need][0]() if need in OTHERS else shutil.which(need, path=SYSTEM_PROGRAMS)
    return bool(found)


def advice(need: str) -> str:
    """Return the need and how to meet it."""
    return f"{need} ({OTHERS[need][1] if need in OTHERS else f'apt-get install {DEBIAN.get(need, need)}'})"
