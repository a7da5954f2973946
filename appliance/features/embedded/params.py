"""Which of llama-server's options the embedded engine carries, how, and why it refuses the others.

Every option of `core.llama.flags` is in exactly one of CARRIED, LOOKS, REFUSED and ASKED; tests compare CARRIED with
what llama.cpp's own parser makes of the same words.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

from appliance.core.llama.flags import Option
from appliance.errors import UsageError
from appliance.features.embedded import LACKS
from appliance.features.embedded import special as s
from appliance.features.embedded.carriers import (
    Carrier,
    ParameterTarget,
    as_directory,
    as_file,
    as_list,
    as_on_off,
    choice,
    given,
    integer,
    names,
    nothing,
    number,
    stored,
    switch,
    text,
    unset,
)

DEFAULT_PORT = 8080

# Options that are answered instead of a server being started.
ASKED = frozenset({"--usage", "--version", "--list-devices"})

_ON_OFF_AUTO: dict[str, str] = {
    **dict.fromkeys(("on", "enabled", "true", "1"), "ENABLED"),
    **dict.fromkeys(("off", "disabled", "false", "0"), "DISABLED"),
    **dict.fromkeys(("auto", "-1"), "AUTO"),
}
_CACHE_TYPES = {name: name for name in ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")}
_LOAD_MODES = {word: word.replace("+", "_") for word in ("auto", "none", "mmap", "mlock", "mmap+mlock")}
_LOAD_MODES["dio"] = "DIRECT_IO"
_REASONING = {word: word.replace("-", "_") for word in ("none", "auto", "deepseek", "deepseek-legacy")}
_SAMPLING: dict[str, Carrier] = {
    "--samplers": s.samplers,
    "--sampling-seq": s.sampler_letters,
    "--seed": stored(s.seed, "sampling.seed"),
    "--ignore-eos": switch("sampling.ignore_eos"),
    "--temperature": number("sampling.temp", least=0, mark="TEMP"),
    "--top-k": integer("sampling.top_k", mark="TOP_K"),
    "--top-p": number("sampling.top_p", mark="TOP_P"),
    "--min-p": number("sampling.min_p", mark="MIN_P"),
    "--xtc-probability": number("sampling.xtc_probability", mark="XTC_PROBABILITY"),
    "--xtc-threshold": number("sampling.xtc_threshold", mark="XTC_THRESHOLD"),
    "--typical-p": number("sampling.typ_p"),
    "--repeat-last-n": integer("sampling.penalty_last_n", least=-1, mark="PENALTY_LAST_N"),
    "--repeat-penalty": number("sampling.penalty_repeat", mark="PENALTY_REPEAT"),
    "--presence-penalty": number("sampling.penalty_present"),
    "--frequency-penalty": number("sampling.penalty_freq"),
    "--dry-multiplier": number("sampling.dry_multiplier"),
    "--dry-base": s.dry_base,
    "--dry-allowed-length": integer("sampling.dry_allowed_length"),
    "--dry-penalty-last-n": integer("sampling.dry_penalty_last_n", least=-1),
    "--adaptive-target": number("sampling.adaptive_target"),
    "--adaptive-decay": number("sampling.adaptive_decay"),
    "--dynatemp-range": number("sampling.dynatemp_range"),
    "--dynatemp-exp": number("sampling.dynatemp_exponent"),
    "--mirostat": integer("sampling.mirostat", least=0, mark="MIROSTAT"),
    "--mirostat-lr": number("sampling.mirostat_eta", mark="MIROSTAT_ETA"),
    "--mirostat-ent": number("sampling.mirostat_tau", mark="MIROSTAT_TAU"),
    "--grammar": s.grammar(given),
    "--grammar-file": s.grammar(as_file),
    "--json-schema": s.json_schema(given),
    "--json-schema-file": s.json_schema(as_file),
    "--backend-sampling": switch("sampling.backend_sampling"),
    "--special": switch("special"),
    "--escape": switch("escape"),
    "--reverse-prompt": s.reverse_prompt,
}
_CHAT: dict[str, Carrier] = {
    "--jinja": switch("use_jinja"),
    "--chat-template": text("chat_template"),
    "--chat-template-file": stored(as_file, "chat_template"),
    "--chat-template-kwargs": s.template_kwargs,
    "--skip-chat-parsing": switch("force_pure_content_parser"),
    "--prefill-assistant": switch("prefill_assistant"),
    "--reasoning": s.reasoning,
    "--reasoning-format": choice("reasoning_format", "common_reasoning_format", _REASONING),
    "--reasoning-effort": s.reasoning_effort,
    "--reasoning-budget": integer("sampling.reasoning_budget_tokens", least=-1),
    "--reasoning-budget-message": text("sampling.reasoning_budget_message"),
    "--reasoning-preserve": s.reasoning_preserve,
}
_SERVER: dict[str, Carrier] = {
    "--host": stored(as_list, "hostnames"),
    "--port": stored(s.port, "port"),
    "--reuse-port": switch("reuse_port"),
    "--path": text("public_path"),
    "--api-prefix": text("api_prefix"),
    "--api-key": s.api_keys,
    "--api-key-file": s.api_key_file,
    "--cors-origins": s.cors_origins,
    "--cors-methods": text("cors_methods"),
    "--cors-headers": text("cors_headers"),
    "--cors-credentials": switch("cors_credentials"),
    "--webui": switch("ui"),
    "--webui-config": stored(s.json_text(given), "ui_config_json"),
    "--webui-config-file": stored(s.json_text(as_file), "ui_config_json"),
    "--webui-mcp-proxy": switch("ui_mcp_proxy"),
    "--timeout": integer("timeout_read", "timeout_write", least=0),
    "--sse-ping-interval": integer("sse_ping_interval"),
    "--threads-http": integer("n_threads_http"),
    "--metrics": switch("endpoint_metrics"),
    "--props": switch("endpoint_props"),
    "--slots": switch("endpoint_slots"),
    "--slot-save-path": stored(as_directory, "slot_save_path"),
    "--media-path": stored(as_directory, "media_path"),
    "--sleep-idle-seconds": stored(s.idle_seconds, "sleep_idle_seconds"),
    "--log-prompts-dir": text("path_prompts_log_dir"),
    "--log-verbose": stored(lambda option: 2**31 - 1, "verbosity"),
    "--log-verbosity": integer("verbosity"),
    "--log-disable": stored(lambda option: -1, "verbosity"),  # below the level of every message
}
LOOKS = {
    "--log-colors": (False, "writes its log without colours"),
    "--log-prefix": (True, "always writes the prefix"),
    "--log-timestamps": (True, "always writes the timestamps"),
}
"""Options for the look of the log: accepted, and ignored."""
_DOWNLOADS = "it downloads nothing; name a file with --model"
_ROUTER = "it serves one model; the program itself is the router"
_FRONT = "tools and MCP servers belong to the program in front of it"
_NOT_EXPOSED = (
    "the wheel gives no way to set it; 'llama-appliance engines install' fetches an engine that can, "
    "and a model with this option is then started there"
)
REFUSED: dict[str, str] = {
    **dict.fromkeys(("--model-url", "--docker-repo", "--hf-repo", "--hf-file", "--mmproj-url"), _DOWNLOADS),
    **dict.fromkeys(("--hf-repo-draft", "--cache-list", "--embd-gemma-default"), _DOWNLOADS),
    **dict.fromkeys((f"--fim-qwen-{size}" for size in ("1.5b-default", "3b-default", "7b-default")), _DOWNLOADS),
    **dict.fromkeys((f"--fim-qwen-{size}" for size in ("7b-spec", "14b-spec", "30b-default")), _DOWNLOADS),
    **dict.fromkeys(("--gpt-oss-20b-default", "--gpt-oss-120b-default"), _DOWNLOADS),
    **dict.fromkeys(("--vision-gemma-4b-default", "--vision-gemma-12b-default"), _DOWNLOADS),
    **dict.fromkeys(("--models-dir", "--models-preset", "--models-max", "--models-autoload"), _ROUTER),
    **dict.fromkeys(("--tools", "--tools-runtime", "--tools-root", "--allow-unauthenticated"), _FRONT),
    **dict.fromkeys(("--mcp-servers-config", "--mcp-servers-json", "--agent"), _FRONT),
    **dict.fromkeys(LACKS, _NOT_EXPOSED),
    **dict.fromkeys(("--ssl-key-file", "--ssl-cert-file"), "the wheel's server is built without TLS"),
    "--rpc": "the wheel is built without the RPC backend",
    "--completion-bash": "it is not the program that the shell runs",
}
# Said one way, these ask for what happens anyway.
_HARMLESS = {"--log-jsonl": False, "--agent": False}


def _same(*words: str) -> dict[str, str]:
    return {word: word for word in words}


def _processors(path: str, suffix: str) -> dict[str, Carrier]:
    """The processor options of one kind of work: generation, batches, and both again for a draft model."""
    return {
        f"--cpu-mask{suffix}": s.cpu_mask(path),
        f"--cpu-strict{suffix}": integer(f"{path}.strict_cpu", least=0),
        f"--prio{suffix}": s.priority(f"{path}.priority"),
        f"--poll{suffix}": integer(f"{path}.poll", least=0),
    }


def _ngram_map(name: str) -> dict[str, Carrier]:
    path = f"speculative.{name.replace('-', '_')}"
    return {
        f"--spec-{name}-size-n": integer(f"{path}.size_n", least=1),
        f"--spec-{name}-size-m": integer(f"{path}.size_m", least=1),
        f"--spec-{name}-min-hits": integer(f"{path}.min_hits", least=1),
    }


_MODEL: dict[str, Carrier] = {
    "--model": text("model.path"),
    "--alias": names("model_alias"),
    "--tags": names("model_tags"),
    "--hf-token": text("hf_token"),
    "--offline": switch("offline"),
    "--lora": s.lora,
    "--lora-scaled": s.lora_scaled,
    "--lora-init-without-apply": switch("lora_init_without_apply"),
    "--mmproj": text("mmproj.path"),
    "--mmproj-auto": unset("no_mmproj"),
    "--mmproj-offload": s.mmproj_offload,
    "--mmproj-device": s.mmproj_device,
    "--image-min-tokens": integer("image_min_tokens"),
    "--image-max-tokens": integer("image_max_tokens"),
    "--mtmd-batch-max-tokens": integer("mtmd_batch_max_tokens"),
    "--video-fps": number("video_fps"),
    "--video-timestamp-interval": integer("video_timestamp_interval_ms"),
    "--video-ffmpeg-dir": text("video_ffmpeg_bin_dir"),
    "--check-tensors": switch("check_tensors"),
    "--load-mode": choice("load_mode", "llama_load_mode", _LOAD_MODES),
    "--lazy-mode": choice("lazy_mode", "llama_lazy_mode", _same("on", "auto", "off")),
    "--warmup": switch("warmup"),
}

_COMPUTE: dict[str, Carrier] = {
    "--threads": stored(s.threads, "cpuparams.n_threads"),
    "--threads-batch": stored(s.threads, "cpuparams_batch.n_threads"),
    "--threads-draft": stored(s.threads, "speculative.draft.cpuparams.n_threads"),
    "--threads-batch-draft": stored(s.threads, "speculative.draft.cpuparams_batch.n_threads"),
    **_processors("cpuparams", ""),
    **_processors("cpuparams_batch", "-batch"),
    **_processors("speculative.draft.cpuparams", "-draft"),
    **_processors("speculative.draft.cpuparams_batch", "-batch-draft"),
    "--cpu-range": s.cpu_range("cpuparams"),
    "--cpu-range-batch": s.cpu_range("cpuparams_batch"),
    "--cpu-range-draft": s.cpu_range("speculative.draft.cpuparams"),
    "--numa": choice("numa", "ggml_numa_strategy", _same("distribute", "isolate", "numactl")),
    "--device": s.no_device,
    "--override-tensor": s.tensor_overrides("tensor_buft_overrides"),
    "--cpu-moe": s.experts_on_cpu("tensor_buft_overrides"),
    "--n-cpu-moe": s.layers_on_cpu("tensor_buft_overrides"),
    "--n-cpu-ffn": s.layers_on_cpu("tensor_buft_overrides", dense=True),
    "--moe-cache-mib": integer("moe_cache_size", least=0, scale=1024 * 1024),
    "--n-gpu-layers": stored(s.gpu_layers, "n_gpu_layers"),
    "--split-mode": choice("split_mode", "llama_split_mode", _same("none", "layer", "row", "tensor")),
    "--tensor-split": s.tensor_split,
    "--main-gpu": integer("main_gpu", least=0),
    "--fit": stored(as_on_off, "fit_params"),
    "--fit-target": s.fit_target,
    "--fit-ctx": integer("fit_params_min_ctx", least=0),
    "--op-offload": unset("no_op_offload"),
    "--kv-offload": unset("no_kv_offload"),
    "--repack": unset("no_extra_bufts"),
    "--no-host": switch("no_host"),
    "--flash-attn": choice("flash_attn_type", "llama_flash_attn_type", _ON_OFF_AUTO),
    "--perf": unset("no_perf", "sampling.no_perf"),
}

_CONTEXT: dict[str, Carrier] = {
    "--ctx-size": s.context_size,
    "--batch-size": integer("n_batch", least=1),
    "--ubatch-size": integer("n_ubatch", least=1),
    "--parallel": stored(s.slots, "n_parallel"),
    "--cont-batching": switch("cont_batching"),
    "--keep": integer("n_keep", least=-1),
    "--n-predict": integer("n_predict", least=-2),
    "--context-shift": switch("ctx_shift"),
    "--swa-full": switch("swa_full"),
    "--kv-unified": switch("kv_unified"),
    "--kv-unified-per-slot": integer("kv_unified_per_slot", least=0),
    "--cache-type-k": choice("cache_type_k", "ggml_type", _CACHE_TYPES),
    "--cache-type-v": choice("cache_type_v", "ggml_type", _CACHE_TYPES),
    "--defrag-thold": nothing,
    "--cache-ram": integer("cache_ram_mib", least=-1),
    "--cache-prompt": switch("cache_prompt"),
    "--cache-reuse": integer("n_cache_reuse", least=0),
    "--cache-idle-slots": switch("cache_idle_slots"),
    "--swa-checkpoints": integer("n_ctx_checkpoints"),
    "--checkpoint-min-step": integer("checkpoint_min_step", least=0),
    "--slot-prompt-similarity": number("slot_prompt_similarity"),
    "--rope-scaling": choice("rope_scaling_type", "llama_rope_scaling_type", _same("none", "linear", "yarn")),
    "--rope-scale": stored(s.rope_scale, "rope_freq_scale"),
    "--rope-freq-base": number("rope_freq_base"),
    "--rope-freq-scale": number("rope_freq_scale"),
    "--yarn-orig-ctx": integer("yarn_orig_ctx", least=0),
    "--yarn-ext-factor": number("yarn_ext_factor"),
    "--yarn-attn-factor": number("yarn_attn_factor"),
    "--yarn-beta-slow": number("yarn_beta_slow"),
    "--yarn-beta-fast": number("yarn_beta_fast"),
    "--embeddings": switch("embedding"),
    "--reranking": s.rerank,
    "--pooling": choice("pooling_type", "llama_pooling_type", _same("none", "mean", "cls", "last", "rank")),
    "--embd-normalize": integer("embd_normalize", least=-1),
}


_SPECULATIVE: dict[str, Carrier] = {
    "--spec-type": s.speculative_types,
    "--spec-default": s.speculative_default,
    "--model-draft": text("speculative.draft.mparams.path", "speculative.draft.mparams.hf_file"),
    "--spec-draft-n-max": integer("speculative.draft.n_max", least=0),
    "--spec-draft-n-min": integer("speculative.draft.n_min", least=0),
    "--draft-p-split": number("speculative.draft.p_split"),
    "--draft-p-min": number("speculative.draft.p_min"),
    "--spec-draft-backend-sampling": switch("speculative.draft.backend_sampling"),
    "--spec-draft-sampling": stored(s.is_probabilistic, "speculative.draft.probabilistic"),
    "--spec-synth-len": number("speculative.synth_len"),
    "--spec-synth-rates": stored(s.synthetic_rates, "speculative.synth_rates"),
    "--device-draft": s.draft_device,
    "--n-gpu-layers-draft": stored(s.gpu_layers, "speculative.draft.n_gpu_layers"),
    "--cache-type-k-draft": choice("speculative.draft.cache_type_k", "ggml_type", _CACHE_TYPES),
    "--cache-type-v-draft": choice("speculative.draft.cache_type_v", "ggml_type", _CACHE_TYPES),
    "--override-tensor-draft": s.tensor_overrides("speculative.draft.tensor_buft_overrides"),
    "--cpu-moe-draft": s.experts_on_cpu("speculative.draft.tensor_buft_overrides"),
    "--n-cpu-moe-draft": s.layers_on_cpu("speculative.draft.tensor_buft_overrides"),
    "--spec-ngram-mod-n-min": integer("speculative.ngram_mod.n_min", least=0),
    "--spec-ngram-mod-n-max": integer("speculative.ngram_mod.n_max", least=0),
    "--spec-ngram-mod-n-match": integer("speculative.ngram_mod.n_match", least=1),
    **_ngram_map("ngram-simple"),
    **_ngram_map("ngram-map-k"),
    **_ngram_map("ngram-map-k4v"),
    "--lookup-cache-static": text("speculative.ngram_cache.lookup_cache_static"),
    "--lookup-cache-dynamic": text("speculative.ngram_cache.lookup_cache_dynamic"),
}


CARRIED: dict[str, Carrier] = {
    **_MODEL,
    **_COMPUTE,
    **_CONTEXT,
    **_SAMPLING,
    **_SPECULATIVE,
    **_CHAT,
    **_SERVER,
}


def fill(native: ModuleType, options: Iterable[Option]) -> ParameterTarget:
    """The wheel's parameters for these options, applied in order over llama-server's own defaults.

    Raises UsageError for an option that cannot be honoured, a value that cannot be used, and a missing model.
    """
    target = ParameterTarget(native)
    target.set("port", DEFAULT_PORT)
    target.set("n_parallel", -1)
    target.template_kwarg("preserve_reasoning", True)
    looks: dict[str, Option] = {}
    for option in options:
        if option.canonical in LOOKS:
            looks[option.canonical] = option  # the last one counts
        else:
            _carry(target, option)
    for name, option in looks.items():
        s.look(option, *LOOKS[name])
    s.unescape(target)
    s.keep_output_formats(target)
    if not target.get("model.path"):
        raise UsageError("no model given; the embedded engine needs --model FILE")
    return target


def _carry(target: ParameterTarget, option: Option) -> None:
    carrier = CARRIED.get(option.canonical)
    if carrier is not None:
        carrier(target, option)
    elif _HARMLESS.get(option.canonical) is not option.on:
        raise UsageError(f"the embedded engine cannot honour {option.flag}: {REFUSED[option.canonical]}")
