"""The share of the machine that a container or a service may use, from Linux' control groups (version 1 and 2).

A group's limits hold for all below it, so the smallest on the way from this process's own group to the top counts.
Seen from inside a container the top is the container's own. Sources: the kernel's cgroup-v2.rst, cgroup-v1/memory.rst.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from appliance.platform.drm import read_number, read_text

ROOT = Path("/")
MOUNT = "sys/fs/cgroup"
NO_LIMIT = 1 << 60
"""Version 1 writes "no limit" as a number near 2**63."""


def memory_limit(root: Path = ROOT) -> int:
    """Return the bytes that this process and its neighbours in the group may have in all; `sys.maxsize` without a
    limit.
    """
    return min((limit for _, limit in _memory(root)), default=sys.maxsize)


def memory_left(root: Path = ROOT) -> int:
    """Return the unused bytes of the limits; file pages that the kernel would give up count as unused."""
    return min((max(0, limit - _taken(group)) for group, limit in _memory(root)), default=sys.maxsize)


def cores(root: Path = ROOT) -> int:
    """Return the processors that this process may use at once: its affinity and the quotas of its groups, at least
    one.
    """
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else (os.cpu_count() or 1)
    return max(1, min([usable, *(math.ceil(quota) for quota in _quotas(root))]))


def _memory(root: Path) -> Iterator[tuple[Path, int]]:
    for group in (*_groups(root, ""), *_groups(root, "memory")):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = read_number(group / name)
            if limit is not None and 0 < limit < NO_LIMIT:
                yield group, limit


def _taken(group: Path) -> int:
    used = read_number(group / "memory.current") or read_number(group / "memory.usage_in_bytes") or 0
    words = (read_text(group / "memory.stat") or "").split()
    facts = dict(zip(words[::2], words[1::2], strict=False))
    idle = facts.get("total_inactive_file") or facts.get("inactive_file") or "0"
    return max(0, used - (int(idle) if idle.isdecimal() else 0))


def _quotas(root: Path) -> Iterator[float]:
    for group in _groups(root, ""):
        quota, _, period = (read_text(group / "cpu.max") or "").partition(" ")
        if quota.isdecimal() and period.isdecimal() and int(period):
            yield int(quota) / int(period)
    for group in (*_groups(root, "cpu"), *_groups(root, "cpu,cpuacct")):
        quota, period = read_number(group / "cpu.cfs_quota_us"), read_number(group / "cpu.cfs_period_us")
        if quota and period and quota > 0:
            yield quota / period


def _groups(root: Path, controller: str) -> list[Path]:
    """Return folders from this process's group up to the top; ``controller`` is empty for version 2."""
    top = root / MOUNT / controller
    own = PurePosixPath("/")
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, names, path = (*line.split(":", 2), "", "")[:3]
        if (controller in names.split(",") or controller == names) and ".." not in path:
            own = PurePosixPath("/", path)
    return [top / str(group).lstrip("/") for group in (own, *own.parents)]
