"""llama-server's single mode: one model, from a file or from the cache, else downloaded into that.

Source of the options: llama-server of llama.cpp b11434. Different on purpose: a file in the cache is used without
asking whether there is a newer one, and every download is checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, structs

from appliance.catalog.found import here
from appliance.catalog.sources import ModelFolders, NamedFile
from appliance.cli.options import tools_of_options
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
from appliance.core.models.names import is_speakable
from appliance.core.settings import FleetSettings
from appliance.errors import ApplianceError, UsageError
from appliance.features.stand_in.front import FRONT, LOG_FILE, http_settings, is_on, value
from appliance.features.stand_in.preset_models import preset_file
from appliance.settings import AppSettings

REMOTE = ("--hf-repo", "--hf-file", "--hf-token", "--spec-draft-hf", "--model-url", "--docker-repo", "--mmproj-url")
"""Options that say what to fetch; the model process gets files instead."""
PROXY, NO_PAGE = "--ui-mcp-proxy", "--no-ui"
"""The front is the proxy and has the page; only the front reaches the model process, which reports both in ``/props``.
"""
STOP_TIMEOUT = 1.5
"""Programs that use llama-server expect it to end about three seconds after SIGTERM, busy or not."""


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
    def all(self) -> list[Remote]:
        return [one for one in (self.model, self.draft, self.mmproj) if one is not None]


def single_mode(options: Sequence[Option], places: ModelPaths) -> AppSettings:
    """Return the server of one model, whose files are here. Raises UsageError."""
    rest = flags.partition(options, FRONT)[1]
    fetched, engine_options = flags.partition(rest, REMOTE)
    for place, named in ((places.draft, "--spec-draft-model"), (places.mmproj, "--mmproj")):
        if place is not None:
            engine_options = flags.partition(engine_options, (named,))[1]
    model_id = _model_id(fetched, flags.last(engine_options, "--alias"), places)
    companions = (("--mmproj", places.mmproj), ("--model-draft", places.draft))
    http = http_settings(options, single=model_id)
    files = [word for flag, path in companions if path is not None for word in (flag, path)]
    told = [*((PROXY,) if http.cors_proxy else ()), *(() if http.page else (NO_PAGE,))]
    return AppSettings(
        http=http,
        fleet=FleetSettings(
            models_max=1,
            stop_timeout=STOP_TIMEOUT,
            engine_args=(*files, *told, *flags.render(engine_options)),
            metrics=False,
            fit=False,
        ),
        tools=tools_of_options(options),
        sources=ModelFolders(files=(NamedFile(model_id, places.model),), models_dir=None, cache=None, starter=None),
        preload=(model_id,),
        echo=True,
        quiet=is_on(options, "--log-disable", unsaid=False),
        log_file=value(options, LOG_FILE, "") or None,
    )


def _model_id(fetched: Sequence[Option], alias: Option | None, places: ModelPaths) -> str:
    """llama-server's own rule: the alphabetically first alias, else the repository as it was written, else the file."""
    names = sorted(name.strip() for name in alias.values[0].split(",")) if alias else []
    named = value(fetched, "--hf-repo", "") or value(fetched, "--docker-repo", "")
    model_id = next((name for name in names if name), None) or named or Path(places.model).name
    if not is_speakable(model_id):
        raise UsageError(f"the name {model_id!r} cannot be used for a model; give another with --alias")
    return model_id


def needs_of(options: Sequence[Option]) -> ModelSources:
    """Return what the options need. Raises UsageError for names that cannot belong to a repository."""
    seeing, named = flags.last(options, "--mmproj-url"), value(options, "--mmproj", "")
    model, draft = _wanted(options, "--hf-repo", "--hf-file"), _wanted(options, "--spec-draft-hf", "--spec-draft-model")
    if model is None and flags.last(options, "--hf-file") is not None:
        raise UsageError("--hf-file names a file of a repository; say which one with --hf-repo ORG/REPO")
    if model is not None:
        projector = is_on(options, "--mmproj-auto") and flags.last(options, "--mmproj") is None and seeing is None
        model = structs.replace(model, projector=projector, presets=True)
    if draft is not None:
        draft = structs.replace(draft, projector=False, sidecars=sidecars_of(value(options, "--spec-type", "")))
    return ModelSources(
        model=model or _elsewhere(options),
        draft=draft,
        mmproj=parse_location(seeing.values[0], named or None) if seeing is not None else None,
    )


def _elsewhere(options: Sequence[Option]) -> Remote | None:
    """Choose one of several sources as llama-server does: the repository, then the image, then the address."""
    if (image := flags.last(options, "--docker-repo")) is not None:
        return parse_image(image.values[0])
    if (url := flags.last(options, "--model-url")) is not None:
        return parse_location(url.values[0], value(options, "--model", "") or None)
    return None


def _wanted(options: Sequence[Option], repo: str, file: str) -> WantedModel | None:
    """Return the model of a repository, if one is named; ``file`` is the option that says which of its files."""
    option = flags.last(options, repo)
    if option is None:
        return None
    try:
        wanted = parse_wanted(option.values[0])
    except ApplianceError as error:
        raise UsageError(f"{option.flag}: {error}") from None
    if wanted.revision != MAIN:
        advice = "name its file's address with --model-url"
        raise UsageError(f"{option.flag}: {wanted} is another revision than {MAIN}; {advice}")
    return structs.replace(wanted, file=value(options, file, "") or wanted.file)


def cached(needs: ModelSources, options: Sequence[Option], cache: Path) -> ModelPaths | None:
    """Return all needed files, if they are in the cache."""
    found = {wanted: here(cache, wanted) for wanted in needs.all}
    if None in found.values():
        return None
    model, draft, mmproj = (found[one] if one is not None else None for one in (needs.model, needs.draft, needs.mmproj))
    seeing = model.mmproj if model is not None else None
    return ModelPaths(
        model=model.files[0] if model is not None else str(Path(value(options, "--model", "")).absolute()),
        mmproj=mmproj.files[0] if mmproj is not None else seeing,
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
