"""The one model of llama-server by its name on the hub: from the cache, or downloaded, and stopped on the way."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from command_line import run_here
from gguf_files import write_model
from hub_process import FakeHub, fake_hub
from program import Server, StartServer, answer, engine_argv, fresh_environment, http, path_after
from slow import one_of
from waiting import wait

from appliance.engines.named import ENGINE_VARIABLE

REPO = "acme/tiny-GGUF"
SIZE = 24 << 20
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path: Path) -> Generator[FakeHub]:
    root = tmp_path / "hub"
    write_model(root / REPO / "tiny-Q8_0.gguf", weights=1000)
    write_model(root / REPO / "tiny-F16.gguf", weights=500)
    write_model(root / REPO / "mmproj-F16.gguf", architecture="clip", clip__has_vision_encoder=True)
    for number in (1, 2):
        shard = {"split__no": number - 1, "split__count": 2, "split__tensors__count": 2}
        write_model(root / REPO / "split" / f"big-Q2_K-{number:05}-of-00002.gguf", weights=number, **shard)
    write_model(root / REPO / "plain.gguf", weights=10)
    write_model(root / "acme/draft" / "mtp-tiny-Q8_0.gguf", weights=20)
    write_model(root / "acme/draft" / "draft-Q4_K_M.gguf", weights=30)
    with fake_hub(root) as running:
        yield running


@pytest.fixture
def environment(tmp_path: Path, hub: FakeHub, fake_engine: Path) -> dict[str, str]:
    return {
        "HF_HUB_CACHE": str(tmp_path / "cache"),
        "MODEL_ENDPOINT": hub.url,
        ENGINE_VARIABLE: str(fake_engine),
    }


@pytest.fixture
def fetching(start_server: StartServer, environment: dict[str, str]) -> StartServer:
    """``llama-server`` with these words; keywords are more of its environment."""

    def start(*words: str, listening: bool = True, **env: str) -> Server:
        return start_server("llama-server", *words, "--port", "0", env={**environment, **env}, listening=listening)

    return start


def test_it_is_downloaded_once_and_served_from_the_cache_then(fetching: StartServer, hub: FakeHub) -> None:
    for _ in range(2):
        server = fetching("-hf", REPO, "-c", "64")
        argv = engine_argv(server)
        snapshot = path_after(argv, "--model").parent
        assert path_after(argv, "--model") == snapshot / "tiny-Q8_0.gguf"
        assert path_after(argv, "--mmproj") == snapshot / "mmproj-F16.gguf"
        assert argv[argv.index("--ctx-size" if "--ctx-size" in argv else "-c") + 1] == "64"
        assert not {"-hf", "--hf-repo"} & set(argv)
        (listed,) = http(server, "GET", "/v1/models").json()["data"]
        assert listed["id"] == REPO
        server.process.terminate()
        server.wait(10)
    looked = [entry["path"] for entry in hub.requests() if entry["path"].endswith("/refs")]
    assert looked == [f"/api/models/{REPO}/refs"]
    assert "downloading acme/tiny-GGUF:Q8_0" not in server.told()


@pytest.mark.parametrize("kind", one_of([(), ("--spec-type", "draft-simple")]))
def test_a_file_that_is_named_and_a_draft_model_from_its_repository(
    fetching: StartServer, kind: tuple[str, ...]
) -> None:
    split = "split/big-Q2_K-00001-of-00002.gguf"
    argv = engine_argv(fetching("-hfr", REPO, "-hff", split, "-hfd", "acme/draft", *kind))
    path = path_after(argv, "--model")
    assert path.name == Path(split).name
    assert len(list(path.parent.iterdir())) == 2, "every part is here"
    assert path_after(argv, "--model-draft").name == ("draft-Q4_K_M.gguf" if kind else "mtp-tiny-Q8_0.gguf")
    assert not {"-hfd", "--spec-draft-hf"} & set(argv)


@pytest.mark.slow
def test_the_environment_names_it_and_a_token_opens_it(fetching: StartServer, hub: FakeHub) -> None:
    hub.behave(private=True)
    refused = fetching(listening=False, LLAMA_ARG_HF_REPO=f"{REPO}:F16")
    assert refused.wait(30) != 0
    assert f"there is no repository {REPO}" in refused.told()
    server = fetching("--hf-token", "hf_right", LLAMA_ARG_HF_REPO=f"{REPO}:F16")
    assert "hf_right" not in " ".join(engine_argv(server))
    assert {entry["authorization"] for entry in hub.requests("cdn")} == {None}


def test_off_line_it_says_what_is_missing(environment: dict[str, str], tmp_path: Path, hub: FakeHub) -> None:
    for words, more in ((("--offline",), {}), ((), {"HF_HUB_OFFLINE": "1"}), ((), {"LLAMA_ARG_OFFLINE": "1"})):
        here = {**fresh_environment(tmp_path), **environment, **more}
        done = run_here(("llama-server", "-hf", REPO, *words), tmp_path, here)
        assert done.returncode == 1
        assert f"{REPO} is not in the cache at {tmp_path / 'cache'}, and --offline" in done.stderr
    assert hub.requests() == []


@pytest.mark.slow
def test_off_line_what_is_in_the_cache_is_served(fetching: StartServer, tmp_path: Path, hub: FakeHub) -> None:
    folder = tmp_path / "cache" / "models--acme--tiny-GGUF"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    (folder / "snapshots").mkdir()
    shutil.copytree(hub.root / REPO, folder / "snapshots" / COMMIT)
    argv = engine_argv(fetching("-hf", REPO, "--offline"))
    assert path_after(argv, "--model") == folder / "snapshots" / COMMIT / "tiny-Q8_0.gguf"
    assert hub.requests() == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-hf", f"{REPO}:Q3_K"), f"{REPO} has no Q3_K; it has PLAIN, Q2_K, F16, Q8_0"),
        (("-hf", REPO, "-hff", "no.gguf"), f"{REPO} has no file no.gguf; it has mmproj-F16.gguf, plain.gguf"),
        (("-hf", "nonsense"), "-hf: 'nonsense' does not name a repository; write org/repo or org/repo:TAG"),
        (("-hf", "acme/none"), "there is no repository acme/none"),
        (("-hff", "a.gguf", "-m", "x.gguf"), "--hf-file names a file of a repository; say which one with --hf-repo"),
    ],
)
def test_what_cannot_be_found_is_told(
    environment: dict[str, str], tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    done = run_here(("llama-server", *words), tmp_path, {**fresh_environment(tmp_path), **environment})
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a process cannot send Ctrl-C to another one there")
def test_ctrl_c_keeps_what_has_come(fetching: StartServer, hub: FakeHub) -> None:
    path = write_model(hub.root / "acme/big" / "big-Q8_0.gguf", weights=SIZE // 4)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))
    hub.behave(rate=8_000_000)
    server = fetching("-hf", "acme/big", listening=False)
    wait(lambda: hub.sent() >= SIZE // 4, told=server.told)
    server.signal(signal.SIGINT)
    assert server.wait(20) == 130
    assert "are kept; the same command resumes from there" in server.told()
    before = hub.sent()
    hub.behave()
    server = fetching("-hf", "acme/big")
    assert path_after(engine_argv(server), "--model").name == "big-Q8_0.gguf"
    assert "already here" in server.told()
    assert hub.sent() - before < path.stat().st_size - SIZE // 8


@pytest.mark.slow
def test_a_repository_that_holds_presets_makes_it_the_router(fetching: StartServer, hub: FakeHub) -> None:
    folder = hub.root / "acme/presets"
    folder.mkdir()
    (folder / "preset.ini").write_text(f"[one]\nhf-repo = {REPO}:F16\nctx-size = 77\n")
    server = fetching("-hf", "acme/presets")
    assert http(server, "GET", "/props").json()["role"] == "router"
    assert [model["id"] for model in http(server, "GET", "/models").json()["data"]] == ["one"]


MEANT = {
    "quantization": (f"hf-repo = {REPO}:f16\n", "tiny-F16.gguf", True),
    "blind": (f"hf-repo = {REPO}:F16\nno-mmproj = 1\n", "tiny-F16.gguf", False),
    "file": (f"hf-repo = {REPO}\nhf-file = plain.gguf\n", "plain.gguf", True),
    "parts": (f"hfr = {REPO}:Q2_K\n", "big-Q2_K-00001-of-00002.gguf", True),
}
"""Keys of a preset, the file that they mean, and whether the model sees."""


def test_a_presets_model_is_downloaded_when_it_is_asked_for(
    fetching: StartServer, hub: FakeHub, tmp_path: Path
) -> None:
    presets = "".join(f"[{name}]\n{keys}" for name, (keys, _, _) in MEANT.items())
    drafting = f"[one]\nhf-repo = {REPO}:F16\nhf-repo-draft = acme/draft\nctx-size = 77\n"
    (tmp_path / "p.ini").write_text(f"{presets}{drafting}[two]\nhf-repo = {REPO}:Q9\n")
    server = fetching("--models-preset", "p.ini", "--models-max", "1")

    def states() -> dict[str, Any]:
        return {entry["id"]: entry["status"] for entry in http(server, "GET", "/models").json()["data"]}

    assert {status["value"] for status in states().values()} == {"unloaded"}
    assert hub.requests() == []
    for name, (_, file, sees) in MEANT.items():
        answer(server, "/v1/chat/completions", **CHAT, model=name)
        argv = engine_argv(server)
        path = path_after(argv, "--model")
        assert (path.name, "--mmproj" in argv) == (file, sees), name
        assert all(part.is_file() for part in path.parent.glob("big-*")), "every part is here"
    answer(server, "/v1/chat/completions", **CHAT, model="one")
    argv = engine_argv(server)
    for flag, name in (
        ("--model", "tiny-F16.gguf"),
        ("--mmproj", "mmproj-F16.gguf"),
        ("--model-draft", "mtp-tiny-Q8_0.gguf"),
    ):
        assert path_after(argv, flag).name == name
    assert not {"--hf-repo", "--hf-repo-draft"} & set(argv)
    refused = http(server, "POST", "/v1/chat/completions", {**CHAT, "model": "two"})
    assert refused.status == 404
    assert refused.json()["error"]["message"] == f"{REPO} has no Q9; it has PLAIN, Q2_K, F16, Q8_0"
    failed = states()["two"]
    assert (failed["value"], failed["failed"]) == ("unloaded", True)
    assert "has no Q9" in str(failed["error"])
    assert states()["one"]["value"] == "loaded", "what runs is not disturbed"
