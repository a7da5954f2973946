"""Which build is meant, and whether it can run here at all."""

from __future__ import annotations

import pytest
from msgspec import structs

from appliance.core.engines.builds import (
    Asked,
    Entry,
    Wants,
    check_entry,
    find_entry,
    numbers_of,
    parse_asked,
    release_of,
    unmet,
)
from appliance.core.engines.machine import Gpu, Look
from appliance.errors import UsageError

LOOK = Look(platform="linux-x64", system="Linux 6.1", environment="native", cpu="A processor")
CARD = Gpu(vendor="NVIDIA", name="GTX", driver="nvidia", driver_version="550.54.14", compute="8.6")


def entry(backend: str, build: str, platform: str = "linux-x64") -> Entry:
    return Entry(platform=platform, backend=backend, build=build)


@pytest.mark.parametrize(
    ("word", "asked"),
    [
        ("vulkan", Asked(platform="linux-x64", backend="vulkan")),
        ("vulkan/b11434", Asked(platform="linux-x64", backend="vulkan", build="b11434")),
        ("windows-x64-cuda12/b1", Asked(platform="windows-x64", backend="cuda12", build="b1")),
        ("macos-arm64-metal", Asked(platform="macos-arm64", backend="metal")),
    ],
)
def test_what_a_word_asks_for(word: str, asked: Asked) -> None:
    assert parse_asked(word, "linux-x64") == asked


@pytest.mark.parametrize(
    "word", ["", "cuda", "vulkan/..", "vulkan/a/b", "beos-x64-cpu", "cpu/", "../cpu/b1", "cpu/B 1"]
)
def test_other_words_are_refused_by_name(word: str) -> None:
    with pytest.raises(UsageError, match="is not a build"):
        parse_asked(word, "linux-x64")


def test_the_newest_build_is_meant_unless_another_one_is_named() -> None:
    entries = [
        entry("cpu", "b999"),
        entry("cpu", "b11434"),
        entry("cpu", "b20000", "windows-x64"),
        entry("vulkan", "b1"),
    ]
    assert find_entry(entries, parse_asked("cpu", "linux-x64")).build == "b11434"
    assert find_entry(entries, parse_asked("cpu/b999", "linux-x64")).build == "b999"
    with pytest.raises(UsageError, match="there is b999, b11434"):
        find_entry(entries, parse_asked("cpu/b7", "linux-x64"))
    with pytest.raises(UsageError, match="there is cpu, vulkan"):
        find_entry(entries, parse_asked("rocm", "linux-x64"))
    assert numbers_of("b11434") > numbers_of("b999")


def test_a_release_is_known_by_the_name_of_its_archive() -> None:
    assert release_of("llama-b11434-bin-ubuntu-x64.tar.gz") == "b11434"
    assert release_of("cudart-llama-bin-win-cuda-13.4-x64.zip") is None
    assert release_of("b20.zip") == "b20"


@pytest.mark.parametrize("build", ["..", "a/b", "", "A", "a..b", ".hidden"])
def test_no_build_can_have_a_name_that_leads_elsewhere(build: str) -> None:
    with pytest.raises(UsageError, match="cannot be part"):
        check_entry(entry("cpu", build))


@pytest.mark.parametrize(
    ("needs", "backend", "look", "said"),
    [
        (Wants(), "cpu", LOOK, None),
        (Wants(driver="525"), "cuda12", LOOK, "needs a graphics card of NVIDIA; this machine's are: none"),
        (Wants(driver="525"), "cuda12", structs.replace(LOOK, gpus=(CARD,)), None),
        (
            Wants(driver="580"),
            "cuda13",
            structs.replace(LOOK, gpus=(CARD,)),
            "needs the driver 580 or newer; GTX has 550",
        ),
        (Wants(compute=("8.0",)), "cuda12", structs.replace(LOOK, gpus=(CARD,)), None),
        (
            Wants(compute=("8.9", "9.0")),
            "cuda12",
            structs.replace(LOOK, gpus=(CARD,)),
            "compute capability 8.9, 9.0, not",
        ),
        (Wants(), "vulkan", structs.replace(LOOK, loaders={"vulkan": ""}), "no vulkan library"),
        (Wants(), "vulkan", structs.replace(LOOK, loaders={"vulkan": "/usr/lib/libvulkan.so.1"}), None),
        (Wants(cpu=("avx2",)), "cpu", structs.replace(LOOK, cpu_features=("sse4_2",)), "a processor with avx2"),
        (Wants(cpu=("avx2",)), "cpu", LOOK, None),
        (Wants(libc="2.39"), "cpu", LOOK, "needs glibc 2.39 or newer; this system has 2.36"),
        (Wants(libc="2.35"), "cpu", LOOK, None),
    ],
)
def test_what_is_missing_is_told(needs: Wants, backend: str, look: Look, said: str | None) -> None:
    found = unmet(needs, backend, "linux-x64", look, libc="2.36")
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def test_a_build_for_amd_cards_of_another_kind() -> None:
    card = Gpu(vendor="AMD", name="Radeon", driver="amdgpu", gfx="gfx803")
    look = structs.replace(LOOK, gpus=(card,))
    assert unmet(Wants(targets=("gfx1100",)), "rocm", "linux-x64", look) == ["it was not made for Radeon (gfx803)"]
    assert unmet(Wants(targets=("gfx803",)), "rocm", "linux-x64", look) == []
    assert unmet(Wants(), "cpu", "windows-x64", look) == ["it is for windows-x64, and this machine is linux-x64"]
