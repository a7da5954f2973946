"""The places of the files of a preset's model, and the downloads for missing ones."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from msgspec import structs

from appliance.catalog.found import Found, all_shards
from appliance.catalog.hub_cache import Cached, in_cache
from appliance.core.llama.presets import DRAFT_REPO, IMAGE, PROJECTOR_URL, REPO, REPO_FILE, URL, Definition
from appliance.core.models.download import Wanted, parse_reference, sidecars_of
from appliance.core.models.elsewhere import Remote, parse_image, parse_location
from appliance.errors import BadRequest, UsageError


def placed(model: Found, definition: Definition, cache: Path | None) -> Found:
    """Return the model with its files, or with the downloads into ``cache`` for its first request."""
    model, projector, needs = _model(model, definition, cache)
    args = [*definition.args]
    fetch: list[Remote] = []
    for wanted, words in needs:
        args += words
        fetch.append(wanted)
    if definition.mmproj_url and definition.projector:
        mistake, seeing = _read(lambda: parse_location(definition.mmproj_url, _path(definition.mmproj)))
        if seeing is None:
            model = structs.replace(model, error=model.error or mistake)
        elif hit := _here(cache, seeing):
            projector = hit.files[0]
        else:
            args += [PROJECTOR_URL, definition.mmproj_url]
            fetch.append(seeing)
    draft = definition.draft
    if not draft and definition.draft_repo and (guesses := _draft(definition)):
        if hit := _here(cache, guesses):
            draft = hit.files[0]
        else:
            args += [DRAFT_REPO, definition.draft_repo]
            fetch.append(guesses)
    if fetch and "--offline" in args:
        error = f"{fetch[0]} is not in the cache, and 'offline' forbids downloading it; remove that once"
        model = structs.replace(model, error=model.error or error)
    return structs.replace(
        model,
        args=tuple(args),
        fetch=tuple(fetch),
        mmproj=_absolute(projector) if projector and definition.projector else None,
        draft=_absolute(draft) if draft else None,
    )


def _model(
    model: Found, definition: Definition, cache: Path | None
) -> tuple[Found, str, list[tuple[Remote, list[str]]]]:
    """Return the model with its own files, its projector, and missing ones with the options that name them.

    As in llama-server a repository goes before an image, and that before an address.
    """
    projector = definition.mmproj
    if not definition.repo and (definition.image or definition.url):
        return _from_elsewhere(model, definition, cache)
    if definition.model:
        path = _absolute(definition.model)
        if path != (model.files[:1] or ("",))[0]:
            model = Found(id=model.id, source=model.source, files=all_shards(Path(path)))
    elif model.source == "cache" and model.files and (definition.repo, definition.repo_file) == (model.id, ""):
        projector = projector or model.mmproj or ""  # it was just found there
    elif (wanted := _wanted(definition, model.id)) and (hit := _here(cache, wanted)):
        projector = projector or hit.mmproj or ""
        repo = wanted.reference.repo
        model = structs.replace(model, files=hit.files, repo=repo, tag=hit.tag, mmproj=None)
    elif wanted and definition.repo:
        words = [REPO, definition.repo, *((REPO_FILE, definition.repo_file) if definition.repo_file else ())]
        return model, projector, [(wanted, words)]
    elif not model.files:
        error = f"its preset [{model.id}] does not say which file it is; add model = PATH, or hf-repo = ORG/REPO:TAG"
        model = structs.replace(model, error=error)
    return model, projector, []


def _from_elsewhere(
    model: Found, definition: Definition, cache: Path | None
) -> tuple[Found, str, list[tuple[Remote, list[str]]]]:
    """Return the same for a model in a registry or at an address."""
    image, url = definition.image, definition.url
    projector = definition.mmproj
    mistake, wanted = _read(lambda: parse_image(image) if image else parse_location(url, _path(definition.model)))
    if wanted is None:
        return structs.replace(model, files=(), error=mistake), projector, []
    if (hit := _here(cache, wanted)) is None:
        words = [IMAGE, image] if image else [URL, url]
        return structs.replace(model, files=()), projector, [(wanted, words)]
    return structs.replace(model, files=hit.files, mmproj=None), projector or hit.mmproj or "", []


def _read(parse: Callable[[], Remote]) -> tuple[str | None, Remote | None]:
    """Return a name's mistake, or its meaning."""
    try:
        return None, parse()
    except (UsageError, BadRequest) as error:
        return str(error), None


def _here(cache: Path | None, wanted: Remote) -> Cached | None:
    if isinstance(wanted, Wanted):
        return in_cache(cache, wanted) if cache is not None else None
    from appliance.catalog.download_source import here  # with all of downloading, which a command line does without

    return here(cache, wanted) if cache is not None else None


def _wanted(definition: Definition, model_id: str) -> Wanted | None:
    """Return the model of a preset's repository, or its name. None if it does not name a repository."""
    try:
        reference = parse_reference(definition.repo or model_id)
    except BadRequest:
        return None
    projector = definition.projector and not definition.mmproj and not definition.mmproj_url
    return Wanted(reference=reference, file=definition.repo_file, projector=projector)


def _draft(definition: Definition) -> Wanted | None:
    try:
        reference = parse_reference(definition.draft_repo)
    except BadRequest:
        return None
    spec_type = next((value for flag, value in pairwise(definition.args) if flag == "--spec-type"), "")
    return Wanted(reference=reference, projector=False, sidecars=sidecars_of(spec_type))


def _path(text: str) -> str | None:
    return _absolute(text) if text else None


def _absolute(path: str) -> str:
    """llama-server takes paths from its working folder; the home folder's sign is this program's addition."""
    return str((Path(path).expanduser() if path.startswith("~/") else Path(path)).absolute())
