"""From the text of the files to a configuration in force, or to everything that is wrong with them.

Several files become one first: mappings are joined key by key, lists one behind the other, and a value may be said
twice if it is the same. Below the places in `_NAMES` a key is the name of a thing, and one thing is described in one
file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from appliance.core.config.decode import decode
from appliance.core.config.macros import expand
from appliance.core.config.nodes import (
    NO_PORTS,
    KeyValue,
    Loaded,
    MappingNode,
    Node,
    Position,
    Problem,
    ScalarNode,
    SequenceNode,
    SourceFile,
)
from appliance.core.config.secret_places import find
from appliance.core.config.types import Config
from appliance.core.config.validate import normalise
from appliance.core.config.yaml import parse
from appliance.core.secrets import REDACTED

_NAMES = frozenset(
    tuple(path.split("."))
    for path in (
        *("models", "groups", "profiles", "selectors", "peers", "matrix"),
        *("routing.router.settings.groups", "routing.router.settings.matrix"),
    )
)


NOTHING = frozenset[str]()


def load(
    sources: Sequence[SourceFile],
    env: Mapping[str, str],
    *,
    windows: bool = False,
    ports: dict[str, int] = NO_PORTS,
    config_type: type[Config] = Config,
) -> Loaded:
    """Read files as one configuration; the first is the base of the others. Never raises because of their content.

    ``ports`` are what models have now and keep; ``config_type`` has the keys that are known. A file that is not YAML
    stops the examination after all were parsed, because the meaning of the others depends on it.
    """
    files: list[Problem] = []
    documents: list[MappingNode] = []
    readable = True
    for source in sources:
        root, found = parse(source.text, source.file, env)
        if isinstance(root, MappingNode):
            documents.append(root)
        elif any(problem.level == "error" for problem in found):
            readable = False
            found = [_without_values(problem) for problem in found]
        files += found
    config, stages, given, ignored = (
        _mean(documents, windows, ports, config_type) if readable else (None, [], NO_PORTS, NOTHING)
    )
    files, *stages = ([_only_odd(problem, ignored) for problem in stage] for stage in (files, *stages))
    order = {source.file: number for number, source in enumerate(sources)}

    def place(problem: Problem) -> tuple[int, int, int]:
        at = problem.at
        return (order[at.file], at.line, at.column) if at else (len(order), 0, 0)

    ordered = sorted(_without_secrets(_causes([files, *stages]), documents, config_type), key=place)
    failed = any(problem.level == "error" for problem in ordered)
    return Loaded(None if failed else config, tuple(ordered), given)


def _without_secrets(
    problems: Sequence[Problem], documents: Sequence[MappingNode], config_type: type[Config]
) -> list[Problem]:
    """The problems as they may be logged and shown to clients: where a secret is written wrongly, a message has it."""
    if not problems:
        return []
    found = find(documents, config_type)
    secrets = found.secrets

    def hidden(problem: Problem, text: str) -> str:
        value = found.whole.get(problem.at) if problem.at is not None else None
        text = secrets.hidden(text)
        for form in (value.text, " ".join(value.text.split())) if value is not None and value.text.strip() else ():
            text = text.replace(form, REDACTED)
        return text

    return [
        replace(problem, message=hidden(problem, problem.message), path=hidden(problem, problem.path))
        for problem in problems
    ]


def _without_values(problem: Problem) -> Problem:
    """The problem without quoted values: in a file that cannot be read, any of them may be a secret."""
    return replace(problem, message=re.sub("(?s)'.*'", f"'{REDACTED}'", problem.message), path="")


def _mean(
    documents: Sequence[MappingNode], windows: bool, ports: dict[str, int], config_type: type[Config]
) -> tuple[Config, list[list[Problem]], dict[str, int], frozenset[str]]:
    """The configuration that the documents are together, what each stage found, the models' ports, ignored paths."""
    stages: list[list[Problem]] = []
    root: MappingNode | None = None
    given = NO_PORTS
    if documents:
        root, found = merge(documents)
        stages.append(found)
        root, found, given = expand(root, ports, config_type)
        stages.append(found)
    decoded = decode(root, config_type)
    config, found = normalise(decoded.config, decoded.places, windows)
    return config, [*stages, decoded.problems, found], given, decoded.ignored


def _only_odd(problem: Problem, ignored: frozenset[str]) -> Problem:
    """The problem, as a warning where it is in a value that is ignored."""
    path = problem.path
    outer = (path[:at] for at in (*(found.start() for found in re.finditer(r"[.\[]", path)), len(path)))
    return replace(problem, level="warning") if any(each in ignored for each in outer) else problem


# One mistake can show in several stages: a macro that does not exist leaves text where a number is expected. The first
# stage knows the cause, so later stages' problems of the same path are dropped. All problems of one stage are kept, and
# an error is kept behind a warning, because the warning is not its cause.
def _causes(stages: Sequence[Sequence[Problem]]) -> list[Problem]:
    """Drop problems that only follow from an earlier stage's problem of the same value."""
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


def merge(documents: Sequence[MappingNode]) -> tuple[MappingNode, list[Problem]]:
    """The first document with the others joined to it in order; at a contradiction the earlier value stays.

    Every node keeps the place of its own file. A problem's place is in the later file; its message names the earlier.
    """
    if not documents:
        return MappingNode((), Position("", 1, 1)), []
    problems: list[Problem] = []
    merged = documents[0]
    for document in documents[1:]:
        merged = _mappings(merged, document, (), problems)
    return merged, problems


def _mappings(base: MappingNode, other: MappingNode, path: tuple[str, ...], problems: list[Problem]) -> MappingNode:
    entries = {entry.key.text: entry for entry in base.entries}
    for entry in other.entries:
        name = entry.key.text
        known = entries.get(name)
        if known is None:
            entries[name] = entry
        elif path in _NAMES:
            where = f"'{name}' is already in {known.key.at}"
            _report(problems, f"{where}; describe it in one file, or rename one", (*path, name), entry.key.at)
        else:
            entries[name] = KeyValue(known.key, _nodes(known.value, entry.value, (*path, name), problems))
    return MappingNode(tuple(entries.values()), base.at)


def _nodes(base: Node, other: Node, path: tuple[str, ...], problems: list[Problem]) -> Node:
    match base, other:
        case (ScalarNode(value=None), _):
            return other
        case (_, ScalarNode(value=None)):
            return base
        case (MappingNode(), MappingNode()):
            return _mappings(base, other, path, problems)
        case (SequenceNode(), SequenceNode()):
            return SequenceNode((*base.items, *other.items), base.at)
        case (ScalarNode(), ScalarNode()):
            if base.text != other.text or type(base.value) is not type(other.value):
                _report(problems, f"this differs from the value in {base.at}; keep one of them", path, other.at)
        case _:
            why = f"this is {_shown(other)}, but {_shown(base)} in {base.at}; write both in the same form"
            _report(problems, why, path, other.at)
    return base


def _report(problems: list[Problem], message: str, path: tuple[str, ...], at: Position) -> None:
    problems.append(Problem(message=message, path=".".join(path), at=at))


def _shown(node: Node) -> str:
    match node:
        case ScalarNode():
            return "a single value"
        case MappingNode():
            return "a mapping"
        case SequenceNode():
            return "a list"
