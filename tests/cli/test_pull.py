"""``pull`` and ``rm`` as a user meets them: words, JSON lines, exit statuses."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Generator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest
from gguf_files import write_model
from hub_process import FakeHub, fake_hub
from waiting import wait

from appliance.__main__ import start
from appliance.catalog import downloads
from appliance.cli.app import run

COMMAND = Path(sysconfig.get_path("scripts")) / ("llama-appliance.exe" if os.name == "nt" else "llama-appliance")
REPO = "acme/tiny-GGUF"
MODEL = f"{REPO}:Q8_0"
SIZE = 24 << 20
Here = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def hub(tmp_path: Path) -> Generator[FakeHub]:
    path = write_model(tmp_path / "hub" / REPO / "tiny-Q8_0.gguf", weights=SIZE // 4)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))
    write_model(tmp_path / "hub" / REPO / "tiny-F16.gguf", weights=1000)
    with fake_hub(tmp_path / "hub") as running:
        yield running


def environment(tmp_path: Path, hub: FakeHub) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LLAMA_CACHE", "LLAMA_APPLIANCE_URL", "HF_", "MODEL_"))
    }
    return {
        **kept,
        "HOME": str(tmp_path),
        "USERPROFILE": str(tmp_path),
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "HF_HUB_CACHE": str(tmp_path / "cache"),
        "HF_ENDPOINT": hub.url,
        "NO_COLOR": "1",
    }


def started(tmp_path: Path, hub: FakeHub, *argv: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(COMMAND), *argv],
        cwd=tmp_path,
        env={**environment(tmp_path, hub), **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ran(
    tmp_path: Path, hub: FakeHub, *argv: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    with started(tmp_path, hub, *argv, env=env) as process:
        out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


@pytest.fixture
def here(tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Here:
    """The same in this process, a tenth of the work; for tests that are not of the process."""

    def run_here(*argv: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        told = {**environment(tmp_path, hub), **(env or {})}
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.StringIO())
            patch.chdir(tmp_path)
            for name in os.environ.keys() - told.keys():
                patch.delenv(name)
            for name, value in told.items():
                patch.setenv(name, value)
            capfd.readouterr()
            return subprocess.CompletedProcess(argv, run(argv, start), *capfd.readouterr())

    return run_here


def wait_sent(hub: FakeHub, count: int) -> None:
    wait(lambda: hub.sent() >= count)


def test_pull_then_ls_then_rm(here: Here, tmp_path: Path, hub: FakeHub) -> None:
    pulled = here("pull", REPO)
    assert (pulled.returncode, pulled.stdout) == (0, f"{MODEL}\n"), pulled.stderr
    assert "25.2 MB in 1 file" in pulled.stderr
    again = here("pull", MODEL)
    assert (again.returncode, again.stdout, again.stderr) == (0, f"{MODEL}\n", "")
    assert hub.sent() == (hub.root / REPO / "tiny-Q8_0.gguf").stat().st_size
    assert here("pull", f"{REPO}:f16").returncode == 0
    listed = json.loads(here("ls", "--json", "--no-starter").stdout)
    assert [(row["id"], row["error"]) for row in listed["models"]] == [(f"{REPO}:F16", None), (MODEL, None)]
    vague = here("rm", REPO)
    assert vague.returncode == 2
    assert f"say which: {REPO}:F16, {MODEL}" in vague.stderr
    removed = here("rm", MODEL, "--json")
    assert removed.returncode == 0, removed.stderr
    assert json.loads(removed.stdout)["size"] > SIZE
    assert here("rm", REPO, "--yes").stderr.startswith(f"removed {REPO}:F16")
    assert not list((tmp_path / "cache").glob("models--*"))


def test_json_lines_tell_the_whole_story(here: Here, tmp_path: Path, hub: FakeHub) -> None:
    hub.behave(rate=20_000_000)
    lines = [json.loads(line) for line in here("pull", REPO, "--json").stdout.splitlines()]
    assert [lines[0]["event"], lines[-1]["event"]] == ["plan", "finished"]
    assert {line["event"] for line in lines[1:-1]} == {"progress"}
    counts = [line["done"] for line in lines]
    assert counts == sorted(counts)
    assert counts[-1] == lines[-1]["total"] == lines[0]["total"]
    (url,) = lines[0]["files"]
    assert url.startswith(f"{hub.url}/{REPO}/resolve/")


@pytest.mark.skipif(sys.platform == "win32", reason="a process cannot send Ctrl-C to another one there")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_pull_says_how_to_go_on_and_does(
    here: Here, tmp_path: Path, hub: FakeHub, number: signal.Signals
) -> None:
    hub.behave(rate=8_000_000)
    with started(tmp_path, hub, "pull", REPO) as process:
        wait_sent(hub, SIZE // 4)
        process.send_signal(number)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert f"llama-appliance pull {REPO}' resumes from there" in err
    assert "Traceback" not in err
    hub.behave()
    listed = here("pull")
    assert (listed.returncode, listed.stderr) == (0, "")
    columns, row = [line.split() for line in listed.stdout.splitlines()]
    assert columns == ["MODEL", "DONE", "OF"]
    assert row[0] == MODEL
    assert row[-2:] == ["25.2", "MB"]
    [told] = [json.loads(line) for line in here("pull", "--json").stdout.splitlines()]
    done = told.pop("done")
    assert SIZE // 4 - (2 << 20) <= done < told["total"]
    assert told == {"event": "unfinished", "model": MODEL, "total": (hub.root / REPO / "tiny-Q8_0.gguf").stat().st_size}
    before = hub.sent()
    again = here("pull", REPO)
    assert again.returncode == 0
    assert "already here" in again.stderr
    assert hub.sent() - before == told["total"] - done
    for words in ((), ("--json",)):
        none = here("pull", *words)
        assert (none.returncode, none.stdout) == (0, "")
        assert none.stderr.startswith("no download is unfinished")


@pytest.mark.parametrize(
    ("argv", "env", "status", "words"),
    [
        (["nothing"], {}, 2, "write org/repo"),
        (["acme/nothing"], {}, 2, "HF_TOKEN"),
        ([f"{REPO}:Q2_K"], {}, 2, "it has F16, Q8_0"),
        ([REPO, "--offline"], {}, 2, "switched off"),
        ([REPO], {"HF_HUB_OFFLINE": "1"}, 2, "switched off"),
        ([REPO], {"HF_TOKEN": "hf_wrong"}, 2, "does not accept the token"),
        ([REPO], {"HF_ENDPOINT": "http://127.0.0.1:1"}, 1, "does not accept connections"),
        ([REPO], {"HF_ENDPOINT": "hub"}, 2, "not begin with http"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(
    here: Here, monkeypatch: pytest.MonkeyPatch, argv: list[str], env: dict[str, str], status: int, words: str
) -> None:
    monkeypatch.setattr(downloads, "LISTING_ATTEMPTS", 2)
    told = here("pull", *argv, env=env)
    assert told.returncode == status
    assert told.stderr.startswith("llama-appliance: error: ")
    assert words in told.stderr
    assert len(told.stderr.splitlines()) == 1
    assert told.stdout == ""


def test_a_second_pull_of_the_same_is_refused_while_the_first_runs(tmp_path: Path, hub: FakeHub) -> None:
    hub.behave(rate=2_000_000 if sys.platform == "win32" else 8_000_000)
    with started(tmp_path, hub, "pull", REPO) as first:
        wait_sent(hub, SIZE // 8)
        stopped = psutil.Process(first.pid)
        stopped.suspend()  # on Windows this is the command, which waits for the program: that goes on, slowly
        second = ran(tmp_path, hub, "pull", REPO)
        stopped.resume()
        assert second.returncode == 2
        assert "another program is downloading" in second.stderr
        first.communicate(timeout=30)
    assert first.returncode == 0


@pytest.mark.skipif(sys.platform == "win32", reason="there is no limit on the size of files to stand for a full disk")
def test_a_disk_that_takes_no_more_is_told_and_nothing_is_lost(here: Here, tmp_path: Path, hub: FakeHub) -> None:
    limited = ["sh", "-c", 'ulimit -f 20480; exec "$0" pull acme/tiny-GGUF', str(COMMAND)]
    told = subprocess.run(limited, env=environment(tmp_path, hub), capture_output=True, text=True, timeout=60)
    assert told.returncode == 1
    assert "File too large" in told.stderr
    assert len([line for line in told.stderr.splitlines() if " % of " not in line]) == 2
    again = here("pull", REPO)
    assert again.returncode == 0, again.stderr
    assert "10.5 MB already here" in again.stderr


@pytest.mark.needs("openssl")
def test_https_is_spoken_and_its_certificate_checked(tmp_path: Path, hub: FakeHub) -> None:
    certificate = tmp_path / "certificate.pem"
    subprocess.run(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost "
        f"-addext subjectAltName=DNS:localhost -keyout {tmp_path / 'key.pem'} -out {certificate}".split(),
        check=True,
        capture_output=True,
        timeout=30,
    )
    both = tmp_path / "both.pem"
    both.write_text(certificate.read_text() + (tmp_path / "key.pem").read_text())
    with fake_hub(hub.root, "--certificate", str(both)) as secure:
        distrusted = ran(tmp_path, secure, "pull", f"{REPO}:F16")
        assert distrusted.returncode == 1
        assert "certificate is not trusted" in distrusted.stderr
        trusted = ran(tmp_path, secure, "pull", MODEL, env={"SSL_CERT_FILE": str(certificate)})
        assert trusted.returncode == 0, trusted.stderr


class Running(BaseHTTPRequestHandler):
    """A server that has loaded the model."""

    def do_GET(self) -> None:
        body = json.dumps({"data": [{"id": MODEL, "status": {"value": "loaded"}}]}).encode()
        self.send_response(200 if self.path == "/models" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


def test_a_model_that_runs_is_not_removed(here: Here, tmp_path: Path, hub: FakeHub) -> None:
    assert here("pull", MODEL).returncode == 0
    with HTTPServer(("127.0.0.1", 0), Running) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        told = here("rm", MODEL, "--url", f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()
    assert told.returncode == 2
    assert f"llama-appliance unload {MODEL}" in told.stderr
    assert list((tmp_path / "cache").rglob("tiny-Q8_0.gguf"))
