"""Words of a command that only a shell understands, and how to write them without one.

A command is split into words (`core.command_words`), and nothing else is done with it: no shell replaces a variable,
a ``~`` or a ``*``, redirects, joins two programs or changes the folder. Files that were written for one are full of
such words, and the engine's own message about them leads nowhere. The words that a command gives to a shell of its own
(``sh -c '...'``) are that shell's, and are not looked at.

A message never repeats a word, since a value of the environment may stand in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import PureWindowsPath
from typing import NamedTuple

SHELLS = frozenset(["sh", "bash", "dash", "zsh", "ash", "ksh", "fish", "cmd", "powershell", "pwsh"])
BUILTINS = frozenset(
    [
        "cd",
        "export",
        "source",
        ".",
        "set",
        "unset",
        "ulimit",
        "umask",
        "alias",
        "eval",
        "exec",
        "trap",
        "if",
        "for",
        "while",
    ]
)
_SCRIPT = re.compile(r"-[a-z]*c")
_REST = re.compile(r"/[ck]|-command|-encodedcommand", re.IGNORECASE)
_END_OF_LINE = r"(?P<continued>\\[ \t\r]*\n)|(?P<end>\n)|(?P<space>[ \t\r]+)"
_POSIX = re.compile(
    rf"""{_END_OF_LINE}|\\(?P<escaped>.?)|'(?P<single>[^']*)(?P<closed>'?)"""
    r"""|"(?P<double>(?:[^"\\]|\\.)*)(?P<shut>"?)|(?P<plain>[^ \t\r\n\\'"]+)""",
    re.DOTALL,
)
_WINDOWS = re.compile(rf"""{_END_OF_LINE}|"(?P<double>[^"]*)(?P<shut>"?)|(?P<plain>[^ \t\r\n"]+)""")
_ACTIVE = re.compile(r"\$\(|`|\$\{?[A-Za-z_]\w*(?:[:%#/-])?|%[A-Z_][A-Z0-9_]{2,}%")
"""A shell replaces these within double quotes as well."""
_SET = re.compile(r"([A-Za-z_]\w*)=")
_SH = "call a shell: sh -c '...'"
_RULES = tuple(
    (re.compile(pattern), what, way_out)
    for pattern, what, way_out in (
        (r"^(?:&&|\|\|?|;|&)$|.;$|&&", "joins programs (&& || | ; &)", _SH),
        (r"^(?:\d*|&)>>?[|&]?(?:$|[\w/.~$-])|^\d*<(?:<|$|[/.~$(])(?!.*>$)|^>\(", "redirects (> 2> <)", _SH),
        (r"\$\(|`.", "puts in what a program prints ($( or `)", _SH),
        (r"\$(?:[A-Za-z_]|\{\w+[:%#/-])", "has a variable of a shell ($ and a name)", "write ${env.NAME}"),
        (r"%[A-Z_][A-Z0-9_]{2,}%", "has a variable of cmd.exe (%NAME%)", "write ${env.NAME}"),
        (r"(?:^|=)~(?:$|[/\\\w])", "has a ~ for the home folder", "write ${env.HOME}"),
        (r"^(?!.*://).*[/\\].*\*|\*.*\.gguf$", "has a pattern (*) for names of files", "write the name of the file"),
        (r"^\{.*q.*:", "is JSON that loses its quotes", "put it in single quotes"),
        (r"(?:^|/)\{[^}:]*,[^}:]*\}", "has a list of names ({a,b})", "write each word"),
        (r"^#", "begins a comment behind other words (#)", "give the comment a line of its own"),
        (r"^[\u2010-\u2015\u2212]", "begins with a dash that is not a hyphen", "write - or --"),
        (r"[\u2018-\u201f\u00ab\u00bb]", "has typographic quotes", "write \" or '"),
        (r"[\u00a0\u2000-\u200b\u202f\u3000\ufeff]", "has a space that separates no words", "write a usual space"),
    )
)


class _Word(NamedTuple):
    seen: str
    """With ``q`` for all that is quoted but what a shell replaces there."""
    text: str
    line: int
    is_last: bool
    """It ends its line."""
    faults: tuple[tuple[str, str], ...]
    """Faults and the way out of each."""


def shell_words(text: str, *, windows: bool) -> list[str]:
    """Return a sentence for each kind of word in a command that needs a shell: what, in which line, and the way out."""
    found: dict[str, str] = {}
    lines = "\n" in text.strip()
    for what, way_out, line in _found(text, windows=windows):
        where = f"a word in line {line} of the command (comments do not count)" if lines else "a word of the command"
        found.setdefault(what, f"{where} {what}; commands run without a shell, so {way_out}")
    return list(found.values())


def _found(text: str, *, windows: bool) -> Iterator[tuple[str, str, int]]:
    words = _words(text, _WINDOWS if windows else _POSIX)
    is_first, has_shell = True, False
    for word in words:
        if has_shell and _REST.fullmatch(word.text):
            return
        if has_shell and _SCRIPT.fullmatch(word.text):
            next(words, None)
            continue
        if is_first and (variable := _SET.match(word.seen)):
            yield f"sets {variable[1]} for the program", f"write env: [{variable[1]}=...]", word.line
            continue
        if is_first and word.text in BUILTINS:
            yield f"is only a shell's ({word.text})", _SH, word.line
        has_shell |= PureWindowsPath(word.text).name.lower().removesuffix(".exe") in SHELLS
        is_first = False
        if word.is_last and word.seen in ("^", "`"):
            yield "continues a line with ^ or `", "end the line with a backslash, or with nothing", word.line
            continue
        matching = ((what, way_out) for pattern, what, way_out in _RULES if pattern.search(word.seen))
        yield from ((*fault, word.line) for fault in chain(matching, word.faults))


def _words(text: str, piece: re.Pattern[str]) -> Iterator[_Word]:
    """The words as `split_command` finds them."""
    text = "\n".join("" if line.strip().startswith("#") else line for line in text.split("\n")) + "\n"
    seen: list[str] = []
    plain: list[str] = []
    faults: list[tuple[str, str]] = []
    line = 1
    for found in piece.finditer(text):
        match found.lastgroup:
            case "continued" | "end" | "space" as kind:
                if plain:
                    yield _Word("".join(seen), "".join(plain), line, kind != "space", tuple(faults))
                seen, plain, faults = [], [], []
            case "escaped":
                if found["escaped"].isalnum():
                    faults.append(("loses its backslashes", "write / for \\, or put it in single quotes"))
                seen.append("q")
                plain.append(found["escaped"])
            case "closed" | "shut":
                inside = found["single" if found.lastgroup == "closed" else "double"]
                if not found[found.lastgroup]:
                    faults.append(("has a quote that nothing closes", "close it"))
                active = _ACTIVE.findall(inside) if found.lastgroup == "shut" else ()
                seen.append("".join(["q", *active]))
                plain.append(inside)
            case _:
                seen.append(found[0])
                plain.append(found[0])
        line += found[0].count("\n")
    if plain:  # an open quote took the end
        yield _Word("".join(seen), "".join(plain), line - 1, True, tuple(faults))
