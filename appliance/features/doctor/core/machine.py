"""Findings about the machine: processor, memory, disk, and what a process may open."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.core.examination import Known
from appliance.core.findings import Finding, found, note, warning
from appliance.core.quantities import size
from appliance.core.sizes import GIB

FULL, TIGHT = 256 << 20, 2 * GIB
"""Free bytes below which writing will soon fail, and below which no model can be downloaded."""
SWAPPED = 512 << 20
FEW_FILES = 1024


def examination(known: Known) -> Iterator[Finding]:
    for part, why in known.trouble.items():
        yield warning(
            "not-examined",
            f"The doctor could not look at {part}",
            why,
            "Its results are missing from this page.",
            "llama-appliance doctor --json",
        )


def limits(known: Known) -> Iterator[Finding]:
    """Report what the processor cannot do, and what this process may not use of the machine."""
    seen, checkup = known.look, known.checkup
    features = seen.cpu_features if seen is not None and seen.cpu_level.startswith("x86") else ()
    if seen is not None and features and "avx2" not in features:
        yield note(
            "no-avx2",
            "This processor has no AVX2, so models run several times slower on it",
            f"{seen.cpu or 'the processor'}: {seen.cpu_level}",
            "In a virtual machine, pass the host's processor through (host CPU model). Else small models, with "
            "few parameters and 4-bit weights, are what it is good for.",
        )
    if seen is not None and 0 < seen.cores < checkup.cores:
        yield note(
            "few-cores",
            f"Only {seen.cores} of the machine's {checkup.cores} processor threads may be used",
            f"affinity and the group's quota leave {seen.cores}",
            "Give the container or service more (docker run --cpus, CPUQuota= of the service) where it is slow.",
        )
    if seen is not None and 0 < seen.memory_total < checkup.memory * 0.95:
        yield note(
            "memory-limit",
            f"Only {size(seen.memory_total)} of the machine's {size(checkup.memory)} of memory may be used",
            f"the group's limit is {size(seen.memory_total)}; {size(seen.memory_available)} are free",
            "Raise the limit (docker run --memory, MemoryMax= of the service) if models do not fit.",
        )
    if checkup.ends_together:
        yield note(
            "ends-together",
            "A model that runs out of memory takes the whole server along here",
            "memory.oom.group is 1 for the group of this process",
            "Kubernetes sets it (kubelet's singleProcessOOMKill: true ends that), and OOMPolicy=kill of a service. "
            "Raise the limit, or choose models that fit well within it.",
        )


def swapping(known: Known) -> Iterator[Finding]:
    checkup, seen = known.checkup, known.look
    if checkup.swap_used < SWAPPED or seen is None:
        return
    tight = seen.memory_available < seen.memory_total // 10
    yield found(
        "warning" if tight else "note",
        "swap",
        "The machine has moved memory to the disk" + (", and has hardly any left" if tight else ""),
        (
            f"swap: {size(checkup.swap_used)} of {size(checkup.swap_total)} in use",
            f"memory: {size(seen.memory_available)} of {size(seen.memory_total)} free",
        ),
        "A model in swap answers at the disk's speed: unload models, or close other programs.",
        "llama-appliance ps",
    )


def full_disk(known: Known) -> Iterator[Finding]:
    for disk in known.checkup.disks:
        if disk.free >= TIGHT:
            continue
        full = disk.free < FULL
        yield found(
            "error" if full else "warning",
            "disk-full",
            f"The disk of the {disk.what} is {'full' if full else 'almost full'}",
            f"{disk.path}: {size(disk.free)} of {size(disk.total)} free",
            "Remove models that nobody uses, or name a folder on another disk with --models-dir.",
            "llama-appliance ls",
            "llama-appliance rm MODEL",
        )


def few_files(known: Known) -> Iterator[Finding]:
    allowed = known.checkup.open_files
    if allowed is not None and allowed < FEW_FILES:
        yield warning(
            "few-open-files",
            "The server may have few files and connections open",
            f"at most {allowed} for this user",
            "Raise the limit with LimitNOFILE=65536 for the service, or in the shell that starts the server.",
            "ulimit -Hn",
        )
