"""A support bundle: texts in, the same texts without private content out, with the number of removals in each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from appliance.core.redact import Counts, Private, Redactor, learn

SAID_BY_ENGINES = ("error", "why", "fault", "damage", "evidence")
"""Members of the facts that hold engines' output."""
MOST = 512 * 1024
"""Characters that are kept of one file, the last ones."""
KNOWN_NAMES = (
    "LLAMA_", "GGML_", "CUDA_", "HIP_", "ROCR_", "HSA_", "NVIDIA_", "VK_", "ONEAPI_", "ZES_", "MESA_", "OMP_",
    "HF_", "XDG_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH",
    "container", "KUBERNETES_SERVICE_HOST", "WSL_DISTRO_NAME", "TERM", "NO_COLOR", "TMPDIR", "TEMP",
)  # fmt: skip
"""Variables that engines, drivers and this program use, or their prefixes; no others get into a bundle."""
SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "_PASS", "_PAT", "AUTH")


Tree: TypeAlias = "str | int | float | bool | list[Tree] | dict[str, Tree] | None"
"""Any JSON value."""


class Part(Struct, frozen=True, kw_only=True):
    """One file before cleaning. ``log``: servers and engines printed it."""

    name: str
    text: str
    log: bool = False


class Packed(Struct, frozen=True, kw_only=True):
    """One file as it goes into the bundle."""

    name: str
    data: bytes
    removed: Counts


def pack(parts: Sequence[Part], private: Private) -> list[Packed]:
    """Return every file without its private content. A secret found in any file is removed from all of them."""
    known = learn(private, [text for part in parts for text in (part.name, part.text)])
    redactor = Redactor(known)
    packed: list[Packed] = []
    for part in parts:
        name, _ = redactor.clean(part.name)
        # Cut after cleaning: what is cut in half is not found any more.
        text, removed = redactor.clean(part.text, log=part.log)
        packed.append(Packed(name=name, data=_last(text).encode("utf-8", "replace"), removed=removed))
    return packed


def clean_said(tree: Tree, redactor: Redactor, key: str = "") -> Tree:
    """Clean a tree of plain values; engines' output in it is cleaned like a log."""
    match tree:
        case str():
            return redactor.clean(tree, log=True)[0] if key in SAID_BY_ENGINES else tree
        case dict():
            return {name: clean_said(value, redactor, name) for name, value in tree.items()}
        case list():
            return [clean_said(value, redactor, key) for value in tree]
        case _:
            return tree


def known_environment(environ: Mapping[str, str]) -> str:
    """Return the variables that matter here, one per line."""
    lines = [f"{name}={value}" for name, value in sorted(environ.items()) if _is_known(name.upper())]
    return "".join(f"{line}\n" for line in lines)


def secret_values(environ: Mapping[str, str]) -> Iterable[str]:
    """Return the values of variables with names like secrets; for a list also each of its parts."""
    for name, value in environ.items():
        if any(name.upper().endswith(word) or f"{word}S" == name.upper()[-len(word) - 1 :] for word in SECRET_WORDS):
            yield value
            yield from (one.strip() for one in value.split(","))


def _is_known(name: str) -> bool:
    known = [one.upper() for one in KNOWN_NAMES]
    return name in known or name.startswith(tuple(one for one in known if one.endswith("_")))


def _last(text: str) -> str:
    if len(text) <= MOST:
        return text
    cut = text[len(text) - MOST :]
    return f"... {len(text) - len(cut)} characters left out ...\n{cut.partition(chr(10))[2]}"
