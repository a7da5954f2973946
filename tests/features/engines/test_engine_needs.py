"""Which build is meant, and whether it can run here at all."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from appliance.core.builds import BuildNeeds
from appliance.core.machine_look import Gpu, MachineLook
from appliance.core.versions import numbers_of
from appliance.errors import UsageError
from appliance.features.engines.core.builds import (
    AvailableBuild,
    Catalogue,
    EngineOffer,
    InstallWish,
    Release,
    check_entry,
    find_entry,
    offers,
    parse_asked,
    release_of,
    suited,
    unmet,
)
from appliance.features.engines.verbs.here import offer_in_words

LOOK = MachineLook(platform="linux-x64", system="Linux 6.1", environment="native", cpu="A processor")
CARD = Gpu(vendor="NVIDIA", name="GTX", driver="nvidia", driver_version="550.54.14", compute="8.6")


def entry(backend: str, build: str, platform: str = "linux-x64") -> AvailableBuild:
    return AvailableBuild(platform=platform, backend=backend, build=build)


@pytest.mark.parametrize(
    ("word", "asked"),
    [
        ("vulkan", InstallWish(platform="linux-x64", backend="vulkan")),
        ("vulkan/b11434", InstallWish(platform="linux-x64", backend="vulkan", build="b11434")),
        ("windows-x64-cuda12/b1", InstallWish(platform="windows-x64", backend="cuda12", build="b1")),
        ("macos-arm64-metal", InstallWish(platform="macos-arm64", backend="metal")),
    ],
)
def test_what_a_word_asks_for(word: str, asked: InstallWish) -> None:
    assert parse_asked(word, "linux-x64") == asked


@pytest.mark.parametrize(
    "word", ["", "cuda", "vulkan/..", "vulkan/a/b", "beos-x64-cpu", "cpu/", "../cpu/b1", "cpu/B 1"]
)
def test_other_words_are_refused_by_name(word: str) -> None:
    with pytest.raises(UsageError, match="is not a build"):
        parse_asked(word, "linux-x64")


def test_the_newest_build_is_meant_unless_another_one_is_named() -> None:
    entries = Catalogue(
        entries=(
            entry("cpu", "b999"),
            entry("cpu", "b11434"),
            entry("cpu", "b20000", "windows-x64"),
            entry("vulkan", "b1"),
        ),
        releases=(Release(version="0.6.0", build="b999"),),
    )
    assert find_entry(entries, parse_asked("cpu", "linux-x64")).build == "b11434"
    for word in ("cpu/b999", "cpu/0.6.0", "cpu/v0.6.0"):
        assert find_entry(entries, parse_asked(word, "linux-x64")).build == "b999"
    with pytest.raises(UsageError, match=r"there is no cpu/0\.7\.0 for linux-x64; there is b999, b11434"):
        find_entry(entries, parse_asked("cpu/0.7.0", "linux-x64"))
    with pytest.raises(UsageError, match="there is b999, b11434"):
        find_entry(entries, parse_asked("cpu/b7", "linux-x64"))
    with pytest.raises(UsageError, match="there is cpu, vulkan"):
        find_entry(entries, parse_asked("rocm", "linux-x64"))
    assert numbers_of("b11434") > numbers_of("b999")


def test_a_release_is_known_by_the_name_of_its_archive() -> None:
    assert release_of("llama-b11434-bin-ubuntu-x64.tar.gz") == "b11434"
    assert release_of("cudart-llama-bin-win-cuda-13.4-x64.zip") is None
    assert release_of("b20.zip") == "b20"
    assert release_of("llama-v0.6.0-bin-ubuntu-22.04.1-x64.tar.gz") == "0.6.0"
    assert release_of("llama-b11434-v0.6.0.zip") == "b11434"


NUMBERED = st.integers(1, 9).map(lambda number: f"b{number}")
VERSIONS = st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 2)).map(lambda v: ".".join(map(str, v)))
NAMES = NUMBERED | VERSIONS | VERSIONS.map(lambda version: f"v{version}") | st.sampled_from(["0.1.0-dev", "mine", ""])
LISTS = st.dictionaries(VERSIONS, NUMBERED, max_size=4).map(
    lambda known: Catalogue(releases=tuple(Release(version=version, build=build) for version, build in known.items()))
)


@given(LISTS, NAMES, NAMES, NAMES)
def test_which_build_is_newer_is_an_order_that_only_the_list_completes(
    catalogue: Catalogue, one: str, other: str, third: str
) -> None:
    newer = catalogue.is_newer(one, other)
    if newer is None:
        assert catalogue.is_newer(other, one) is None
    assert catalogue.is_newer(one, one) is not True
    if newer:
        assert catalogue.is_newer(other, one) is False
        if catalogue.is_newer(other, third):
            assert catalogue.is_newer(one, third) is True
    known = {release.version: release.build for release in catalogue.releases}
    plain = [name.removeprefix("v") for name in (one, other)]
    builds = [name if name.startswith("b") else known.get(name) for name in plain]
    if None not in builds:
        assert newer is (int(str(builds[0])[1:]) > int(str(builds[1])[1:])), "the list decides, also against SemVer"
        assert catalogue.is_same(one, other) is (builds[0] == builds[1])
    elif any(builds):
        assert newer is None, "nobody guesses how a number and an unlisted version compare"
    elif all(re.fullmatch(r"\d\.\d\.\d", name) for name in plain):
        assert newer is (plain[0] > plain[1])


@given(LISTS, st.sets(NUMBERED, min_size=1))
def test_the_stable_channel_takes_the_newest_version_and_the_latest_the_newest_of_all(
    catalogue: Catalogue, builds: set[str]
) -> None:
    entries = [entry("cpu", build) for build in builds]
    versions = {release.build for release in catalogue.releases} & builds
    latest, stable = catalogue.newest(entries), catalogue.newest(entries, "stable")
    assert latest.build == max(builds)
    assert (stable.build if stable is not None else None) == max(versions, default=None)
    assert stable is None or catalogue.version_of(stable.build)


@pytest.mark.parametrize("build", ["..", "a/b", "", "A", "a..b", ".hidden"])
def test_no_build_can_have_a_name_that_leads_elsewhere(build: str) -> None:
    with pytest.raises(UsageError, match="cannot be part"):
        check_entry(entry("cpu", build))


WITH_CARD = structs.replace(LOOK, gpus=(CARD,))
RADEON = structs.replace(LOOK, gpus=(Gpu(vendor="AMD", name="Radeon", driver="amdgpu", gfx="gfx803"),))


@pytest.mark.parametrize(
    ("needs", "backend", "look", "said"),
    [
        (BuildNeeds(), "cpu", LOOK, None),
        (BuildNeeds(driver="525"), "cuda12", LOOK, "needs a graphics card of NVIDIA; this machine's are: none"),
        (BuildNeeds(driver="525"), "cuda12", WITH_CARD, None),
        (BuildNeeds(driver="580"), "cuda13", WITH_CARD, "needs the driver 580 or newer; GTX has 550"),
        (BuildNeeds(compute=("8.0",)), "cuda12", WITH_CARD, None),
        (BuildNeeds(compute=("8.9", "9.0")), "cuda12", WITH_CARD, "compute capability 8.9, 9.0, not"),
        (BuildNeeds(targets=("gfx1100",)), "rocm", RADEON, "it was not made for Radeon (gfx803)"),
        (BuildNeeds(targets=("gfx803",)), "rocm", RADEON, None),
        (BuildNeeds(), "vulkan", structs.replace(LOOK, loaders={"vulkan": ""}), "no vulkan library"),
        (BuildNeeds(), "vulkan", structs.replace(LOOK, loaders={"vulkan": "/usr/lib/libvulkan.so.1"}), None),
        (BuildNeeds(cpu=("avx2",)), "cpu", structs.replace(LOOK, cpu_features=("sse4_2",)), "a processor with avx2"),
        (BuildNeeds(cpu=("avx2",)), "cpu", LOOK, None),
        (BuildNeeds(libc="2.39"), "cpu", LOOK, "needs glibc 2.39 or newer; this system has 2.36"),
        (BuildNeeds(libc="2.35"), "cpu", LOOK, None),
        (BuildNeeds(), "cpu", structs.replace(LOOK, platform="macos-x64"), "for linux-x64, and this machine is macos"),
    ],
)
def test_what_is_missing_is_told(needs: BuildNeeds, backend: str, look: MachineLook, said: str | None) -> None:
    found = unmet(needs, backend, "linux-x64", look, libc="2.36")
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


@pytest.mark.parametrize(
    ("version", "backends"),
    [
        ("", ("cuda13", "cuda12", "vulkan")),
        ("580.0", ("cuda13", "cuda12", "vulkan")),
        ("579.99", ("cuda12", "vulkan")),
        ("525.60", ("cuda12", "vulkan")),
        ("470.1", ("vulkan",)),
    ],
)
def test_an_nvidia_card_has_the_generations_of_cuda_that_its_driver_knows(
    version: str, backends: tuple[str, ...]
) -> None:
    assert suited(structs.replace(CARD, driver_version=version)) == backends


NEEDS = st.builds(
    BuildNeeds,
    driver=st.sampled_from(["", "525.60", "580.0"]),
    compute=st.sampled_from([(), ("8.0", "9.0"), ("12.0",)]),
    targets=st.sampled_from([(), ("gfx1100",)]),
    libc=st.sampled_from(["", "2.36", "2.39"]),
)
BUILDS = st.builds(
    AvailableBuild,
    platform=st.sampled_from(["linux-x64", "windows-x64"]),
    backend=st.sampled_from(["cpu", "vulkan", "cuda12", "cuda13", "rocm", "sycl"]),
    build=st.sampled_from(["b1", "b2"]),
    needs=NEEDS,
)
CARDS = st.builds(
    Gpu,
    vendor=st.sampled_from(["NVIDIA", "AMD", "Intel", "Matrox"]),
    name=st.sampled_from(["A", "B"]),
    driver=st.just("x"),
    driver_version=st.sampled_from(["", "550.54", "590.1"]),
    compute=st.sampled_from([None, "8.6", "6.1"]),
    gfx=st.sampled_from([None, "gfx1100", "gfx900"]),
)


@given(
    cards=st.lists(CARDS, max_size=3),
    entries=st.lists(BUILDS, max_size=8, unique_by=lambda one: one.id),
    present=st.sets(st.sampled_from(["cpu", "vulkan", "cuda12"])),
)
def test_a_card_that_nothing_uses_is_offered_the_first_build_that_runs_or_told_why_none_does(
    cards: list[Gpu], entries: list[AvailableBuild], present: set[str]
) -> None:
    look = structs.replace(LOOK, gpus=tuple(cards), loaders={"vulkan": "/x", "cuda": "/x", "rocm": "/x"})

    def lacks(one: AvailableBuild) -> list[str]:
        return unmet(one.needs, one.backend, one.platform, look, libc="2.36")

    found = {one.card: one for one in offers(look, Catalogue(entries=tuple(entries)), present, libc="2.36")}
    idle = [gpu for gpu in cards if suited(gpu) and not present.intersection(suited(gpu))]
    assert {gpu.name for gpu in idle} == set(found)
    for gpu in idle[:1]:
        offer, order = found[gpu.name], suited(gpu)
        able = [one for one in entries if one.platform == "linux-x64" and one.backend in order and not lacks(one)]
        assert bool(offer.word) == bool(able)
        if able:
            best = min(order.index(one.backend) for one in able)
            assert offer.word == order[best]
            assert offer.build in [one.id for one in able]
        elif any(one.platform == "linux-x64" and one.backend in order for one in entries):
            assert offer.problems


def test_an_offer_says_the_command_the_size_and_why_it_is_no_better() -> None:
    none = EngineOffer(card="A")
    assert offer_in_words(none) == "A computes nothing here, and no listed build can use it"
    why = structs.replace(none, problems=("no libc", "no driver"))
    assert offer_in_words(why).endswith("can use it (no libc; no driver)")
    found = EngineOffer(card="A", word="cuda12", build="linux-x64-cuda12/b9")
    assert offer_in_words(found).endswith(": linux-x64-cuda12/b9 can use it; 'engines install cuda12'")
    assert ", 1.0 GB;" in offer_in_words(structs.replace(found, size=10**9))
