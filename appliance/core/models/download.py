"""The decisions of downloads: the meaning of a name or an option, the files that it selects, and the meaning of an
answer.

The choice follows llama-server's ``-hf`` (llama.cpp b11434): the tag is the end of a file's name, without one it is
Q4_K_M, then Q8_0, then the first file; shards belong together, and the nearest projector comes along. The options that
name a model on the hub instead of a file on disk are its ``--hf-repo``, ``--hf-file`` and ``--spec-draft-hf``. Other
models are in a Docker registry (``--docker-repo``; the form of names is Docker's own) or at an address
(``--model-url``).
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from urllib.parse import unquote, urlsplit

from msgspec import Struct, structs

from appliance.core.models.file_names import ANY_TAG, TAG, ends_with, first_part, model_id, model_stem, tags_of
from appliance.core.models.hub_address import HUB_HOSTS, MAIN, HubAddress, address_of_page, read_address
from appliance.core.models.names import (
    PROJECTOR_TYPES,
    QUANTISATIONS,
    is_companion,
    is_projector,
    no_model,
    prefer,
    shard_of,
    stem_of,
    tag_of,
)
from appliance.errors import BadRequest, NotFound, UsageError

SHOWN_TAGS = 20


_OID = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")
PRESET_FILE = "preset.ini"
"""A repository with this file on its top level holds presets and not a model."""
SIDECARS = {"draft-mtp": "mtp-", "draft-dspark": "dspark-", "draft-dflash": "dflash-", "draft-eagle3": "eagle3-"}
"""Kinds of speculative decoding (``--spec-type``) whose small model is a companion, with the mark in its file's name;
best first."""
SHOWN_FILES = 20
DOCKER_HUB = "registry-1.docker.io"
DOCKER_NAMES = ("docker.io", "index.docker.io", "hub.docker.com", DOCKER_HUB)
NAMESPACE = "ai"
"""The namespace of Docker's own models, for names without one."""
_REPO = re.compile(r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)+")
_IMAGE_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class ModelReference(Struct, frozen=True):
    """A user's request. ``tag`` is in capitals; None leaves the choice to `choose`."""

    repo: str
    tag: str | None = None

    def __str__(self) -> str:
        return self.repo if self.tag is None else f"{self.repo}:{self.tag}"


class RemoteFile(Struct, frozen=True):
    """A file of a repository. ``oid``: sha256 of its contents (64 digits), or git's SHA-1 of the blob (40)."""

    path: str
    oid: str
    size: int | None = None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]


class ModelFiles(Struct, frozen=True):
    """The files of one model: its shards in order, and its projector. ``tag`` is empty where its path is its name."""

    tag: str
    model: tuple[RemoteFile, ...]
    projector: RemoteFile | None = None

    @property
    def files(self) -> tuple[RemoteFile, ...]:
        return self.model if self.projector is None else (*self.model, self.projector)

    def id(self, repo: str) -> str:
        """Return its name."""
        return model_id(repo, self.tag, self.model[0].path)

    @property
    def size(self) -> int:
        """Return the bytes of all files, as far as they are known."""
        return sum(file.size or 0 for file in self.files)


def parse_reference(text: str) -> ModelReference:
    """Read ``org/repo``, ``org/repo:TAG``, or the address of a repository's page. Raises BadRequest."""
    found = parse_wanted(text)
    if found != WantedModel(reference=found.reference):
        raise BadRequest(f"{text!r} names a part of a repository; write org/repo or org/repo:TAG", param="model")
    return found.reference


def parse_wanted(text: str, endpoint: str = "") -> WantedModel:
    """Read what `read_address` reads. Raises BadRequest."""
    found = read_address(text, endpoint)
    tag = found.tag
    if tag is not None and not TAG.fullmatch(tag):
        raise BadRequest(f"{tag!r} is not a quantisation tag such as Q4_K_M", param="model")
    if found.file and (kind := _not_a_model(found.file)):
        raise BadRequest(
            f"{found.file} is {kind} and not a model; name a model of {found.repo}, whose projector comes with it",
            param="model",
        )
    return WantedModel(
        reference=ModelReference(found.repo, tag.upper() if tag and tag.upper() != ANY_TAG else None),
        file=found.file,
        folder=found.folder,
        revision=found.revision,
    )


def _not_a_model(path: str) -> str:
    stem = stem_of(path.rpartition("/")[2]) or ""
    if is_projector(stem):
        return "a projector"
    return no_model(stem) or ("a draft model" if is_companion(stem, anywhere=True) else "")


def is_oid(text: str) -> bool:
    return _OID.fullmatch(text) is not None


def choose(
    reference: ModelReference, files: Iterable[RemoteFile], folder: str = "", listed: Iterable[str] = ()
) -> ModelFiles:
    """Choose the model among a repository's files, or those in a folder. Raises NotFound, which lists the tags.

    ``listed``: more files that the repository has, by which those here are named.
    """
    known = {file.path: file for file in sorted(files, key=lambda file: file.path)}
    tags = tags_of([*known, *listed])
    firsts = dict.fromkeys(first_part(path) for path in known if not folder or path.startswith(f"{folder}/"))
    here = {first: tags[first] for first in firsts if first in tags}
    if not here:
        raise NotFound(
            f"{reference.repo} has no GGUF model{f' in {folder}' if folder else ''}; look for a repository whose name "
            "ends in -GGUF"
        )
    first = _wanted(here, reference.tag, set(tags.values()))
    if first is None:
        names = [tag or first for first, tag in here.items()]
        more = ", ..." if len(names) > SHOWN_TAGS else ""
        raise NotFound(f"{reference.repo} has no {reference.tag}; it has {', '.join(names[:SHOWN_TAGS])}{more}")
    return _whole(reference.repo, here[first], first, known)


def all_choices(repo: str, files: Iterable[RemoteFile]) -> list[ModelFiles]:
    """Return the models that can be chosen of a repository, the smallest first. Raises NotFound."""
    known = {file.path: file for file in sorted(files, key=lambda file: file.path)}
    choose(ModelReference(repo), known.values())
    found = [_whole(repo, tag, first, known) for first, tag in tags_of(known).items()]
    return sorted(found, key=lambda choice: choice.size)


def _wanted(here: Mapping[str, str], tag: str | None, taken: Container[str]) -> str | None:
    stems = {first: model_stem(first) or "" for first in here}
    if tag is None:
        # Names that tell a quantisation go first, and of these the plainest.
        ordered = sorted(here, key=lambda first: (tag_of(stems[first]) is None, here[first] != tag_of(stems[first])))
        return prefer([(tag_of(stems[first]) or here[first], first) for first in ordered], QUANTISATIONS)
    exact = [first for first, known in here.items() if known == tag]
    longer = [first for first in here if tag not in taken and ends_with(first, tag)]
    return next(iter(exact or (longer if len(longer) == 1 else ())), None)


def _whole(repo: str, tag: str, first: str, known: Mapping[str, RemoteFile]) -> ModelFiles:
    """Return a model by one of its files: with the other shards and the projector. Raises NotFound."""
    folder, slash, name = first.rpartition("/")
    shard = shard_of(stem_of(name) or "")
    paths = [folder + slash + shard.name(number) for number in range(1, shard.total + 1)] if shard else [first]
    if missing := [path for path in paths if path not in known]:
        raise NotFound(f"{repo} lacks {missing[0]}, a part of the model; its owner has to upload it")
    return ModelFiles(tag, tuple(known[path] for path in paths), nearest_projector(folder, known))


def nearest_projector(folder: str, known: Mapping[str, RemoteFile]) -> RemoteFile | None:
    """Find the projector beside the model, else in the closest folder above it, where `catalog.found` looks."""
    while True:
        here = [
            (tag_of(stem), file)
            for file in known.values()
            if file.folder == folder and (stem := stem_of(file.name)) is not None and is_projector(stem)
        ]
        if found := prefer(here, PROJECTOR_TYPES):
            return found
        if not folder:
            return None
        folder = folder.rpartition("/")[0]


# ---- one answer ------------------------------------------------------------------------------------------------------


class WantedModel(Struct, frozen=True, kw_only=True):
    """A model, or a small one that guesses ahead for another, by its repository."""

    reference: ModelReference
    file: str = ""
    """Its path in the repository, instead of the choice by tag."""
    folder: str = ""
    """The folder of the repository that has it; empty: any."""
    revision: str = MAIN
    """The branch, tag or commit whose file it is."""
    projector: bool = True
    """Also take its projector."""
    presets: bool = False
    """If the repository holds presets, take only those."""
    sidecars: tuple[str, ...] = ()
    """Marks of companions that are taken instead of a model if there are any, best first."""
    most: int = 0
    """Refuse what is larger, in bytes; 0: nothing is too large."""

    def __str__(self) -> str:
        if self.folder or self.revision != MAIN:
            return address_of_page(HubAddress(self.reference.repo, None, self.revision, self.file, self.folder))
        return f"{self.reference.repo}/{self.file}" if self.file else str(self.reference)


def read_wanted(name: str) -> WantedModel | None:
    """Return what a model's name means on the hub; None for a name that means nothing there."""
    try:
        return parse_wanted(name)
    except BadRequest:
        return None


def sidecars_of(spec_type: str) -> tuple[str, ...]:
    """Return the companions to look for in a repository of draft models; without ``--spec-type`` any of them."""
    kinds = [kind.strip() for kind in spec_type.split(",")]
    return tuple(mark for kind, mark in SIDECARS.items() if kind in kinds or not spec_type)


def pick(wanted: WantedModel, files: Iterable[RemoteFile], listed: Sequence[str] = ()) -> ModelFiles:
    """Return the chosen files of the repository. Raises NotFound, which lists the existing ones. See `choose`."""
    known = {file.path: file for file in sorted(files, key=lambda file: file.path)}
    if wanted.presets and PRESET_FILE in known:
        return ModelFiles("", (known[PRESET_FILE],))
    if sidecar := _sidecar(wanted, list(known.values())):
        return ModelFiles(tag_of(stem_of(sidecar.name) or "") or "", (sidecar,))
    if wanted.file:
        choice = _named(wanted, known, listed)
    else:
        choice = choose(wanted.reference, known.values(), wanted.folder, listed)
    return choice if wanted.projector else structs.replace(choice, projector=None)


def _named(wanted: WantedModel, known: Mapping[str, RemoteFile], listed: Sequence[str]) -> ModelFiles:
    if wanted.file not in known:
        models = [path for path in known if stem_of(path.rpartition("/")[2]) is not None]
        more = ", ..." if len(models) > SHOWN_FILES else ""
        here = f"; it has {', '.join(models[:SHOWN_FILES])}{more}" if models else ""
        raise NotFound(f"{wanted.reference.repo} has no file {wanted.file}{here}")
    tag = tags_of([*known, *listed]).get(first_part(wanted.file), "")
    return _whole(wanted.reference.repo, tag, wanted.file, known)


def _sidecar(wanted: WantedModel, files: Sequence[RemoteFile]) -> RemoteFile | None:
    """Choose the first existing kind; of several files of a kind the one with the wanted tag, else the first."""
    for mark in wanted.sidecars:
        found = [file for file in files if mark in file.name and stem_of(file.name) is not None]
        tagged = [file for file in found if tag_of(stem_of(file.name) or "") == wanted.reference.tag]
        if found:
            return (tagged or found)[0]
    return None


class ImageLayer(Struct, frozen=True, rename="camel"):
    """One blob of an image; ``digest`` is ``sha256:`` and the hash of its contents."""

    media_type: str
    digest: str
    size: int


class ImageManifest(Struct, frozen=True):
    """``GET /v2/<name>/manifests/<tag>``."""

    layers: tuple[ImageLayer, ...] = ()


class RegistryImage(Struct, frozen=True, kw_only=True):
    """A model in a registry of container images; ``host`` may have a port."""

    host: str = DOCKER_HUB
    repo: str
    tag: str = "latest"

    def __str__(self) -> str:
        return f"{self._shown_host}{self.repo}:{self.tag}"

    @property
    def _shown_host(self) -> str:
        return "" if self.host == DOCKER_HUB else f"{self.host}/"

    @property
    def endpoint(self) -> str:
        """The registry's address: without TLS only on this machine, as in Docker."""
        plain = self.host.rpartition(":")[0] in _LOOPBACK or self.host in _LOOPBACK
        return f"{'http' if plain else 'https'}://{self.host}"

    @property
    def folder(self) -> str:
        """The name of its folder in the cache."""
        return "--".join(("docker", *self._shown_host.replace(":", "-").split("/")[:-1], *self.repo.split("/")))


class Location(Struct, frozen=True, kw_only=True):
    """A file at an address, and the path where it should be stored (None: in the cache)."""

    url: str
    path: str | None = None

    def __str__(self) -> str:
        return shown_url(self.url)

    @property
    def name(self) -> str:
        return _name_of(self.url)

    def parts(self) -> tuple[str, ...]:
        """Return the addresses of all parts of the model, the first part first."""
        shard = shard_of(stem_of(self.name) or "")
        if shard is None:
            return (self.url,)
        before, _, query = self.url.partition("?")
        folder = before.rpartition("/")[0]
        behind = f"?{query}" if query else ""
        return tuple(f"{folder}/{shard.name(number)}{behind}" for number in range(1, shard.total + 1))


Remote = WantedModel | RegistryImage | Location
"""Anything that can be downloaded."""


def parse_image(text: str) -> RegistryImage:
    """Read ``[HOST[:PORT]/][NAMESPACE/]NAME[:TAG]``. Raises UsageError."""
    first, slash, rest = text.partition("/")
    has_host = bool(slash) and (first == "localhost" or "." in first or ":" in first)
    host = (DOCKER_HUB if first in DOCKER_NAMES else first) if has_host else DOCKER_HUB
    repo, _, tag = (rest if has_host else text).partition(":")
    repo = repo if "/" in repo or has_host else f"{NAMESPACE}/{repo}"
    image = RegistryImage(host=host, repo=repo, tag=tag or "latest")
    if not _REPO.fullmatch(repo) or not _IMAGE_TAG.fullmatch(image.tag):
        raise UsageError(
            f"{text!r} does not name a model in a registry; write NAME, or NAME:TAG, as in ai/smollm2:latest"
        )
    return image


def parse_location(url: str, path: str | None) -> Location | WantedModel:
    """Read an address; one on the hub is a file there, whose hash is known. Raises UsageError."""
    parts = urlsplit(url)
    if parts.username is not None:
        raise UsageError(f"{shown_url(url)!r} contains a user name, which this program never sends; leave it out")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{shown_url(url)!r} is not the address of a file; write http:// or https://, host and path")
    name = _name_of(url)
    if not name or name in (".", "..") or not name.isprintable() or "\\" in name or ":" in name:
        raise UsageError(f"{shown_url(url)!r} does not end in the name of a file")
    if parts.hostname in HUB_HOSTS and (on_hub := _file_on_hub(url)) is not None:
        if path is None and on_hub.revision == MAIN:
            return WantedModel(reference=ModelReference(on_hub.repo), file=on_hub.file)
        if "/resolve/" not in parts.path:
            url = address_of_page(on_hub)  # the page of a file is not the file
    return Location(url=url, path=path)


def _file_on_hub(url: str) -> HubAddress | None:
    try:
        found = read_address(url)
    except BadRequest:
        return None
    return found if found.file else None


def shown_url(url: str) -> str:
    """Return the address for messages and logs, without a possible secret: a password, or a signed query."""
    before, slashes, rest = url.partition("?")[0].partition("#")[0].rpartition("//")
    authority, slash, path = rest.partition("/")
    return f"{before}{slashes}{authority.rpartition('@')[2]}{slash}{path}"


def _name_of(url: str) -> str:
    return unquote(urlsplit(url).path).rpartition("/")[2]
