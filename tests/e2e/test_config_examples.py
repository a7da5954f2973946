"""Whole configurations as people have them: llama-swap's own example, and some with more models than anybody has."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
from config_files import CHAT, chat, running
from configured_harness import PLAIN
from port_blocks import port_block
from program import ANY_PORT, Server, StartServer, http, wait_gone
from waiting import wait

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="commands of POSIX shells")

SEED = Path(__file__).parents[1] / "examples" / "llama-swap-seed.yaml"
KEY = "sk-hunter2"
KEYS = {"API_KEY_1": "one", "API_KEY_2": "two", "OPENROUTER_API_KEY": "three"}

DOCKER = """#!/bin/sh
# `docker run` waits for a container that is no child of its own, `docker stop` ends it.
case $1 in
run)
    name=$3
    port=${7%%:*}
    setsid llama-server --port "$port" -m models/docker.gguf < /dev/null &
    echo $! > "$name.pid"
    wait $!
    ;;
stop)
    echo "stopped $2" >> docker.log
    kill "$(cat "$2.pid")"
    ;;
esac
"""


# ---- llama-swap's example --------------------------------------------------------------------------------------------


@pytest.fixture
def seed(start_server: StartServer, tmp_path: Path, fake_engine: Path) -> Server:
    """The example as it is, with programs of its commands' names; only paths, ports and addresses are others."""
    programs = tmp_path / "bin"
    programs.mkdir()
    own, first = port_block(1), port_block(20)
    scripts = {
        "llama-server": f'#!/bin/sh\nexec "{fake_engine}" "$@"\n',
        "sd-server": '#!/bin/sh\nshift\nexec llama-server --port "$@"\n',
        "docker": DOCKER,
        "llama-server-ec9e0301": f'#!/bin/sh\nexec "{sys.executable}" "{PLAIN}" port={own} check=/custom-endpoint\n',
    }
    for name, text in scripts.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    text = SEED.read_text("utf-8")
    for old, new in (
        ("/path/to/llama-server/llama-server-ec9e0301", str(programs / "llama-server-ec9e0301")),
        ("http://127.0.0.1:8999", f"http://127.0.0.1:{own}"),
        ("startPort: 10001", f"startPort: {first}"),
        ("http://192.168.1.23", "http://127.0.0.1:9"),
        ("https://openrouter.ai/api", "http://127.0.0.1:9/api"),
    ):
        assert old in text
        text = text.replace(old, new)
    for name in ("gemma", "qwen", "mistral", "voxtral", "reranker", "llama-70b", "sd", "llama", "models/docker"):
        (tmp_path / "models").mkdir(exist_ok=True)
        (tmp_path / f"{name}.gguf").write_bytes(b"GGUF")
    (tmp_path / "Llama-3.2-1B-Instruct-Q4_K_M.gguf").write_bytes(b"GGUF")
    config = tmp_path / "config.yaml"
    config.write_text(text, "utf-8")
    env = {**KEYS, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    return start_server("serve", *ANY_PORT, "--config", str(config), env=env)


def test_the_example_of_llama_swap_runs(seed: Server, tmp_path: Path) -> None:
    key = {"Authorization": f"Bearer {KEY}"}

    def post(model: str, **more: object) -> dict[str, object]:
        answer = http(seed, "POST", CHAT, chat(model, **more), **key)
        assert answer.status == 200, answer.body
        return answer.json()

    assert http(seed, "GET", "/running").status == 401
    wait(lambda: running(seed, **key) == {"llama": "ready"})  # preloaded

    listed = {entry["id"]: entry for entry in http(seed, "GET", "/v1/models", **key).json()["data"]}
    assert "qwen-unlisted" not in listed
    assert {"gpt-oss-120b", "openrouter/z-ai/glm-4.7", "llama-swap-peer/embeddings/model_c"} <= listed.keys()
    told = listed["gpt-oss-120b"]["meta"]["llamaswap"]
    assert isinstance(told["port"], int)
    assert told["note"] == f"The gpt-oss-120b is running on port {told['port']} temp=0.7, context=16384"

    assert post("llama")["choices"]
    for name, effort in (
        ("gpt-oss-120b", "medium"),
        ("gpt-oss-120b:high", "high"),
        ("gpt-oss-120b:low", "low"),
        ("gpt-4o-mini", None),
    ):
        sent = post(name, temperature=2, top_k=3, seed=7)
        assert (sent["model"], sent["temperature"], sent["top_p"], sent["seed"]) == ("openai/gpt-oss-120B", 0.7, 0.9, 7)
        assert "top_k" not in sent
        assert sent.get("chat_template_kwargs") == (None if effort is None else {"reasoning_effort": effort})
    assert running(seed, **key) == {"gpt-oss-120b": "ready"}
    assert post("qwen-unlisted")["choices"]

    assert post("docker-llama")["choices"]
    assert running(seed, **key) == {"docker-llama": "ready"}
    container = psutil.Process(int((tmp_path / "docker-llama.pid").read_text()))
    assert post("stable-diffusion")["choices"]
    wait_gone([container])
    assert (tmp_path / "docker.log").read_text() == "stopped docker-llama\n"

    for model in ("gemma-model", "voxtral-model", "reranker-model"):
        assert post(model)["choices"]
    assert sorted(running(seed, **key)) == ["gemma-model", "reranker-model", "voxtral-model"]
    assert post("qwen-model")["choices"]
    assert sorted(running(seed, **key)) == ["qwen-model", "reranker-model", "voxtral-model"]

    failed = http(seed, "POST", CHAT, chat("model_a"), **key)
    assert failed.status == 502
    assert "llama-swap-peer" in failed.json()["error"]["message"]

    assert post("docker-llama")["choices"]
    children = [*seed.children(), psutil.Process(int((tmp_path / "docker-llama.pid").read_text()))]
    seed.signal(signal.SIGINT)
    assert seed.wait(20) == 0
    wait_gone(children)
    assert (tmp_path / "docker.log").read_text() == "stopped docker-llama\n" * 2


# ---- many models -----------------------------------------------------------------------------------------------------
