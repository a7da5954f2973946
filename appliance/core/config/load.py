"""From the text of the files to a configuration in force, or to everything that is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from appliance.core.config import nodes
from appliance.core.config.decode import decode
from appliance.core.config.loaded import NO_PORTS, Loaded, Source
from appliance.core.config.macros import expand
from appliance.core.config.merge import merge
from appliance.core.config.nodes import Position, Problem
from appliance.core.config.types import Config
from appliance.core.config.validate import normalise
from appliance.core.config.yaml import parse


def load(
    sources: Sequence[Source], env: Mapping[str, str], *, windows: bool = False, ports: dict[str, int] = NO_PORTS
) -> Loaded:
    """Read files as one configuration; the first is the base of the others. Never raises because of their content.

    ``ports`` are what models have now and keep. A file that is not YAML stops the examination after all were parsed,
    because the meaning of the others depends on it.
    """
    files: list[Problem] = []
    documents: list[nodes.Mapping] = []
    readable = True
    for source in sources:
        root, found = _read(source, env)
        files += found
        if isinstance(root, nodes.Mapping):
            documents.append(root)
        elif any(problem.level == "error" for problem in found):
            readable = False
    config, stages, given = _mean(documents, windows, ports) if readable else (None, [], NO_PORTS)
    ordered = sorted(_causes([files, *stages]), key=_order([source.file for source in sources]))
    failed = any(problem.level == "error" for problem in ordered)
    return Loaded(None if failed else config, tuple(ordered), given)


def _read(source: Source, env: Mapping[str, str]) -> tuple[nodes.Node | None, list[Problem]]:
    """The tree of one file; None for an empty file, and for one that cannot be read, which then has an error."""
    text, problems = source.text, list[Problem]()
    if "${env." in text:
        from appliance.core.config.env import substitute_env  # its patterns take longer than a file without it

        text, problems = substitute_env(text, source.file, env)
    root, found = parse(text, source.file)
    return root, [*problems, *found]


def _mean(
    documents: Sequence[nodes.Mapping], windows: bool, ports: dict[str, int]
) -> tuple[Config, list[list[Problem]], dict[str, int]]:
    """The configuration that the documents are together, what each stage found, and the ports of the models."""
    stages: list[list[Problem]] = []
    root: nodes.Mapping | None = None
    given = NO_PORTS
    if documents:
        root, found = merge(documents)
        stages.append(found)
        root, found, given = expand(root, ports)
        stages.append(found)
    decoded = decode(root)
    config, found = normalise(decoded.config, decoded.places, windows)
    return config, [*stages, decoded.problems, found], given


def _causes(stages: Sequence[Sequence[Problem]]) -> list[Problem]:
    """Without what only follows from what an earlier stage said of the same value. An error never hides behind a
    warning."""
    kept: list[Problem] = []
    paths: dict[str, str] = {}
    places: set[Position] = set()
    for stage in stages:
        new = [
            problem
            for problem in stage
            if problem.at not in places and paths.get(problem.path) not in ("error", problem.level)
        ]
        kept += new
        for problem in new:
            if problem.path:
                paths[problem.path] = "error" if paths.get(problem.path) == "error" else problem.level
            elif problem.level == "error" and problem.at is not None:
                places.add(problem.at)  # of a variable that is not set, only the place is known
    return kept


def _order(files: Sequence[str]) -> Callable[[Problem], tuple[int, int, int]]:
    def place(problem: Problem) -> tuple[int, int, int]:
        if problem.at is None:
            return (len(files) + 1, 0, 0)
        index = files.index(problem.at.file) if problem.at.file in files else len(files)
        return (index, problem.at.line, problem.at.column)

    return place
