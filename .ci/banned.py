"""Banned constructs that ruff cannot see. Run by `bootstrap.py check`; prints each finding and exits 1."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("appliance", "plugins")

METHODS = {
    "add_background_task": "a background task has no owner; open a nursery",
    "start_thread_soon": "threads hide lifetimes: use trio.to_thread.run_sync in store/ or service/",
}
CATCH_ALL = {"BaseException", "Cancelled"}


def findings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and reason of everything banned in one file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in METHODS:
            yield node.lineno, f"{node.attr}: {METHODS[node.attr]}"
        elif isinstance(node, ast.ExceptHandler) and _swallows_cancellation(node):
            yield node.lineno, "Trio ends tasks with this exception: raise it again"
        elif isinstance(node, ast.Call) and _opens_unbounded_channel(node):
            yield node.lineno, "an unbounded channel hides a missing limit; give it a size"


def _swallows_cancellation(handler: ast.ExceptHandler) -> bool:
    raises = any(isinstance(node, ast.Raise) for node in ast.walk(handler))
    return handler.type is not None and bool(CATCH_ALL & _names(handler.type)) and not raises


def _opens_unbounded_channel(call: ast.Call) -> bool:
    return "open_memory_channel" in _names(call.func) and any("inf" in _names(argument) for argument in call.args)


def _names(node: ast.AST) -> set[str]:
    """Every name in an expression, and the last part of every dotted one."""
    plain = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return plain | {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}


def main() -> int:
    found = 0
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for line, reason in findings(ast.parse(path.read_text(encoding="utf-8"), str(path))):
                print(f"{path.relative_to(ROOT)}:{line}: {reason}")
                found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
