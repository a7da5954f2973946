"""The names of model files and cache folders, and the model that a client means by a name.

The rules are llama-server's router mode (llama.cpp b11434); where this program is more generous it says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

from msgspec import Struct

SUFFIX = ".gguf"
MAX_SHARDS = 1000
"""A model with more parts has a mistake in its name; the largest published ones have about 200."""
MAX_NAME = 255
MIN_PART = 3
"""Number of letters that make a suggestion if one name contains the other."""
MAX_COMPARED = 2000
"""Number of names that are compared letter by letter for a suggestion: an unknown name stays cheap."""
QUANTISATIONS = ("Q4_K_M", "Q8_0")
"""The file of a repository to take for a name without a tag, best first; after these, the first one."""
PROJECTOR_TYPES = ("F16", "BF16")
"""The projector to take of several, best first; after these, the first one."""
DRAFT_PREFIXES = ("mtp-", "dspark-", "dflash-")
"""Small companions that guess ahead for a model; the engine tells their kinds apart by their headers."""
COMPANION_MARKS = ("mmproj", *DRAFT_PREFIXES, "eagle3-")
"""Marks in the name of a file that belongs to another model and is not a model itself."""

_NO_MODEL = re.compile(
    r"(?P<imatrix>i-?matrix([-_. ].*)?|.*[-_. ]i-?matrix)"
    r"|(?P<adapter>(ggml-)?(lora|adapter)([-_.](model|f16|f32|bf16))*|.*[-_.](lora|adapter)([-_.](f16|f32|bf16))?)"
    r"|(?P<vocabulary>ggml-vocab([-_.].*)?|.*[-_.]vocab([-_.]only)?)",
    re.IGNORECASE | re.DOTALL,
)
"""The names that the tools of llama.cpp and the publishers give to files without a model's weights. A word within a
name proves nothing: X-imatrix-Q4_K_M is a model, quantised with one.
"""
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<total>[0-9]{5})", re.DOTALL)
_TAG = re.compile(r"[-.]([A-Za-z0-9_]+)\Z")
_REPO_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_COMMIT = re.compile(r"[0-9a-f]{40}")

T = TypeVar("T")

LATEST = ":latest"
HUBS = ("hf.co/", "huggingface.co/", "www.huggingface.co/")
MAX_MEANINGS = 40
"""Meanings of one name that are tried: enough for five decorations before it and five behind it."""
_BEFORE = re.compile(
    r"\A(?:(?:www\.)?huggingface\.co|hf\.co|registry\.ollama\.ai|library|models|litellm(?:_proxy)?|openai"
    r"|openai_like|custom_openai|text-completion-openai|ollama(?:_chat)?|lm_?studio|(?:hosted_)?vllm|llamafile"
    r"|llama[-_.]?cpp|localai|anthropic|azure|bedrock|deepseek|gemini|groq|mistral|openrouter|together_ai|vertex_ai|xai)/",
    re.IGNORECASE,
)
"""Hubs, and providers as LiteLLM and the programs that follow it write them before a name."""
_BEHIND = re.compile(r"(?::local|:latest|\.gguf|\[[0-9]+[km]\])\Z", re.IGNORECASE)
"""Tags of Ollama, a file's suffix, and the length of a context (``[1m]``)."""
_VERSION = re.compile(r"@[^@/:\[\s]+\Z")


class Shard(Struct, frozen=True):
    """One part of a sharded model: ``<stem>-<number>-of-<total>``, counted from 1."""

    stem: str
    number: int
    total: int

    def name(self, number: int) -> str:
        """Return the file name of part ``number`` of the same model."""
        return f"{self.stem}-{number:05}-of-{self.total:05}{SUFFIX}"


def stem_of(name: str) -> str | None:
    """Return a model file's name without its suffix; None for other and hidden files (``._X.gguf`` of macOS)."""
    if name.startswith(".") or not name.lower().endswith(SUFFIX) or len(name) == len(SUFFIX):
        return None
    return name[: -len(SUFFIX)]


def shard_of(stem: str) -> Shard | None:
    match = _SHARD.fullmatch(stem)
    if match is None:
        return None
    shard = Shard(match["stem"], int(match["number"]), int(match["total"]))
    return shard if 1 <= shard.number <= shard.total <= MAX_SHARDS else None


def model_name(stem: str) -> str:
    """Return the name of a model by its file: the stem, without the shard's number."""
    shard = shard_of(stem)
    return shard.stem if shard else stem


def is_projector(name: str) -> bool:
    return "mmproj" in name.lower()


def is_draft(name: str) -> bool:
    return name.startswith(DRAFT_PREFIXES)


def no_model(stem: str) -> str | None:
    """Return what a file is that is surely not a model, as far as its name tells; None for any other."""
    match = _NO_MODEL.fullmatch(stem)
    kind = match and match.lastgroup
    return kind and {"imatrix": "an importance matrix", "adapter": "a LoRA adapter"}.get(kind, "a vocabulary")


def is_companion(stem: str, *, anywhere: bool) -> bool:
    """True for a file that belongs to another model, or to none. In the cache its mark may be ``anywhere``, else only
    in front.
    """
    if anywhere:
        return no_model(stem) is not None or is_projector(stem) or any(mark in stem for mark in COMPANION_MARKS)
    return is_projector(stem) or stem.startswith(COMPANION_MARKS)


def tag_of(stem: str) -> str | None:
    """Return the quantisation tag at the end of a file's stem: ``Q4_K_M`` of ``Qwen3-8B-q4_k_m``."""
    match = _TAG.search(model_name(stem))
    return match and match[1].upper()


def folder_of(repo: str) -> str:
    """Return the cache folder of ``org/repo``, by huggingface_hub's rule."""
    return f"models--{repo.replace('/', '--')}"


def repo_of(folder: str) -> str | None:
    """Return ``org/repo`` of the cache folder ``models--org--repo``; None for other folders."""
    parts = folder.split("--")
    if len(parts) != 3 or parts[0] != "models" or not all(_REPO_PART.fullmatch(part) for part in parts[1:]):
        return None
    return "/".join(parts[1:])


def is_commit(text: str) -> bool:
    return _COMMIT.fullmatch(text) is not None


def is_speakable(name: str) -> bool:
    """True for a name that fits JSON, a log line and a table: printable, valid Unicode, of sane length."""
    return 0 < len(name) <= MAX_NAME and name.isprintable()


def split_named_path(text: str) -> tuple[str | None, str]:
    """Split ``ID=PATH`` of a ``--model`` flag; ``PATH`` gives no id. An id never looks like the start of a path."""
    name, equals, path = text.partition("=")
    if not equals or not name or not path or name.startswith((".", "/", "~")) or "\\" in name:
        return None, text
    return name, path


def prefer(items: Sequence[tuple[str | None, T]], order: Sequence[str]) -> T | None:
    """Return the item whose tag comes first in ``order``, else the first item."""
    for wanted in order:
        for tag, item in items:
            if tag == wanted:
                return item
    return items[0][1] if items else None


class Named(Struct, frozen=True):
    """A model as a lookup sees it. ``repo``: clients may also name it without its tag."""

    id: str
    aliases: tuple[str, ...] = ()
    repo: str | None = None
    tag: str | None = None


class ModelNames:
    """Finds the id that a client means. Immutable; an exact name always wins over every guess."""

    def __init__(self, models: Iterable[Named]) -> None:
        ordered = sorted(models, key=lambda model: model.id)
        self._exact: dict[str, str] = {alias: model.id for model in reversed(ordered) for alias in model.aliases}
        self._exact |= {model.id: model.id for model in ordered}
        self._folded: dict[str, str] = {}
        for name, model_id in (*((model.id, model.id) for model in ordered), *self._exact.items()):
            self._folded.setdefault(name.casefold(), model_id)
        repos: dict[str, list[tuple[str | None, str]]] = {}
        for model in ordered:
            if model.repo:
                repos.setdefault(model.repo.casefold(), []).append((model.tag, model.id))
        self._repos = {repo: prefer(found, QUANTISATIONS) for repo, found in repos.items()}

    def find(self, name: str) -> str | None:
        """Look up by id or alias, then without regard to case, then as a cached repository without its tag."""
        folded = name.casefold()
        return self._exact.get(name) or self._folded.get(folded) or self._repos.get(folded)

    def near(self, name: str, count: int = 3) -> tuple[str, ...]:
        """Return known names that look like an unknown one, best first."""
        folded = name[:MAX_NAME].casefold()
        from difflib import get_close_matches  # only on the way to an error

        found = get_close_matches(folded, list(self._folded)[:MAX_COMPARED], count, 0.6)
        for known in self._folded:
            shorter, longer = sorted((known, folded), key=len)
            if len(shorter) >= MIN_PART and shorter in longer:
                found.append(known)
        return tuple(dict.fromkeys(self._folded[known] for known in found))[:count]


def meanings(name: str) -> tuple[str, ...]:
    """Return the names that this one may stand for, without what clients write around a name, the most literal first.

    It writes a hub or a provider before it, a tag, version, suffix or length of context behind it, and spaces.
    """
    found = [name]
    for one in found:  # it grows meanwhile, always by shorter names
        shorter = (one.strip(), _BEFORE.sub("", one), _BEHIND.sub("", one), _VERSION.sub("", one))
        found += [each for each in dict.fromkeys(shorter) if each and each not in found]
        if len(found) >= MAX_MEANINGS:
            break
    return tuple(found)
