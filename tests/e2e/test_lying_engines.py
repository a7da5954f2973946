"""An engine that lies, in every place of the chain: the client gets its answer from the next one, in the stated time.

The builds are real folders with a program that does what it is told (tests/fakes/lying_engine.py), found, asked, proven
and started by the installed program as any other. The processor's build is an honest one of the same kind.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio
from engine_folders import Lie, Listed, make_build, tell
from msgspec import structs
from port_blocks import port_block
from program import Server, http, run_command

from appliance.core.engines.choice import Ranked
from appliance.engines import owner, proving
from appliance.engines.found import EngineFolders, list_engines
from appliance.engines.owner import open_engines
from appliance.store.engine_state import StateFile

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the builds are shell scripts")

StartServer = Callable[..., Server]
CARD = Listed(name="CUDA0")
ASK = {"model": "starter", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16}
FAST = Lie(devices=(CARD,), prompt_speed=9000.0, generation_speed=900.0)
GPU, CPU = "linux-x64-cuda12/b2:CUDA0", "linux-x64-cpu/b2:CPU"
STATED_TIME = 15.0
"""Seconds within which a request goes on elsewhere when an engine ends: three times what docs/fallback.md says, for a
busy machine."""
SWITCH_TIME = 60.0
"""Seconds that a client waits for anything at all."""


class World:
    """Builds in ``root``: the processor's, and a fast GPU's."""

    def __init__(self, root: Path, start: StartServer, starter: Path) -> None:
        self.root = root
        self.starter = starter
        self.gpu = root / "linux-x64-cuda12" / "b2"
        self._start = start

    def prove(self) -> dict[str, Ranked]:
        """Look, ask and prove as the program does in the background; what is learnt is in the book."""

        async def work() -> list[Ranked]:
            nowhere = EngineFolders(
                named=None, beside=None, installed=self.root, cache=self.root / "none", search_path=""
            )
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

    def findings(self) -> list[tuple[str, str]]:
        """What ``doctor`` finds, and in which words, once no server runs."""
        env = {"LLAMA_APPLIANCE_ENGINES_DIR": str(self.root), "PATH": "/usr/bin:/bin"}
        done = run_command("doctor", "--json", "--url", "http://127.0.0.1:9", cwd=self.root.parent, env=env)
        return [(one["id"], f"{one['title']}: {one['evidence']}") for one in json.loads(done.stdout)["findings"]]

    def doctor(self) -> dict[str, str]:
        """Its findings about the fast build."""
        return {name: told for name, told in self.findings() if "cuda12/b2" in told and name != "untried"}


def make_builds(root: Path) -> Path:
    make_build(root, "cuda12", "b2", lie=FAST)
    make_build(root, "cpu", "b2")
    return root


@pytest.fixture
def world(tmp_path: Path, start_server: StartServer, starter_model: Path) -> World:
    """Nobody has looked at the builds."""
    return World(make_builds(tmp_path / "engines"), start_server, starter_model)


@pytest.fixture(scope="module")
def proven_builds(tmp_path_factory: pytest.TempPathFactory, starter_model: Path) -> Path:
    root = make_builds(tmp_path_factory.mktemp("proven") / "engines")
    ranked = World(root, Server, starter_model).prove()
    assert [ranked[GPU].standing, ranked[CPU].standing] == ["proven", "proven"]
    return root


@pytest.fixture
def proven(proven_builds: Path, tmp_path: Path, start_server: StartServer, starter_model: Path) -> World:
    """Both builds are proven; they are copies, and what is known of them is too."""
    return World(shutil.copytree(proven_builds, tmp_path / "engines"), start_server, starter_model)


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
    command = f"llama-server -m {world.starter} --port ${{PORT}} --threads 1"
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


LIES = [
    (Lie(list="crash"), "engine-cannot-list", "SIGSEGV"),
    (Lie(list="hang"), "engine-cannot-list", "did not list its devices within"),
    (Lie(list="absurd"), "engine-cannot-list", "MiB"),
    (Lie(list="flood"), "engine-cannot-list", "printed more than"),
    (Lie(load="crash", on=("CUDA0",)), "failed-proof", "(load)"),
    (Lie(load="abort", on=("CUDA0",)), "failed-proof", "no kernel image"),
    (Lie(load="hang", on=("CUDA0",)), "failed-proof", "(hang)"),
    (Lie(load="memory", on=("CUDA0",)), "failed-proof", "CUDA0"),
    (Lie(load="missing", on=("CUDA0",)), "failed-proof", "libcudart"),
    (Lie(work="crash", on=("CUDA0",)), "failed-proof", "(crash)"),
    (Lie(work="hang", on=("CUDA0",)), "failed-proof", "(hang)"),
    (Lie(work="garbage", on=("CUDA0",)), "failed-proof", "(garbage)"),
]


@pytest.mark.slow  # doctor asks the one that hangs for as long as it does
def test_those_that_lie_before_they_are_proven_fail_their_proof_and_are_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each lie is a build of its own, beside the honest ones."""
    monkeypatch.setattr(proving, "prove", partial(proving.prove, seconds=3.0))
    monkeypatch.setattr(owner, "list_devices", partial(owner.list_devices, seconds=1.0))
    names = [f"b{100 + number}" for number in range(len(LIES))]
    for name, (lie, _, _) in zip(names, LIES, strict=True):
        make_build(world.root, "cuda12", name, lie=structs.replace(lie, devices=(CARD,)))
    ranked = world.prove().values()
    findings = world.findings()
    for name, (lie, finding, said) in zip(names, LIES, strict=True):
        [culprit] = [one for one in ranked if one.seat.build.endswith(f"/{name}") and not one.seat.on_cpu]
        assert (culprit.standing, bool(culprit.why)) == ("failed", True), (lie, culprit)
        told = [words for id, words in findings if id == finding and f"cuda12/{name}" in words]
        assert any(said in words for words in told), (lie, findings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("load", "stream"), [("crash", False), ("abort", True), ("fail", False), ("memory", True), ("missing", False)]
)
def test_one_that_stops_to_load_is_passed_over_and_told(proven: World, load: str, stream: bool) -> None:
    server = proven.serve()
    tell(proven.gpu, Lie(devices=(CARD,), load=load, on=("CUDA0",)))  # type: ignore[arg-type]
    began = time.monotonic()
    assert ask_streaming(server) if stream else ask(server)
    assert time.monotonic() - began < STATED_TIME
    assert seat_of(server) == CPU
    assert f"failed on engine {GPU}" in server.told()
    end(server)
    assert "starter" in proven.doctor()["probation"]


@pytest.mark.slow
def test_one_that_computes_garbage_since_it_was_proven_is_found_out_by_the_next_proof(proven: World) -> None:
    server = proven.serve()
    assert ask(server)
    assert seat_of(server) == GPU
    tell(proven.gpu, Lie(devices=(CARD,), work="garbage", on=("CUDA0",)))
    table = http(server, "POST", "/api/engines/prove", {"seats": [GPU]}).json()
    assert table["used"] == CPU
    end(server)
    assert "(garbage)" in proven.doctor()["failed-proof"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_one_that_crashes_at_its_first_kernel_is_replaced_under_the_request(proven: World, stream: bool) -> None:
    server = proven.serve()
    assert ask(server)
    assert seat_of(server) == GPU
    tell(proven.gpu, Lie(devices=(CARD,), work="crash", on=("CUDA0",)))
    began = time.monotonic()
    assert ask_streaming(server) if stream else ask(server)
    assert time.monotonic() - began < STATED_TIME
    assert seat_of(server) == CPU
    end(server)
    assert "SIGABRT" in proven.doctor()["probation"]


def test_one_that_crashes_in_the_middle_of_a_stream_is_continued_by_the_next(proven: World) -> None:
    server = proven.serve()
    assert ask(server)
    tell(proven.gpu, Lie(devices=(CARD,), work="crash", after_tokens=4, on=("CUDA0",)))
    began = time.monotonic()
    assert b'"continued"' in ask_streaming(server)
    assert time.monotonic() - began < STATED_TIME
    assert seat_of(server) == CPU
    end(server)
    assert "SIGABRT" in proven.doctor()["probation"]
