"""The embedded engine as a client and as a parent sees it: real processes serving the starter model."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from waiting import wait

from appliance.features.embedded import WHEEL, available, command, version

pytestmark = pytest.mark.skipif(not available(), reason="the wheel xllamacpp is not installed")

READY = 20.0
"""Seconds for a tiny model to be served; it takes well under one on an idle machine."""

ENDLESS = {"prompt": "Once", "n_predict": -1, "ignore_eos": True, "stream": True}
"""With --context-shift, a generation that only ends when somebody ends it."""

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5, "temperature": 0}


class Engine(NamedTuple):
    """One process and the port it was told to listen on."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    states: Path

    def open(
        self, method: str, path: str, body: object = None, key: str | None = None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=15)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            return connection, connection.getresponse()
        except BaseException:
            connection.close()
            raise

    def ask(self, method: str, path: str, body: object = None, key: str | None = None) -> tuple[int, str]:
        connection, answer = self.open(method, path, body, key)
        with contextlib.closing(connection):
            return answer.status, answer.read().decode()

    def json(self, method: str, path: str, body: object = None, key: str | None = None) -> dict[str, object]:
        status, text = self.ask(method, path, body, key)
        assert status == 200, text
        found = json.loads(text)
        return found if isinstance(found, dict) else {"items": found}

    def wait_health(self, status: int) -> str:
        """Until /health answers with this status; the process must not end meanwhile. Returns the body."""

        def answer() -> tuple[int, str]:
            assert self.process.poll() is None, self.log.read_text()
            try:
                return self.ask("GET", "/health")
            except OSError:
                return 0, ""

        return wait(answer, lambda found: found[0] == status, within=READY, told=self.log.read_text)[1]

    @contextlib.contextmanager
    def generating(self) -> Iterator[None]:
        """While a client reads a generation that does not end by itself."""
        connection, answer = self.open("POST", "/completion", ENDLESS)
        with contextlib.closing(connection):
            assert answer.status == 200
            assert b"data: " in answer.read(200)
            yield

    def say(self, line: bytes) -> None:
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def state_names(self) -> list[str]:
        prefix = "cmd_child_to_router:state:"
        lines = self.states.read_text().splitlines()
        assert all(line.startswith(prefix) for line in lines), lines
        return [json.loads(line.removeprefix(prefix))["state"] for line in lines]


Start = Callable[..., Engine]


@pytest.fixture(scope="module")
def start(
    tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int], starter_model: Path
) -> Generator[Start]:
    """Start an engine with these flags; whatever still runs at the end is killed."""
    engines: list[Engine] = []

    def begin(*flags: str, model: Path = starter_model, env: dict[str, str] | None = None) -> Engine:
        folder = tmp_path_factory.mktemp("engine")
        port = free_port()
        log, states = folder / "stderr", folder / "stdout"
        argv = [*command(), "--model", str(model), "--port", str(port), "--threads", "1", *flags]
        with log.open("wb") as error, states.open("wb") as output:
            process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=output, stderr=error, env={**os.environ, **(env or {})}
            )
        engines.append(Engine(process, port, log, states))
        return engines[-1]

    yield begin
    for engine in engines:
        if engine.process.poll() is None:
            engine.process.kill()
        engine.process.wait(10)
        if engine.process.stdin is not None:
            engine.process.stdin.close()


def refused(*flags: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Run to the end: (exit status, standard output, standard error)."""
    run = subprocess.run(
        [*command(), *flags], capture_output=True, text=True, timeout=20, env={**os.environ, **(env or {})}, check=False
    )
    return run.returncode, run.stdout, run.stderr


# ---- routes ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chat(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    slots = str(tmp_path_factory.mktemp("slots"))
    engine = start("--props", "--slot-save-path", slots, "-c", "1024", "-np", "1", "--context-shift")
    engine.wait_health(200)
    return engine


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        ("/v1/chat/completions/input_tokens", CHAT, "input_tokens"),
        ("/slots/0?action=save", {"filename": "slot.bin"}, "n_saved"),
        ("/slots/0?action=erase", {}, "n_erased"),
        ("/props", {}, "success"),
    ],
)
def test_what_was_switched_on_answers(chat: Engine, path: str, body: object, key: str) -> None:
    """The contract tests have the other routes."""
    if path.startswith("/slots"):
        chat.json("POST", "/completion", {"prompt": "Once", "n_predict": 5})  # there is something to keep, or to forget
    assert chat.json("POST", path, body)[key]


def test_what_was_not_switched_on_says_so(chat: Engine) -> None:
    assert chat.ask("GET", "/tools")[0] == 403


def test_one_thread_is_one_thread(chat: Engine) -> None:
    """A second compute thread would spin beside the first and take nearly a second of processor per second."""
    watched = psutil.Process(chat.process.pid)
    with chat.generating():
        before, began = watched.cpu_times(), time.monotonic()
        time.sleep(0.5)  # what is measured
        after, took = watched.cpu_times(), time.monotonic() - began
    used = after.user + after.system - before.user - before.system
    assert 0 < used <= 1.3 * took


def test_reranking(start: Start) -> None:
    engine = start("--reranking")
    engine.wait_health(200)
    results = engine.json("POST", "/v1/rerank", {"query": "house", "documents": ["a house", "a dog"]})["results"]
    assert sorted(result["index"] for result in results) == [0, 1]


# ---- command line and environment ------------------------------------------------------------------------------------


def test_the_environment_counts_and_flags_beat_it(start: Start) -> None:
    env = {"LLAMA_ARG_CTX_SIZE": "1024", "LLAMA_ARG_N_PARALLEL": "3", "LLAMA_ARG_NO_ENDPOINT_SLOTS": "1"}
    engine = start("-np", "2", "-n", "7", env=env | {"LLAMA_API_KEY": "secret"})
    engine.wait_health(200)
    assert engine.ask("GET", "/v1/models")[0] == 401
    props = engine.json("GET", "/props", key="secret")
    assert props["total_slots"] == 2
    assert props["default_generation_settings"]["n_ctx"] == 512  # type: ignore[index]
    assert engine.ask("GET", "/slots", key="secret")[0] == 501


def test_how_the_log_looks_stops_no_server(start: Start) -> None:
    looks = ("--log-colors", "off", "--log-colors", "on", "--no-log-prefix", "--log-timestamps")
    engine = start(*looks, env={"LLAMA_ARG_LOG_TIMESTAMPS": "off"})
    engine.wait_health(200)
    told = [line for line in engine.log.read_text().splitlines() if line.startswith("warning: ")]
    assert told == [
        "warning: --log-colors has no effect: the embedded engine writes its log without colours",
        "warning: --no-log-prefix has no effect: the embedded engine always writes the prefix",
    ]


@pytest.mark.parametrize(
    ("flags", "env", "named"),
    [
        (["--model", "x.gguf", "--override-kv", "a=int:1"], {}, "--override-kv"),
        (["--model", "x.gguf"], {"LLAMA_ARG_HF_REPO": "a/b"}, "LLAMA_ARG_HF_REPO"),
        ([], {}, "--model"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(flags: list[str], env: dict[str, str], named: str) -> None:
    status, _, error = refused(*flags, env=env)
    assert status == 2
    assert named in error
    assert error.count("\n") == 1


def test_help_version_and_devices_print_and_end() -> None:
    status, text, _ = refused("--help")
    assert status == 0
    assert "--ctx-size" in text
    assert "LLAMA_ARG_CTX_SIZE" in text
    status, text, error = refused("--version")
    assert (status, text) == (0, "")
    assert error.startswith("version: b")
    status, text, _ = refused("--list-devices")
    assert status == 0
    assert text.startswith("Available devices:\n  ")


# ---- failures and endings --------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="libraries as Linux finds them")
def test_a_system_that_lacks_a_library_is_told_which_and_its_package(tmp_path: Path) -> None:
    """A small Debian has no libgomp.so.1. One that is broken stands for it, so that this can be seen elsewhere, too."""
    (tmp_path / "libgomp.so.1").write_text("no library")
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([*command(), "--version"], env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert done.stderr.startswith("error: the embedded engine cannot be loaded: ")
    assert "libgomp.so.1" in done.stderr
    assert "apt-get install libgomp1" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs a named pipe in the file system")
def test_while_loading_it_answers_503_and_obeys_a_signal(start: Start, tmp_path: Path) -> None:
    """A model that is a pipe nobody writes to loads for ever."""
    pipe = tmp_path / "model.gguf"
    os.mkfifo(pipe)
    engine = start(model=pipe)
    error = json.loads(engine.wait_health(503))["error"]
    assert error == {"message": "Loading model", "type": "unavailable_error", "code": 503}
    assert engine.ask("GET", "/v1/models")[0] == 503
    engine.process.terminate()
    assert engine.process.wait(20) == -signal.SIGTERM


@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once_while_a_client_reads(start: Start, number: signal.Signals) -> None:
    engine = start("--context-shift", "-c", "512")
    engine.wait_health(200)
    with engine.generating():
        engine.process.send_signal(number)
        assert engine.process.wait(20) == 0
    with pytest.raises(ConnectionRefusedError):
        engine.ask("GET", "/health")


# ---- as a router's child ---------------------------------------------------------------------------------------------

CHILD = {"LLAMA_SERVER_ROUTER_PORT": "1"}


def test_a_child_reports_its_states_and_obeys_the_exit_line(start: Start) -> None:
    engine = start("--alias", "a,b", "--tags", "t", env=CHILD)
    engine.wait_health(200)
    engine.say(b"anything else\n")
    with engine.generating():
        engine.say(b"cmd_router_to_child:exit\n")
        assert engine.process.wait(20) == 0
    states = engine.state_names()
    assert states[0] == "loading"
    assert states[-1] == "ready"
    ready = json.loads(engine.states.read_text().splitlines()[-1].partition("state:")[2])["payload"]
    assert (ready["id"], ready["aliases"], ready["tags"]) == ("a", ["a", "b"], ["t"])
    assert ready["meta"]["n_params"] > 0


def test_a_child_ends_with_its_parent(start: Start) -> None:
    engine = start(env=CHILD)
    engine.wait_health(200)
    with engine.generating():
        engine.process.stdin.close()
        assert engine.process.wait(20) == 1


def test_a_child_tells_when_it_sleeps_and_wakes(start: Start) -> None:
    engine = start("--sleep-idle-seconds", "1", env=CHILD)
    engine.wait_health(200)
    wait(lambda: engine.state_names()[-1] == "sleeping", within=10, told=lambda: engine.state_names())
    assert engine.json("GET", "/props")["is_sleeping"] is True
    assert engine.json("POST", "/completion", {"prompt": "Once", "n_predict": 2})["content"] is not None
    states = engine.state_names()
    assert states[states.index("sleeping") + 1] == "loading"
    assert states[-1] == "ready"


def test_what_lies_where_the_program_was_started_is_not_run(tmp_path: Path) -> None:
    for name in ("xllamacpp", "msgspec"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    done = subprocess.run([*command(), "--list-devices"], cwd=tmp_path, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0
    assert b"Available devices:" in done.stdout
    assert not (tmp_path / "ran").exists()


def test_the_version_is_the_one_that_is_installed(chat: Engine) -> None:
    assert version() == metadata.version(WHEEL)
    told = str(chat.json("GET", "/props")["build_info"]).partition("-")
    assert told[0] == f"b{version().rpartition('.')[2]}"
    assert sys.platform == "win32" or told[2] == "unknown"


def imported_by(*command: str) -> tuple[set[str], int]:
    """The modules that a Python command imports, and its status."""
    python, *words = command
    done = subprocess.run([python, "-X", "importtime", *words], capture_output=True, text=True, timeout=60)
    lines = done.stderr.splitlines()
    return {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}, done.returncode


def test_nobody_waits_for_modules_that_loading_a_model_does_not_need(tmp_path: Path) -> None:
    """They were half of the time from a request to a model's first token."""
    imported, status = imported_by(*command(), "--model", str(tmp_path / "missing.gguf"))
    assert status == 1
    assert {"json", "appliance.features.embedded.start"} <= imported
    needless = {
        "appliance.feature",
        "msgspec",
        "pathlib",
        "socket",
        "threading",
        "logging",
        "csv",
        "dataclasses",
        "importlib.metadata",
        WHEEL,
    }
    needless -= imported_by(sys.executable, "-c", "import runpy")[0]  # by -m; that of 3.11.9 imports threading
    assert sorted(imported & needless) == []
