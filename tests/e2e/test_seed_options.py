"""The options and variables of the llama-server that the seeds describe: each is given, and its effect looked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pictures import write_control_vector
from program import Server, StartServer, answer, engine_argv, http

from appliance.core.llama import flags
from appliance.engines.named import ENGINE_VARIABLE

GENERATION = (
    ("-n", "7", "n_predict"), ("--keep", "3", "n_keep"), ("-s", "42", "seed"), ("--temp", "0.5", "temperature"),
    ("--top-k", "9", "top_k"), ("--top-p", "0.5", "top_p"), ("--min-p", "0.25", "min_p"),
    ("--xtc-probability", "0.25", "xtc_probability"), ("--xtc-threshold", "0.5", "xtc_threshold"),
    ("--typical", "0.75", "typical_p"), ("--repeat-last-n", "32", "repeat_last_n"),
    ("--repeat-penalty", "1.5", "repeat_penalty"), ("--presence-penalty", "0.5", "presence_penalty"),
    ("--frequency-penalty", "0.25", "frequency_penalty"), ("--dry-multiplier", "0.5", "dry_multiplier"),
    ("--dry-base", "1.5", "dry_base"), ("--dry-allowed-length", "4", "dry_allowed_length"),
    ("--dry-penalty-last-n", "16", "dry_penalty_last_n"), ("--dynatemp-range", "0.5", "dynatemp_range"),
    ("--dynatemp-exp", "2", "dynatemp_exponent"), ("--mirostat", "1", "mirostat"),
    ("--mirostat-lr", "0.5", "mirostat_eta"),
    ("--mirostat-ent", "4", "mirostat_tau"), ("--samplers", "top_k;temperature", "samplers"),
)  # fmt: skip
"""Options whose value an engine tells with an answer, and the name that it has there."""
OTHERS: Sequence[Sequence[str]] = (
    ("-tb", "1"), ("-C", "3"), ("-Cr", "0-1"), ("--cpu-strict", "0"), ("--prio", "0"), ("--poll", "0"), ("-Cb", "3"),
    ("-Crb", "0-1"), ("--cpu-strict-batch", "0"), ("--prio-batch", "0"), ("--poll-batch", "0"), ("-b", "256"),
    ("-ub", "128"), ("--no-perf",), ("--no-escape",), ("--rope-scaling", "linear"), ("--rope-freq-base", "10000"),
    ("--rope-freq-scale", "1"), ("--yarn-orig-ctx", "512"), ("--yarn-ext-factor", "0"), ("--yarn-attn-factor", "1"),
    ("--yarn-beta-slow", "1"), ("--yarn-beta-fast", "32"), ("-nkvo",), ("-ctk", "f16"), ("-ctv", "f16"), ("-dt", "0.1"),
    ("--numa", "distribute"), ("-dev", "none"), ("-ngl", "0"), ("-sm", "none"), ("--check-tensors",), ("-lv", "3"),
    ("--log-prefix",), ("--log-timestamps",), ("--jinja",), ("--no-context-shift",), ("-sp",), ("--no-warmup",),
    ("-nocb",), ("--cache-reuse", "16"), ("-sps", "0.5"), ("--lora-init-without-apply",), ("--chat-template", "chatml"),
    ("--metrics",), ("--props",), ("--slots",), ("-ts", "1"), ("-mg", "0"), ("--sampling-seq", "kt"), ("--ignore-eos",),
)  # fmt: skip
"""Options that an engine takes and tells nothing of, or something else."""
VARIABLES = {
    "LLAMA_ARG_CTX_SIZE": "768", "LLAMA_ARG_N_PREDICT": "5", "LLAMA_ARG_BATCH": "256", "LLAMA_ARG_UBATCH": "128",
    "LLAMA_ARG_FLASH_ATTN": "on", "LLAMA_ARG_NO_PERF": "1", "LLAMA_ARG_ROPE_SCALING_TYPE": "linear",
    "LLAMA_ARG_ROPE_SCALE": "1", "LLAMA_ARG_ROPE_FREQ_BASE": "10000", "LLAMA_ARG_ROPE_FREQ_SCALE": "1",
    "LLAMA_ARG_YARN_ORIG_CTX": "512", "LLAMA_ARG_YARN_EXT_FACTOR": "0", "LLAMA_ARG_YARN_ATTN_FACTOR": "1",
    "LLAMA_ARG_YARN_BETA_SLOW": "1", "LLAMA_ARG_YARN_BETA_FAST": "32", "LLAMA_ARG_NO_KV_OFFLOAD": "1",
    "LLAMA_ARG_CACHE_TYPE_K": "f16", "LLAMA_ARG_CACHE_TYPE_V": "f16", "LLAMA_ARG_DEFRAG_THOLD": "0.1",
    "LLAMA_ARG_N_PARALLEL": "1", "LLAMA_ARG_NO_MMAP": "1", "LLAMA_ARG_NUMA": "distribute", "LLAMA_ARG_DEVICE": "none",
    "LLAMA_ARG_N_GPU_LAYERS": "0", "LLAMA_ARG_SPLIT_MODE": "none", "LLAMA_ARG_TENSOR_SPLIT": "1",
    "LLAMA_ARG_MAIN_GPU": "0", "LLAMA_ARG_NO_CONTEXT_SHIFT": "1", "LLAMA_ARG_POOLING": "mean",
    "LLAMA_ARG_NO_CONT_BATCHING": "1", "LLAMA_ARG_ALIAS": "mine", "LLAMA_ARG_EMBEDDINGS": "1",
    "LLAMA_ARG_TIMEOUT": "60", "LLAMA_ARG_THREADS_HTTP": "2", "LLAMA_ARG_CACHE_REUSE": "16",
    "LLAMA_ARG_ENDPOINT_METRICS": "1", "LLAMA_ARG_ENDPOINT_PROPS": "1", "LLAMA_ARG_NO_ENDPOINT_SLOTS": "1",
    "LLAMA_ARG_CHAT_TEMPLATE": "chatml", "LLAMA_LOG_VERBOSITY": "3",
}  # fmt: skip
"""The variables of the seed's table, but those that other tests have."""
TOLD_OTHERWISE = {"LLAMA_LOG_VERBOSITY": "LLAMA_ARG_LOG_VERBOSITY", "LLAMA_ARG_NO_MMAP": "LLAMA_ARG_LOAD_MODE"}
FRONTS = ("--threads-http",)
"""Options that no engine gets."""


def props(server: Server) -> dict[str, Any]:
    return http(server, "GET", "/props").json()


def settings(server: Server) -> dict[str, Any]:
    """What holds for a request that says nothing."""
    return answer(server, "/completion", prompt="Hello")["generation_settings"]


def engine_options(server: Server) -> dict[str, tuple[str, ...]]:
    """What the engine's process was given, by llama-server's own names."""
    argv = engine_argv(server)
    return {option.canonical: option.values for option in flags.split(argv[argv.index("--model") :])}


def test_every_option_reaches_the_engine_and_counts(single: StartServer) -> None:
    given = [*((flag, value) for flag, value, _ in GENERATION), *OTHERS]
    server = single("-c", "512", "-np", "2", "-fa", "--no-mmap", *[word for words in given for word in words])
    had = engine_options(server)
    for words in given:
        [option] = flags.split(words)
        assert had.get(option.canonical) == option.values, words
    assert had["--flash-attn"] == ("on",)
    assert had["--load-mode"] == ("none",)
    told = props(server)
    assert (told["default_generation_settings"]["n_ctx"], told["total_slots"]) == (256, 2)
    params = settings(server)
    for flag, value, name in GENERATION:
        if name == "samplers":
            assert params[name] == ["top_k", "temperature"]
        else:
            assert params[name] == pytest.approx(float(value)), flag
    assert params["ignore_eos"] is True
    assert "<|im_start|>" in told["chat_template"]
    assert http(server, "POST", "/props", {}).json() == {"success": True}
    assert http(server, "GET", "/metrics").status == http(server, "GET", "/slots").status == 200
    said = answer(server, "/v1/chat/completions", messages=[{"role": "user", "content": "Hello"}])
    assert said["usage"]["completion_tokens"] == 7


def test_every_variable_reaches_the_engine_and_counts(single: StartServer) -> None:
    server = single(**VARIABLES)
    had = engine_options(server)
    for name, value in VARIABLES.items():
        shown = TOLD_OTHERWISE.get(name, name)
        [option] = flags.from_env({shown: "none" if name == "LLAMA_ARG_NO_MMAP" else value})
        if option.canonical not in FRONTS:
            assert had.get(option.canonical) == option.values, name
    told = props(server)
    assert (told["total_slots"], told["model_alias"]) == (1, "mine")
    assert told["default_generation_settings"]["n_ctx"] == 768
    assert settings(server)["n_predict"] == 5
    assert [http(server, "GET", path).status for path in ("/metrics", "/slots")] == [200, 501]
    assert len(answer(server, "/v1/embeddings", input="Hello", model="mine")["data"]) == 1


@pytest.mark.slow
def test_grammars_and_schemas_of_the_command_line_bind_every_answer(single: StartServer, tmp_path: Path) -> None:
    file = tmp_path / "yes.gbnf"
    file.write_text('root ::= "yes"')
    for words, said in (
        (("--grammar", 'root ::= "no"'), "no"),
        (("--grammar-file", str(file)), "yes"),
        (("-j", '{"const": 5}'), "5"),
    ):
        server = single("-c", "256", *words)
        assert answer(server, "/completion", prompt="Hello", n_predict=4)["content"] == said


def test_what_only_a_compiled_engine_takes_counts_there(
    start_server: StartServer, built_engine: str, starter_model: Path, tmp_path: Path
) -> None:
    vector = str(write_control_vector(tmp_path / "vector.gguf", 192))
    words = ("llama-server", "-m", str(starter_model), "-t", "1", "-c", "256", "--port", "0")
    first = ("--dry-sequence-breaker", "#", "--override-kv", "general.name=str:renamed", "-l", "33+1", "--spm-infill")
    scaled, layers = ("--control-vector-scaled", vector, "0.5"), ("--control-vector-layer-range", "1", "2")
    more = (*scaled, "--control-vector", vector, *layers)
    server = start_server(*words, *first, *more, env={ENGINE_VARIABLE: built_engine})
    server.wait_healthy()
    params = settings(server)
    assert params["dry_sequence_breakers"] == ["#"]
    assert params["logit_bias"] == [{"bias": 1.0, "token": 33}]
    had = engine_options(server)
    assert had["--override-kv"] == ("general.name=str:renamed",)
    assert had["--control-vector-scaled"] == (f"{vector}:0.5",), "in the form of today"
    assert (had["--control-vector"], had["--control-vector-layer-range"]) == ((vector,), ("1", "2"))
    assert "--spm-infill" in had
