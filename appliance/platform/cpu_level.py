"""The abilities of this machine's processor: the level that builds are made for, and the features that matter to them.

Sources: the x86-64 psABI's microarchitecture levels; Linux' names in ``/proc/cpuinfo``; Apple's ``hw.optional`` names;
``IsProcessorFeaturePresent`` of Win32.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from pathlib import Path

from appliance.platform.drm import read_text

ROOT = Path("/")
LEVELS = (
    ("x86-64-v4", frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})),
    ("x86-64-v3", frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})),
    ("x86-64-v2", frozenset({"cx16", "popcnt", "ssse3", "sse4_1", "sse4_2"})),
    ("x86-64-v1", frozenset({"sse2"})),
)
"""Each level includes those below it."""
X86 = (
    "sse3", "ssse3", "sse4_1", "sse4_2", "avx", "f16c", "fma", "bmi2", "avx2", "avx_vnni", "avx512f", "avx512_vnni",
    "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16",
)  # fmt: skip
"""The features that distinguish llama.cpp's variants for x86."""
ARM = {"asimd": "neon", "asimddp": "dotprod", "asimdhp": "fp16", "i8mm": "i8mm", "bf16": "bf16", "sve": "sve",
       "sve2": "sve2", "sme": "sme"}  # fmt: skip
"""Linux' names, mapped to the compiler's."""
APPLE = {"FEAT_DotProd": "dotprod", "FEAT_FP16": "fp16", "FEAT_I8MM": "i8mm", "FEAT_BF16": "bf16", "FEAT_SME": "sme"}
INTEL_MAC = {"supplementalsse3": "ssse3", "sse4_1": "sse4_1", "sse4_2": "sse4_2", "avx1_0": "avx", "avx2_0": "avx2",
             "fma": "fma", "bmi2": "bmi2", "f16c": "f16c", "avx512f": "avx512f"}  # fmt: skip
WINDOWS = {13: "sse3", 36: "ssse3", 37: "sse4_1", 38: "sse4_2", 39: "avx", 40: "avx2", 41: "avx512f", 43: "dotprod"}


def cpu_level(root: Path = ROOT) -> tuple[str, tuple[str, ...]]:
    """Return the level (``x86-64-v3``, ``armv8.2-a``; empty: unknown) and the features."""
    if sys.platform == "darwin":
        return _of_mac()
    if sys.platform == "win32":
        return _of_windows()
    text = read_text(root / "proc/cpuinfo") or ""
    if flags := _field(text, "flags"):
        known = {*flags.split()}
        known |= {"sse3"} if "pni" in known else set()
        return x86_level(known), tuple(name for name in X86 if name in known)
    if features := _field(text, "Features"):
        known = {*features.split()}
        return arm_level({ARM[name] for name in ARM if name in known}), tuple(
            ARM[name] for name in ARM if name in known
        )
    return "", ()


def x86_level(flags: Collection[str]) -> str:
    """Return the highest level whose features, and those of the levels below it, are all there."""
    best = ""
    for name, needed in reversed(LEVELS):
        if not needed <= {*flags}:
            break
        best = name
    return best


def arm_level(features: Collection[str]) -> str:
    """Return the least architecture that has these features."""
    if "sme" in features or "sve2" in features:
        return "armv9-a"
    if "i8mm" in features or "bf16" in features:
        return "armv8.6-a"
    return "armv8.2-a" if "dotprod" in features else "armv8-a"


def _field(cpuinfo: str, name: str) -> str | None:
    found = re.search(rf"^{name}\s*:[ \t]*(.*)$", cpuinfo, re.MULTILINE)
    return found[1] if found else None


def _of_mac() -> tuple[str, tuple[str, ...]]:
    from appliance.platform.hardware_macos import has_feature, is_apple

    if is_apple():
        features = ["neon", *(name for feature, name in APPLE.items() if has_feature(f"arm.{feature}"))]
        return arm_level(features), tuple(features)
    features = [name for feature, name in INTEL_MAC.items() if has_feature(feature)]
    level = "x86-64-v4" if "avx512f" in features else "x86-64-v3" if "avx2" in features else "x86-64-v2"
    return level, tuple(features)


def _of_windows() -> tuple[str, tuple[str, ...]]:
    """Windows reports only a few features; every processor with AVX2 that it runs on has the rest of its level."""
    import ctypes
    import platform

    assert sys.platform == "win32"
    present = ctypes.windll.kernel32.IsProcessorFeaturePresent
    features = [name for number, name in WINDOWS.items() if present(number)]
    if platform.machine().lower() == "arm64":
        return arm_level(features), ("neon", *features)
    for word, level in (("avx512f", "x86-64-v4"), ("avx2", "x86-64-v3"), ("sse4_2", "x86-64-v2")):
        if word in features:
            return level, tuple(features)
    return "x86-64-v1", tuple(features)
