"""llama-server's router mode: no model of its own, but many to choose from, each in a process of its own.

Source of the behaviour: llama-server of llama.cpp b11434. Different on purpose: options of the server in front (tools,
CORS, prefix and the like) never reach the model processes, and neither does ``--hf-token``, which clients would see.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import structs

from appliance.catalog.found import cache_directory
from appliance.catalog.sources import ModelFolders
from appliance.cli.options import tools_of_options
from appliance.core.llama import flags
from appliance.core.llama.flags import Option
from appliance.core.settings import DEFAULT_MODELS_MAX, FleetSettings
from appliance.errors import UsageError
from appliance.features.stand_in.core.preset_file import LOAD_ON_STARTUP, NONE, Choices, chosen, wrong_value
from appliance.features.stand_in.front import LOG_FILE, http_settings, is_on, number, value
from appliance.features.stand_in.preset_models import PresetSource, open_presets, preset_file
from appliance.platform.console import say
from appliance.platform.home import users_home
from appliance.settings import AppSettings

SLOWED = "LLAMA_SERVER_DEBUG_FAKE_TIMING"
SLOWED_BY = 2.0  # seconds that models start later and are held longer, which shows the waiting order, where that is set


def router_mode(from_argv: Sequence[Option], from_environ: Sequence[Option], environ: Mapping[str, str]) -> AppSettings:
    """Return the router that these options ask for. Raises UsageError, or InvalidConfig for a preset file.

    Numbers are checked first, as llama-server does: a model process would report a mistake late, and to nobody.
    """
    options = flags.merge(from_argv, from_environ)
    for option in options:
        flag = flags.lookup(option.canonical)
        if flag is not None and len(option.values) == 1 and (wrong := wrong_value(flag, option.flag, option.values[0])):
            raise UsageError(wrong)
    models_max = number(options, "--models-max", DEFAULT_MODELS_MAX, 0)
    cache = cache_directory(environ, users_home()).absolute()
    theirs = preset_of_repository(options, cache)
    file = value(options, "--models-preset", "")
    presets = presets_of(
        theirs or (Path(file) if file else None), chosen(from_environ), chosen(from_argv), strange=theirs is not None
    )
    _check_startup(presets, models_max)
    slowed = SLOWED_BY if environ.get(SLOWED) else 0.0
    return AppSettings(
        http=structs.replace(
            http_settings(options, single=None, autoload=is_on(options, "--models-autoload")), held_for=slowed
        ),
        fleet=FleetSettings(models_max=models_max, metrics=False, fit=False, start_delay=slowed),
        tools=tools_of_options(options),
        sources=ModelFolders(
            models_dir=_models_dir(value(options, "--models-dir", "")),
            cache=cache,
            starter=None,
            presets=presets,
        ),
        hub_token=value(options, "--hf-token", "") or None,
        echo=True,
        quiet=is_on(options, "--log-disable", unsaid=False),
        log_file=value(options, LOG_FILE, "") or None,
    )


def preset_of_repository(options: Sequence[Option], cache: Path) -> Path | None:
    """Return the presets that ``--hf-repo`` means, if that repository holds presets and is in the cache."""
    return preset_file(cache, value(options, "--hf-repo", "").partition(":")[0])


def presets_of(
    file: Path | None, environment: Choices = NONE, command: Choices = NONE, *, strange: bool = False
) -> PresetSource:
    """Return the presets and the options beside them, and print oddities of the file. Raises UsageError."""
    cache = cache_directory(os.environ, users_home()).absolute()
    presets, warnings = open_presets(file, environment=environment, command=command, strange=strange, cache=cache)
    for warning in warnings:
        say(str(warning))
    return presets


def _models_dir(text: str) -> Path | None:
    if not text:
        return None
    path = Path(text).absolute()
    if not path.is_dir():
        wrong = "is not a folder" if path.exists() else "does not exist"
        raise UsageError(f"--models-dir {path} {wrong}; create it, or name another")
    return path


def _check_startup(presets: PresetSource, models_max: int) -> None:
    """Count only models with a section; models that ``[*]`` starts are known after the first look at the disk."""
    layers = presets.layers
    sections = {name: layers.of(name) for name in layers.presets.sections}
    wanted = [name for name, choices in sections.items() if LOAD_ON_STARTUP in choices and choices[LOAD_ON_STARTUP].on]
    if models_max and len(wanted) > models_max:
        raise UsageError(
            f"{len(wanted)} models are configured to load at the start ({', '.join(wanted)}), and --models-max is "
            f"{models_max}; raise it, or take {LOAD_ON_STARTUP} away from some"
        )
