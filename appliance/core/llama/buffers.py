"""The memory that llama-server (b11434) has allocated on each device, as its log says."""

from __future__ import annotations

import re
from collections.abc import Mapping

from appliance.core.memory import RAM
from appliance.core.sizes import MIB

BUFFER = re.compile(r"(\S+) +(model|KV|RS|output|compute) buffer size = +([\d.]{1,20}) MiB")
OFFLOADED = re.compile(r"offloaded (\d{1,5})/(\d{1,5}) layers to GPU")
"""Layers on GPUs, of how many. A server without a GPU also counts all of them, so look at the buffers."""
FITTED = "fitting params to free memory took"
"""Before this line llama-server tries settings out: those buffers do not exist."""
LOADING = "load_model: loading model '"
"""A server that wakes up allocates everything anew."""
LOADED = ": model loaded"
ON_DEVICE = re.compile(r"([A-Za-z]+)(\d+)?(\[.*\])?$")
LONGEST = 1000
"""Characters examined in a line; llama-server's lines are shorter, and a hostile one would take too long."""
MOST = 1 << 50
"""More bytes than any machine has: an absurd line is ignored."""
NO_NAMES: Mapping[str, str] = {}
CHATTER = re.compile(
    r"^\t|(?: I |^)(?:slot (?:get_availabl: .* - |launch_slot_: .*sampler|process_sing|prompt_clear|init_sampler|"
    r"  operator\(\))|srv +(?:update_slots: all slots are idle|server_strea))"
)
"""Lines that ``-lv 4`` adds for each request, about twenty; nobody asked for them."""


class Buffers:
    """One process's buffers. Pass it every line of its log."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[str, str], float] = {}
        self._whole = False

    def read(self, line: str) -> bool:
        """Read a line; return True if it is useful to people."""
        if len(line) > LONGEST:
            return True
        if self._whole:
            if LOADING not in line:
                return CHATTER.search(line) is None
            self._forget()
        elif found := BUFFER.search(line):
            self._add(found[1], found[2], found[3])
        elif FITTED in line:
            self._forget()
        elif LOADED in line:
            self._whole = True
        return True

    def by_device(self, names: Mapping[str, str] = NO_NAMES) -> Mapping[str, int]:
        """Return bytes by device, nothing before the model is loaded.

        ``names`` maps device names, ``{"Vulkan0": "gpu1"}``; otherwise ``CUDA1`` is ``gpu1``, and a worker goes by its
        address.
        """
        sizes: dict[str, int] = {}
        for (name, _), size in self.by_kind().items() if self._whole else ():
            device = names.get(name) or _device(name)
            sizes[device] = sizes.get(device, 0) + size
        return sizes

    def by_kind(self) -> Mapping[tuple[str, str], int]:
        """Return bytes by buffer name and kind (model, KV, RS, output, compute), as printed."""
        return {key: round(size * MIB) for key, size in self._sizes.items()}

    def _add(self, name: str, kind: str, size: str) -> None:
        try:
            number = float(size)
        except ValueError:
            return
        if number * MIB < MOST:
            self._sizes[name, kind] = self._sizes.get((name, kind), 0.0) + number

    def _forget(self) -> None:
        self._sizes.clear()
        self._whole = False


def _device(name: str) -> str:
    """``CPU_Mapped`` and ``CUDA_Host`` are main memory, ``CUDA0`` the first GPU, ``RPC0[host:port]`` a worker."""
    found = ON_DEVICE.match(name)
    if name.startswith("CPU") or found is None:
        return RAM
    if found[3]:
        return f"rpc:{found[3][1:-1]}"
    return f"gpu{int(found[2] or 0)}"
