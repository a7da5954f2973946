"""The files of llama-server's one model when it is not named as a file: from the cache, else downloaded into it.

Source of the options: llama-server of llama.cpp b11434. Different on purpose: a file in the cache is used without
asking whether there is a newer one, and every download is checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, structs

from appliance.catalog.found import here, preset_file
from appliance.cli.verb import Bring
from appliance.core.llama import flags
from appliance.core.llama.flags import Option
from appliance.core.models.download import (
    Remote,
    WantedModel,
    parse_image,
    parse_location,
    parse_wanted,
    sidecars_of,
)
from appliance.core.models.hub_address import MAIN, HubAccess
from appliance.errors import ApplianceError, UsageError
from appliance.features.stand_in.front import is_on, value

REMOTE = ("--hf-repo", "--hf-file", "--hf-token", "--spec-draft-hf", "--model-url", "--docker-repo", "--mmproj-url")
"""Options that say what to fetch; the model process gets files instead."""


class ModelPaths(Struct, frozen=True, kw_only=True):
    """The files of the model and of its companions."""

    model: str
    mmproj: str | None = None
    draft: str | None = None


class ModelSources(Struct, frozen=True, kw_only=True):
    """The options' sources other than files; each may be None."""

    model: Remote | None = None
    draft: WantedModel | None = None
    mmproj: Remote | None = None

    @property
    def all(self) -> tuple[Remote, ...]:
        return tuple(one for one in (self.model, self.draft, self.mmproj) if one is not None)


def needs_of(options: Sequence[Option]) -> ModelSources:
    """Return what the options need. Raises UsageError for names that cannot belong to a repository."""
    repo = flags.last(options, "--hf-repo")
    draft = flags.last(options, "--spec-draft-hf")
    seeing = flags.last(options, "--mmproj-url")
    if repo is None and flags.last(options, "--hf-file") is not None:
        raise UsageError("--hf-file names a file of a repository; say which one with --hf-repo ORG/REPO")
    return ModelSources(
        model=_model(repo, options) if repo is not None else _elsewhere(options),
        draft=_draft(draft, options) if draft is not None else None,
        mmproj=parse_location(seeing.values[0], value(options, "--mmproj", "") or None) if seeing is not None else None,
    )


def _model(repo: Option, options: Sequence[Option]) -> WantedModel:
    wants_projector = is_on(options, "--mmproj-auto")
    named = flags.last(options, "--mmproj") or flags.last(options, "--mmproj-url")
    wanted = _wanted(repo)
    return structs.replace(
        wanted,
        file=value(options, "--hf-file", "") or wanted.file,
        projector=wants_projector and named is None,
        presets=True,
    )


def _elsewhere(options: Sequence[Option]) -> Remote | None:
    """Choose one of several sources as llama-server does: the repository, then the image, then the address."""
    if (image := flags.last(options, "--docker-repo")) is not None:
        return parse_image(image.values[0])
    if (url := flags.last(options, "--model-url")) is not None:
        return parse_location(url.values[0], value(options, "--model", "") or None)
    return None


def _draft(repo: Option, options: Sequence[Option]) -> WantedModel:
    wanted = _wanted(repo)
    return structs.replace(
        wanted,
        file=value(options, "--spec-draft-model", "") or wanted.file,
        projector=False,
        sidecars=sidecars_of(value(options, "--spec-type", "")),
    )


def _wanted(option: Option) -> WantedModel:
    try:
        wanted = parse_wanted(option.values[0])
    except ApplianceError as error:
        raise UsageError(f"{option.flag}: {error}") from None
    if wanted.revision != MAIN:
        raise UsageError(
            f"{option.flag}: {wanted} is another revision than {MAIN}; name its file's address with --model-url"
        )
    return wanted


def cached(needs: ModelSources, options: Sequence[Option], cache: Path) -> ModelPaths | None:
    """Return all needed files, if they are in the cache."""
    found = {wanted: here(cache, wanted) for wanted in needs.all}
    if None in found.values():
        return None
    model, draft, mmproj = (
        found.get(one) if one is not None else None for one in (needs.model, needs.draft, needs.mmproj)
    )
    seeing = mmproj.files[0] if mmproj is not None else None
    return ModelPaths(
        model=model.files[0] if model is not None else str(Path(value(options, "--model", "")).absolute()),
        mmproj=seeing or (model.mmproj if model is not None else None),
        draft=draft.files[0] if draft is not None else None,
    )


async def fetch(bring: Bring, needs: ModelSources, hub: HubAccess, cache: Path) -> int | None:
    """Bring all files into the cache, or the presets that a repository holds instead of a model.

    Returns the exit status if the user has stopped it. Raises the hub's refusal, or DownloadFailed.
    """
    status = None
    for wanted in needs.all:
        if here(cache, wanted) is None:
            status = await bring(wanted, cache, hub)
        if status is not None or (isinstance(wanted, WantedModel) and preset_file(cache, wanted.reference.repo)):
            break
    return status


def missing(needs: ModelSources, cache: Path, *, downloads: bool) -> UsageError:
    """Name what is not here. ``downloads``: the program could fetch it, but ``--offline`` forbids that."""
    absent = [str(wanted) for wanted in needs.all if here(cache, wanted) is None]
    why = "--offline (or HF_HUB_OFFLINE) forbids downloading it; leave that out once, while there is a network"
    return UsageError(
        f"{' and '.join(absent)} is not in the cache at {cache}, and "
        + (why if downloads else "this program downloads nothing; put it there, or name a file with --model")
    )
