"""Options of llama-server that stand for several others, including a model on the hub (llama.cpp b11434)."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.core.llama import flags
from appliance.core.llama.flags import Option

_HUB = "--hf-repo ggml-org/"
_FIM = "--port 8012 --ubatch-size 1024 --batch-size 1024 --ctx-size 0 --cache-reuse 256"
_FIM_DRAFT = (
    f"--spec-draft-hf ggml-org/Qwen2.5-Coder-0.5B-Q8_0-GGUF --spec-draft-model qwen2.5-coder-0.5b-q8_0.gguf {_FIM}"
)
_GPT_OSS = (
    "--port 8013 --ubatch-size 2048 --batch-size 32768 --parallel 2 --ctx-size 262144 --temp 1.0 --top-p 1.0 --top-k 0 "
    "--min-p 0.01 --jinja"
)
_VISION = "--port 8014 --ctx-size 0 --jinja"
SHORTHANDS = {
    "--embd-gemma-default": f"{_HUB}embeddinggemma-300M-qat-q4_0-GGUF --hf-file embeddinggemma-300M-qat-Q4_0.gguf "
    "--port 8011 --ubatch-size 2048 --batch-size 2048 --parallel 32 --ctx-size 65536 --embedding",
    "--fim-qwen-1.5b-default": f"{_HUB}Qwen2.5-Coder-1.5B-Q8_0-GGUF --hf-file qwen2.5-coder-1.5b-q8_0.gguf {_FIM}",
    "--fim-qwen-3b-default": f"{_HUB}Qwen2.5-Coder-3B-Q8_0-GGUF --hf-file qwen2.5-coder-3b-q8_0.gguf {_FIM}",
    "--fim-qwen-7b-default": f"{_HUB}Qwen2.5-Coder-7B-Q8_0-GGUF --hf-file qwen2.5-coder-7b-q8_0.gguf {_FIM}",
    "--fim-qwen-7b-spec": f"{_HUB}Qwen2.5-Coder-7B-Q8_0-GGUF --hf-file qwen2.5-coder-7b-q8_0.gguf {_FIM_DRAFT}",
    "--fim-qwen-14b-spec": f"{_HUB}Qwen2.5-Coder-14B-Q8_0-GGUF --hf-file qwen2.5-coder-14b-q8_0.gguf {_FIM_DRAFT}",
    "--fim-qwen-30b-default": f"{_HUB}Qwen3-Coder-30B-A3B-Instruct-Q8_0-GGUF "
    f"--hf-file qwen3-coder-30b-a3b-instruct-q8_0.gguf {_FIM}",
    "--gpt-oss-20b-default": f"{_HUB}gpt-oss-20b-GGUF --hf-file gpt-oss-20b-mxfp4.gguf {_GPT_OSS}",
    "--gpt-oss-120b-default": f"{_HUB}gpt-oss-120b-GGUF {_GPT_OSS}",
    "--vision-gemma-4b-default": f"{_HUB}gemma-3-4b-it-qat-GGUF {_VISION}",
    "--vision-gemma-12b-default": f"{_HUB}gemma-3-12b-it-qat-GGUF {_VISION}",
}


def spelled_out(options: Sequence[Option]) -> list[Option]:
    """Replace each shorthand with its options, in place, so that later options still override them."""
    told: list[Option] = []
    for option in options:
        if (words := SHORTHANDS.get(option.canonical)) is None:
            told.append(option)
        else:
            told += [each._replace(flag=option.flag) for each in flags.split(words.split())]
    return told
