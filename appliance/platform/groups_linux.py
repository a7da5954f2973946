"""The limits of this process's groups (cgroups of Linux, versions 1 and 2): memory, processors, time on processors.

A limit holds for everything below its group, so the least on the way from this process's own group to the top counts.
Hybrid systems have both versions, so both are looked at. A container's mount often shows a part of the tree alone:
``/proc/self/mountinfo`` says which one. Sources: cgroups(7), proc(5); the kernel's cgroup-v2.rst, cgroup-v1/memory.rst,
cgroup-v1/cpusets.rst and sched-bwc.rst.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from appliance.platform.small_files_linux import read_number, read_text

UNIFIED = ""
"""The controller that stands for version 2, as in ``/proc/self/cgroup``."""
USUAL = (
    (UNIFIED, "sys/fs/cgroup"),
    (UNIFIED, "sys/fs/cgroup/unified"),
    ("memory", "sys/fs/cgroup/memory"),
    ("cpu", "sys/fs/cgroup/cpu"),
    ("cpu", "sys/fs/cgroup/cpu,cpuacct"),
    ("cpuset", "sys/fs/cgroup/cpuset"),
)
"""Mounts where ``mountinfo`` names none."""
NO_LIMIT = 1 << 60
"""Version 1 writes "no limit" as a number near 2**63."""
MOST_PROCESSORS = 1 << 16


def memory(root: Path) -> Iterator[tuple[int, int]]:
    """Return bytes that each group with a limit may have, and those of them that are unused."""
    for controller, limits, used in (
        (UNIFIED, ("memory.max", "memory.high"), "memory.current"),
        ("memory", ("memory.limit_in_bytes",), "memory.usage_in_bytes"),
    ):
        for group in _groups(root, controller):
            facts = _facts(group / "memory.stat")
            # A container of version 1 does not see the groups above it, whose limits hold as well: the kernel says the
            # least of all here.
            found = [read_number(group / name) for name in limits]
            found.append(facts.get("hierarchical_memory_limit") if controller else None)
            limit = min((one for one in found if one is not None and 0 < one < NO_LIMIT), default=0)
            if limit:
                yield limit, max(0, limit - _taken(read_number(group / used) or 0, facts))


def quota(root: Path) -> float:
    """Return how many processors' time the groups may use; infinite without a limit."""
    shares = [math.inf]
    for group in _groups(root, UNIFIED):
        words = (read_text(group / "cpu.max") or "").split()
        if len(words) == 2 and all(re.fullmatch(r"[0-9]{1,18}", word) for word in words):
            shares.append(_share(int(words[0]), int(words[1])))
    for group in _groups(root, "cpu"):
        shares.append(_share(read_number(group / "cpu.cfs_quota_us"), read_number(group / "cpu.cfs_period_us")))
    return min(shares)


def processors(root: Path) -> float:
    """Return how many processors the groups may use; infinite without a limit."""
    counts = [math.inf]
    for controller, names in (
        (UNIFIED, ("cpuset.cpus.effective", "cpuset.cpus")),
        ("cpuset", ("cpuset.effective_cpus", "cpuset.cpus")),
    ):
        for group in _groups(root, controller):
            found = (_listed(read_text(group / name) or "") for name in names)
            if (group / "release_agent").exists():
                continue  # the top of the whole machine (of version 1), which has every processor
            counts.append(next((count for count in found if count), math.inf))
    return min(counts)


def ends_together(root: Path) -> bool:
    """True if the kernel ends all processes of a group of this one when one of them finds no memory."""
    return any(read_number(group / "memory.oom.group") == 1 for group in _groups(root, UNIFIED))


def _share(quota: int | None, period: int | None) -> float:
    return quota / period if quota and period and quota > 0 and period > 0 else math.inf


def _listed(text: str) -> int:
    """Count ``0-3,8``; 0 for any other text."""
    spans = [re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", word) for word in text.strip().split(",")]
    ends = [(int(span[1]), int(span[2] or span[1])) for span in spans if span is not None]
    if len(ends) < len(spans) or any(not first <= last < MOST_PROCESSORS for first, last in ends):
        return 0
    return len({number for first, last in ends for number in range(first, last + 1)})


def _facts(path: Path) -> dict[str, int]:
    lines = (line.split() for line in (read_text(path) or "").splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) == 2 and re.fullmatch(r"[0-9]{1,20}", words[1])}


def _taken(used: int, facts: dict[str, int]) -> int:
    # The kernel counts file pages as used, and gives them up under pressure, as it does in the machine's MemAvailable.
    # A model that was read fills its group with them: without this a second start would find no memory.
    idle = sum(facts.get(f"total_{name}", facts.get(name, 0)) for name in ("inactive_file", "active_file"))
    return max(0, used - idle)


def _groups(root: Path, controller: str) -> list[Path]:
    """Return folders from this process's group up to the top of what is mounted, for each mount of the controller."""
    own, mounts = _own_path(root, controller), _mounts(root, controller)
    found = [root / point / each for top, point in mounts for each in _upwards(own, top)]
    # A path that is below no mount's top is one of another namespace; then the tops are all that there is.
    return found or [root / point for _, point in mounts]


def _own_path(root: Path, controller: str) -> str:
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        # A line is ID:CONTROLLERS:PATH. In version 2 the controllers are empty, as ``controller`` is here.
        _, names, path = (*line.split(":", 2), "-", "")[:3]
        if controller in names.split(","):
            return path
    return "/"


def _mounts(root: Path, controller: str) -> list[tuple[str, str]]:
    """Return the group at the top of each mount of the controller, and where it is mounted."""
    found: list[tuple[str, str]] = []
    is_told = False
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        # ID PARENT DEVICE TOP POINT OPTIONS [TAGS ...] - TYPE SOURCE OPTIONS, with signs such as spaces in octal
        before, _, after = line.partition(" - ")
        words, (kind, *_, options) = before.split(), (*after.split(), "", "")[:3]
        if len(words) < 5 or kind not in ("cgroup", "cgroup2"):
            continue
        is_told = True
        if kind == "cgroup2" if controller == UNIFIED else kind == "cgroup" and controller in options.split(","):
            found.append((_plain(words[3]), _plain(words[4]).lstrip("/")))
    return found if is_told else [("/", point) for name, point in USUAL if name == controller]


def _plain(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda sign: chr(int(sign[1], 8)), word)


def _upwards(own: str, top: str) -> list[PurePosixPath]:
    """Return the way from ``own`` to ``top``, both included, as seen from there; nothing if it does not lie below."""
    group, above = PurePosixPath("/", own), PurePosixPath("/", top)
    if ".." in (*group.parts, *above.parts) or not group.is_relative_to(above):
        return []
    inner = group.relative_to(above)
    return [inner, *inner.parents]
