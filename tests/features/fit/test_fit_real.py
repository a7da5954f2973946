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
from hollow_models import Hollow, bert, dense, experts, gemma, latent, mamba, write_hollow
from msgspec import Struct, structs
from needs import compiled
from slow import one_of

from appliance.core.llama.buffers import OFFLOADED, Buffers
from appliance.core.memory import RAM
from appliance.core.models.gguf import read_gguf
from appliance.features.embedded import available, command
from appliance.features.fit.core.estimate import Estimated, estimate
from appliance.features.fit.core.plan import asked_of

MIB = 1 << 20
NEAR = 0.10
TINY = 2 * MIB
"""Of a kind of buffer less than this no share can be asked for."""
READY = ("model loaded", "exiting due to")
LAVAPIPE = {"GGML_VK_VISIBLE_DEVICES": "0"}
"""Without it llama.cpp hides devices that are processors."""
KINDS = {"model": "model", "KV": "cache", "RS": "cache", "compute": "compute", "output": "output"}


class Case(Struct, frozen=True, kw_only=True):
    """A model and how it is started."""

    model: Hollow
    flags: str = ""

    @property
    def words(self) -> list[str]:
        return ["--ctx-size", "4096", *self.flags.split()]


CASES = {
    "llama F16": Case(model=dense()),
    "llama Q8_0, cache in Q8_0": Case(model=dense(weights="Q8_0"), flags="-ctk q8_0 -ctv q8_0"),
    "llama Q4_K": Case(model=dense(weights="Q4_K")),
    "llama Q4_0, 8192 tokens, batches of 128": Case(model=dense(weights="Q4_0"), flags="-c 8192 -ub 128 -np 1"),
    "llama F16 without flash attention": Case(model=dense(), flags="-fa off"),
    "qwen3 F16, three slots": Case(
        model=dense("qwen3", kv_heads=8, head=128, extra=("q_norm", "k_norm"), tied=True, vocabulary=65536),
        flags="-np 3",
    ),
    "qwen3 F16 for embeddings": Case(
        model=dense("qwen3", extra=("q_norm", "k_norm"), layers=4), flags="--embedding --pooling last"
    ),
    "gemma2 F16": Case(model=gemma("gemma2", window=1024)),
    "gemma3 F16": Case(model=gemma("gemma3")),
    "gemma3 Q8_0, full windows": Case(model=gemma("gemma3", weights="Q8_0"), flags="--swa-full"),
    "qwen2moe Q8_0": Case(model=experts()),
    "mixtral Q4_K": Case(model=experts("llama", weights="Q4_K")),
    "deepseek2 Q8_0": Case(model=latent()),
    "mamba F16": Case(model=mamba()),
    "bert F16": Case(model=bert(), flags="--embedding"),
}
WITH_GPU = {
    "llama F16, all layers": Case(model=dense()),
    "llama F16, 3 of 9": Case(model=dense(), flags="-ngl 3"),
    "gemma3 F16, 3 of 13": Case(model=gemma("gemma3"), flags="-ngl 3"),
    "deepseek2 Q8_0, all layers": Case(model=latent()),
    "qwen2moe Q8_0, all layers": Case(model=experts()),
    "mixtral Q4_K, all layers": Case(model=experts("llama", weights="Q4_K")),
    "qwen3 Q8_0, 6 of 9": Case(model=dense("qwen3", extra=("q_norm", "k_norm"), weights="Q8_0"), flags="-ngl 6"),
}


@pytest.fixture(scope="module")
def built_cpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CPU build without its library for AMX, whose copies of weights `estimate` does not count."""
    server = next(compiled("cpu"))
    folder = tmp_path_factory.mktemp("engine") / "build"
    shutil.copytree(server.parent, folder, ignore=shutil.ignore_patterns("*sapphirerapids*", "licenses"))
    return folder / server.name


def buffers_of(
    argv: list[str], model: Path, words: list[str], env: Mapping[str, str] | None = None
) -> tuple[Buffers, str]:
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
        env={**os.environ, **(env or {})},
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


def estimated(path: Path, words: list[str], gpus: tuple[str, ...] = ()) -> Estimated:
    size = path.stat().st_size
    with path.open("rb") as file:

        def read_at(offset: int, count: int) -> bytes:
            file.seek(offset)
            return file.read(count)

        shape = read_gguf(read_at, size).shape
    return estimate(shape, structs.replace(asked_of(words, gpus=gpus).options))


def check(name: str, expected: Estimated, buffers: Buffers) -> None:
    """Each kind and the whole; the figures are printed, as `pytest -rP` shows them."""
    real = said(buffers)
    wrong: list[str] = []
    for device, use in expected.devices.items():
        for kind in ("model", "cache", "compute", "output"):
            mine, theirs = getattr(use, kind), real.get((device, kind), 0)
            if max(mine, theirs) < TINY:
                continue
            off = (mine - theirs) / theirs if theirs else 1.0
            row = f"{name} | {device} | {kind} | {mine / MIB:.2f} | {theirs / MIB:.2f} | {off:+.1%}"
            print(row)
            if abs(off) > NEAR:
                wrong.append(row)
    whole, all_of_it = sum(expected.by_device().values()), sum(real.values())
    print(f"{name} | all | all | {whole / MIB:.2f} | {all_of_it / MIB:.2f} | {whole / all_of_it - 1:+.1%}")
    assert not wrong
    assert abs(whole / all_of_it - 1) <= NEAR


@pytest.mark.skipif(not available(), reason="the wheel xllamacpp is not installed")
@pytest.mark.parametrize("name", one_of(CASES))
def test_the_embedded_engine_takes_what_was_estimated(name: str, tmp_path: Path):
    case = CASES[name]
    path = write_hollow(tmp_path / "hollow.gguf", case.model)
    check(name, estimated(path, case.words), buffers_of(list(command()), path, case.words)[0])


@pytest.mark.slow
@pytest.mark.needs("cpu-build")
@pytest.mark.parametrize("name", CASES)
def test_a_built_server_takes_what_was_estimated(name: str, tmp_path: Path, built_cpu: Path):
    case = CASES[name]
    path = write_hollow(tmp_path / "hollow.gguf", case.model)
    check(name, estimated(path, case.words), buffers_of([str(built_cpu)], path, case.words)[0])


@pytest.mark.slow
@pytest.mark.needs("vulkan-build", "lavapipe")
@pytest.mark.parametrize("name", WITH_GPU)
def test_a_gpu_and_main_memory_share_what_was_estimated(name: str, tmp_path: Path):
    server, case = next(compiled("vulkan")), WITH_GPU[name]
    path = write_hollow(tmp_path / "hollow.gguf", case.model)
    buffers, log = buffers_of([str(server)], path, case.words, LAVAPIPE)
    check(name, estimated(path, case.words, ("gpu0",)), buffers)
    assert [int(layers) for layers, _ in OFFLOADED.findall(log)] == [estimated(path, case.words, ("gpu0",)).gpu_layers]
