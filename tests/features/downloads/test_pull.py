"""``pull`` and ``rm`` as a user meets them: words, JSON lines, exit statuses."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from command_line import Command
from hub_process import FakeHub, fake_hub
from links import needs_links
from program import COMMAND
from proxy_process import proxies
from serving import Serve, two_sizes
from slow import one_of
from waiting import wait

from appliance.catalog.supply import DownloadSettings
from appliance.core.models.hub_address import HubAccess

REPO = "acme/tiny-GGUF"
MODEL = f"{REPO}:Q8_0"
SIZE = 24 << 20


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_environment: None) -> Generator[FakeHub]:
    with two_sizes(tmp_path, monkeypatch) as running:
        yield running


def started(*argv: str) -> subprocess.Popen[str]:
    """A process for what happens beside the test, or ends it from outside."""
    return subprocess.Popen([COMMAND, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_sent(hub: FakeHub, count: int) -> None:
    wait(lambda: hub.sent() >= count)


def test_pull_then_ls_then_rm(command: Command, tmp_path: Path, hub: FakeHub) -> None:
    pulled = command("pull", REPO)
    assert (pulled.status, pulled.out) == (0, f"{MODEL}\n"), pulled
    assert "25.2 MB in 1 file" in pulled.err
    again = command("pull", MODEL)
    assert (again.status, again.out, again.err) == (0, f"{MODEL}\n", "")
    assert hub.sent() == (hub.root / REPO / "tiny-Q8_0.gguf").stat().st_size
    command.good("pull", f"{REPO}:f16")
    listed = command.json("ls", "--no-starter")
    assert [(row["id"], row["error"]) for row in listed["models"]] == [(f"{REPO}:F16", None), (MODEL, None)]
    assert f"say which: {REPO}:F16, {MODEL}" in command.bad("rm", REPO)
    assert command.json("rm", MODEL)["size"] > SIZE
    assert command.good("rm", REPO, "--yes").startswith(f"removed {REPO}:F16")
    assert not list((tmp_path / "cache").glob("models--*"))


def test_json_lines_tell_the_whole_story(command: Command, hub: FakeHub) -> None:
    hub.behave(rate=20_000_000)
    lines = [json.loads(line) for line in command("pull", REPO, "--json").out.splitlines()]
    assert [lines[0]["event"], lines[-1]["event"]] == ["plan", "finished"]
    assert {line["event"] for line in lines[1:-1]} == {"progress"}
    counts = [line["done"] for line in lines]
    assert counts == sorted(counts)
    assert counts[-1] == lines[-1]["total"] == lines[0]["total"]
    (url,) = lines[0]["files"]
    assert url.startswith(f"{hub.url}/{REPO}/resolve/")


@pytest.mark.skipif(sys.platform == "win32", reason="a process cannot send Ctrl-C to another one there")
@pytest.mark.parametrize("number", one_of([signal.SIGINT, signal.SIGTERM]))
def test_a_stopped_pull_says_how_to_go_on_and_does(command: Command, hub: FakeHub, number: signal.Signals) -> None:
    hub.behave(rate=8_000_000)
    whole = (hub.root / REPO / "tiny-Q8_0.gguf").stat().st_size
    with started("pull", REPO) as process:
        wait_sent(hub, SIZE // 4)
        process.send_signal(number)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert f"pull {REPO}' resumes from there" in err
    assert "Traceback" not in err
    hub.behave()
    columns, row = command.rows("pull")
    assert columns == ["MODEL", "DONE", "OF"]
    assert [row[0], *row[-2:]] == [MODEL, "25.2", "MB"]
    told = command.json("pull")
    done = told.pop("done")
    assert SIZE // 4 - (2 << 20) <= done < whole
    assert told == {"event": "unfinished", "model": MODEL, "total": whole}
    assert "already here" in command.good("pull", REPO)
    assert hub.sent() <= whole + (2 << 20)
    for words in ((), ("--json",)):
        none = command("pull", *words)
        assert (none.status, none.out) == (0, "")
        assert none.err.startswith("no download is unfinished")


@pytest.mark.parametrize(
    ("argv", "env", "status", "words"),
    [
        (["nothing"], {}, 2, "write org/repo"),
        (["acme/nothing"], {}, 2, "HF_TOKEN"),
        ([f"{REPO}:Q2_K"], {}, 2, "it has F16, Q8_0"),
        ([f"https://hf.co/{REPO}/blob/main/tiny-Q2_K.gguf"], {}, 2, "no file tiny-Q2_K.gguf; it has tiny-F16.gguf"),
        (["https://modelscope.cn/models/o/r"], {}, 2, "is at modelscope.cn, not on the Hugging Face hub"),
        ([REPO, "--offline"], {}, 2, "switched off"),
        ([REPO], {"HF_HUB_OFFLINE": "1"}, 2, "switched off"),
        ([REPO], {"HF_TOKEN": "hf_wrong"}, 2, "does not accept the token"),
        ([REPO], {"HF_ENDPOINT": "http://127.0.0.1:1"}, 1, "does not accept connections"),
        ([REPO], {"HF_ENDPOINT": "hub"}, 2, "not begin with http"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(
    command: Command,
    hub: FakeHub,
    monkeypatch: pytest.MonkeyPatch,
    argv: list[str],
    env: dict[str, str],
    status: int,
    words: str,
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    told = command("pull", *argv)
    assert (told.status, told.out) == (status, "")
    assert told.err.startswith("llama-appliance: error: ")
    assert words in told.err
    assert len(told.err.splitlines()) == 1


def test_a_hub_that_asks_to_wait_is_quoted_and_the_cache_is_used(command: Command, hub: FakeHub) -> None:
    command.good("pull", MODEL)
    hub.behave(fail_status=429, fail_times=10**6, retry_after="3600")
    for name in (MODEL, REPO, f"https://hf.co/{REPO}/blob/main/tiny-Q8_0.gguf"):
        told = command("pull", name)
        assert (told.status, told.out) == (0, f"{MODEL}\n")
        assert "asks to wait 3600 s, until 20" in told.err
        assert f"{MODEL} is in the cache, and stays as it is" in told.err
    begun = time.monotonic()
    told = command("pull", f"{REPO}:F16")
    assert (told.status, told.out) == (1, "")
    assert "it answered 429, and it asks to wait 3600 s, until 20" in told.err
    assert time.monotonic() - begun < 10
    hub.behave(fail_status=503, fail_times=1, retry_after="2")
    told = command("pull", f"{REPO}:F16")
    assert (told.status, told.out) == (0, f"{REPO}:F16\n")
    assert "it asks to wait 2 s" in told.err
    assert "asking again in 2 s" in told.err


@pytest.mark.parametrize("kind", ["http", "socks"])
def test_a_model_comes_through_a_proxy(
    command: Command, hub: FakeHub, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    port = urlsplit(hub.url).port
    monkeypatch.setenv("HF_ENDPOINT", f"http://hub.test:{port}")
    with proxies("--user", "u:secret") as running:
        scheme = {"http": "http", "socks": "socks5h"}[kind]
        monkeypatch.setenv("HTTP_PROXY", f"{scheme}://u:secret@127.0.0.1:{running.ports[kind]}")
        assert command("pull", MODEL).out == f"{MODEL}\n"
        assert running.said()[1:3] == ["hub.test", port]
        monkeypatch.setenv("HTTP_PROXY", f"{scheme}://127.0.0.1:{running.ports[kind]}")
        refused = command.bad("pull", f"{REPO}:F16", status=1)
    assert f"the proxy {scheme}://127.0.0.1:{running.ports[kind]}" in refused
    assert "secret" not in refused


@pytest.mark.skipif(sys.platform == "win32", reason="there is no limit on the size of files to stand for a full disk")
def test_a_disk_that_takes_no_more_is_told_and_nothing_is_lost(command: Command, hub: FakeHub) -> None:
    limited = ["sh", "-c", 'ulimit -f 20480; exec "$0" pull acme/tiny-GGUF', str(COMMAND)]
    told = subprocess.run(limited, capture_output=True, text=True, timeout=60)
    assert told.returncode == 1
    assert "File too large" in told.stderr
    assert len([line for line in told.stderr.splitlines() if " % of " not in line]) == 2
    assert "10.5 MB already here" in command.good("pull", REPO)


@pytest.mark.slow
@pytest.mark.needs("openssl")
def test_https_is_spoken_and_its_certificate_checked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hub: FakeHub
) -> None:
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
        monkeypatch.setenv("HF_ENDPOINT", secure.url)
        for status, words in ((1, "certificate is not trusted"), (0, "")):
            with started("pull", MODEL) as pulling:  # a process reads its authorities once
                _, err = pulling.communicate(timeout=60)
            assert (pulling.returncode, words in err) == (status, True), err
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))


def test_a_model_that_runs_is_not_removed(command: Command, serve: Serve, tmp_path: Path, hub: FakeHub) -> None:
    command.good("pull", MODEL)
    cli = command.at(serve(downloads=DownloadSettings(cache=tmp_path / "cache", spare=0)).url)
    cli.good("load", MODEL)
    assert f"llama-appliance unload {MODEL}" in cli.bad("rm", MODEL)
    assert list((tmp_path / "cache").rglob("tiny-Q8_0.gguf"))


@needs_links
def test_what_a_removal_frees_is_said_before_and_after(
    command: Command, serve: Serve, hub: FakeHub, tmp_path: Path
) -> None:
    """By a server and without one, of two models with the same contents."""
    folder = hub.root / "acme" / "tiny-GGUF"
    shutil.copyfile(folder / "tiny-Q8_0.gguf", folder / "tiny-Q4_0.gguf")
    eight, four, size = "acme/tiny-GGUF:Q8_0", "acme/tiny-GGUF:Q4_0", 24 << 20
    cli = command.at(serve(downloads=DownloadSettings(cache=tmp_path / "cache", hub=HubAccess(endpoint=hub.url))).url)
    for model in (eight, four):
        cli.good("pull", model)
    lines = cli.rows("disk")
    assert [line[0] for line in lines if line and line[0].isupper()] == ["DISK", "FOLDER", "MODEL"]
    assert next(line for line in lines if line[:1] == ["cache"])[2] == "MB"
    frees = {one["model"]: one["frees"] for one in cli.json("disk")["models"]}
    assert max(frees.values()) < size, "the other one needs the contents"
    assert f"removing {eight} would free" in cli.good("rm", eight, "--dry-run")
    assert cli.json("rm", eight, "--dry-run") == {"model": eight, "frees": frees[eight]}
    assert cli.json("rm", eight)["size"] == frees[eight]
    foretold = cli.json("rm", four, "--dry-run")["frees"]
    assert command.json("rm", four, "--own", "--dry-run") == {"model": four, "frees": foretold}
    assert foretold >= size
    assert list((tmp_path / "cache").rglob("tiny-Q4_0.gguf"))
    assert command.json("rm", four, "--own")["size"] == foretold
    assert not list((tmp_path / "cache").rglob("tiny-Q4_0.gguf"))
    assert four in cli.bad("rm", four)
