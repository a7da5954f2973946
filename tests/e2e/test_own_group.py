"""The program in a real group of this machine, with less memory and less time than the machine has."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from configured_harness import PLAIN
from hollow_models import dense, write_hollow
from program import Server, StartServer, http
from waiting import wait

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux' groups")
TOP = Path("/sys/fs/cgroup")
Join = Callable[[], object]


@pytest.fixture
def join() -> Generator[Join]:
    """256 MiB of memory and the time of one processor, for what calls it: a group below the one with the limits."""
    unified = (TOP / "cgroup.controllers").exists()
    one = {"": {"memory.max": "256M", "memory.swap.max": "0", "cpu.max": "100000 100000"}}
    two = {"memory": {"memory.limit_in_bytes": "256M", "memory.swappiness": "0"}, "cpu": {"cpu.cfs_quota_us": "100000"}}
    made: list[Path] = []
    try:
        for controller, limits in (one if unified else two).items():
            outer = TOP / controller / f"llama-appliance-test-{os.getpid()}"
            for folder in (outer, outer / "inner"):
                if unified:
                    (folder.parent / "cgroup.subtree_control").write_text("+memory +cpu")
                folder.mkdir()
                made.append(folder)
            for name, text in limits.items():
                with contextlib.suppress(FileNotFoundError):  # swap may not be counted
                    (outer / name).write_text(text)
    except OSError as error:
        pytest.skip(f"no group with limits may be made here: {error}")
    else:
        members = [folder / "cgroup.procs" for folder in made if folder.name == "inner"]
        yield lambda: [file.write_text(str(os.getpid())) for file in members]
        for pid in {pid for file in members for pid in file.read_text().split()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        wait(lambda: not any(file.read_text() for file in members))
    finally:
        for folder in reversed(made):
            folder.rmdir()


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with a model of 1.4 GB that takes no disk."""
    folder = tmp_path / "models"
    folder.mkdir()
    write_hollow(folder / "big.gguf", dense(layers=40, width=2048, heads=32, forward=5632))
    return folder


def ask(server: Server, model: str) -> tuple[int, str]:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    answer = http(server, "POST", "/v1/chat/completions", body)
    return answer.status, answer.body.decode()


def test_what_does_not_fit_is_refused_with_the_numbers_and_stops_nobody(
    serve: StartServer, join: Join, models: Path
) -> None:
    server = serve("--no-stores", "--models-dir", str(models), "--models-max", "1", limited=join)
    assert ask(server, "starter")[0] == 200
    for _ in range(2):
        status, told = ask(server, "big")
        assert (status, '"reason":"will_not_fit"' in told) == (507, True), told
        assert "may have 256 MiB" in told
        assert "--allow-overcommit" in told
    states = {one["id"]: one["status"] for one in http(server, "GET", "/models").json()["data"]}
    assert (states["starter"]["value"], states["big"]["failed"]) == ("loaded", True)
    rows = {one["id"]: one for one in http(server, "GET", "/api/ls").json()["models"]}
    assert (rows["starter"]["fit"]["verdict"], rows["big"]["fit"]["verdict"]) == ("fits", "no")
    assert http(server, "POST", "/api/engines/probe").status == 200
    doctor = http(server, "GET", "/api/doctor").body.decode()
    assert "256 MiB" in doctor.replace("256.0", "256")
    assert (os.cpu_count() == 1) or "few-cores" in doctor
    server = serve("--no-stores", "--models-dir", str(models), "--allow-overcommit", limited=join)
    assert ask(server, "big")[0] == 200, "the scripted engine takes nothing"


def test_where_memory_ends_a_model_goes_and_the_program_stays(serve: StartServer, join: Join, tmp_path: Path) -> None:
    """Each model is smaller than the program, so that the kernel would choose the program."""
    command = f"{sys.executable} -S -E {PLAIN} port=${{PORT}} allocate=25"
    config = tmp_path / "config.yaml"
    text = "".join(f"  m{number}: {{cmd: '{command}', checkEndpoint: /health}}\n" for number in range(12))
    together = f"groups: {{all: {{swap: false, members: [{', '.join(f'm{number}' for number in range(12))}]}}}}"
    config.write_text(f"healthCheckTimeout: 15\nmemory: {{ram: 8GiB}}\n{together}\nmodels:\n{text}")
    server = serve("--config", str(config), limited=join)
    with ThreadPoolExecutor(12) as at_once:
        answers = list(at_once.map(partial(ask, server), [f"m{number}" for number in range(12)]))
    assert {status for status, _ in answers} > {200}, "memory must end for this test to show anything"
    assert any("killed by SIGKILL" in told for _, told in answers), answers
    assert http(server, "GET", "/health").status == 200
    for child in server.children():
        if child.cmdline()[:1] == [sys.executable]:
            assert Path(f"/proc/{child.pid}/oom_score_adj").read_text(encoding="utf-8") == "1000\n"
            assert os.cpu_count() == 1 or child.environ()["LLAMA_ARG_THREADS"] == "1"
    own = Path(f"/proc/{server.process.pid}/oom_score_adj").read_text(encoding="utf-8")
    assert own == Path("/proc/self/oom_score_adj").read_text(encoding="utf-8")
