"""The frozen program as a user gets it: started from another folder, with an empty environment, with its own engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from fixed_work import seconds_of_fixed_work
from frozen_harness import PATIENCE, SUFFIX, Server, bare_environment
from port_blocks import port_block
from PyInstaller.archive.readers import CArchiveReader
from waiting import wait

from appliance import features

pytestmark = pytest.mark.frozen

MAX_START = 6.0
"""Processor's time from start to listening in that of fixed work, the best of `STARTS` each."""
STARTS = 5
MAX_SIZE = 110e6
"""Bytes of the whole folder; 101 MB when this was written: 36 the engine, 19 the server of a pool's bus."""


def chat(server: Server, **more: object) -> bytes:
    question: dict[str, object] = {"model": "starter", "messages": [{"role": "user", "content": "What is your name?"}]}
    return server.ask("/v1/chat/completions", question | more)


def test_it_answers_with_its_own_engine_and_leaves_no_process(server: Server, program: Path) -> None:
    answer = json.loads(chat(server))
    assert "llama appliance" in answer["choices"][0]["message"]["content"].lower()
    children = psutil.Process(server.process.pid).children(recursive=True)
    engines = [child for child in children if child.exe().startswith(str(program.parent / "engines"))]
    assert engines, f"none of {children} is an engine of {program.parent}"
    assert server.stop() == 0
    _gone, alive = psutil.wait_procs(children, timeout=5)
    assert not alive


def test_every_page_and_list_it_serves_is_inside(server: Server) -> None:
    """Modules imported late are the ones a frozen program lacks without anybody noticing."""
    for path in ("/health", "/v1/models", "/models", "/props"):
        assert json.loads(server.ask(path)), path
    assert server.stop() == 0


def test_every_feature_of_the_checkout_is_inside(program: Path) -> None:
    """A feature is imported by the list of them, and most of its modules only when they are used.

    A Python of its own runs the process of the embedded engine, and the package of that is not in the frozen program.
    """
    checkout = Path(features.__file__).parents[2]
    modules = {
        path.relative_to(checkout).with_suffix("").as_posix() for path in checkout.glob("appliance/features/**/*.py")
    }
    here = {module.replace("/", ".").removesuffix(".__init__") for module in modules}
    inside = CArchiveReader(str(program)).open_embedded_archive("PYZ.pyz").toc
    process = {f"appliance.features.embedded.{name}" for name in ("__main__", "carriers", "params", "special", "start")}
    assert here - set(inside) == process


@pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has no SIGKILL; its Job Object is tested in tests/children"
)
def test_its_engine_ends_even_when_it_is_killed(server: Server) -> None:
    chat(server)
    children = psutil.Process(server.process.pid).children(recursive=True)
    server.process.kill()
    _gone, alive = psutil.wait_procs(children, timeout=5)
    assert children
    assert not alive


CONFIGURATION = """
models:
  alpha:
    cmd: "'{engine}' --model '{model}' --port ${{PORT}} --threads 1 --ctx-size 512"
    aliases: [al]
"""


def test_it_runs_a_configuration(program: Path, tmp_path: Path) -> None:
    """What only a configuration needs is inside: the YAML reader, the activity log, the exposition of metrics."""
    [engine] = (program.parent / "engines").glob(f"*/*/llama-server{SUFFIX}")
    [model] = (program.parent / "_internal" / "appliance" / "catalog" / "starter").glob("*.gguf")
    file = tmp_path / "config.yaml"
    file.write_text(CONFIGURATION.format(engine=engine, model=model), "utf-8")
    env = bare_environment() | {"PATH": os.environ["PATH"]}
    with Server(program, tmp_path, env, "--config", str(file)) as running:
        body: dict[str, object] = {"model": "al", "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]}
        assert json.loads(running.ask("/v1/chat/completions", body))["choices"]
        assert json.loads(running.ask("/api/metrics/activity"))["total"] == 1
        assert b'llama_appliance_model_requests_total{model="alpha"' in running.ask("/metrics")
        assert running.stop() == 0


PLUGIN = """
import sqlite3, statistics, tomllib, xml.etree.ElementTree, zoneinfo
from .helper import WORDS

def on_response(response, context):
    response.body["choices"][0]["message"]["content"] = WORDS
"""


def test_plugins_shipped_along_and_somebody_elses_work_in_it(program: Path, tmp_path: Path) -> None:
    bundled = program.parent / "_internal" / "appliance" / "plugins" / "bundled"
    mine = tmp_path / "mine" / "fixed"
    mine.mkdir(parents=True)
    (mine / "agent.py").write_text(PLUGIN, "utf-8")
    (mine / "helper.py").write_text("WORDS = 'said by a plugin'", "utf-8")
    (mine / "config.json").write_text("{}", "utf-8")
    with Server(program, tmp_path, bare_environment(), "--plugins", str(mine.parent)) as running:
        listing = json.loads(running.ask("/api/agents/reload", {}))
        states = {each["name"]: (each["state"], each["error"]) for each in listing["agents"]}
        shipped = {path.name for path in bundled.iterdir() if path.is_dir()}
        assert shipped
        assert states == dict.fromkeys((*shipped, "fixed"), ("ready", None))
        question = [{"role": "user", "content": "/fixed What is your name?"}]
        answer = json.loads(running.ask("/v1/chat/completions", {"model": "starter", "messages": question}))
        assert answer["choices"][0]["message"]["content"] == "said by a plugin"
        assert running.stop() == 0


@pytest.mark.parametrize(
    "arguments",
    ["--help", "agents ls", "serve --help", "version --json", "ls --help", "config schema", "pull --help", "selftest"],
)
def test_the_command_line_is_whole(program: Path, tmp_path: Path, arguments: str) -> None:
    command = [str(program), *arguments.split()]
    done = subprocess.run(
        command, cwd=tmp_path, env=bare_environment(), capture_output=True, text=True, timeout=4 * PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
    assert arguments == "selftest" or done.stderr == ""


def test_two_boxes_agree_by_the_server_that_it_brings(program: Path, tmp_path: Path) -> None:
    boxes: list[Server] = []
    try:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            env = bare_environment() | {"XDG_DATA_HOME": str(tmp_path / name)}
            boxes.append(Server(program, tmp_path / name, env, "--admin"))
        port = {name: port_block(3) for name in ("one", "two")}
        own = {name: {"name": name, "addresses": ["127.0.0.1"], "port": port[name]} for name in port}
        code = json.loads(boxes[0].ask("/api/pool/create", own["one"]))["code"]
        boxes[1].ask("/api/pool/join", {"code": code, **own["two"]})
        for box in boxes:
            wait(lambda box=box: json.loads(box.ask("/api/pool"))["bus"]["state"] == "connected")
        [bus] = (each for each in psutil.Process(boxes[0].process.pid).children() if "nats" in each.name())
        assert Path(bus.exe()).parent == program.parent
    finally:
        for box in boxes:
            assert box.stop() == 0


def test_it_starts_quickly_and_is_small(
    program: Path, tmp_path: Path, record_property: pytest.RecordProperty, capsys: pytest.CaptureFixture[str]
) -> None:
    starts: list[float] = []
    works: list[float] = []
    for _ in range(STARTS):
        server = Server(program, tmp_path, bare_environment())
        times = psutil.Process(server.process.pid).cpu_times()
        starts.append(times.user + times.system)
        works.append(seconds_of_fixed_work())
        assert server.stop() == 0
    size = sum(path.stat().st_size for path in program.parent.rglob("*") if path.is_file() and not path.is_symlink())
    start = min(starts) / min(works)
    with capsys.disabled():
        print(f"\n  frozen: {size / 1e6:.1f} MB; start to listening {start:.1f} times fixed work ({min(starts):.2f} s)")
    record_property("frozen_bytes", size)
    record_property("frozen_start", start)
    assert start <= MAX_START
    assert size <= MAX_SIZE
