"""The sizes of the kernel and of each feature, and imports that cross a feature's border. `bootstrap.py check` runs it.

Only `appliance.__main__` knows the list of features, and no feature knows another one. The contracts of import-linter
see to both; here every import that breaks one of these rules is named, and their number stands beside the sizes.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
GOAL = 28_000  # lines of the kernel


def feature_of(module: str) -> str:
    """Return the feature that a module belongs to, "" for the kernel's and for the list of features."""
    names = module.split(".")
    return names[2] if names[1:2] == ["features"] and len(names) > 2 else ""


def main() -> int:
    graph = grimp.build_graph("appliance")
    crossing = [
        f"{importer} imports {imported}"
        for importer in sorted(graph.modules)
        for imported in sorted(graph.find_modules_directly_imported_by(importer))
        if importer != "appliance.features" and feature_of(imported) not in ("", feature_of(importer))
    ]
    lines = Counter[str]()
    for path in (ROOT / "appliance").rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        lines[feature_of(module)] += len(path.read_text(encoding="utf-8").splitlines())
    print(f"kernel: {lines.pop('')} lines; the goal is {GOAL:,}")
    print("features: " + ", ".join(f"{feature} {size}" for feature, size in lines.most_common()))
    print("\n".join([f"exceptions: {len(crossing)}", *crossing]))
    return 1 if crossing else 0


if __name__ == "__main__":
    sys.exit(main())
