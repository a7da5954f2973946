"""A support bundle: texts in, the same without what is private out, and what was taken out of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from appliance.core.redact import Counts, Private, Redactor, learn

SAID_BY_ENGINES = ("error", "why", "fault", "damage", "evidence")
"""Members of the facts that hold what engines print."""
MOST = 512 * 1024
"""Characters of one file that are kept, the last ones."""
KNOWN_NAMES = (
    "LLAMA_", "GGML_", "CUDA_", "HIP_", "ROCR_", "HSA_", "NVIDIA_", "VK_", "ONEAPI_", "ZES_", "MESA_", "OMP_",
    "HF_", "XDG_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH",
    "container", "KUBERNETES_SERVICE_HOST", "WSL_DISTRO_NAME", "TERM", "NO_COLOR", "TMPDIR", "TEMP",
)  # fmt: skip
"""Variables that engines, drivers and this program heed, or how their names begin; no others get into a bundle."""
SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "_PASS", "_PAT", "AUTH")


Tree: TypeAlias = "str | int | float | bool | list[Tree] | dict[str, Tree] | None"
"""What JSON can say."""


class Part(Struct, frozen=True, kw_only=True):
    """One file before anything is taken out. ``log``: servers and engines printed it."""

    name: str
    text: str
    log: bool = False


class Packed(Struct, frozen=True, kw_only=True):
    """One file as it goes into the bundle."""

    name: str
    data: bytes
    removed: Counts


def pack(parts: Sequence[Part], private: Private) -> list[Packed]:
    """Every file without what is private. A secret that stands as one in any file is taken out of all of them."""
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
    """A tree of plain values, in which what engines print is cleaned as a log is."""
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
    """The variables that matter here, one a line."""
    lines = [f"{name}={value}" for name, value in sorted(environ.items()) if _is_known(name.upper())]
    return "".join(f"{line}\n" for line in lines)


def secret_values(environ: Mapping[str, str]) -> Iterable[str]:
    """Values of variables that are called like secrets, each of a list by itself as well."""
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
