"""The way of the program to a kernel and features. Run by `bootstrap.py check`.

The kernel imports no feature; import-linter sees to that for the folders in `appliance/features`. `PLANNED` names the
modules that are still among the kernel's and will be a feature's. Each import of one of them by the rest of the kernel
is an exception, and so is each import between two of them. Their numbers stand here, so that they can only become
fewer: another number than the one that is found fails, and a test compares them with those of the commit before.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
FROM_KERNEL = 0
"""Imports by the kernel of what is to be a feature."""
BETWEEN = 0
"""Imports by what is to be a feature of what is to be another one."""
PLANNED = {
    "engines": "cli.engines* core.engines* engines.background engines.carried engines.choosing engines.findings "
    "engines.found engines.installing engines.owner engines.probing engines.proving engines.shelf engines.table "
    "engines.trial engines.updating fleet.rpc_server store.engine_state",
}
LISTS = {"__main__", "main", "composition", "feature", "features"}
"""These put the program together: they name what they open."""


def feature_of(module: str) -> str:
    """The feature that a module belongs to or will belong to, "" for the kernel's."""
    name = module.partition(".")[2]
    if name.startswith("features."):
        return name.split(".")[1]
    fits = (feature for feature, patterns in PLANNED.items() for each in patterns.split() if fnmatchcase(name, each))
    return next(fits, "")


def exceptions(imports: Iterable[tuple[str, str]]) -> tuple[Counter[str], Counter[tuple[str, str]]]:
    """Count the imports of each planned feature by the kernel, and those between two of them."""
    from_kernel, between = Counter[str](), Counter[tuple[str, str]]()
    for importer, imported in sorted(imports):
        here, there = feature_of(importer), feature_of(imported)
        if there and not here and importer.partition(".")[2] not in LISTS:
            from_kernel[there] += 1
        elif there and here and here != there:
            between[here, there] += 1
    return from_kernel, between


def main() -> int:
    graph = grimp.build_graph("appliance")
    imports = [(each, other) for each in graph.modules for other in graph.find_modules_directly_imported_by(each)]
    from_kernel, between = exceptions(imports)
    lines = Counter[str]()
    for path in sorted((ROOT / "appliance").rglob("*.py")):
        parts = path.relative_to(ROOT / "appliance").parts
        size = len(path.read_text(encoding="utf-8").splitlines())
        lines[parts[1] if parts[0] == "features" and len(parts) > 2 else ""] += size
    print(f"kernel: {lines.pop('')} lines, with what is still to move; the goal is 28,000")
    print("features: " + ", ".join(f"{feature} {size}" for feature, size in lines.most_common()))
    told = ", ".join(f"{feature} {number}" for feature, number in from_kernel.most_common())
    print(f"imports by the kernel of what is to be a feature: {from_kernel.total()} ({told})")
    told = ", ".join(f"{here} of {there} {number}" for (here, there), number in between.most_common(12))
    print(f"imports between two that are to be features: {between.total()} ({told} and others)")
    if (from_kernel.total(), between.total()) == (FROM_KERNEL, BETWEEN):
        return 0
    print(f".ci/layout.py says {FROM_KERNEL} and {BETWEEN}: write the new numbers there; neither may grow")
    return 1


if __name__ == "__main__":
    sys.exit(main())
