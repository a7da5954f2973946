"""A driver's library (NVML) for a C compiler: cards that tell something, or one that dies or hangs when it is asked."""

from __future__ import annotations

import subprocess
from pathlib import Path

NAME = "libnvidia-ml.so.1"
SOURCE = r"""
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <unistd.h>
typedef struct { char legacy[16]; unsigned domain, bus, device, number, subsystem; char id[32]; } pci_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned id, scope; long long time, latency; unsigned kind, wrong; unsigned long long value; } field_t;
typedef struct { unsigned gpu, memory; } busy_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process_t;
/* The second card does not support most of the questions; there is no permission on the third. */
#define FIRST if (handle != (void *)1) return 3
static int asked = 0;
int nvmlInitWithFlags(unsigned flags) { INIT; return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 18 ? "Driver/library version mismatch" : "Unknown Error"; }
int nvmlSystemGetDriverVersion(char *to, unsigned size) { strcpy(to, "570.86"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
  *handle = (void *)(size_t)(index + 1); return index == 2 ? 4 : 0; }
int nvmlDeviceGetName(void *handle, char *to, unsigned size) {
  sprintf(to, "NVIDIA Fake %d", (int)(size_t)handle); return 0; }
int nvmlDeviceGetUUID(void *handle, char *to, unsigned size) {
  sprintf(to, "GPU-%d", (int)(size_t)handle); return 0; }
int nvmlDeviceGetPciInfo_v3(void *handle, pci_t *to) {
  memset(to, 0, sizeof *to); sprintf(to->id, "00000000:0%d:00.0", (int)(size_t)handle); return 0; }
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) { *major = 8; *minor = 9; return 0; }
int nvmlDeviceGetMemoryInfo(void *handle, memory_t *to) {
  to->total = 8ull << 30; to->used = 2ull << 30; to->free = 6ull << 30; return 0; }
int nvmlDeviceGetMemoryInfo_v2(void *handle, memory_v2_t *to) {
  char *others = getenv("FAKE_NVML_GIB_OF_OTHERS");
  unsigned long long used = 1 + (others ? atoi(others) : 0);
  FIRST; to->total = 8ull << 30; to->reserved = 1ull << 30; to->used = used << 30; to->free = 8 - used << 30;
  return 0; }
int nvmlDeviceGetArchitecture(void *handle, unsigned *to) { FIRST; *to = 9; return 0; }
int nvmlDeviceGetTemperature(void *handle, unsigned sensor, unsigned *to) { FIRST; *to = 41 + sensor; return 0; }
int nvmlDeviceGetPowerUsage(void *handle, unsigned *to) { FIRST; *to = 123456; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *to) { FIRST; *to = 700000; return 0; }
int nvmlDeviceGetFieldValues(void *handle, int count, field_t *to) {
  to->wrong = handle == (void *)1 && to->id == 82 ? 0 : 3; to->value = 47; return 0; }
int nvmlDeviceGetUtilizationRates(void *handle, busy_t *to) { WORK; to->gpu = 40 + asked++; to->memory = 7; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, process_t *to) {
  if (*count < 1) { *count = 1; return 7; }
  *count = 1; to->pid = (unsigned)getppid(); to->used = 3ull << 30; to->gi = to->ci = 0; return 0; }
"""


def build(folder: Path, *, at_init: str = "", at_work: str = "") -> Path:
    """Compile it; these statements are executed when it is initialised, and when it is asked how busy a card is."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "nvml.c"
    source.write_text(SOURCE)
    library = folder / NAME
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-w", f"-DINIT={at_init}", f"-DWORK={at_work}", "-o", library, source],
        check=True,
    )
    return library
