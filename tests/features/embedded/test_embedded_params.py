"""The embedded engine's options against llama.cpp's own parser, which the wheel contains but does not offer.

The parser is reached by its C++ name in the extension module, so only where such names are exported (not on Windows).
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from collections.abc import Generator
from pathlib import Path
from types import ModuleType

import pytest

from appliance.core.llama.flags import FLAGS, Kind, lookup, split
from appliance.errors import UsageError
from appliance.features.embedded import available
from appliance.features.embedded.params import ASKED, CARRIED, DEFAULT_PORT, LOOKS, REFUSED, fill

pytestmark = pytest.mark.skipif(
    not available() or sys.platform == "win32", reason="needs the wheel xllamacpp with its C++ names exported"
)

PARSER = "_Z19common_params_parseiPPcR13common_params13llama_examplePFviS0_E"
SERVER = 12
"""llama-server's number among llama.cpp's programs, at the release the wheel is built from."""

VALUES = {
    "--load-mode": "mlock",
    "--lazy-mode": "on",
    "--numa": "isolate",
    "--device": "none",
    "--device-draft": "none",
    "--override-tensor": "blk=CPU",
    "--override-tensor-draft": "blk=CPU",
    "--cpu-mask": "a5",
    "--cpu-mask-batch": "3",
    "--cpu-mask-draft": "3",
    "--cpu-mask-batch-draft": "3",
    "--cpu-range": "1-2",
    "--cpu-range-batch": "0-1",
    "--cpu-range-draft": "0-1",
    "--split-mode": "row",
    "--tensor-split": "3,1",
    "--fit": "off",
    "--fit-target": "5,6",
    "--flash-attn": "on",
    "--rope-scaling": "yarn",
    "--pooling": "cls",
    "--n-gpu-layers": "5",
    "--n-gpu-layers-draft": "all",
    "--samplers": "top_k;temperature",
    "--sampling-seq": "kt",
    "--grammar": 'root ::= "b"',
    "--json-schema": '{"type":"object"}',
    "--spec-type": "draft-simple,ngram-mod",
    "--spec-draft-sampling": "probabilistic",
    "--spec-synth-rates": "0.5,0.25",
    "--lora-scaled": "a.gguf:0.5,b.gguf:2",
    "--chat-template": "chatml",
    "--chat-template-kwargs": '{"a":[1,null],"b":{"c":"x"}}',
    "--reasoning": "off",
    "--reasoning-format": "deepseek-legacy",
    "--reasoning-effort": "high",
    "--webui-config": '{"a":1}',
    "--slot-save-path": ".",
    "--media-path": ".",
    "--mmproj-device": "none",
    "--grammar-file": "text.txt",
    "--chat-template-file": "text.txt",
    "--api-key-file": "keys.txt",
    "--json-schema-file": "object.json",
    "--webui-config-file": "object.json",
}

MORE = [
    *(["-ngl", "auto"], ["-ngl", "all"], ["-c", "0"], ["-t", "0"], ["-fa", "true"], ["-fitt", "7"], ["--prio", "-1"]),
    *(["--cpu-strict", "0"], ["--cpu-strict-batch", "0"], ["--poll", "0"]),
    *(["--load-mode", "mmap+mlock"], ["--load-mode", "dio"], ["--seed", "-1"], ["--temp", "-1"], ["-np", "-5"]),
    *(["--dry-base", "0.5"], ["--alias", ",a,,b"], ["--host", "a,b"], ["--api-key", ",a,", "--api-key", "b"]),
    *(["--lora", "a,b", "--lora-scaled", "c:2"], ["-r", "a\\nb\\x41\\\\", "-r", "c"]),
    *(["--no-escape", "-r", "a\\nb"], ["--rerank", "--pooling", "mean"]),
    *(["--n-cpu-moe", "2", "--cpu-moe", "-ot", "blk=CPU"], ["--top-k", "7", "--temp", "0.1", "--mirostat", "2"]),
    *(["--reasoning", "auto"], ["--reasoning", "on"], ["--reasoning-effort", "default"]),
    *(["--cors-credentials", "--no-cors-credentials"], ["--sampling-seq", "edskypmxt"]),
]

WRONG = [
    *(["--prio", "5"], ["-fa", "perhaps"], ["--fit", "auto"], ["--numa", "x"], ["-ctk", "q2_K"], ["--load-mode", "x"]),
    *(["--reasoning-format", "x"], ["--reasoning-budget", "-5"], ["--pooling", "x"], ["--lora-scaled", "a:b"]),
    *(["--slot-save-path", "nowhere"], ["--n-cpu-moe", "-1"], ["-np", "0"], ["--log-colors", "perhaps"]),
    *(["--sleep-idle-seconds", "0"], ["-n", "many"], ["--grammar-file", "nowhere"], ["-ot", "blk=NOWHERE"]),
]


def cases() -> Generator[list[str]]:
    for flag in FLAGS:
        if flag.name in CARRIED:
            numbers = {Kind.INTEGER: "3", Kind.CHOICE: "1", Kind.NUMBER: "0.25"}
            value = "q8_0" if "cache-type" in flag.name else VALUES.get(flag.name, numbers.get(flag.kind, "X"))
            yield [flag.spellings[0], *[value] * flag.arity]
            if flag.negatives:
                yield [flag.negatives[0]]


@pytest.fixture(scope="module")
def native() -> ModuleType:
    return importlib.import_module("xllamacpp")


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text('root ::= "a"\n')
    (tmp_path / "keys.txt").write_text("k1\n# no key\n\nk2\n")
    (tmp_path / "object.json").write_text('{"type":"object"}')
    for name in [name for name in os.environ if name.startswith(("LLAMA_", "HF_"))]:
        monkeypatch.delenv(name)


def parsed(native: ModuleType, argv: list[str]) -> object | None:
    """What llama.cpp's parser makes of it; None if it refuses. The C++ object begins after the two-word object head."""
    params = native.CommonParams()
    parse = ctypes.CDLL(native.xllamacpp.__file__)[PARSER]
    parse.restype = ctypes.c_bool
    words = [os.fsencode(word) for word in ("llama-server", *argv)]
    array = (ctypes.c_char_p * (len(words) + 1))(*words, None)
    address = ctypes.c_void_p(id(params) + 2 * ctypes.sizeof(ctypes.c_void_p))
    return params if parse(len(words), array, address, SERVER, None) else None


def values(found: object, prefix: str = "") -> dict[str, object]:
    """Every readable property, nested ones by dotted path."""
    out: dict[str, object] = {}
    for name in dir(found):
        if name.startswith("_") or name in ("print", "empty"):
            continue
        value = getattr(found, name)
        if type(value).__name__.startswith("Common") or type(value).__name__ == "CpuParams":
            out |= values(value, f"{prefix}{name}.")
        elif name == "lora_adapters":
            out[prefix + name] = [(adapter.path, adapter.scale) for adapter in value]
        elif name not in ("logit_bias", "logit_bias_eog"):
            out[prefix + name] = value
    return out


def settled(native: ModuleType, found: dict[str, object]) -> dict[str, object]:
    """As the library settles what was left open when it starts a server; the parser has already done so."""
    if found["port"] == 0:
        found["port"] = DEFAULT_PORT
    if found["cpuparams.n_threads"] == -1:
        found["cpuparams.n_threads"] = values(parsed(native, []))["cpuparams.n_threads"]
    draft = "speculative.draft.cpuparams"
    roles = (("cpuparams", "cpuparams_batch"), ("cpuparams", draft), ("cpuparams_batch", f"{draft}_batch"))
    for model, copy in roles:
        if found[f"{copy}.n_threads"] == -1:
            for name in ("n_threads", "cpumask", "mask_valid", "priority", "strict_cpu", "poll"):
                found[f"{copy}.{name}"] = found[f"{model}.{name}"]
    return found


@pytest.mark.parametrize("words", [*cases(), *MORE], ids=" ".join)
def test_an_option_means_what_llama_cpp_makes_of_it(native: ModuleType, words: list[str]) -> None:
    theirs = parsed(native, ["--model", "x.gguf", *words])
    assert theirs is not None
    expected = settled(native, values(theirs))
    if words == ["--log-disable"]:
        expected["verbosity"] = -1  # it silences its logger instead, which the wheel gives no way to do
    if words[0] in ("-j", "-jf"):  # the wheel is told to leave out keywords that it does not know
        lenient = '{"type":"object","x-guidance":{"lenient":true,"coerce_one_of":true}}'
        expected["sampling.grammar.grammar"] = f"%llguidance {{}}\nstart: %json {lenient}"
    if words == ["--no-jinja"]:
        expected["use_jinja"] = True  # without Jinja the wheel's server passes over response_format
    assert settled(native, values(fill(native, split(["--model", "x.gguf", *words])).params)) == expected


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_a_value_that_llama_cpp_refuses_is_refused(native: ModuleType, words: list[str]) -> None:
    assert parsed(native, ["--model", "x.gguf", *words]) is None
    with pytest.raises(UsageError, match=f"^{words[0]}: "):
        fill(native, split(["--model", "x.gguf", *words]))


def test_every_option_is_carried_refused_or_answered() -> None:
    known = [flag.name for flag in FLAGS if flag.kind is not Kind.REMOVED]
    assert sorted([*CARRIED, *LOOKS, *REFUSED, *ASKED]) == sorted(known)
    assert lookup("--help") is not None


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_refused_option_is_named(native: ModuleType, name: str) -> None:
    flag = lookup(name)
    with pytest.raises(UsageError, match=f"cannot honour {flag.spellings[0]}: "):
        fill(native, split(["--model", "x.gguf", flag.spellings[0], *["1"] * flag.arity]))
