"""``bundle.json``: what a bundle holds, and for whom. An inventory says the same of a machine.

A bundle is a tar file of ``bundle.json``, ``bundle.json.sig`` (64 zero bytes where nobody signed), and
``blobs/<sha256>`` in the order of the manifest: each content once. So the place of every byte follows from the
manifest. Nothing is compressed: engines and models do not get smaller. The sums of `CHUNK` bytes each let a reader
refuse a damaged piece before it writes it, and say where it is. A runnable bundle begins with the one-file program
(`core.one_file`), whose sums are in the manifest too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct, structs

from appliance.core.engines.builds import parse_asked
from appliance.core.lenient_json import UNREADABLE
from appliance.core.models.names import folder_of, is_commit, is_speakable, repo_of
from appliance.core.payload import PayloadFile
from appliance.core.sizes import MIB
from appliance.errors import UsageError

FORMAT = 1
CHUNK = 16 * MIB
MANIFEST, SIGNATURE, BLOBS = "bundle.json", "bundle.json.sig", "blobs/"
MAX_MANIFEST = 8 * MIB  # bytes: for two terabytes of contents, or 40,000 files
SMALLEST_PART = MIB  # bytes of a part
SIGNATURE_SIZE = 64
TAR_BLOCK = 512

Kind = Literal["program", "engine", "model", "settings"]
S = TypeVar("S", bound=Struct)

_SHA256 = re.compile(r"[0-9a-f]{64}")
_PROGRAM = re.compile(r"[0-9][0-9A-Za-z.+-]{0,40}-[0-9a-f]{12}")
_RESERVED = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|com\d|lpt\d)(?: *\..*)?", re.IGNORECASE)
"""Names that are devices on Windows."""


class BundleItem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that comes into its place as a whole. Paths are relative to that place, with ``/``."""

    kind: Kind
    name: str  # a program's ``<version>-<digest>``, an engine's build, a model's name on the other machine
    digest: str  # equal for equal contents: a thing that is there under its digest is not brought again
    files: tuple[PayloadFile, ...] = ()
    repo: str = ""
    """``org/repo`` of a model that belongs into the Hugging Face cache; others belong into the models folder."""
    commit: str = ""  # the repository's commit that the model's files are of
    left_out: bool = False
    """It was on the other machine when that made its inventory, so its contents are not in the bundle."""

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(file.size for file in self.files)

    @property
    def carried(self) -> list[PayloadFile]:
        """The files whose contents are in the bundle."""
        return [] if self.left_out else [file for file in self.files if not file.link]


class Blob(Struct, frozen=True, kw_only=True):
    """One content. ``chunks`` are the sha256 of its pieces of `CHUNK` bytes."""

    sha256: str
    size: int
    chunks: tuple[str, ...]


class BundleManifest(Struct, frozen=True, kw_only=True):
    """Unknown keys are ignored; a field that an older program must not ignore gets a new `FORMAT`."""

    format: int
    version: str  # the version of the program that made it
    target: str  # ``linux-x64`` and the like, see `core.machine_look.platform_of`
    made: str  # UTC
    part: int = 0  # bytes of each file but the last, where it is in several; 0: it is one file
    signer: str = ""  # the name of the key that signs it, see `core.signing`; only the signature shows that this is so
    front: Blob | None = None  # the one-file program that stands before the tar file
    items: tuple[BundleItem, ...]
    blobs: tuple[Blob, ...]

    @property
    def all_blobs(self) -> tuple[Blob, ...]:
        """The contents of the items, behind the program before the tar file if there is one."""
        return (*([self.front] if self.front is not None else []), *self.blobs)

    @property
    def size(self) -> int:
        """Bytes of all contents."""
        return sum(blob.size for blob in self.all_blobs)


class PresentItem(Struct, frozen=True, kw_only=True):
    """One thing that is on a machine."""

    kind: Kind
    name: str
    digest: str


class Inventory(Struct, frozen=True, kw_only=True):
    """The things on a machine: for ``bundle export --against``."""

    format: int
    version: str
    target: str
    items: tuple[PresentItem, ...]


class _Head(Struct, frozen=True):
    format: int
    version: str = "?"


def read_manifest(text: bytes) -> BundleManifest:
    """Decode and check it: no path in it leads out of its place. Raises UsageError."""
    head = _decoded(text, _Head, "the manifest")
    if head.format != FORMAT:
        raise UsageError(
            f"the bundle has format {head.format}, made by version {head.version[:40]!r}, and this program reads "
            f"format {FORMAT}: install that version or a newer one here first, or export the bundle with this version"
        )
    manifest = _decoded(text, BundleManifest, "the manifest")
    if bad := next(_mistakes(manifest), None):
        raise UsageError(f"the bundle cannot be used: {bad}; export it again")
    return manifest


def read_inventory(text: bytes, target: str) -> Inventory:
    """Raises UsageError, also for one of another kind of machine."""
    found = _decoded(text, Inventory, "the inventory")
    if found.format != FORMAT:
        raise UsageError(f"the inventory has format {found.format}, and this program reads format {FORMAT}")
    if found.target != target:
        raise UsageError(f"the inventory is of a {found.target} machine; export with --target {found.target}")
    return found


def _decoded(text: bytes, kind: type[S], what: str) -> S:
    try:
        return msgspec.json.decode(text, type=kind)
    except UNREADABLE as cause:
        raise UsageError(f"{what} is damaged, or something else: {cause}") from None


def _mistakes(manifest: BundleManifest) -> Iterator[str]:
    sizes = {blob.sha256: blob.size for blob in manifest.blobs}
    if manifest.part and manifest.part < SMALLEST_PART:
        yield f"parts of {manifest.part} bytes cannot be"
    if manifest.part and manifest.front is not None:
        yield "a bundle that is a program, too, cannot be in parts"
    for blob in manifest.all_blobs:
        sums = (blob.sha256, *blob.chunks)
        if blob.size < 0 or len(blob.chunks) != -(-blob.size // CHUNK) or not all(map(_SHA256.fullmatch, sums)):
            yield f"the sums of {blob.sha256[:64]!r} cannot be right"
    if len(sizes) != len(manifest.blobs):
        yield "a content is in it twice"
    if len({(item.kind, item.name) for item in manifest.items}) != len(manifest.items):
        yield "two things in it have one name"
    for item in manifest.items:
        if why := _bad_name(item, manifest.target) or _bad_paths(item.files):
            yield f"{item.kind} {item.name[:100]!r}: {why}"
        for file in item.carried:
            if sizes.get(file.sha256) != file.size:
                yield f"{item.kind} {item.name[:100]!r}: the content of {file.path[:100]!r} is not in it"


def _bad_name(item: BundleItem, target: str) -> str:
    """Why it cannot have this name, which becomes one of a folder; empty: it can."""
    if not is_speakable(item.name) or not item.digest.isalnum():
        return "its name or digest cannot be one"
    match item.kind:
        case "engine":
            try:
                asked = parse_asked(item.name, target)
            except UsageError as cause:
                return str(cause)
            whole = asked.platform == target and item.name == f"{target}-{asked.backend}/{asked.build}"
            return "" if whole and ".." not in item.name else f"it is not a build for {target}"
        case "program":
            return "" if _PROGRAM.fullmatch(item.name) else "its name is not VERSION-DIGEST"
        case "model" if item.repo:
            known = repo_of(folder_of(item.repo)) == item.repo and is_commit(item.commit)
            return "" if known else "its repository or commit cannot be one"
        case "model":
            tops = {file.path.partition("/")[0] for file in item.files}
            return "" if len(tops) == 1 and not any(top.startswith(".") for top in tops) else "it has several places"
        case "settings":
            return ""


def _bad_paths(files: Sequence[PayloadFile]) -> str:
    """Why these cannot be the files of one folder; empty: they can."""
    names = {PurePosixPath(file.path) for file in files}
    if len(names) != len(files):
        return "a path is in it twice"
    for file in files:
        path = PurePosixPath(file.path)
        if not is_plain(file.path):
            return f"{file.path[:100]!r} is not a plain path"
        if any(parent in names for parent in path.parents):
            return f"{file.path[:100]!r} lies below a file or a link"
        if file.link and _led_to(path, file.link) not in names - {path}:
            return f"the link {file.path[:100]!r} does not lead to a file of it"
        if not file.link and (file.size < 0 or not _SHA256.fullmatch(file.sha256)):
            return f"{file.path[:100]!r} has no sum"
    return "" if any(not file.link for file in files) else "it has no files"


def is_plain(path: str) -> bool:
    """True for a relative path that every system takes for what it says."""
    parts = path.split("/")
    return path.isprintable() and not any(
        part in ("", ".", "..")
        or any(sign in part for sign in '\\:*?"<>|')
        or part.endswith((".", " "))
        or _RESERVED.fullmatch(part)
        for part in parts
    )


def _led_to(path: PurePosixPath, target: str) -> PurePosixPath | None:
    """The file that a link names; None where ``..`` stands behind a folder, which may be a link itself."""
    parts = list(path.parent.parts)
    names = target.split("/")
    while names and names[0] == "..":
        if not parts:
            return None
        names.pop(0)
        parts.pop()
    return PurePosixPath(*parts, *names) if names and is_plain("/".join(names)) else None


def digest_of(files: Iterable[PayloadFile]) -> str:
    """Return 64 hex digits that are equal for equal contents under equal paths."""
    lines = sorted(f"{file.sha256 or file.link} {file.path}" for file in files)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def model_digest(files: Iterable[PayloadFile]) -> str:
    """The same for a model, by its weights alone: it may lie in the cache here and in a folder there."""
    sums = sorted({file.sha256 for file in files if file.path.lower().endswith(".gguf")})
    return hashlib.sha256("\n".join(sums).encode()).hexdigest()


def without_known(items: Iterable[BundleItem], inventory: Inventory | None) -> list[BundleItem]:
    """Mark what the other machine has as left out."""
    known = {(one.kind, one.digest) for one in (inventory.items if inventory is not None else ())}
    return [structs.replace(item, left_out=True) if (item.kind, item.digest) in known else item for item in items]


def padded(size: int) -> int:
    """Bytes that a member of this size takes in a tar file, with its head."""
    return TAR_BLOCK + -(-size // TAR_BLOCK) * TAR_BLOCK


def offsets(manifest_size: int, blobs: Iterable[Blob]) -> tuple[Mapping[str, int], int]:
    """Return the place of each blob's first byte in the bundle, by sha256, and the size of the bundle."""
    at = padded(manifest_size) + padded(SIGNATURE_SIZE)
    found: dict[str, int] = {}
    for blob in blobs:
        found[blob.sha256] = at + TAR_BLOCK
        at += padded(blob.size)
    return found, at + 2 * TAR_BLOCK
