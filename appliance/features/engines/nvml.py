"""NVIDIA GPUs, through the driver's own library (NVML). Without it there are none, and nothing is imported.

Only a process that may crash loads it (`features.engines.driver_process`), never the server.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, ParamSpec, TypeVar

from appliance.core.machine import GpuSample
from appliance.core.machine_look import Gpu, normal_pci
from appliance.core.sizes import MIB
from appliance.platform.libraries import NVML

MEMORY_TEMPERATURE = 82  # NVML_FI_DEV_MEMORY_TEMP
MILLIWATT = 1e-3
ARCHITECTURES = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada Lovelace", 9: "Hopper",
    10: "Blackwell", 13: "Rubin",
}  # fmt: skip
"""NVML_DEVICE_ARCH_*."""

T = TypeVar("T")
P = ParamSpec("P")


class Nvml:
    """The GPUs that the driver showed when it was opened; ``library`` is ``pynvml``, which has no types.

    Calls block for up to some milliseconds: use a thread.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self._devices: list[object] = []
        for index in range(self._try(library.nvmlDeviceGetCount) or 0):
            device = self._try(library.nvmlDeviceGetHandleByIndex, index)
            if device is not None:
                self._devices.append(device)
        self._names = [self._try(library.nvmlDeviceGetName, device) for device in self._devices]
        self._uuids = [self._try(library.nvmlDeviceGetUUID, device) for device in self._devices]

    def samples(self, now: datetime) -> list[GpuSample]:
        """Sample every GPU; a value that a model or driver does not report is None."""
        return [self._sample(index, device, now) for index, device in enumerate(self._devices)]

    def gpus(self) -> list[Gpu]:
        """Return the GPUs' hardware."""
        version = self._try(self._library.nvmlSystemGetDriverVersion) or ""
        return [self._gpu(index, device, version) for index, device in enumerate(self._devices)]

    def processes(self, index: int) -> list[tuple[int, int | None]] | None:
        """Return the processes that compute on one GPU, with their bytes there. None: unknown (containers, WDDM)."""
        if index >= len(self._devices):
            return None
        running = self._try(self._library.nvmlDeviceGetComputeRunningProcesses, self._devices[index])
        return None if running is None else [(entry.pid, entry.usedGpuMemory) for entry in running]

    def _gpu(self, index: int, device: object, version: str) -> Gpu:
        library = self._library
        place = self._try(lambda: library.nvmlDeviceGetPciInfo(device).busId)
        capability = self._try(library.nvmlDeviceGetCudaComputeCapability, device)
        memory = self._memory(device)
        architecture = self._try(library.nvmlDeviceGetArchitecture, device)
        limit = self._try(library.nvmlDeviceGetEnforcedPowerLimit, device)
        return Gpu(
            vendor="NVIDIA",
            name=self._names[index] or "NVIDIA GPU",
            driver="nvidia",
            driver_version=version,
            pci=None if place is None else normal_pci(place),
            uuid=self._uuids[index],
            total=None if memory is None else memory.total,
            free=None if memory is None else memory.free,
            compute=".".join(str(part) for part in capability) if capability else None,
            architecture=None if architecture is None else ARCHITECTURES.get(architecture),
            power_limit=round(limit * MILLIWATT, 1) if limit else None,
        )

    def _sample(self, index: int, device: object, now: datetime) -> GpuSample:
        library = self._library
        busy = self._try(library.nvmlDeviceGetUtilizationRates, device)
        memory = self._memory(device)
        power = self._try(library.nvmlDeviceGetPowerUsage, device)
        return GpuSample(
            timestamp=now,
            id=index,
            name=self._names[index] or "NVIDIA GPU",
            uuid=self._uuids[index],
            temp_c=self._try(library.nvmlDeviceGetTemperature, device, library.NVML_TEMPERATURE_GPU),
            vram_temp_c=self._memory_temperature(device),
            gpu_util_pct=None if busy is None else busy.gpu,
            mem_util_pct=None if busy is None else busy.memory,
            mem_used_mb=None if memory is None else memory.used // MIB,
            mem_total_mb=None if memory is None else memory.total // MIB,
            fan_speed_pct=self._try(library.nvmlDeviceGetFanSpeed, device),
            power_draw_w=None if power is None else round(power * MILLIWATT, 1),
        )

    def _memory(self, device: object) -> Any:
        """Return the memory as ``nvidia-smi`` counts it, without the driver's own reserve, if the driver can (510)."""
        library = self._library
        # The older call counts the driver's reserve as used, some hundred MiB, and a model that just fits would be
        # refused.
        newer = self._try(library.nvmlDeviceGetMemoryInfo, device, version=library.nvmlMemory_v2)
        return newer or self._try(library.nvmlDeviceGetMemoryInfo, device)

    def _memory_temperature(self, device: object) -> int | None:
        fields = self._try(self._library.nvmlDeviceGetFieldValues, device, [MEMORY_TEMPERATURE])
        if fields is None or fields[0].nvmlReturn != 0:
            return None
        return fields[0].value.uiVal or None  # some GPUs say 0 where they have no sensor

    def _try(self, ask: Callable[P, T], *words: P.args, **named: P.kwargs) -> T | None:
        """Ask the driver one question; a refusal (not supported, no permission, GPU lost) means unknown."""
        try:
            return ask(*words, **named)
        except self._library.NVMLError:
            return None


@contextmanager
def open_nvml(refused: Callable[[str], None]) -> Generator[Nvml | None]:
    """Initialise the library for the block. None without a working driver; ``refused`` then gets NVML's message."""
    try:
        # pynvml can be imported without a driver, and fails only when it is used. A look for the library costs less.
        ctypes.CDLL(NVML[0])
    except OSError:
        yield None
        return
    import pynvml

    library: Any = pynvml
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        refused(str(error))
        yield None
        return
    try:
        yield Nvml(library)
    finally:
        library.nvmlShutdown()
