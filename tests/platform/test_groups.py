"""Limits of groups, from generated trees of both versions of cgroups, against a model of a few lines."""

from __future__ import annotations

import math
import os
import sys
import tempfile
from pathlib import Path

import pytest
from file_trees import write
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from appliance.core.machine_look import threads_for
from appliance.platform import groups_linux, machine_linux

NAMES = ("docker", "kubepods.slice", "a b", "c\\d", "0:x", "übung", "s")
NONSENSE = ("", "abc", "-1", "9" * 5000, "12x", "max max", "\0", "1-", "5-2", "3 apples", "1e9")
LARGE = str(1 << 63)


class Level(Struct, frozen=True):
    """One group. A number is a limit; text is what else its file says; None: there is no such file."""

    memory: int | str | None
    above: int | str | None
    """As version 1 tells it of groups above; of version 2 what the group is slowed down at."""
    used: int
    idle: int
    quota: tuple[int, int] | str | None
    cpus: tuple[int, int] | str | None


def limits(numbers: st.SearchStrategy, *none: str) -> st.SearchStrategy:
    return st.one_of(numbers, numbers, st.sampled_from([*none, *NONSENSE]), st.none())


LEVELS = st.builds(
    Level,
    limits(st.integers(1, 1 << 40), "max", "0", LARGE),
    limits(st.integers(1, 1 << 40), LARGE),
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 30),
    limits(st.tuples(st.integers(1000, 6_400_000), st.sampled_from([10_000, 100_000])), "max 100000", "0"),
    limits(st.integers(0, 9).flatmap(lambda first: st.tuples(st.just(first), st.integers(first, 20)))),
)


def files_of(level: Level, *, version: int) -> dict[str, str]:
    files: dict[str, str | None] = {}
    cpus = level.cpus if not isinstance(level.cpus, tuple) else "{}-{}".format(*level.cpus)
    memory, above = (None if each is None else str(each) for each in (level.memory, level.above))
    if version == 2:
        quota = "{} {}".format(*level.quota) if isinstance(level.quota, tuple) else level.quota
        files |= {"memory.max": memory, "memory.current": str(level.used), "cpu.max": quota, "memory.high": above}
        files |= {"memory.stat": f"anon 5\nactive_file {level.idle}\n", "cpuset.cpus.effective": cpus}
    else:
        quota, period = level.quota if isinstance(level.quota, tuple) else (level.quota, 100_000)
        files |= {"memory.limit_in_bytes": memory, "memory.usage_in_bytes": str(level.used)}
        files |= {"cpu.cfs_quota_us": None if quota is None else str(quota), "cpu.cfs_period_us": str(period)}
        stat = f"inactive_file 1\ntotal_inactive_file {level.idle}\nhierarchical_memory_limit {above}\nx y z\n"
        files |= {"memory.stat": stat, "cpuset.cpus": cpus}
    return {name: text for name, text in files.items() if text is not None}


def escaped(path: str) -> str:
    return path.replace("\\", "\\134").replace(" ", "\\040")


@pytest.mark.skipif(sys.platform != "linux", reason="Linux' files")
@given(st.data())
def test_the_least_limit_of_all_groups_that_can_be_seen_counts(data: st.DataObject) -> None:
    """Mounts that show a part of the tree, namespaces, paths out of them, missing files, and nonsense in others."""
    names = data.draw(st.lists(st.sampled_from(NAMES), max_size=4))
    versions = data.draw(st.sampled_from([(1,), (2,), (1, 2)]))
    view = data.draw(st.sampled_from(["whole", "part", "namespace", "outside", "untold"]))
    hidden = data.draw(st.integers(0, len(names))) if view in ("part", "namespace") else 0
    groups: list[list[Level]] = []
    own, mounts = ["garbage", "7:name=systemd:/x", "8:pids:/elsewhere"], ["1 0 0:1 / / rw - ext4 /dev/sda rw"]
    files: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for version in versions:
            visible = [] if view == "outside" else names[hidden:]
            levels = data.draw(st.lists(LEVELS, min_size=len(visible) + 1, max_size=len(visible) + 1))
            groups.append(levels)
            path = {"outside": "/../../x", "namespace": "/" + "/".join(visible)}.get(view, "/" + "/".join(names))
            top = "/" + "/".join(names[:hidden]) if view == "part" else "/"
            for controllers in ("memory", "cpu,cpuacct", "cpuset") if version == 1 else ("",):
                usual = "sys/fs/cgroup" if versions == (2,) else f"sys/fs/cgroup/{controllers or 'unified'}"
                point = usual if view == "untold" else data.draw(st.sampled_from([usual, f"mnt/c g\\{controllers}"]))
                own.append(f"{3 if version == 1 else 0}:{controllers}:{path}")
                kind = f"cgroup none rw,{controllers}" if version == 1 else "cgroup2 none rw"
                mounts.append(f"9 1 0:2 {escaped(top)} /{escaped(point)} rw shared:4 master:1 - {kind}")
                for depth, level in enumerate(levels):
                    place = "/".join([point, *visible[:depth]])
                    files |= {f"{place}/{name}": text for name, text in files_of(level, version=version).items()}
                    tight = Level(memory=1, above=1, used=0, idle=0, quota=(1, 100_000), cpus=(0, 0))
                    beside = files_of(tight, version=version)
                    files |= {f"{place}/not ours/{name}": text for name, text in beside.items()}
        files["proc/self/cgroup"] = "\n".join(own)
        if view != "untold":
            files["proc/self/mountinfo"] = "\n".join([*mounts, "nonsense", "1 2 3 - cgroup"])
        root = write(Path(folder), files)
        seen = [level for levels in groups for level in levels]
        told = [([n for n in (each.memory, each.above) if isinstance(n, int)], each.used - each.idle) for each in seen]
        memory = [(min(numbers), taken) for numbers, taken in told if numbers]
        quotas = [each.quota[0] / each.quota[1] for each in seen if isinstance(each.quota, tuple)]
        cpus = [each.cpus[1] - each.cpus[0] + 1 for each in seen if isinstance(each.cpus, tuple)]
        assert machine_linux.memory_limits(root) == (
            min([limit for limit, _ in memory], default=sys.maxsize),
            min([max(0, limit - max(0, taken)) for limit, taken in memory], default=sys.maxsize),
        )
        assert groups_linux.quota(root) == min(quotas, default=math.inf)
        usable = len(os.sched_getaffinity(0))
        assert machine_linux.processors(root) == min([usable, *cpus])
        assert machine_linux.cores(root) == math.ceil(min([usable, *cpus, *quotas]))


@given(st.integers(1, 512), st.none() | st.integers(1, 512), st.floats(0.01, 600) | st.just(math.inf))
def test_threads_stay_within_the_quota_and_leave_a_core(processors: int, physical: int | None, quota: float) -> None:
    threads = threads_for(processors, physical, quota)
    assert 1 <= threads <= max(1, quota)
    assert threads < max(2, min(processors, physical or processors))
    assert threads + 1 > min(processors - 1, (physical or processors) - 1, quota), "none is given away"
