"""Estimates against what real engines say that they allocate, for models of many kinds."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from hollow_models import bert, dense, experts, gemma, latent, mamba, write_hollow
from needs import compiled
from slow import one_of

from appliance.catalog.headers import Headers
from appliance.core.llama.buffers import OFFLOADED, Buffers
from appliance.core.memory import RAM
from appliance.features.embedded import available, command
from appliance.features.fit.core.estimate import estimate, places_of
from appliance.features.fit.core.options import asked_of

MIB = 1 << 20
NEAR = 0.10
TINY = 2 * MIB
"""Of a kind of buffer less than this no share can be asked for."""
READY = ("model loaded", "exiting due to")
LAVAPIPE = {"GGML_VK_VISIBLE_DEVICES": "0"}
"""Without it llama.cpp hides devices that are processors."""
KINDS = {"model": "model", "KV": "cache", "RS": "cache", "compute": "compute", "output": "output"}


# A model, and flags beside ``--ctx-size 4096``.
CASES = {
    "llama F16": (dense(), ""),
    "llama Q8_0, cache in Q8_0": (dense(weights="Q8_0"), "-ctk q8_0 -ctv q8_0"),
    "llama Q4_K": (dense(weights="Q4_K"), ""),
    "llama Q4_0, 8192 tokens, batches of 128": (dense(weights="Q4_0"), "-c 8192 -ub 128 -np 1"),
    "llama F16 without flash attention": (dense(), "-fa off"),
    "qwen3 F16, three slots": (
        dense("qwen3", kv_heads=8, head=128, extra=("q_norm", "k_norm"), tied=True, vocabulary=65536),
        "-np 3",
    ),
    "qwen3 F16 for embeddings": (dense("qwen3", extra=("q_norm", "k_norm"), layers=4), "--embedding --pooling last"),
    "gemma2 F16": (gemma("gemma2", window=1024), ""),
    "gemma3 F16": (gemma("gemma3"), ""),
    "gemma3 Q8_0, full windows": (gemma("gemma3", weights="Q8_0"), "--swa-full"),
    "qwen2moe Q8_0": (experts(), ""),
    "mixtral Q4_K": (experts("llama", weights="Q4_K"), ""),
    "deepseek2 Q8_0": (latent(), ""),
    "mamba F16": (mamba(), ""),
    "bert F16": (bert(), "--embedding"),
}
WITH_GPU = {
    "llama F16, all layers": (dense(), ""),
    "llama F16, 3 of 9": (dense(), "-ngl 3"),
    "gemma3 F16, 3 of 13": (gemma("gemma3"), "-ngl 3"),
    "deepseek2 Q8_0, all layers": (latent(), ""),
    "qwen2moe Q8_0, all layers": (experts(), ""),
    "mixtral Q4_K, all layers": (experts("llama", weights="Q4_K"), ""),
    "qwen3 Q8_0, 6 of 9": (dense("qwen3", extra=("q_norm", "k_norm"), weights="Q8_0"), "-ngl 6"),
}


@pytest.fixture(scope="module")
def built_cpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CPU build without its library for AMX, whose copies of weights `estimate` does not count."""
    server = next(compiled("cpu"))
    folder = tmp_path_factory.mktemp("engine") / "build"
    shutil.copytree(server.parent, folder, ignore=shutil.ignore_patterns("*sapphirerapids*", "licenses"))
    return folder / server.name


def buffers_of(argv: list[str], model: Path, words: list[str], env: Mapping[str, str]) -> tuple[Buffers, str]:
    """Load the model once, and read what the engine says until it has; that comes, too."""
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    line = [*argv, "--model", str(model), "--host", "127.0.0.1", "--port", port, "-t", "1", "-lv", "4", "--no-warmup"]
    buffers, log = Buffers(), ""
    with subprocess.Popen(
        [*line, "-fit", "off", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    ) as process:
        try:
            for said in process.stderr:
                buffers.read(said.rstrip("\n"))
                log += said
                if any(word in said for word in READY):
                    break
        finally:
            process.kill()
    assert buffers.by_device(), log
    return buffers, log


def said(buffers: Buffers) -> dict[tuple[str, str], int]:
    sizes: dict[tuple[str, str], int] = {}
    for (name, kind), size in buffers.by_kind().items():
        key = ("gpu0" if name == "Vulkan0" else RAM, KINDS[kind])
        sizes[key] = sizes.get(key, 0) + size
    return sizes


def compare(name: str, argv: list[str], folder: Path, gpus: tuple[str, ...] = ()) -> None:
    """Each kind and the whole; the figures are printed, as `pytest -rP` shows them."""
    model, flags = (CASES | WITH_GPU)[name]
    path, words = write_hollow(folder / "hollow.gguf", model), ["--ctx-size", "4096", *flags.split()]
    shape, asked = Headers().read(str(path)).info.shape, asked_of(words, gpus=gpus)
    buffers, log = buffers_of(argv, path, words, LAVAPIPE if gpus else {})
    expected, real, wrong = estimate(shape, asked), said(buffers), list[str]()
    for device, use in expected.items():
        for kind in ("model", "cache", "compute", "output"):
            mine, theirs = getattr(use, kind), real.get((device, kind), 0)
            if max(mine, theirs) < TINY:
                continue
            off = (mine - theirs) / theirs if theirs else 1.0
            row = f"{name} | {device} | {kind} | {mine / MIB:.2f} | {theirs / MIB:.2f} | {off:+.1%}"
            print(row)
            if abs(off) > NEAR:
                wrong.append(row)
    whole, all_of_it = sum(use.total for use in expected.values()), sum(real.values())
    print(f"{name} | all | all | {whole / MIB:.2f} | {all_of_it / MIB:.2f} | {whole / all_of_it - 1:+.1%}")
    assert not wrong
    assert abs(whole / all_of_it - 1) <= NEAR
    if gpus:
        assert [int(layers) for layers, _ in OFFLOADED.findall(log)] == [places_of(shape, asked).count("gpu0")]


@pytest.mark.skipif(not available(), reason="the wheel xllamacpp is not installed")
@pytest.mark.parametrize("name", one_of(CASES))
def test_the_embedded_engine_takes_what_was_estimated(name: str, tmp_path: Path):
    compare(name, list(command()), tmp_path)


@pytest.mark.slow
@pytest.mark.needs("cpu-build")
@pytest.mark.parametrize("name", CASES)
def test_a_built_server_takes_what_was_estimated(name: str, tmp_path: Path, built_cpu: Path):
    compare(name, [str(built_cpu)], tmp_path)


@pytest.mark.slow
@pytest.mark.needs("vulkan-build", "lavapipe")
@pytest.mark.parametrize("name", WITH_GPU)
def test_a_gpu_and_main_memory_share_what_was_estimated(name: str, tmp_path: Path):
    compare(name, [str(next(compiled("vulkan")))], tmp_path, ("gpu0",))
