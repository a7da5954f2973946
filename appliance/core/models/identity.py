"""A digest of the model that a name means: two boxes of a pool have the same model if theirs are equal.

Boxes keep a model at other paths, on other cards and ports. So a file counts by its contents, and an option that only
suits the machine does not count. A command of another program counts word by word. In doubt two models differ: that
costs them their common name, while no answer is ever begun by one and continued by the other.
A variable with a secret does not count: it makes no other model, and a client that reads digests could guess at it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import PurePath
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from appliance.core.config.types import ModelConfig
from appliance.core.llama import flags
from appliance.core.models.model import Model
from appliance.core.secrets import holds_secret
from appliance.errors import UsageError

WITHOUT_EFFECT = (
    "--port", "--host", "--alias", "--api-key", "--api-key-file", "--threads", "--threads-batch", "--threads-http",
    "--batch-size", "--ubatch-size", "--cache-ram", "--cache-idle-slots", "--slot-save-path", "--metrics", "--slots",
    "--props", "--timeout", "--verbose", "--verbosity", "--log-file", "--log-disable", "--log-colors", "--log-prefix",
    "--log-timestamps", "--log-jsonl", "--offline",
)  # fmt: skip
"""Options that change nothing in what a process keeps of a prompt."""
OF_SEAT = (
    "--device", "--n-gpu-layers", "--fit-target", "--ctx-size", "--parallel", "--kv-unified", "--kv-unified-per-slot",
    "--ctx-checkpoints",
)  # fmt: skip
"""Options that the program chooses for each seat, by its devices and their memory. A user may also set them."""
OF_MACHINE = frozenset(map(flags.canonical, (
    *WITHOUT_EFFECT, *OF_SEAT, "--api-key", "--batch-size", "--cpu-mask", "--cpu-mask-batch", "--cpu-moe",
    "--cpu-range", "--cpu-range-batch", "--cpu-strict", "--cpu-strict-batch", "--fit", "--fit-ctx", "--flash-attn",
    "--hf-token", "--kv-offload", "--load-mode", "--main-gpu", "--model-draft", "--n-cpu-ffn", "--n-cpu-moe", "--numa",
    "--op-offload", "--override-tensor", "--poll", "--poll-batch", "--prio", "--prio-batch", "--repack", "--rpc",
    "--sleep-idle-seconds", "--split-mode", "--tensor-split",
)))  # fmt: skip
"""Options of llama-server that change how fast a model answers, or where. A draft model only guesses ahead."""
ENV_OF_MACHINE = ("CUDA_", "GGML_", "HIP_", "HSA_", "OMP_", "ROCR_", "LD_LIBRARY_PATH=", "PATH=")
HERE = ("localhost", "127.0.0.1", "::1")
_PIECES = re.compile(r"([\s,=;]+|:(?![\\/]))")

PrintOf = Callable[[str, bool], str | None]
"""Return the digest of the file or folder with this path, None for any other text. True: of a program, whose digest is
wanted only if it is a script.
"""


class FileIdentity(Struct, frozen=True):
    """A file of a model, and the signs of another one in its place."""

    path: str
    size: int
    mtime_ns: int
    inode: int


def identity_of(model: Model, engine_args: Sequence[str], print_of: PrintOf) -> str:
    """Return the model's digest. ``engine_args`` are for every model that has no command of its own."""
    config = model.config
    if config is None:
        files = [word for flag, path in (("--model", model.path), ("--mmproj", model.mmproj)) if path
                 for word in (flag, path)]  # fmt: skip
        told = [*files, *model.args, *engine_args]
        facts: list[object] = ["", None, _options(told, print_of), list(map(repr, model.fetch))]
    else:
        program, *words = _portless(config)
        name, is_ours = _name_of(program), runs_llama_server(model)
        script = None if config.engine else print_of(program, True)
        said = _options(words, print_of) if is_ours else [_read(word, print_of) for word in words]
        facts = ["" if is_ours else name, script, said, [], *_around(config)]
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()


def runs_llama_server(model: Model) -> bool:
    """Return whether the process that serves a model is llama.cpp's server."""
    config = model.config
    return config is None or bool(config.engine) or _name_of(next(iter(config.argv), "")) == "llama-server"


def _name_of(program: str) -> str:
    return PurePath(program.replace("\\", "/")).stem.lower()


def _options(words: Sequence[str], print_of: PrintOf) -> list[tuple[str, bool, list[str]]]:
    """Return what the words say to llama-server, in an order of its own: which one comes first does not matter."""
    found: list[tuple[str, bool, list[str]]] = []
    at = 0
    while at < len(words):
        try:
            option = flags.option_at(words, at)
        except UsageError:
            found.append(("", True, [_read(words[at], print_of)]))
            at += 1
            continue
        at += len(option.words)
        if option.canonical not in OF_MACHINE:
            found.append((option.canonical, option.on, [_read(value, print_of) for value in option.values]))
    return sorted(found)


def _read(word: str, print_of: PrintOf) -> str:
    """Return the word with the contents of the files that it names instead of their names."""
    whole = print_of(word, False)
    if whole is not None:
        return whole
    return "".join((print_of(piece, False) if piece.strip() else None) or piece for piece in _PIECES.split(word))


def _portless(config: ModelConfig) -> list[str]:
    """Return the words of the command without the model's port, which every box counts by itself."""
    port = urlsplit(config.proxy).port
    number = re.compile(rf"(?<!\d){port}(?!\d)") if port else None
    return [number.sub("${PORT}", word) if number is not None else word for word in config.argv] or [""]


def _around(config: ModelConfig) -> list[str]:
    """Return what decides beside the command: its variables, and a server that the command does not start."""
    elsewhere = (urlsplit(config.proxy).hostname or "") not in HERE
    variables = [one.partition("=") for one in config.env if not one.startswith(ENV_OF_MACHINE)]
    told = [f"{name}={value}" for name, _, value in variables if not holds_secret(name, value)]
    told.append(config.use_model_name)
    return sorted(filter(None, (*told, config.proxy if elsewhere else "")))
