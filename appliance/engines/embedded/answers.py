"""What the embedded engine prints instead of serving: --help, --version and --list-devices, in llama-server's form."""

from __future__ import annotations

from types import ModuleType

from appliance.core.llama.flags import FLAGS, Flag, Kind
from appliance.engines import embedded
from appliance.engines.embedded.hardware import accelerators
from appliance.engines.embedded.params import REFUSED

_MIB = 1024 * 1024
_VALUE = {Kind.INTEGER: " N", Kind.NUMBER: " X", Kind.PATH: " PATH", Kind.LIST: " A,B,...", Kind.JSON: " JSON"}


def usage() -> str:
    lines = ["usage: llama-server (embedded engine) --model FILE [options]", ""]
    lines += [_line(flag) for flag in FLAGS if flag.name not in REFUSED and flag.kind is not Kind.REMOVED]
    lines += ["", "Options of llama-server that this engine refuses, with exit status 2:", ""]
    lines += [f"{', '.join(flag.spellings)}: {REFUSED[flag.name]}" for flag in FLAGS if flag.name in REFUSED]
    return "\n".join(lines)


def _line(flag: Flag) -> str:
    value = _VALUE.get(flag.kind, " VALUE") if flag.arity else ""
    spelled = ", ".join((*flag.spellings, *flag.negatives)) + value
    return f"{spelled:<72} (env: {flag.env})" if flag.env else spelled


def version(native: ModuleType) -> str:
    """llama.cpp's build number, which the wheel does not record, is the last part of the wheel's own version."""
    build: dict[str, object] = native.BUILD_INFO
    wheel = embedded.version()
    number = wheel.rpartition(".")[2]
    return (
        f"version: b{number} (build {number}, commit {build['commit']})\n"
        f"built with {build['compiler']} for {build['build_target']}\n"
        f"embedded: xllamacpp {wheel}"
    )


def devices(native: ModuleType) -> str:
    """The processor itself is never listed, as in llama-server."""
    names = [_device(device) for device in accelerators(native)]
    return "\n".join(["Available devices:", *(names or ["  (none)"])])


def _device(device: dict[str, object]) -> str:
    total, free = device["memory_total"], device["memory_free"]
    assert isinstance(total, int)
    assert isinstance(free, int)
    return f"  {device['name']}: {device['description']} ({total // _MIB} MiB, {free // _MIB} MiB free)"
