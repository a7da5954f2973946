"""An engine that lies, in every place of the chain: the client gets its answer from the next one, in the stated time.

The builds are real folders with a program that does what it is told (tests/fakes/lying_engine.py), found, asked, proven
and started by the installed program as any other. The processor's build is an honest one of the same kind.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio
from engine_folders import Lie, Listed, make_build, tell
from program import Server, http, run_command

from appliance.core.engines.choice import Ranked
from appliance.engines import owner, proving
from appliance.engines.found import Places, list_engines
from appliance.engines.owner import open_engines
from appliance.store.engine_state import StateFile

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the builds are shell scripts")

StartServer = Callable[..., Server]
CARD = Listed(name="CUDA0")
ASK = {"model": "starter", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16}
FAST = Lie(devices=(CARD,), prompt_speed=9000.0, generation_speed=900.0)
GPU, CPU = "linux-x64-cuda12/b2:CUDA0", "linux-x64-cpu/b2:CPU"
STATED_TIME = 5.0
"""Seconds within which docs/fallback.md says that a request goes on elsewhere when an engine ends."""
SWITCH_TIME = 15.0
"""Seconds that a client waits for anything at all."""


class World:
    """Two builds: a fast GPU's, and the processor's."""

    def __init__(self, folder: Path, start: StartServer, starter: Path) -> None:
        self.root = folder / "engines"
        self.starter = starter
        self.gpu = make_build(self.root, "cuda12", "b2", lie=FAST)
        self.cpu = make_build(self.root, "cpu", "b2")
        self._start = start

    def prove(self) -> dict[str, Ranked]:
        """Look, ask and prove as the program does in the background; what is learnt is in the book."""

        async def work() -> list[Ranked]:
            nowhere = Places(named=None, beside=None, installed=self.root, cache=self.root / "none", search_path="")
            find = partial(list_engines, nowhere)
            async with open_engines(
                lambda: [e for e in find() if e.folder], StateFile(self.root), starter=self.starter
            ) as engines:
                await engines.probe()
                await engines.prove()
                return engines.ranked()

        return {one.seat.id: one for one in trio.run(work)}

    def serve(self, *words: str) -> Server:
        env = {"LLAMA_APPLIANCE_ENGINES_DIR": str(self.root), "PATH": "/usr/bin:/bin"}
        return self._start("serve", "--listen", "127.0.0.1:0", "--threads", "1", *words, env=env)

    def doctor(self) -> dict[str, str]:
        """What ``doctor`` says of the fast build, by the finding's name, once no server runs."""
        env = {"LLAMA_APPLIANCE_ENGINES_DIR": str(self.root), "PATH": "/usr/bin:/bin"}
        done = run_command("doctor", "--json", "--url", "http://127.0.0.1:9", cwd=self.root.parent, env=env)
        findings = json.loads(done.stdout)["findings"]
        blamed = {one["id"]: f"{one['title']}: {one['evidence']}" for one in findings}
        return {name: told for name, told in blamed.items() if "cuda12/b2" in told and name != "untried"}


@pytest.fixture
def world(tmp_path: Path, start_server: StartServer, starter_model: Path) -> World:
    return World(tmp_path, start_server, starter_model)


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


def test_the_fast_and_honest_gpu_is_chosen(world: World) -> None:
    ranked = world.prove()
    assert [ranked[GPU].standing, ranked[CPU].standing] == ["proven", "proven"]
    server = world.serve()
    assert ask(server)
    assert seat_of(server) == GPU


@pytest.mark.parametrize(
    ("lie", "finding", "said"),
    [
        (Lie(devices=(CARD,), list="crash"), "engine-cannot-list", "SIGSEGV"),
        pytest.param(
            *(Lie(devices=(CARD,), list="hang"), "engine-cannot-list", "did not list its devices within"),
            marks=pytest.mark.slow,  # doctor asks again, for as long as it does
        ),
        (Lie(devices=(CARD,), list="absurd"), "engine-cannot-list", "MiB"),
        (Lie(devices=(CARD,), list="flood"), "engine-cannot-list", "printed more than"),
        (Lie(devices=(CARD,), load="crash", on=("CUDA0",)), "failed-proof", "(load)"),
        (Lie(devices=(CARD,), load="abort", on=("CUDA0",)), "failed-proof", "no kernel image"),
        (Lie(devices=(CARD,), load="hang", on=("CUDA0",)), "failed-proof", "(hang)"),
        (Lie(devices=(CARD,), load="memory", on=("CUDA0",)), "failed-proof", "CUDA0"),
        (Lie(devices=(CARD,), load="missing", on=("CUDA0",)), "failed-proof", "libcudart"),
        (Lie(devices=(CARD,), work="crash", on=("CUDA0",)), "failed-proof", "(crash)"),
        (Lie(devices=(CARD,), work="hang", on=("CUDA0",)), "failed-proof", "(hang)"),
        (Lie(devices=(CARD,), work="garbage", on=("CUDA0",)), "failed-proof", "(garbage)"),
    ],
    ids=lambda value: f"{value.list}-{value.load}-{value.work}" if isinstance(value, Lie) else "",
)
def test_one_that_lies_before_it_is_proven_fails_its_proof_and_is_named(
    world: World, lie: Lie, finding: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proving, "prove", partial(proving.prove, seconds=3.0))
    monkeypatch.setattr(owner, "list_devices", partial(owner.list_devices, seconds=1.0))
    tell(world.gpu, lie)
    ranked = world.prove()
    culprit = next(one for one in ranked.values() if "cuda12" in one.seat.id and not one.seat.on_cpu)
    assert culprit.standing == "failed", culprit
    assert culprit.why
    assert said in world.doctor()[finding]


@pytest.mark.parametrize(
    "lie", [Lie(devices=(CARD,), list="crash"), Lie(devices=(CARD,), work="garbage", on=("CUDA0",))]
)
def test_one_that_failed_its_proof_is_never_used(world: World, lie: Lie) -> None:
    tell(world.gpu, lie)
    world.prove()
    server = world.serve()
    assert ask(server)
    assert ask_streaming(server)
    assert seat_of(server) == CPU
    end(server)


def test_one_that_hangs_when_asked_for_its_devices_keeps_nobody_waiting(world: World) -> None:
    tell(world.gpu, Lie(devices=(CARD,), list="hang"))
    server = world.serve()
    began = time.monotonic()
    assert ask(server)
    assert time.monotonic() - began < 5
    assert seat_of(server) == CPU


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("load", ["crash", "abort", "fail", "memory", "missing"])
def test_one_that_stops_to_load_is_passed_over_and_told(world: World, load: str, stream: bool) -> None:
    world.prove()
    server = world.serve()
    tell(world.gpu, Lie(devices=(CARD,), load=load, on=("CUDA0",)))  # type: ignore[arg-type]
    began = time.monotonic()
    assert ask_streaming(server) if stream else ask(server)
    assert time.monotonic() - began < STATED_TIME
    assert seat_of(server) == CPU
    assert f"failed on engine {GPU}" in server.told()
    end(server)
    assert "starter" in world.doctor()["probation"]


def test_one_that_hangs_while_it_loads_is_given_up_after_the_load_timeout(world: World) -> None:
    world.prove()
    server = world.serve("--load-timeout", "2")
    tell(world.gpu, Lie(devices=(CARD,), load="hang", on=("CUDA0",)))
    began = time.monotonic()
    assert ask(server)
    assert 2 < time.monotonic() - began < 2 + STATED_TIME
    assert seat_of(server) == CPU
    end(server)
    assert "was not ready within 2 s" in world.doctor()["probation"]


def test_one_that_computes_garbage_since_it_was_proven_is_found_out_by_the_next_proof(world: World) -> None:
    world.prove()
    server = world.serve()
    assert ask(server)
    assert seat_of(server) == GPU
    tell(world.gpu, Lie(devices=(CARD,), work="garbage", on=("CUDA0",)))
    table = http(server, "POST", "/api/engines/prove", {"seats": [GPU]}).json()
    assert table["used"] == CPU
    end(server)
    assert "(garbage)" in world.doctor()["failed-proof"]


@pytest.mark.parametrize("listing", ["absurd", "crash"])
def test_one_that_lists_nonsense_since_it_was_proven_is_out_after_the_next_look(world: World, listing: str) -> None:
    world.prove()
    server = world.serve()
    tell(world.gpu, Lie(devices=(CARD,), list=listing))  # type: ignore[arg-type]
    assert http(server, "POST", "/api/engines/probe", {}).json()["used"] == CPU
    assert ask(server)
    assert ask_streaming(server)
    assert seat_of(server) == CPU
    end(server)
    assert world.doctor()["engine-cannot-list"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_one_that_crashes_at_its_first_kernel_is_replaced_under_the_request(world: World, stream: bool) -> None:
    world.prove()
    server = world.serve()
    assert ask(server)
    assert seat_of(server) == GPU
    tell(world.gpu, Lie(devices=(CARD,), work="crash", on=("CUDA0",)))
    began = time.monotonic()
    assert ask_streaming(server) if stream else ask(server)
    assert time.monotonic() - began < STATED_TIME
    assert seat_of(server) == CPU
    end(server)
    assert "SIGABRT" in world.doctor()["probation"]


def test_one_that_crashes_in_the_middle_of_a_stream_is_continued_by_the_next(world: World) -> None:
    world.prove()
    server = world.serve()
    assert ask(server)
    tell(world.gpu, Lie(devices=(CARD,), work="crash", after_tokens=4, on=("CUDA0",)))
    began = time.monotonic()
    assert b'"continued"' in ask_streaming(server)
    assert time.monotonic() - began < STATED_TIME
    assert seat_of(server) == CPU
    end(server)
    assert "SIGABRT" in world.doctor()["probation"]


def test_a_driver_that_hides_the_card_at_the_next_start_leaves_the_processor(world: World) -> None:
    world.prove()
    tell(world.gpu, Lie(devices=(), load="fail", on=("CUDA0",)))
    server = world.serve()
    assert ask(server)
    assert seat_of(server) == CPU
