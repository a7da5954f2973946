"""An engine that lies, in every place of the chain: the client gets its answer from the next one, in the stated time.

The builds are real folders with a program that does what it is told (tests/fakes/lying_engine.py), found, asked, proven
and started by the installed program as any other. The processor's build is an honest one of the same kind.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from engine_folders import Lie, Listed, make_build, tell
from fake_nvml_library import build as build_nvml
from homes import Home
from msgspec import structs
from port_blocks import port_block
from program import ANY_PORT, Server, StartServer, http

from appliance.catalog.sources import STARTER

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the builds are shell scripts")

CARD = Listed(name="CUDA0")
ASK = {"model": "starter", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16}
FAST = Lie(devices=(CARD,), prompt_speed=9000.0, generation_speed=900.0)
GPU, CPU = "linux-x64-cuda12/b2:CUDA0", "linux-x64-cpu/b2:CPU"
STATED_TIME = 15.0
"""Seconds within which a request goes on elsewhere when an engine ends: three times what docs/fallback.md says, for a
busy machine."""
SWITCH_TIME = 60.0
"""Seconds that a client waits for anything at all."""


class World(Home):
    """Builds in ``root``: the processor's, and a fast GPU's."""

    def __init__(self, folder: Path, start: StartServer = Server) -> None:
        self.root = folder / "engines"
        self.gpu = self.root / "linux-x64-cuda12" / "b2"
        super().__init__(folder, {"LLAMA_APPLIANCE_ENGINES_DIR": str(self.root), "PATH": "/usr/bin:/bin"})
        self._start = start

    def prove(self) -> dict[str, str]:
        """Ask and prove both, and say how they fared."""
        self.run("engines", "probe")
        self.run("engines", "prove", *(seat.partition(":")[0] for seat in (GPU, CPU)))
        builds = self.json("engines", "ls")["builds"]
        return {seat["id"]: seat["standing"] for build in builds for seat in build["seats"]}

    def serve(self, *words: str, env: Mapping[str, str] | None = None) -> Server:
        return self._start("serve", *ANY_PORT, "--threads", "1", *words, env=self.env)

    def doctor(self) -> dict[str, str]:
        """What ``doctor`` finds of the fast build, and in which words, once no server runs."""
        found = json.loads(self.run("doctor", "--json", "--url", "http://127.0.0.1:9").stdout)["findings"]
        told = {one["id"]: f"{one['title']}: {one['evidence']}" for one in found if one["id"] != "untried"}
        return {name: words for name, words in told.items() if "cuda12/b2" in words}


@pytest.fixture
def world(tmp_path: Path, start_server: StartServer) -> World:
    """Nobody has looked at the builds."""
    return made(World(tmp_path, start_server))


def made(world: World) -> World:
    make_build(world.root, "cuda12", "b2", lie=FAST)
    make_build(world.root, "cpu", "b2")
    return world


@pytest.fixture(scope="module")
def proven_builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    world = made(World(tmp_path_factory.mktemp("proven")))
    standings = world.prove()
    assert [standings[GPU], standings[CPU]] == ["proven", "proven"]
    return world.root


@pytest.fixture
def proven(proven_builds: Path, tmp_path: Path, start_server: StartServer) -> World:
    """Both builds are proven; they are copies, and what is known of them is too."""
    shutil.copytree(proven_builds, tmp_path / "engines")
    return World(tmp_path, start_server)


def ask(server: Server, **more: object) -> str:
    answer = http(server, "POST", "/v1/chat/completions", {**ASK, **more}, timeout=SWITCH_TIME)
    assert answer.status == 200, answer.body
    return answer.json()["choices"][0]["message"]["content"]


def ask_streaming(server: Server) -> bytes:
    """A whole stream, which has one end and no error."""
    answer = http(server, "POST", "/v1/chat/completions", {**ASK, "stream": True}, timeout=SWITCH_TIME)
    assert answer.status == 200
    assert answer.body.count(b"data: [DONE]") == 1, answer.body
    assert b'"error"' not in answer.body
    return answer.body


def end(server: Server) -> None:
    server.process.terminate()
    assert server.wait(15) == 0, server.told()


def seat_of(server: Server) -> str:
    models = http(server, "GET", "/models").json()["data"]
    return next(entry["status"].get("engine", "") for entry in models if entry["id"] == "starter")


def test_a_configured_model_runs_on_the_card_that_it_names(world: World, tmp_path: Path) -> None:
    """Before anything is known of the engines: they are asked for their cards first."""
    other = Listed(name="CUDA1", description="Other Card 10")
    tell(world.gpu, Lie(devices=(CARD, other)))
    command = f"llama-server -m {STARTER} --port ${{PORT}} --threads 1"
    models = {name: {"cmd": command, "gpu": gpu} for name, gpu in (("here", "other card 10"), ("nowhere", "RTX 4090"))}
    (tmp_path / "config.yaml").write_text(json.dumps({"startPort": port_block(4), "models": models}))
    server = world.serve("--config", "config.yaml")
    assert ask(server, model="here")
    commands = [" ".join(child.cmdline()) for child in server.children()]
    assert [command for command in commands if "--device CUDA1" in command]
    refused = http(server, "POST", "/v1/chat/completions", {**ASK, "model": "nowhere"})
    assert refused.status == 500
    assert (
        "there is no graphics card 'RTX 4090': the engines list Test Card 9000 (CUDA0), Other Card 10 (CUDA1)"
        in (refused.json()["error"]["message"])
    )


class Case(NamedTuple):
    """When an engine begins to lie, and what ``doctor`` says of it then."""

    lie: Lie
    when: str
    finding: str
    said: str
    stream: bool = False
    words: tuple[str, ...] = ()
    slow: bool = True


ON = ("CUDA0",)
CASES = [
    Case(Lie(work="crash", on=ON), "at work", "probation", "SIGABRT", slow=False),
    Case(Lie(work="crash", on=ON), "at work", "probation", "SIGABRT", stream=True),
    Case(Lie(list="crash"), "unknown", "engine-cannot-list", "SIGSEGV"),
    Case(Lie(work="garbage", on=ON), "unknown", "failed-proof", "(garbage)"),
    *(
        Case(lie, "not loaded", "probation", said, stream=stream)
        for lie, said, stream in (
            (Lie(load="crash", on=ON), "SIGSEGV", False),
            (Lie(load="abort", on=ON), "no kernel image is available", True),
            (Lie(load="fail", on=ON), "exit status 1: ", False),
            (Lie(load="memory", on=ON), "unable to allocate CUDA0 buffer", True),
            (Lie(load="missing", on=ON), "libcudart.so.13: cannot open shared object file", False),
        )
    ),
    Case(Lie(load="hang", on=ON), "not loaded", "probation", "was not ready within 2 s", words=("--load-timeout", "2")),
]


@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.slow if case.slow else ()) for case in CASES])
def test_the_answer_comes_from_the_next_engine_in_the_stated_time(proven: World, case: Case) -> None:
    lie = structs.replace(case.lie, devices=(CARD,))
    if case.when == "unknown":
        (proven.root / "state.json").unlink()
        tell(proven.gpu, lie)
        proven.prove()
    server = proven.serve(*case.words)
    if case.when == "at work":
        assert ask(server)
        assert seat_of(server) == GPU
    tell(proven.gpu, lie)
    began = time.monotonic()
    assert ask_streaming(server) if case.stream else ask(server)
    assert time.monotonic() - began < STATED_TIME
    assert seat_of(server) == CPU
    assert case.when == "unknown" or f"failed on engine {GPU}" in server.told()
    end(server)
    assert case.said in proven.doctor()[case.finding]


@pytest.mark.slow
@pytest.mark.needs("cc")
def test_what_others_use_of_the_card_counts_from_the_first_model_on(world: World, tmp_path: Path) -> None:
    build_nvml(tmp_path / "lib")
    world.env["LD_LIBRARY_PATH"] = str(tmp_path / "lib")
    tell(world.gpu, structs.replace(FAST, devices=(Listed(name="CUDA0", description="NVIDIA Fake 1"),)))
    assert world.prove()[GPU] == "proven"
    world.env["FAKE_NVML_GIB_OF_OTHERS"] = "4"
    server = world.serve("--preload", "starter")
    assert ask(server)
    assert seat_of(server) == GPU
    told = http(server, "GET", "/logs/stream/starter?no-follow").body.decode()
    assert "MiB of 2048 MiB on gpu0" in told  # 8 GiB, of which others have 5, and one stays free
    end(server)


@pytest.mark.slow
def test_one_that_hangs_when_asked_for_its_devices_keeps_nobody_waiting(world: World) -> None:
    tell(world.gpu, Lie(devices=(CARD,), list="hang"))
    server = world.serve()
    began = time.monotonic()
    assert ask(server)
    assert time.monotonic() - began < STATED_TIME
    assert seat_of(server) == CPU


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lie", "asked", "finding"),
    [
        (Lie(work="garbage", on=ON), ("prove", {"seats": [GPU]}), "failed-proof"),
        (Lie(list="absurd"), ("probe", {}), "engine-cannot-list"),
        (Lie(list="crash"), ("probe", {}), "engine-cannot-list"),
    ],
)
def test_one_that_lies_since_it_was_proven_is_found_out_by_the_next_look(
    proven: World, lie: Lie, asked: tuple[str, dict[str, object]], finding: str
) -> None:
    server = proven.serve()
    assert ask(server)
    assert seat_of(server) == GPU
    tell(proven.gpu, structs.replace(lie, devices=(CARD,)))
    verb, body = asked
    assert http(server, "POST", f"/api/engines/{verb}", body).json()["used"] == CPU
    end(server)
    assert proven.doctor()[finding]


def test_one_that_crashes_in_the_middle_of_a_stream_is_continued_by_the_next(proven: World) -> None:
    server = proven.serve()
    assert ask(server)
    tell(proven.gpu, Lie(devices=(CARD,), work="crash", after_tokens=4, on=ON))
    began = time.monotonic()
    assert b'"continued"' in ask_streaming(server)
    assert time.monotonic() - began < STATED_TIME
    assert seat_of(server) == CPU
    end(server)
    assert "SIGABRT" in proven.doctor()["probation"]


@pytest.mark.slow
def test_a_driver_that_hides_the_card_at_the_next_start_leaves_the_processor(proven: World) -> None:
    tell(proven.gpu, Lie(devices=(), load="fail", on=ON))
    server = proven.serve()
    assert ask(server)
    assert seat_of(server) == CPU
