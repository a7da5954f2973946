"""Options from the environment and from llama-server's configuration files, and the place that Vertex AI gives it.

A configuration file has the form of a preset file: what stands in front of the first section counts, and ``[*]`` below
that; other sections and unknown keys do not. Its options are weaker than the environment. Vertex AI's variables
(``AIP_*``) are read as llama-server reads them (b11434).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import structs

from appliance.core.bodies.usual_path import usual_path
from appliance.core.config.nodes import Problem
from appliance.core.llama import flags
from appliance.core.llama.flags import Option
from appliance.core.settings import DEFAULT_PORT, UnixSocket, at_port
from appliance.core.whole_numbers import whole_number
from appliance.errors import InvalidConfig, UsageError
from appliance.features.stand_in.core.preset_file import DEFAULT, EVERYWHERE, HF_TOKEN, KEYS, parse, read_key
from appliance.features.stand_in.preset_models import read_ini
from appliance.platform.console import say
from appliance.platform.home import users_home
from appliance.settings import AppSettings

BELOW = Path("llama.cpp") / "config.ini"
OF_THE_SYSTEM = Path("/etc")


def from_surroundings(environ: Mapping[str, str]) -> list[Option]:
    """Return the options from the environment and llama-server's configuration files. Raises UsageError."""
    own = Path(environ.get("XDG_CONFIG_HOME") or users_home() / ".config")
    files = [folder / BELOW for folder in (OF_THE_SYSTEM, own)]  # the weaker first
    from_files = [option for file in files if file.is_file() for option in options_of(file)]
    from_environ = [option for option in flags.from_env(environ) if option.flag != HF_TOKEN]
    return flags.merge(from_environ, from_files)


def options_of(file: Path) -> list[Option]:
    """Read the file's options and print its oddities. Raises UsageError, or InvalidConfig for all mistakes."""
    sections, problems = parse(read_ini(file, named_by="llama-server's configuration"), str(file))
    settings = {section.name: section.settings for section in sections}
    options: list[Option] = []
    for setting in (*settings.get(EVERYWHERE, ()), *settings.get(DEFAULT, ())):
        if setting.key not in KEYS:
            message = f"llama-server has no option '{setting.key}'; it is ignored"
            problems.append(Problem(message=message, at=setting.at, level="warning"))
            continue
        choice = read_key(setting.key, setting.value, f"{file}:{setting.at.line}")
        if isinstance(choice, str):
            problems.append(Problem(message=choice, at=setting.at))
        elif choice.words:  # a switch that is off has none: the command line cannot express it
            name, words = choice.name, choice.words
            options.append(Option(flag=choice.origin, canonical=name, values=words[1:], on=choice.on, words=words))
    if errors := [problem for problem in problems if problem.level == "error"]:
        raise InvalidConfig(errors)
    for problem in problems:
        say(str(problem))
    return options


def on_vertex(settings: AppSettings, environ: Mapping[str, str]) -> AppSettings:
    """Return the settings for that environment; without it they stay the same. Raises UsageError."""
    if environ.get("AIP_MODE") != "PREDICTION":  # the only mode there is
        return settings
    http = settings.http
    text = environ.get("AIP_HTTP_PORT") or str(DEFAULT_PORT)
    port = whole_number(text)
    if port is None or port > 65535:
        raise UsageError(f"AIP_HTTP_PORT={text}: a port is a number from 0 to 65535")
    for other in {place[1] for place in http.listen if not isinstance(place, UnixSocket)} - {port}:
        say(f"AIP_HTTP_PORT counts: listening on port {port}, not {other}")
    names = ("AIP_PREDICT_ROUTE", "AIP_HEALTH_ROUTE")
    predict, health = (usual_path(f"/{path}") if (path := environ.get(name)) else None for name in names)
    served = structs.replace(http, listen=at_port(http.listen, port), predict=predict or "/predict", health=health)
    return structs.replace(settings, http=served)
