"""The options that name a model on the hub instead of a file on disk, and the files that they mean.

Source of the rules: ``--hf-repo``, ``--hf-file`` and ``--spec-draft-hf`` of llama-server (llama.cpp b11434).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct, structs

from appliance.core.download import Choice, Reference, RemoteFile, choose, nearest_projector
from appliance.core.naming import shard_of, stem_of, tag_of
from appliance.errors import NotFound

PRESET_FILE = "preset.ini"
"""A repository with this file on its top level holds presets and not a model."""
SIDECARS = {"draft-mtp": "mtp-", "draft-dspark": "dspark-", "draft-dflash": "dflash-", "draft-eagle3": "eagle3-"}
"""Kinds of speculative decoding (``--spec-type``) whose small model is a companion, with the mark in its file's name;
best first."""
SHOWN_FILES = 20


class Wanted(Struct, frozen=True, kw_only=True):
    """A model, or a small one that guesses ahead for another, by its repository."""

    reference: Reference
    file: str = ""
    """Its path in the repository, instead of the choice by tag."""
    projector: bool = True
    """Also take its projector."""
    presets: bool = False
    """If the repository holds presets, take only those."""
    sidecars: tuple[str, ...] = ()
    """Marks of companions that are taken instead of a model if there are any, best first."""

    def __str__(self) -> str:
        return f"{self.reference.repo}/{self.file}" if self.file else str(self.reference)


def sidecars_of(spec_type: str) -> tuple[str, ...]:
    """Return the companions to look for in a repository of draft models; without ``--spec-type`` any of them."""
    kinds = [kind.strip() for kind in spec_type.split(",")]
    return tuple(mark for kind, mark in SIDECARS.items() if kind in kinds or not spec_type)


def pick(wanted: Wanted, files: Iterable[RemoteFile]) -> Choice:
    """Return the chosen files of the repository. Raises NotFound, which lists the existing ones."""
    known = {file.path: file for file in sorted(files, key=lambda file: file.path)}
    if wanted.presets and PRESET_FILE in known:
        return Choice("", (known[PRESET_FILE],))
    if wanted.file:
        return _named(wanted, known)
    if sidecar := _sidecar(wanted, list(known.values())):
        return Choice(tag_of(stem_of(sidecar.name) or "") or "", (sidecar,))
    choice = choose(wanted.reference, known.values())
    return choice if wanted.projector else structs.replace(choice, projector=None)


def _named(wanted: Wanted, known: dict[str, RemoteFile]) -> Choice:
    found = known.get(wanted.file)
    if found is None:
        models = [path for path in known if stem_of(path.rpartition("/")[2]) is not None]
        more = ", ..." if len(models) > SHOWN_FILES else ""
        here = f"; it has {', '.join(models[:SHOWN_FILES])}{more}" if models else ""
        raise NotFound(f"{wanted.reference.repo} has no file {wanted.file}{here}")
    stem = stem_of(found.name) or ""
    tag = tag_of(stem) or ""
    if (shard := shard_of(stem)) is None:
        return Choice(tag, (found,), _projector_for(wanted, known, found))
    before = f"{found.folder}/" if found.folder else ""
    paths = [before + shard.name(number) for number in range(1, shard.total + 1)]
    if missing := [path for path in paths if path not in known]:
        raise NotFound(f"{wanted.reference.repo} lacks {missing[0]}, a part of the model; its owner has to upload it")
    return Choice(tag, tuple(known[path] for path in paths), _projector_for(wanted, known, found))


def _projector_for(wanted: Wanted, known: dict[str, RemoteFile], model: RemoteFile) -> RemoteFile | None:
    return nearest_projector(model.folder, known) if wanted.projector else None


def _sidecar(wanted: Wanted, files: Sequence[RemoteFile]) -> RemoteFile | None:
    """Choose the first existing kind; of several files of a kind the one with the wanted tag, else the first."""
    for mark in wanted.sidecars:
        found = [file for file in files if mark in file.name and stem_of(file.name) is not None]
        tagged = [file for file in found if tag_of(stem_of(file.name) or "") == wanted.reference.tag]
        if found:
            return (tagged or found)[0]
    return None
