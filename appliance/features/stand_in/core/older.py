"""Command lines and variables of earlier llama-server releases, in the words of the one that this program follows.

Scripts and compose files still carry them. llama.cpp b11434 refuses some, and takes no notice of others: it reads
neither ``LLAMA_ARG_MLOCK`` nor ``LLAMA_LOG_COLORS``. Here each of them means what it meant, or a warning says that it
means nothing any more.

Options that stand for several others are spelled out here, too (`SHORTHANDS`, b11434).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from appliance.core.llama import flags
from appliance.core.llama.flags import FALSE_WORDS, TRUE_WORDS, Option
from appliance.errors import UsageError

_CHOSEN = TRUE_WORDS | FALSE_WORDS | {"auto", "-1"}
_BARE = frozenset({"-fa", "--flash-attn", "--log-colors"})  # switches that have become choices
_SCALED = frozenset({"--lora-scaled", "--control-vector-scaled"})  # took the file and its scale as two words
_RENAMED = {
    **dict.fromkeys(("--draft", "--draft-n", "--draft-max"), "--spec-draft-n-max"),
    **dict.fromkeys(("--draft-min", "--draft-n-min"), "--spec-draft-n-min"),
}
_WAYS = ("--mlock", "--no-mmap")
_NO_EFFECT = {
    "--verbose-prompt": (0, "llama-server no longer prints prompts at the start; --log-prompts-dir DIR keeps them"),
    **dict.fromkeys(("-dkvc", "--dump-kv-cache"), (0, "llama-server no longer prints its cache; GET /slots shows it")),
    **dict.fromkeys(("-cd", "--ctx-size-draft"), (1, "the draft model now has the context of the model, --ctx-size")),
}  # the number of values, and what there is instead
_VARIABLES = {
    "LLAMA_ARG_MODEL_DRAFT": "LLAMA_ARG_SPEC_DRAFT_MODEL",
    "LLAMA_ARG_DRAFT_P_MIN": "LLAMA_ARG_SPEC_DRAFT_P_MIN",
    "LLAMA_ARG_DRAFT_MAX": "LLAMA_ARG_SPEC_DRAFT_N_MAX",
    "LLAMA_ARG_DRAFT_MIN": "LLAMA_ARG_SPEC_DRAFT_N_MIN",
    "LLAMA_ARG_NO_WEBUI": "LLAMA_ARG_NO_UI",
    "LLAMA_LOG_COLORS": "LLAMA_ARG_LOG_COLORS",
    "LLAMA_LOG_VERBOSITY": "LLAMA_ARG_LOG_VERBOSITY",
    "LLAMA_LOG_PREFIX": "LLAMA_ARG_LOG_PREFIX",
    "LLAMA_LOG_TIMESTAMPS": "LLAMA_ARG_LOG_TIMESTAMPS",
}
_NO_VARIABLE = {"LLAMA_ARG_CTX_SIZE_DRAFT": _NO_EFFECT["--ctx-size-draft"][1]}
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


def modern_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the command line as b11434 reads it, and warnings for the user. Unknown words stay."""
    modern: list[str] = []
    notes: list[str] = []
    ways: dict[str, int] = {}
    at = 0
    while at < len(words):
        said = words[at]
        word = flags.normalise(said)
        taken = 1
        if word in _BARE and (at + 1 == len(words) or words[at + 1] not in _CHOSEN):
            modern += [said, "on"]
        elif word in _SCALED and _is_number(words[at + 2 : at + 3]) and not _is_scaled(words[at + 1]):
            modern += [said, f"{words[at + 1]}:{words[at + 2]}"]
            taken = 3
        elif word in _RENAMED:
            modern.append(_RENAMED[word])
        elif word in _NO_EFFECT:
            values, instead = _NO_EFFECT[word]
            notes.append(f"{said} has no effect: {instead}")
            taken += values
        else:
            flag = flags.lookup(said)
            taken += flag.arity if flag is not None and word in flag.spellings else 0
            if word in _WAYS:
                ways[word] = len(modern)
            modern += words[at : at + taken]
        at += taken
    if len(ways) == len(_WAYS):  # two switches once; of the one choice that they are now, the last one would count
        modern = [word for number, word in enumerate(modern) if number not in ways.values()]
        modern += ["--load-mode", "mlock"]
    return modern, notes


def modern_variables(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the environment with today's names, which count where both are set, and warnings for the user.

    Raises UsageError for a switch that is neither on nor off.
    """
    modern = dict(environ)
    for older, name in _VARIABLES.items():
        if older in modern:
            modern.setdefault(name, modern.pop(older))
    locked, unmapped = (_is_on(modern, name) for name in ("LLAMA_ARG_MLOCK", "LLAMA_ARG_NO_MMAP"))
    if locked or unmapped:
        modern.setdefault("LLAMA_ARG_LOAD_MODE", "mlock" if locked else "none")
    notes = [f"{name} has no effect: {why}" for name, why in _NO_VARIABLE.items() if name in modern]
    return modern, notes


def _is_on(environ: Mapping[str, str], name: str) -> bool:
    value = environ.get(name)
    if value is not None and value not in TRUE_WORDS | FALSE_WORDS:
        raise UsageError(f"{name} must be on or off, not {value!r}")
    return value in TRUE_WORDS


def _is_number(words: Sequence[str]) -> bool:
    try:
        return len([float(word) for word in words]) == 1
    except ValueError:
        return False


def _is_scaled(text: str) -> bool:
    """``FILE:SCALE`` in one word, also for one of several."""
    return _is_number([text.rpartition(":")[2]]) and ":" in text


def spelled_out(options: Sequence[Option]) -> list[Option]:
    """Replace each shorthand with its options, in place, so that later options still override them."""
    told: list[Option] = []
    for option in options:
        if (words := SHORTHANDS.get(option.canonical)) is None:
            told.append(option)
        else:
            told += [each._replace(flag=option.flag) for each in flags.split(words.split())]
    return told
