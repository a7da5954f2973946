"""A driver's library with one well-equipped GPU and one that tells almost nothing, in `pynvml`'s own structures."""

from __future__ import annotations

import pynvml

MIB = 1 << 20


class FakeNvml:
    """What `appliance.platform.nvml` uses of `pynvml`. ``refuses_to_start`` is a library without a working driver."""

    NVMLError = pynvml.NVMLError
    NVML_TEMPERATURE_GPU = pynvml.NVML_TEMPERATURE_GPU
    nvmlMemory_v2 = pynvml.nvmlMemory_v2

    def __init__(self, *, refuses_to_start: bool = False, old_driver: bool = False) -> None:
        self.refuses_to_start = refuses_to_start
        self.old_driver = old_driver
        self.open = 0

    def nvmlInit(self) -> None:
        if self.refuses_to_start:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "590.44"

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == 2:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return ("NVIDIA H200", "NVIDIA Quadro K600")[handle]

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetPciInfo(self, handle: int) -> pynvml.nvmlPciInfo_t:
        self._only_first(handle)
        return pynvml.nvmlPciInfo_t(busId=b"0000000A:B1:00.0")

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> list[int]:
        self._only_first(handle)
        return [9, 0]

    def nvmlDeviceGetArchitecture(self, device: int) -> int:
        return (pynvml.NVML_DEVICE_ARCH_HOPPER, pynvml.NVML_DEVICE_ARCH_UNKNOWN)[device]

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return (41, 55)[handle]

    def nvmlDeviceGetFieldValues(self, handle: int, fieldIds: list[int]) -> list[pynvml.c_nvmlFieldValue_t]:
        assert fieldIds == [pynvml.NVML_FI_DEV_MEMORY_TEMP]
        answer = pynvml.c_nvmlFieldValue_t()
        answer.nvmlReturn = (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_SUPPORTED)[handle]
        answer.value.uiVal = (47, 0)[handle]
        return [answer]

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> pynvml.c_nvmlUtilization_t:
        self._only_first(handle)
        return pynvml.c_nvmlUtilization_t(gpu=87, memory=35)

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int | None = None) -> pynvml.c_nvmlMemory_t:
        if self.old_driver and version is not None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        self._only_first(handle)
        reserve = 500 if version is None else 0
        return pynvml.c_nvmlMemory_t(total=143771 * MIB, used=(1024 + reserve) * MIB, free=142000 * MIB)

    def nvmlDeviceGetFanSpeed(self, handle: int) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        self._only_first(handle)
        return 123_456

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:
        self._only_first(handle)
        return 700_000

    def _only_first(self, handle: int) -> None:
        if handle != 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
