"""The names of a repository's models: each has one of its own, and keeps it whichever of the files are on this disk.

A tag is the end of a file's name, as with llama-server's ``-hf``. Where several files have the same end, the plainest
one keeps it, and the others get as much more of their names as tells them apart: ``UD-Q4_K_M``, ``1.7B-Q8_0``. A
model that no tag tells apart (the same name in two folders) goes by its path: ``org/repo/folder/model.gguf``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from appliance.core.models.names import is_companion, shard_of, stem_of, tag_of

ANY_TAG = "LATEST"
"""The word that Ollama's users write for no tag; llama-server also accepts it."""
TAG = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MARK = re.compile(r"-|\.(?!(?<=[0-9]\.)[0-9])")
"""Between two words of a file's name; the point in 1.7B is inside of one."""


def model_id(repo: str, tag: str | None, first: str) -> str:
    """Return the name of a model by its tag, or else by the path of its first file."""
    return f"{repo}:{tag}" if tag else f"{repo}/{first}"


def first_part(path: str) -> str:
    """Return the path of the first part of the model that a file belongs to."""
    folder, slash, name = path.rpartition("/")
    shard = shard_of(stem_of(name) or "")
    return path if shard is None else f"{folder}{slash}{shard.name(1)}"


def tags_of(paths: Iterable[str]) -> dict[str, str]:
    """Return the tag of each model among a repository's files, by the path of its first part; "" for none."""
    ends: dict[str, list[str]] = {}
    for path in paths:
        if (stem := model_stem(path)) is not None:
            ends[first_part(path)] = _ends(stem)
    count = Counter(end for found in ends.values() for end in found)
    tags: dict[str, str] = {}
    taken = {""}
    for first in sorted(ends, key=lambda first: (first.count("/"), len(ends[first]), first)):
        free = [end for place, end in enumerate(ends[first]) if end not in taken and (place == 0 or count[end] == 1)]
        tags[first] = next((end for end in free if TAG.fullmatch(end) and end != ANY_TAG), "")
        taken.add(tags[first])
    return tags


def listing_of(paths: Iterable[str]) -> list[str]:
    """Return the models of a repository, if some are named otherwise than they would be alone; else nothing."""
    tags = tags_of(paths)
    return sorted(tags) if any(tags_of([first])[first] != tag for first, tag in tags.items()) else []


def model_stem(path: str) -> str | None:
    """Return the stem of a model's file, without the part's number; None for any other file."""
    stem = stem_of(path.rpartition("/")[2])
    if stem is None:
        return None
    shard = shard_of(stem)
    stem = shard.stem if shard else stem
    return None if is_companion(stem, anywhere=True) else stem


def ends_with(path: str, tag: str) -> bool:
    """True if a model's file has a name with this end."""
    stem = (model_stem(path) or "").upper()
    return stem == tag or stem.endswith((f"-{tag}", f".{tag}"))


def is_meant(tag: str, own: str | None, path: str) -> bool:
    """True if a model is meant by more of its file's name than its own tag has."""
    return bool(own) and tag.endswith(own or "") and ends_with(path, tag)


def _ends(stem: str) -> list[str]:
    """Return the tags that a file could have, the shortest first."""
    starts = [match.end() for match in _MARK.finditer(stem)]
    found = [tag_of(stem) or "", *(stem[start:].upper() for start in reversed(starts)), stem.upper()]
    return list(dict.fromkeys(end for end in found if end))
