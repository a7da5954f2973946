"""One name, one thing: a public class name exists once, a private one once in its room. Run by `bootstrap.py check`.

A search for a name then finds one class, and a sentence that names a class means one. Prints each name that stands for
more than one class, with its files, and exits 1.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = "appliance"
SPLIT = {"core", "features", "http"}
"""Rooms that are made of rooms."""
TWINS = (frozenset(("platform/posix.py", "platform/windows.py")),)
"""Files of which each system has one: their names are equal on purpose."""
API = ("plugins/__init__.py", "plugins/testing.py")
"""The names that authors of plugins use. They see no other room."""


def classes(folder: Path) -> Iterator[tuple[str, str]]:
    """Name and file, relative to the folder, of every class at the top of a file or below a condition there."""
    for path in sorted(folder.rglob("*.py")):
        file = path.relative_to(folder).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), file)):
            if isinstance(node, ast.ClassDef):
                yield node.name, file


def room(file: str) -> str:
    parts = file.split("/")[:-1]
    return "/".join(parts[:2] if parts and parts[0] in SPLIT else parts[:1])


def shared(found: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """The names that stand for more than one class, and their files."""
    places: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for name, file in found:
        if file not in API:
            places[name, room(file) if name.startswith("_") else ""].add(file)
    return sorted((name, sorted(files)) for (name, _), files in places.items() if len(files) > 1 and files not in TWINS)


def main() -> int:
    found = shared(classes(ROOT / FOLDER))
    for name, files in found:
        print(f"{name} is the name of {len(files)} classes: {', '.join(files)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
