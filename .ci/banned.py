"""Banned constructs that ruff cannot see. Run by `bootstrap.py check`; prints each finding and exits 1."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

METHODS = {
    "add_background_task": "a background task has no owner; open a nursery",
    "start_thread_soon": "threads hide lifetimes: use trio.to_thread.run_sync in store/ or service/",
}
CATCH_ALL = {"BaseException", "Cancelled"}
SLEEP = re.compile(r"(?:time|trio)\.sleep\((.*?)\)|\bsleep (\d[\d.]*)")
SECONDS = re.compile(r"[A-Z][A-Z_]+|\d[\d.]*")
SHORT, ENDLESS = 0.2, 60.0
"""Seconds: a test may sleep so briefly, and what sleeps so long is never waited for."""
MISSING_PATH = re.compile(r"(?<![\w/])/(nonexistent|no/such)\b")


def findings(text: str) -> Iterator[tuple[int, str]]:
    """Line and reason of everything banned in one file."""
    for node in ast.walk(ast.parse(text)):
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


def findings_of_tests(text: str) -> Iterator[tuple[int, str]]:
    """The same for a file of the tests."""
    for number, line in enumerate(text.splitlines(), 1):
        if MISSING_PATH.search(line):
            yield number, "some machines have such a path: take one below the test's own folder"
    yield from unexplained_sleeps(text)


def unexplained_sleeps(text: str) -> Iterator[tuple[int, str]]:
    """Lines of a test that wait for a fixed time, without a word in a comment on that line or above.

    Also in the code of a child and in the words of a shell. A test whose clock is virtual waits for nothing.
    """
    virtual = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.AsyncFunctionDef) and any(one.arg == "autojump_clock" for one in node.args.args)
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    before = ""
    for number, line in enumerate(text.splitlines(), 1):
        told = "#" in line or before.lstrip().startswith("#")
        if not told and number not in virtual and any(map(_is_long, SLEEP.findall(line))):
            yield number, "a test waits for a fact (tests/waiting.py), or a comment says why it sleeps so long"
        before = line


def _is_long(sleep: tuple[str, str]) -> bool:
    """A constant counts as long."""
    return any(each[0].isalpha() or SHORT < float(each) < ENDLESS for each in SECONDS.findall("".join(sleep)))


def _names(node: ast.AST) -> set[str]:
    """Every name in an expression, and the last part of every dotted one."""
    plain = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return plain | {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}


FOLDERS = {"appliance": findings, "plugins": findings, "tests": findings_of_tests}


def main() -> int:
    found = 0
    for folder, find in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            for line, reason in find(path.read_text(encoding="utf-8")):
                print(f"{path.relative_to(ROOT)}:{line}: {reason}")
                found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
