"""A small Debian that really boots: systemd as its first process, in a container of its own, without a network.

Needs root, mmdebstrap and systemd-nspawn; the root folder is made once and kept in build/. One script runs in it as
root when everything has started, and then the machine is switched off.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ROOT / "dist" / "packages"
INSIDE = "systemd,systemd-sysv,libpam-systemd,dbus-user-session,dbus,curl,procps,passwd,rpm,dnf,libvulkan1"
"""What the small Debian has beside what every Debian has."""
BASE = ROOT / "build" / "roots" / f"bookworm-{INSIDE.replace(',', '-')}.tar"
TIME = 240.0
UNIT = """\
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/bash -c '/bin/bash /scenario >/said 2>&1'
ExecStopPost=/bin/systemctl --force poweroff
[Install]
WantedBy=multi-user.target
"""


def package(pattern: str) -> Path:
    found = sorted(PACKAGES.glob(pattern))
    assert found, f"there is no {pattern} in {PACKAGES}; 'python3 bootstrap.py package' makes it"
    return found[-1]


def unpack_root(folder: Path) -> Path:
    """Return a fresh root folder below ``folder``."""
    if not BASE.exists():
        BASE.parent.mkdir(parents=True, exist_ok=True)
        half = BASE.with_suffix(".half.tar")
        subprocess.run(["mmdebstrap", "--variant=minbase", f"--include={INSIDE}", "bookworm", half], check=True)
        half.rename(BASE)
    root = folder / "root"
    root.mkdir()
    subprocess.run(["tar", "-C", root, "--exclude=./dev/*", "-xf", BASE], check=True)
    return root


def boot(root: Path, script: str, files: Mapping[str, Path]) -> dict[str, str]:
    """Boot the root, run the script in it, and return what it said after each ``section NAME`` of its.

    ``files`` are put into its top folder under these names first.
    """
    for name, path in files.items():
        shutil.copyfile(path, root / name)
    (root / "scenario").write_text('section() { echo "@@ $1"; }\n' + script, "utf-8")
    (root / "said").unlink(missing_ok=True)
    unit = root / "etc/systemd/system/scenario.service"
    unit.write_text(UNIT, "utf-8")
    wanted = root / "etc/systemd/system/multi-user.target.wants/scenario.service"
    wanted.parent.mkdir(exist_ok=True)
    wanted.unlink(missing_ok=True)
    wanted.symlink_to("../scenario.service")
    command = ["unshare", "--mount", "systemd-nspawn", "--quiet", f"--directory={root}", "--boot", "--register=no"]
    command += ["--keep-unit", "--private-network", "--console=pipe"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIME, check=False)
    said = (root / "said").read_text("utf-8", "replace") if (root / "said").exists() else ""
    assert done.returncode == 0, done.stdout.decode(errors="replace") + said
    return in_sections(said)


def in_sections(said: str) -> dict[str, str]:
    """Return what a script said after each line ``@@ NAME``."""
    sections: dict[str, str] = {}
    name = ""
    for line in said.splitlines(keepends=True):
        if line.startswith("@@ "):
            name = line[3:].strip()
            sections[name] = ""
        elif name:
            sections[name] += line
    return sections
