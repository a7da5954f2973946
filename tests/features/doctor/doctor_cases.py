"""Facts that differ from a healthy machine's in one thing, with what is to be found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import convert, structs

from appliance.core.builds import BuildNeeds
from appliance.core.config.nodes import Position, Problem
from appliance.core.examination import (
    BusCard,
    Checkup,
    ConfigFact,
    DeviceFile,
    Disk,
    Known,
    Lately,
    ModelFact,
    OwnFacts,
    PortOwner,
    ServedModel,
    ServerFact,
)
from appliance.core.findings import Trouble
from appliance.core.machine_look import Gpu, MachineLook
from appliance.core.versions import RefusedUpdate
from appliance.features.doctor.core.facts import Facts
from appliance.features.downloads.findings import DownloadsExamined
from appliance.features.engines.core.builds import Archive, AvailableBuild, Catalogue, Installed, offers
from appliance.features.engines.core.choice import Ranked
from appliance.features.engines.core.findings import EnginesExamined
from appliance.features.engines.core.listing import Device, Fault, cpu_device
from appliance.features.engines.core.standing import (
    ContextTrial,
    ListedDevices,
    Probation,
    Proof,
    ProofKey,
    Seat,
    Standing,
)
from appliance.features.engines.core.state import EngineState
from appliance.features.fit.core.findings import FitExamined
from appliance.features.pool.findings import PoolExamined
from appliance.features.programs.findings import VersionsExamined
from appliance.features.traces.findings import TracesExamined

GIB = 1 << 30
NOW = 1_800_000_000.0
PCI = "0000:01:00.0"
URL = "http://127.0.0.1:8080"
CARD = Gpu(
    vendor="nvidia",
    name="Test Card 9000",
    driver="nvidia",
    driver_version="580.65",
    pci=PCI,
    total=8 * GIB,
    compute="8.9",
    integrated=False,
)
LISTED = Catalogue(
    entries=tuple(
        AvailableBuild(
            platform="linux-x64",
            backend=backend,
            build="b1",
            archives=(Archive(name=backend, size=31_000_000),),
            needs=needs,
        )
        for backend, needs in {
            "cpu": BuildNeeds(),
            "cuda13": BuildNeeds(driver="580.0", libc="2.36"),
            "cuda12": BuildNeeds(driver="525.60"),
            "rocm": BuildNeeds(targets=("gfx1100",)),
            "vulkan": BuildNeeds(),
        }.items()
    )
)
LOOK = MachineLook(
    platform="linux-x64",
    system="Linux 6.1.0",
    environment="native",
    cpu="Test CPU",
    cpu_level="x86-64-v3",
    cpu_features=("avx", "avx2"),
    cores=8,
    memory_total=32 * GIB,
    memory_available=20 * GIB,
    gpus=(CARD,),
    loaders={"vulkan": "libvulkan.so.1", "cuda": "libcuda.so.1", "rocm": ""},
)
CPU_BUILD = Installed(id="linux-x64-cpu/b11434", backend="cpu", source="installed", digest="c0")
CUDA_BUILD = Installed(
    id="linux-x64-cuda13/b11434",
    backend="cuda13",
    source="installed",
    digest="c1",
    needs=BuildNeeds(driver="580.0", compute=("8.0", "8.6")),
)
VULKAN_BUILD = Installed(id="linux-x64-vulkan/b11434", backend="vulkan", source="installed", digest="c2")
CUDA = Device(name="CUDA0", description="Test Card 9000", total=8 * GIB, free=8 * GIB, pci=PCI, driver="580.65")
LAVAPIPE = Device(name="Vulkan0", description="llvmpipe", total=GIB, free=GIB, software=True)


def seat(build: Installed, *devices: Device, fault: str = "") -> Seat:
    named = devices or (cpu_device("Test CPU", 32 * GIB),)
    return Seat(build=build.id, backend=build.backend, digest=build.digest, place=2, devices=named, fault=fault)


def ranked(
    build: Installed,
    *devices: Device,
    standing: Standing = "proven",
    why: str = "proven at 9 and 9 tokens/s",
    wanted: bool = False,
    fault: str = "",
) -> Ranked:
    return Ranked(seat=seat(build, *devices, fault=fault), standing=standing, why=why, wanted=wanted)


ON_CARD, ON_CPU = ranked(CUDA_BUILD, CUDA), ranked(CPU_BUILD)
ANSWERS = ServerFact(
    url=URL,
    answer="answers",
    version="1.0",
    engine=ON_CARD.seat.id,
    running=(ServedModel(id="qwen", state="loaded", seat=ON_CARD.seat.id, layers=(33, 33)),),
)
CHECKUP = Checkup(
    disks=(Disk(what="models", path="/data", free=100 * GIB, total=500 * GIB),),
    swap_total=8 * GIB,
    open_files=65536,
    cores=8,
    memory=32 * GIB,
    cards=(BusCard(pci=PCI, vendor="NVIDIA", driver="nvidia"),),
    device_files=(DeviceFile(path="/dev/nvidia0", usable=True),),
)
QWEN = ModelFact(id="qwen", source="models_dir", path="/data/qwen.gguf", size=4 * GIB)
SHAPES: tuple[type[Known | OwnFacts], ...] = (
    Known, EnginesExamined, DownloadsExamined, FitExamined, PoolExamined, VersionsExamined, TracesExamined,
)  # fmt: skip
"""The facts whose findings have a case here, in the order of their examiners; other features have their own tests."""


def assembled(**members: object) -> Facts:
    """Return the facts with these members, as JSON has them."""
    known, *own = (
        shape(**{name: members[name] for name in shape.__struct_fields__ if name in members}) for shape in SHAPES
    )
    assert isinstance(known, Known)
    return Facts(known, tuple(each for each in own if isinstance(each, OwnFacts)))


def facts(
    *,
    look: Mapping[str, object] | None = None,
    state: Mapping[str, object] | None = None,
    checkup: Mapping[str, object] | None = None,
    server: Mapping[str, object] | None = None,
    **changed: object,
) -> Facts:
    """The healthy machine's facts with these changed; of four of them only the named parts."""
    seen = structs.replace(LOOK, **look or {})
    members: dict[str, Any] = {
        "version": "1.0",
        "now": NOW,
        "look": seen,
        "ranked": (ON_CARD, ON_CPU),
        "state": structs.replace(EngineState(look=seen), **state or {}),
        "engines": (CUDA_BUILD, CPU_BUILD),
        "checkup": structs.replace(CHECKUP, **checkup or {}),
        "models": (QWEN,),
        "models_dir": "/data",
        "server": structs.replace(ANSWERS, **server or {}),
        **changed,
    }
    present = {engine.backend for engine in members["engines"] if not engine.damage}
    members["offers"] = offers(seen, LISTED, present, libc="2.36")
    return assembled(**members)


WELL = facts()


def running(state: str = "loaded", **known: object) -> dict[str, object]:
    """A server with one model."""
    return {"running": (structs.replace(ServedModel(id="qwen", state=state), **known),)}


def card(**changed: object) -> dict[str, object]:
    """A machine with one graphics card."""
    return {"gpus": (structs.replace(CARD, **changed),)}


def proof(fault: Fault | None = "garbage", at: float = NOW - 60, build: Installed = CUDA_BUILD) -> Proof:
    return Proof(
        key=ProofKey(digest=build.digest, device=PCI, driver="580.65", system="Linux 6.1.0"),
        build=build.id,
        device="CUDA0: Test Card 9000",
        fault=fault,
        why="it said 'xyzzy' to a known question",
        at=at,
    )


USELESS = ContextTrial(
    digest=CUDA_BUILD.digest,
    build=CUDA_BUILD.id,
    architecture="gemma3",
    why="4011 tokens were given back, and it read all but 0 again",
    at=NOW - 60,
)


def probation(until: float = NOW + 300, since: float = NOW - 10) -> Probation:
    return Probation(
        seat=ON_CARD.seat.id,
        digest="c1",
        model="qwen",
        failures=2,
        why="it died with signal 6",
        since=since,
        until=until,
    )


def config(level: Literal["error", "warning"]) -> ConfigFact:
    at = Position("config.yaml", 3, 1)
    problem = Problem(message="there is no such key", path="models.a.cmdd", at=at, level=level)
    return ConfigFact(files=("config.yaml",), problems=(problem,))


NO_GPU: dict[str, object] = {"gpus": ()}
CPU_ONLY = {"engines": (CPU_BUILD,), "ranked": (ON_CPU,)}
BAD_MODEL = ModelFact(id="bad", source="path", path="/x.gguf", error="the file ends early")
FAILED = ranked(CUDA_BUILD, CUDA, standing="failed", why="it said 'xyzzy'")
UNTRIED = ranked(CUDA_BUILD, CUDA, standing="untried")
ON_SOFTWARE = ranked(VULKAN_BUILD, LAVAPIPE)
NO_DEVICE = ListedDevices(digest="c2", system="", drivers="")
CLOSED = DeviceFile(path="/dev/kfd", usable=False, group="render")
ENDED = {"model": "qwen", "ended": 9, "failed": 0, "refused": 9, "last": "400 odd"}
REFUSED = RefusedUpdate(build="x/b2", old="x/b1", why="it answers with garbage", at=NOW - 60)
HUNG = ranked(VULKAN_BUILD, CUDA, standing="failed", why="x", fault="it hung for 30 s")


def model(**known: object) -> tuple[ModelFact, ...]:
    return (structs.replace(ModelFact(id="huge", source="path"), **known),)


def disk(free: int) -> dict[str, object]:
    return {"disks": (Disk(what="models", path="/data", free=free, total=GIB),)}


def damaged(build: Installed, damage: str) -> Installed:
    return structs.replace(build, damage=damage)


def lately(**known: object) -> Facts:
    """One thing of each kind has happened."""
    return facts(lately=convert({name: [each] for name, each in known.items()}, Lately))


def on_bus(vendor: str, driver: str = "") -> dict[str, object]:
    """A card on the bus that no library tells of, and no device file."""
    return {"cards": (BusCard(pci=PCI, vendor=vendor, driver=driver),), "device_files": ()}


ERROR: Sequence[tuple[str, Facts, str]] = (
    ("crash-loop", lately(deaths={"model": "qwen", "count": 3, "last": "by SIGSEGV"}), "in the last hour\nby SIGSEGV"),
    ("no-engine", facts(engines=(), ranked=()), "no build"),
    ("no-usable-engine", facts(ranked=(ranked(CPU_BUILD, standing="failed", why="hangs"),)), "hangs"),
    ("bad-pin", facts(state={"use": "linux-x64-vulkan/b1", "pinned": True}), "engines use auto"),
    ("named-engine", facts(named_engine="/opt/x", named_fault="no such file"), "no such file"),
    ("model-failed", facts(server=running("unloaded", error="exit status 1\n  out of memory")), "out of memory"),
    ("disk-full", facts(checkup=disk(1 << 20)), "/data: 1.0 MiB"),
    ("config-errors", facts(config=config("error")), "config check --config config.yaml"),
    ("config-unreadable", facts(config=ConfigFact(unreadable="there is no file x.yaml")), "x.yaml"),
    ("port-taken", facts(server={"answer": "other"}, port=PortOwner(port=80, pid=7, name="nginx")), "nginx (process 7"),
    ("server-failed", facts(server={"answer": "failed", "why": "it did not answer within 10 s"}), "within 10 s"),
)
ROCM = {"loaders": {"rocm": "/opt/rocm/lib/libamdhip64.so"}}
WARNING: Sequence[tuple[str, Facts, str]] = (
    ("gpu-without-build", facts(**CPU_ONLY), "engines install cuda13"),
    ("gpu-without-build", facts(look=card(vendor="amd", driver_version="") | ROCM, **CPU_ONLY), "engines install rocm"),
    ("gpu-without-build", facts(look=card(driver_version="550.54"), **CPU_ONLY), "engines install cuda12"),
    ("gpu-without-build", facts(engines=(damaged(CUDA_BUILD, "1 file missing"), CPU_BUILD)), "cuda13 (damaged)"),
    ("gpu-without-build", facts(look=card(vendor="AMD", gfx="gfx900"), **CPU_ONLY), "it was not made for"),
    ("driver-too-old", facts(look=card(driver_version="570.86")), "580.0 or later"),
    ("card-too-old", facts(look=card(compute="6.1")), "compute capability 6.1"),
    ("driver-mismatch", facts(look={"problems": ("NVML: Driver/library version mismatch",)}), "reboot"),
    ("driver-silent", facts(look={"problems": ("AMD's driver hung when asked for its cards",)}), "hung"),
    ("card-unusable", facts(look={"problems": ("NVIDIA's driver runs, and its libcuda.so.1 is not here",)}), "libcuda"),
    ("nouveau", facts(look=NO_GPU, checkup=on_bus("NVIDIA", "nouveau")), "nouveau"),
    ("card-without-driver", facts(look=NO_GPU, checkup=on_bus("AMD")), PCI),
    ("no-vulkan-loader", facts(look={"loaders": {"vulkan": ""}}, engines=(VULKAN_BUILD, CUDA_BUILD)), "libvulkan1"),
    ("no-vulkan-driver", facts(engines=(VULKAN_BUILD, CUDA_BUILD), state={"listed": (NO_DEVICE,)}), "lists no device"),
    ("no-permission", facts(checkup={"device_files": (CLOSED,)}), "usermod -aG render "),
    ("hidden-cards", facts(look={"hidden": {"CUDA_VISIBLE_DEVICES": "-1"}}), "CUDA_VISIBLE_DEVICES=-1"),
    ("container-without-gpu", facts(look={"environment": "container", **NO_GPU}, checkup=on_bus("AMD")), "--gpus all"),
    ("damaged-build", facts(engines=(CUDA_BUILD, damaged(CPU_BUILD, "libggml.so missing"))), "libggml.so missing"),
    ("engine-cannot-list", facts(ranked=(ON_CPU, HUNG)), "it hung for 30 s"),
    ("failed-proof", facts(state={"proofs": (proof(),)}), "xyzzy"),
    ("probation", facts(state={"probations": (probation(),)}), "tried again in 5 min"),
    ("bad-pin", facts(state={"use": "vulkan"}, ranked=(ON_CARD, structs.replace(ON_SOFTWARE, wanted=True))), "Vulkan0"),
    ("model-on-processor", facts(server=running(seat=ON_CPU.seat.id)), "now the better choice"),
    ("model-on-processor", facts(server=running(seat=ON_CPU.seat.id), ranked=(ON_CPU, UNTRIED)), "engines prove"),
    ("model-on-processor", facts(server=running(command=("x", "--device", "none")), ranked=(ON_CPU, FAILED)), "xyzzy"),
    ("clock-set-back", facts(state={"proofs": (proof(None, NOW + 86400),)}), "24.0 h ahead"),
    ("model-too-large", facts(models=model(size=400 * GIB)), "huge"),
    ("model-too-large", facts(models=model(fit="will not fit", why="needs 90 GiB")), "needs 90 GiB"),
    ("swap", facts(look={"memory_available": GIB}, checkup={"swap_used": 4 * GIB}), "memory"),
    ("disk-full", facts(checkup=disk(GIB)), "almost full"),
    ("few-open-files", facts(checkup={"open_files": 256}), "256"),
    ("no-models", facts(models=(), server={"running": ()}), "pull"),
    ("broken-models", facts(models=(QWEN, BAD_MODEL)), "the file ends early (/x.gguf)"),
    ("config-warnings", facts(config=config("warning")), "config.yaml:3:1"),
    ("server-wants-key", facts(server={"answer": "refused", "why": "answered 401"}), "--api-key KEY"),
    ("other-version", facts(server={"version": "0.9"}), "0.9"),
    ("traces-not-taken", facts(server={"traces": "the collector at http://box:4318 answered 401"}), "http://box:4318"),
    ("pool", facts(server={"pool": (Trouble(id="door", text="its port is taken", fix="free it"),)}), "is taken"),
    ("requests-fail", lately(requests={**ENDED, "ended": 50, "failed": 5}), "5 of 50"),
    ("queue-full", lately(turned_away={"model": "qwen", "count": 3}), "qwen: 3"),
    ("download-failed", lately(downloads={"model": "a/b:Q4", "error": "hash"}), "pull a/b:Q4"),
    ("not-examined", facts(trouble={"the engines": "disk error"}), "disk error"),
)
NOTE: Sequence[tuple[str, Facts, str]] = (
    ("hidden-cards", facts(look={"hidden": {"CUDA_VISIBLE_DEVICES": "1"}}), "unset CUDA_VISIBLE_DEVICES"),
    ("software-renderer", facts(look=NO_GPU, ranked=(ON_CPU, ON_SOFTWARE)), "llvmpipe"),
    ("integrated-only", facts(look=card(integrated=True)), "Test Card"),
    ("wsl-without-gpu", facts(look={"environment": "wsl", **NO_GPU}), "/dev/dxg"),
    ("requests-refused", lately(requests=ENDED), "400 odd"),
    ("untried", facts(ranked=(ON_CARD, ranked(CPU_BUILD, standing="untried", why="not tried"))), "engines prove"),
    ("named-engine", facts(named_engine="/opt/llama-server"), "/opt/llama-server"),
    ("card-is-slower", facts(ranked=(ON_CPU, ON_CARD)), "tokens/s"),
    ("other-engine", facts(server=running(seat=ON_CPU.seat.id)), "unload qwen"),
    ("layers-on-processor", facts(server=running(layers=(20, 33))), "20 of 33 layers"),
    ("option-without-effect", facts(server=running(unheeded=("warning: --x has no effect: y",))), "--x has no effect"),
    ("models-skipped", facts(notes=("the models in /data cannot be listed: Permission denied",)), "Permission denied"),
    ("update-taken-back", facts(state={"withdrawn": {CUDA_BUILD.id: "it hung"}}), f"engines use {CUDA_BUILD.id}"),
    ("update-taken-back", facts(versions_back={"programs/1.2-0123": "it ended with status 70"}), "version 1.2-0123"),
    ("update-refused", facts(state={"refused": REFUSED}), "tried 60 s ago"),
    ("context-not-kept", facts(state={"contexts": (USELESS,)}), "all but 0 again"),
    ("no-avx2", facts(look={"cpu_features": ("avx",), "cpu_level": "x86-64-v2"}), "x86-64-v2"),
    ("few-cores", facts(look={"cores": 2}), "leave 2"),
    ("memory-limit", facts(look={"memory_total": 8 * GIB}), "8.0 GiB"),
    ("ends-together", facts(checkup={"ends_together": True}), "memory.oom.group"),
    ("model-partly-on-gpu", facts(models=model(fit="partly", why="12 of 40 layers")), "12 of 40"),
    ("swap", facts(checkup={"swap_used": 4 * GIB}), "swap: 4.0 GiB"),
    ("server-not-running", facts(server={"answer": "absent", "why": "refused"}), "llama-appliance serve"),
)
CASES: Sequence[tuple[str, str, Facts, str]] = tuple(
    (id, severity, changed, words)
    for severity, cases in (("error", ERROR), ("warning", WARNING), ("note", NOTE))
    for id, changed, words in cases
)
