"""What plugins need of the frozen program: those shipped along are data in it, so their imports are looked up here.

A plugin of somebody else's finds the modules of `STANDARD`, what the program itself imports, and what is beside its
agent.py. docs/plugins.md has the same list.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

TARGET = "appliance/plugins/bundled"
"""Where `appliance.plugins.folders` looks for them."""
_STANDARD = """
    abc array base64 bisect bz2 calendar codecs collections colorsys concurrent.futures configparser contextlib
    contextvars copy csv dataclasses datetime decimal difflib email email.message email.parser enum fnmatch
    fractions functools glob gzip hashlib heapq hmac html html.entities html.parser http.client importlib.resources
    inspect io ipaddress itertools json keyword locale logging lzma math mimetypes numbers operator os pathlib
    platform pprint queue random re reprlib secrets select shlex shutil signal socket sqlite3 ssl stat statistics
    string struct subprocess sys tarfile tempfile textwrap threading time tomllib traceback types typing unicodedata
    urllib.error urllib.parse urllib.request uuid warnings weakref xml.etree.ElementTree zipfile zlib zoneinfo
"""
STANDARD = tuple(_STANDARD.split())
"""Of the standard library: whatever reads, counts, compares, and keeps things."""


def bundled_files(plugins: Path) -> list[tuple[str, str]]:
    """Every file of the plugins, tests aside, and the folder in the program that it goes to."""
    found: list[tuple[str, str]] = []
    for path in _files(plugins):
        place = path.parent.relative_to(plugins).as_posix()
        found.append((str(path), f"{TARGET}/{place}"))
    return found


def hidden_imports(plugins: Path) -> list[str]:
    """The modules that the plugins import, and those that any plugin may."""
    names = {name for path in _files(plugins) if path.suffix == ".py" for name in imports(path.read_text("utf-8"))}
    return sorted({*names, *STANDARD})


def imports(source: str) -> Iterator[str]:
    """The modules that a source text imports, those beside it left out; ``from a import b`` may mean two."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), level=0, names=names) if module != "__future__":
                yield module
                yield from (f"{module}.{alias.name}" for alias in names if _is_module(f"{module}.{alias.name}"))
            case _:
                pass


def _files(plugins: Path) -> Iterator[Path]:
    for path in sorted(plugins.glob("*/**/*")):
        hidden = any(part == "__pycache__" or part.startswith(".") for part in path.relative_to(plugins).parts)
        if path.is_file() and not hidden and not path.name.startswith("test_"):
            yield path


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False  # the part before the last dot is no package
