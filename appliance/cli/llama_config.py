"""llama-server's configuration file: options that apply to every start, weaker than the environment.

It has the form of a preset file: what stands in front of the first section counts, and ``[*]`` below that; other
sections and unknown keys do not. Source: llama-server of llama.cpp b11434, by trial.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from appliance.catalog.presets import read_ini
from appliance.core.config.nodes import Problem
from appliance.core.llama.flags import Option
from appliance.core.llama.preset_file import DEFAULT, EVERYWHERE, Choice, is_known, parse, read_key
from appliance.errors import InvalidConfig
from appliance.platform.console import say

BELOW = Path("llama.cpp") / "config.ini"
OF_THE_SYSTEM = Path("/etc")


def config_files(environ: Mapping[str, str], home: Path) -> list[Path]:
    """Return the existing files, the weaker first."""
    own = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    return [folder / BELOW for folder in (OF_THE_SYSTEM, own) if (folder / BELOW).is_file()]


def options_of(file: Path) -> list[Option]:
    """Read the file's options and print its oddities. Raises UsageError, or InvalidConfig for all mistakes."""
    sections, problems = parse(read_ini(file, named_by="llama-server's configuration"), str(file))
    settings = {section.name: section.settings for section in sections}
    options: list[Option] = []
    for setting in (*settings.get(EVERYWHERE, ()), *settings.get(DEFAULT, ())):
        if not is_known(setting.key):
            message = f"llama-server has no option '{setting.key}'; it is ignored"
            problems.append(Problem(message=message, at=setting.at, level="warning"))
            continue
        choice = read_key(setting.key, setting.value, f"{file}:{setting.at.line}")
        if isinstance(choice, str):
            problems.append(Problem(message=choice, at=setting.at))
        else:
            options += _option(choice)
    if errors := [problem for problem in problems if problem.level == "error"]:
        raise InvalidConfig(errors)
    for problem in problems:
        say(str(problem))
    return options


def _option(choice: Choice) -> Iterator[Option]:
    """Return nothing for a switch that is off, which the command line cannot express."""
    if choice.words:
        name, *values = choice.words
        yield Option(
            flag=choice.origin, canonical=choice.name, values=tuple(values), on=choice.on, words=(name, *values)
        )
