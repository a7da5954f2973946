"""Facts that differ from a healthy machine's in one thing, with what is to be found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import structs

from appliance.core.config.nodes import Position, Problem
from appliance.core.doctor.facts import (
    BusCard,
    Checkup,
    ConfigFact,
    DeviceFile,
    Disk,
    DoctorFacts,
    Installed,
    ModelFact,
    PortOwner,
    ServedModel,
    ServerFact,
)
from appliance.core.engines.builds import BuildNeeds
from appliance.core.engines.choice import Ranked, Seat, Standing
from appliance.core.engines.listing import Device, cpu_device
from appliance.core.engines.machine import Gpu, MachineLook
from appliance.core.engines.proofs import Fault, Probation, Proof, ProofKey
from appliance.core.engines.state import EngineState, ListedDevices

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
WELL = DoctorFacts(
    version="1.0",
    now=NOW,
    look=LOOK,
    ranked=(ON_CARD, ON_CPU),
    state=EngineState(look=LOOK),
    engines=(CUDA_BUILD, CPU_BUILD),
    checkup=Checkup(
        disks=(Disk(what="models", path="/data", free=100 * GIB, total=500 * GIB),),
        swap_total=8 * GIB,
        open_files=65536,
        cores=8,
        memory=32 * GIB,
        cards=(BusCard(pci=PCI, vendor="NVIDIA", driver="nvidia"),),
        device_files=(DeviceFile(path="/dev/nvidia0", usable=True),),
    ),
    models=(ModelFact(id="qwen", source="models_dir", path="/data/qwen.gguf", size=4 * GIB),),
    models_dir="/data",
    server=ANSWERS,
)


def with_look(**changed: object) -> DoctorFacts:
    seen = structs.replace(LOOK, **changed)
    return structs.replace(WELL, look=seen, state=structs.replace(WELL.state, look=seen))


def with_(**changed: object) -> DoctorFacts:
    return structs.replace(WELL, **changed)


def with_checkup(**changed: object) -> DoctorFacts:
    return structs.replace(WELL, checkup=structs.replace(WELL.checkup, **changed))


def with_server(**changed: object) -> DoctorFacts:
    return structs.replace(WELL, server=structs.replace(ANSWERS, **changed))


def proof(fault: Fault | None = "garbage", at: float = NOW - 60, build: Installed = CUDA_BUILD) -> Proof:
    return Proof(
        key=ProofKey(digest=build.digest, device=PCI, driver="580.65", system="Linux 6.1.0"),
        build=build.id,
        device="CUDA0: Test Card 9000",
        fault=fault,
        why="it said 'xyzzy' to a known question",
        at=at,
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


AMD = structs.replace(CARD, vendor="amd", name="Radeon", driver="amdgpu", driver_version="", compute=None)
CASES: Sequence[tuple[str, str, DoctorFacts, str]] = (
    ("no-engine", "error", with_(engines=(), ranked=()), "no build"),
    ("no-usable-engine", "error", with_(ranked=(ranked(CPU_BUILD, standing="failed", why="hangs"),)), "hangs"),
    ("gpu-without-build", "warning", with_(engines=(CPU_BUILD,), ranked=(ON_CPU,)), "engines install cuda13"),
    (
        "gpu-without-build",
        "warning",
        structs.replace(with_look(gpus=(AMD,)), engines=(CPU_BUILD,)),
        "engines install rocm",
    ),
    (
        "gpu-without-build",
        "warning",
        structs.replace(with_look(gpus=(structs.replace(CARD, driver_version="550.54"),)), engines=(CPU_BUILD,)),
        "engines install cuda12",
    ),
    (
        "gpu-without-build",
        "warning",
        with_(engines=(structs.replace(CUDA_BUILD, damage="1 file missing"), CPU_BUILD)),
        "cuda13 (damaged)",
    ),
    ("driver-too-old", "warning", with_look(gpus=(structs.replace(CARD, driver_version="570.86"),)), "580.0 or later"),
    ("card-too-old", "warning", with_look(gpus=(structs.replace(CARD, compute="6.1"),)), "compute capability 6.1"),
    ("driver-mismatch", "warning", with_look(problems=("NVML: Driver/library version mismatch",)), "reboot"),
    ("driver-silent", "warning", with_look(problems=("AMD's driver hung when asked for its cards",)), "hung"),
    (
        "nouveau",
        "warning",
        structs.replace(
            with_look(gpus=()), checkup=Checkup(cards=(BusCard(pci=PCI, vendor="NVIDIA", driver="nouveau"),))
        ),
        "nouveau",
    ),
    (
        "card-without-driver",
        "warning",
        structs.replace(with_look(gpus=()), checkup=Checkup(cards=(BusCard(pci=PCI, vendor="AMD"),))),
        PCI,
    ),
    (
        "no-vulkan-loader",
        "warning",
        structs.replace(with_look(loaders={"vulkan": ""}), engines=(VULKAN_BUILD, CUDA_BUILD)),
        "libvulkan1",
    ),
    (
        "no-vulkan-driver",
        "warning",
        with_(
            engines=(VULKAN_BUILD, CUDA_BUILD),
            state=EngineState(look=LOOK, listed=(ListedDevices(digest="c2", system="", drivers=""),)),
        ),
        "lists no device",
    ),
    (
        "no-permission",
        "warning",
        with_checkup(device_files=(DeviceFile(path="/dev/kfd", usable=False, group="render"),)),
        "usermod -aG render ",
    ),
    ("hidden-cards", "warning", with_look(hidden={"CUDA_VISIBLE_DEVICES": "-1"}), "CUDA_VISIBLE_DEVICES=-1"),
    ("hidden-cards", "note", with_look(hidden={"CUDA_VISIBLE_DEVICES": "1"}), "unset CUDA_VISIBLE_DEVICES"),
    (
        "software-renderer",
        "note",
        structs.replace(with_look(gpus=()), ranked=(ON_CPU, ranked(VULKAN_BUILD, LAVAPIPE))),
        "llvmpipe",
    ),
    ("integrated-only", "note", with_look(gpus=(structs.replace(CARD, integrated=True),)), "Test Card"),
    ("wsl-without-gpu", "note", with_look(environment="wsl", gpus=()), "/dev/dxg"),
    (
        "container-without-gpu",
        "warning",
        structs.replace(with_look(environment="container", gpus=()), checkup=Checkup(cards=WELL.checkup.cards)),
        "--gpus all",
    ),
    (
        "damaged-build",
        "warning",
        with_(engines=(CUDA_BUILD, structs.replace(CPU_BUILD, damage="libggml.so missing"))),
        "libggml.so missing",
    ),
    (
        "engine-cannot-list",
        "warning",
        with_(ranked=(ON_CPU, ranked(VULKAN_BUILD, CUDA, standing="failed", why="x", fault="it hung for 30 s"))),
        "it hung for 30 s",
    ),
    ("failed-proof", "warning", with_(state=EngineState(look=LOOK, proofs=(proof(),))), "xyzzy"),
    ("probation", "warning", with_(state=EngineState(look=LOOK, probations=(probation(),))), "tried again in 5 min"),
    (
        "untried",
        "note",
        with_(ranked=(ON_CARD, ranked(CPU_BUILD, standing="untried", why="not tried here yet"))),
        "engines prove",
    ),
    (
        "bad-pin",
        "error",
        with_(state=EngineState(look=LOOK, use="linux-x64-vulkan/b1", pinned=True)),
        "engines use auto",
    ),
    (
        "bad-pin",
        "warning",
        with_(
            state=EngineState(look=LOOK, use="vulkan"), ranked=(ON_CARD, ranked(VULKAN_BUILD, LAVAPIPE, wanted=True))
        ),
        "Vulkan0",
    ),
    ("named-engine", "note", with_(named_engine="/opt/llama-server"), "/opt/llama-server"),
    ("named-engine", "error", with_(named_engine="/opt/x", named_fault="no such file"), "no such file"),
    ("card-is-slower", "note", with_(ranked=(ON_CPU, ON_CARD)), "tokens/s"),
    (
        "other-engine",
        "note",
        with_server(running=(ServedModel(id="qwen", state="loaded", seat=ON_CPU.seat.id),)),
        "unload qwen",
    ),
    (
        "model-on-processor",
        "warning",
        with_server(running=(ServedModel(id="qwen", state="loaded", seat=ON_CPU.seat.id),)),
        "now the better choice",
    ),
    (
        "model-on-processor",
        "warning",
        structs.replace(
            with_server(
                running=(ServedModel(id="qwen", state="loaded", command=("llama-server", "--device", "none")),)
            ),
            ranked=(ON_CPU, ranked(CUDA_BUILD, CUDA, standing="failed", why="it said 'xyzzy'")),
        ),
        "xyzzy",
    ),
    (
        "layers-on-processor",
        "note",
        with_server(running=(ServedModel(id="qwen", state="loaded", layers=(20, 33)),)),
        "20 of 33 layers",
    ),
    (
        "model-failed",
        "error",
        with_server(running=(ServedModel(id="qwen", state="unloaded", error="exit status 1\n  out of memory"),)),
        "out of memory",
    ),
    (
        "clock-set-back",
        "warning",
        with_(state=EngineState(look=LOOK, proofs=(proof(None, NOW + 86400),))),
        "24.0 h ahead",
    ),
    ("no-avx2", "note", with_look(cpu_features=("avx",), cpu_level="x86-64-v2"), "x86-64-v2"),
    ("few-cores", "note", with_look(cores=2), "leave 2"),
    ("memory-limit", "note", with_look(memory_total=8 * GIB), "8.0 GiB"),
    ("model-too-large", "warning", with_(models=(ModelFact(id="huge", source="path", size=400 * GIB),)), "huge"),
    (
        "model-too-large",
        "warning",
        with_(models=(ModelFact(id="huge", source="path", fit="will not fit", why="needs 90 GiB"),)),
        "needs 90 GiB",
    ),
    (
        "model-partly-on-gpu",
        "note",
        with_(models=(ModelFact(id="big", source="path", fit="partly", why="12 of 40 layers"),)),
        "12 of 40",
    ),
    ("swap", "note", with_checkup(swap_used=4 * GIB), "swap: 4.0 GiB"),
    (
        "swap",
        "warning",
        structs.replace(with_look(memory_available=GIB), checkup=structs.replace(WELL.checkup, swap_used=4 * GIB)),
        "memory",
    ),
    (
        "disk-full",
        "error",
        with_checkup(disks=(Disk(what="models", path="/data", free=1 << 20, total=GIB),)),
        "/data: 1.0 MiB",
    ),
    (
        "disk-full",
        "warning",
        with_checkup(disks=(Disk(what="models", path="/data", free=GIB, total=GIB),)),
        "almost full",
    ),
    ("few-open-files", "warning", with_checkup(open_files=256), "256"),
    ("no-models", "warning", with_(models=(), server=structs.replace(ANSWERS, running=())), "pull"),
    (
        "broken-models",
        "warning",
        with_(models=(*WELL.models, ModelFact(id="bad", source="path", path="/x.gguf", error="the file ends early"))),
        "the file ends early (/x.gguf)",
    ),
    ("config-errors", "error", with_(config=config("error")), "config check --config config.yaml"),
    ("config-warnings", "warning", with_(config=config("warning")), "config.yaml:3:1"),
    ("config-unreadable", "error", with_(config=ConfigFact(unreadable="there is no file x.yaml")), "x.yaml"),
    (
        "server-not-running",
        "note",
        with_(server=ServerFact(url=URL, answer="absent", why="refused")),
        "llama-appliance serve",
    ),
    (
        "port-taken",
        "error",
        with_(
            server=ServerFact(url=URL, answer="other", why="another program"),
            port=PortOwner(port=8080, pid=7, name="nginx"),
        ),
        "nginx (process 7)",
    ),
    (
        "server-failed",
        "error",
        with_(server=ServerFact(url=URL, answer="failed", why="it did not answer within 10 s")),
        "within 10 s",
    ),
    (
        "server-wants-key",
        "warning",
        with_(server=ServerFact(url=URL, answer="refused", why="answered 401")),
        "--api-key KEY",
    ),
    ("other-version", "warning", with_server(version="0.9"), "0.9"),
    ("not-examined", "warning", with_(trouble={"the engines": "disk error"}), "disk error"),
)
