"""The sum of the choices for one model: its names, its files, its engine's flags."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from appliance.core import llama_flags
from appliance.core.preset_keys import DEDUP, ENGINE, LOAD_ON_STARTUP, STOP_TIMEOUT, Choice, Choices
from appliance.core.presets import listed

MODEL = "--model"
PROJECTOR = "--mmproj"
DRAFT = "--model-draft"
REPO = "--hf-repo"
REPO_FILE = "--hf-file"
DRAFT_REPO = "--hf-repo-draft"
URL = "--model-url"
PROJECTOR_URL = "--mmproj-url"
IMAGE = "--docker-repo"
ALIAS = "--alias"
TAGS = "--tags"
NO_FLAGS = frozenset((MODEL, PROJECTOR, DRAFT, REPO, REPO_FILE, DRAFT_REPO, URL, PROJECTOR_URL, IMAGE, ALIAS, TAGS))
"""Choices with a field of their own in `Definition`. (The names are llama-server's own, see `Choice.name`.)"""


class Definition(Struct, frozen=True, kw_only=True):
    """One model as presets, command line and environment define it. Paths are as written, "" for none."""

    aliases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    model: str = ""
    mmproj: str = ""
    draft: str = ""
    repo: str = ""
    """``org/repo`` or ``org/repo:TAG`` on Hugging Face."""
    repo_file: str = ""
    draft_repo: str = ""
    image: str = ""
    """In a registry of container images."""
    url: str = ""
    """The address of a file, which is stored at ``model`` if that is set."""
    mmproj_url: str = ""
    projector: bool = True
    """Use a projector that is found beside the model."""
    args: tuple[str, ...] = ()
    """The engine's flags, without those that say where the files are."""
    load_on_startup: bool = False
    stop_timeout: float | None = None
    engine: str = ""
    """The requested engine, as `Wanted.word`."""
    dedup: bool = False
    """Do not list the cached models that this one stands for."""
    preset: str = ""
    """The whole definition as a section of llama-server's INI."""
    origins: tuple[tuple[str, str], ...] = ()
    """Each option with its source."""


def define(model_id: str, choices: Choices) -> Definition:
    """Sum up the choices for a model."""
    ordered = sorted(choices.values(), key=_place)
    stop = choices.get(STOP_TIMEOUT)
    return Definition(
        aliases=tuple(alias for alias in listed(choices, ALIAS) if alias != model_id),
        tags=listed(choices, TAGS),
        model=_text(choices, MODEL),
        mmproj=_text(choices, PROJECTOR),
        draft=_text(choices, DRAFT),
        repo=_text(choices, REPO),
        repo_file=_text(choices, REPO_FILE),
        draft_repo=_text(choices, DRAFT_REPO),
        image=_text(choices, IMAGE),
        url=_text(choices, URL),
        mmproj_url=_text(choices, PROJECTOR_URL),
        projector=_is_on(choices, "--mmproj-auto", unsaid=True),
        args=tuple(word for choice in ordered if choice.name not in NO_FLAGS for word in choice.words),
        load_on_startup=_is_on(choices, LOAD_ON_STARTUP),
        stop_timeout=float(stop.text) if stop is not None else None,
        engine=_text(choices, ENGINE),
        dedup=_is_on(choices, DEDUP),
        preset=_ini(model_id, ordered),
        origins=tuple((choice.name, choice.origin) for choice in ordered),
    )


def _place(choice: Choice) -> str:
    """llama-server's order: by the first spelling, its router's own keys last."""
    flag = llama_flags.lookup(choice.name)
    return flag.spellings[0] if flag is not None else choice.name


def _ini(model_id: str, choices: Iterable[Choice]) -> str:
    lines = [f"{choice.name.lstrip('-')} = {choice.text}" for choice in choices if choice.name not in (ALIAS, TAGS)]
    return "".join(f"{line}\n" for line in (f"[{model_id}]", *lines, ""))


def _text(choices: Choices, name: str) -> str:
    choice = choices.get(name)
    return choice.text if choice is not None else ""


def _is_on(choices: Choices, name: str, *, unsaid: bool = False) -> bool:
    choice = choices.get(name)
    return choice.on if choice is not None else unsaid
