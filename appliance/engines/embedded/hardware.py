"""Carriers of the options about where the work is done: processors, devices, and which tensors go to which."""

from __future__ import annotations

import os
import re
from types import ModuleType

from appliance.core.llama.flags import Option
from appliance.engines.embedded.carriers import Carrier, Target, as_integer, as_list, as_number, bad
from appliance.errors import UsageError

_MIB = 1024 * 1024
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
_DENSE = r"\.ffn_(up|down|gate)\."


def threads(path: str) -> Carrier:
    """Zero or less means every processor, as in llama.cpp."""

    def carry(target: Target, option: Option) -> None:
        count = as_integer(option)
        target.set(path, count if count > 0 else os.cpu_count() or 1)

    return carry


def cpu_mask(path: str) -> Carrier:
    """A hexadecimal mask, its lowest bit the first processor."""

    def carry(target: Target, option: Option) -> None:
        try:
            bits = int(option.values[0], 16)
        except ValueError:
            raise bad(option, "is not a hexadecimal mask") from None
        _add_cpus(target, path, option, [at for at in range(bits.bit_length()) if bits >> at & 1])

    return carry


def cpu_range(path: str) -> Carrier:
    """``lo-hi``, either end of which may be left out."""

    def carry(target: Target, option: Option) -> None:
        found = re.fullmatch(r"(\d*)-(\d*)", option.values[0])
        if found is None:
            raise bad(option, "is not a range such as 0-3")
        low, high = int(found[1] or 0), int(found[2] or _mask_width(target) - 1)
        _add_cpus(target, path, option, list(range(low, high + 1)))

    return carry


def _mask_width(target: Target) -> int:
    width = target.native.GGML_MAX_N_THREADS
    assert isinstance(width, int)
    return width


def _add_cpus(target: Target, path: str, option: Option, cpus: list[int]) -> None:
    width = _mask_width(target)
    if not cpus or cpus[-1] >= width:
        raise bad(option, f"names no processor below {width}")
    mask = target.items_at(f"{path}.cpumask")
    chosen = set(cpus)
    target.set(f"{path}.cpumask", [bool(mask[at]) or at in chosen for at in range(width)])
    target.set(f"{path}.mask_valid", True)


def priority(path: str) -> Carrier:
    def carry(target: Target, option: Option) -> None:
        level = as_integer(option)
        if not -1 <= level <= 3:
            raise bad(option, "is none of -1, 0, 1, 2, 3")
        target.set(path, target.native.ggml_sched_priority(level))

    return carry


def gpu_layers(path: str) -> Carrier:
    def carry(target: Target, option: Option) -> None:
        words = {"auto": -1, "all": -2}
        value = words.get(option.values[0])
        target.set(path, as_integer(option, 0) if value is None else value)

    return carry


def tensor_split(target: Target, option: Option) -> None:
    shares = [as_number(option, word) for word in re.split(r"[,/]+", option.values[0]) if word]
    slots = target.items_at("tensor_split")
    if len(shares) > len(slots):
        raise bad(option, f"names more than {len(slots)} devices")
    target.set("tensor_split", [*shares, *[0.0] * (len(slots) - len(shares))])


def fit_target(target: Target, option: Option) -> None:
    """Free MiB to leave per device; a single value is for all of them."""
    margins = [int(as_number(option, word)) * _MIB for word in as_list(option)]
    slots = target.items_at("fit_params_target")
    if not 1 <= len(margins) <= len(slots) or min(margins) < 0:
        raise bad(option, "is not a list of sizes in MiB")
    others = [margins[0]] * len(slots) if len(margins) == 1 else slots
    target.set("fit_params_target", [*margins, *others[len(margins) :]])


def tensor_overrides(path: str) -> Carrier:
    def carry(target: Target, option: Option) -> None:
        _add_overrides(target, path, option, option.values[0])

    return carry


def experts_on_cpu(path: str) -> Carrier:
    return lambda target, option: _add_overrides(target, path, option, f"{_EXPERTS}=CPU")


def layers_on_cpu(path: str, *, dense: bool = False) -> Carrier:
    def carry(target: Target, option: Option) -> None:
        tensors = _DENSE if dense else _EXPERTS
        layers = [rf"blk\.{at}{tensors}=CPU" for at in range(as_integer(option, 0))]
        if layers:
            _add_overrides(target, path, option, ",".join(layers))

    return carry


def _add_overrides(target: Target, path: str, option: Option, overrides: str) -> None:
    before = target.text_at(path)
    try:
        target.set(path, f"{before},{overrides}" if before else overrides)
    except ValueError as cause:
        raise UsageError(f"{option.flag}: {cause}") from None


def accelerators(native: ModuleType) -> list[dict[str, object]]:
    """The library's devices other than the processor itself."""
    found: list[dict[str, object]] = native.get_device_info()
    return [device for device in found if device["type"] != native.ggml_backend_dev_type.GGML_BACKEND_DEVICE_TYPE_CPU]


def no_device(target: Target, option: Option) -> None:
    """The wheel offers no choice of devices; without any to choose from, ``none`` is what happens anyway."""
    if option.values[0] != "none" or accelerators(target.native):
        raise bad(option, "cannot be honoured: the embedded engine cannot be told which devices to use")
    target.set("mmproj_device", "none")
    target.set("mmproj_use_gpu", False)


def draft_device(target: Target, option: Option) -> None:
    try:
        target.set("speculative.draft.devices", option.values[0])
    except ValueError as cause:
        raise UsageError(f"{option.flag}: {cause}") from None


def mmproj_device(target: Target, option: Option) -> None:
    target.set("mmproj_device", option.values[0])
    if option.values[0] == "none":
        target.set("mmproj_use_gpu", False)


def mmproj_offload(target: Target, option: Option) -> None:
    target.set("mmproj_use_gpu", option.on)
    if not option.on:
        target.set("mmproj_device", "none")
