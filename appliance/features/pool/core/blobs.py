"""Files of models between boxes: their addresses by hash, the meaning of a Range, the name of a model's place.

A box gives its models' files to the other boxes of its pool at ``/api/blobs/sha256:<hex>``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from appliance.core.models.file_names import ends_with
from appliance.core.models.names import is_speakable, model_name, stem_of
from appliance.errors import BadRequest

BLOBS = "/api/blobs"  # the list of a model's files with ``?model=ID``; the files themselves are below it
_BLOB = re.compile(r"/api/blobs/sha256:([0-9a-f]{64})")
_RANGE = re.compile(r"bytes=(?:(?P<first>[0-9]{1,18})-(?P<last>[0-9]{0,18})|-(?P<suffix>[0-9]{1,18}))", re.IGNORECASE)
_CACHED = re.compile(r"(?P<repo>[^/:]+/[^/:]+):(?P<tag>[A-Za-z0-9_.-]+)")
MAX_FILES = 1010  # parts of the largest model, its projector and its draft model


class HashedFile(Struct, frozen=True, kw_only=True):
    """A file of a model. ``name``: its path below the snapshot or the models folder, with ``/``; ``size`` in bytes."""

    name: str
    size: int
    sha256: str


class FilesOfModel(Struct, frozen=True, kw_only=True):
    """The files of a model that is here; None until their hashes are known, which takes time once for each file.

    ``size`` and ``read`` are the bytes of all files, and those whose hash is known or computed so far.
    """

    model: str
    files: tuple[HashedFile, ...] | None
    size: int
    read: int


def blob_path(sha256: str) -> str:
    return f"{BLOBS}/sha256:{sha256}"


def asks_for_blob(method: str, path: str) -> bool:
    return method in ("GET", "HEAD") and (path == BLOBS or path.startswith(f"{BLOBS}/"))


def sha256_in(path: str) -> str:
    """Return the hash in a path below `BLOBS`. Raises BadRequest."""
    match = _BLOB.fullmatch(path)
    if match is None:
        raise BadRequest(f"a file is named by its hash, as in {BLOBS}/sha256:HEX with 64 lower-case digits")
    return match[1]


def wanted_range(value: str | None, size: int) -> range | None:
    """Return the bytes that a Range header (RFC 9110 section 14) means, of a file of this size.

    None: the file has no such byte (416). A header that asks for several parts, or is malformed, is ignored, as the
    standard allows: the whole file answers it.
    """
    match = _RANGE.fullmatch(value.strip()) if value is not None else None
    if match is None:
        return range(0, size)
    if match["suffix"] is not None:
        count = min(int(match["suffix"]), size)
        return range(size - count, size) if count else None
    first, last = int(match["first"]), int(match["last"]) if match["last"] else size
    if last < first:
        return range(0, size)
    return range(first, min(last + 1, size)) if first < size else None


def cached_repo(model_id: str) -> str | None:
    """Return the repository of a model whose place is the hub's cache; None for one in the models folder."""
    match = _CACHED.fullmatch(model_id)
    return match and match["repo"]


def names_in_folder(model_id: str, names: Sequence[str]) -> list[str]:
    """Return the paths below a models folder that give the model its id. ``names``: its files', the first part first.

    A model on its own lies on the top level if its file is named like it; else in a folder of its name.
    """
    same = all(model_name(stem_of(name) or "") == model_id for name in names)
    return list(names) if same else [f"{model_id}/{name}" for name in names]


def check_names(model_id: str, names: Sequence[str]) -> None:
    """Raise BadRequest unless files of these names, at their place, are found as the model ``model_id``.

    The first one is the model's, or its first part. Each name is checked again when it is joined to a folder.
    """
    paths = [name.split("/") for name in names]
    good = 0 < len(names) <= MAX_FILES and len(set(names)) == len(names)
    good = good and all(is_speakable(part) and part[0] != "." for path in paths for part in path)
    good = good and all(stem_of(path[-1]) is not None for path in paths)
    if good and (match := _CACHED.fullmatch(model_id)):
        good = ends_with(names[0], match["tag"].upper())
    elif good:
        top = all(len(path) == 1 and model_name(stem_of(path[0]) or "") == model_id for path in paths)
        good = top or all(len(path) == 2 and path[0] == model_id for path in paths)
    if not good:
        raise BadRequest(f"files of these names are not model '{model_id}' on another box: {', '.join(names)[:500]}")


EARLIER = -1  # stands for the unknown boxes that gave the part which an earlier run has left
RECOVERY = 1.05  # a box's estimated speed grows by this with each span of another one, so that it gets another trial


class FileSources:
    """Chooses the box that gives the next span of one file. Boxes are numbers from 0.

    Boxes that failed least often in a row go first, then those that were not tried, then the fastest. So the next span
    after a failure comes from another box, and a slow box costs its trial. Only the whole file can be checked. If it
    is wrong and one box gave it, that box is *out*. If several gave it, nobody knows whose bytes were wrong: then
    each gives the file *alone*, until it is right.
    """

    def __init__(self, count: int) -> None:
        self._failures = [0] * count
        self._rates: list[float | None] = [None] * count
        self._givers: set[int] = set()
        self._out: set[int] = set()
        self._alone: int | None = None
        self._suspicious = False

    @property
    def left(self) -> bool:
        """A box may still be asked."""
        return len(self._out) < len(self._rates)

    def choose(self, have: int) -> int | None:
        """Return the box to ask for the bytes behind the first ``have``; None if each of them is out."""
        if have == 0:
            self._givers.clear()
            self._alone = None
        elif not self._givers:
            self._givers.add(EARLIER)
        if self._alone is not None:
            return self._alone
        able = [box for box in range(len(self._rates)) if box not in self._out]
        chosen = min(able, key=self._rank, default=None)
        if self._suspicious:
            self._alone = chosen
        return chosen

    def _rank(self, box: int) -> tuple[int, float]:
        rate = self._rates[box]
        return self._failures[box], -1.0 if rate is None else 1 / (1 + rate)

    def gave(self, box: int, count: int, seconds: float) -> None:
        """Note that it sent ``count`` bytes in this time, whether or not it broke off then."""
        if count:
            self._givers.add(box)
            self._rates = [rate and rate * RECOVERY for rate in self._rates]
            self._rates[box] = count / max(seconds, 1e-6)

    def ended(self, box: int, *, well: bool) -> None:
        """Note how a request to it ended."""
        self._failures[box] = 0 if well else self._failures[box] + 1

    def lacks(self, box: int) -> None:
        """Note that it does not have the file, or does not give it."""
        self._out.add(box)
        self._alone = None

    def came_wrong(self) -> None:
        """Note that the whole file has come, with wrong contents."""
        if len(self._givers) == 1:
            self._out |= self._givers - {EARLIER}
        self._suspicious = True
        self._alone = None
