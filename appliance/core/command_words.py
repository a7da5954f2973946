"""The words of a command's text (``cmd``, ``cmdStop``).

Commands are split without a shell. The dialects are llama-swap's (0bdb3720). Neither knows variables, globs, pipes or
comments behind a word; a quote that is never closed ends with the text. ``shlex`` of the standard library is not it:
that one refuses an open quote, splits at a carriage return, and keeps a newline that a backslash should remove.
"""

from __future__ import annotations

import re

_POSIX = re.compile(
    r"""(?P<space>[ \t\n]+)
      | \\(?P<escaped>.)?
      | '(?P<single>[^']*)'?
      | "(?P<double>(?:[^"\\]|\\.)*)\\?"?   # a backslash alone is the last character of the text: it vanishes
      | (?P<plain>[^ \t\n\\'"]+)""",
    re.DOTALL | re.VERBOSE,
)
_ESCAPED_IN_DOUBLE = re.compile(r"\\(?:([$`\"\\])|\n)")
_WINDOWS = re.compile(r"""(?P<space>[ \t\r\n]+)|(?P<before>\\*)"|(?P<plain>\\+|[^ \t\r\n\\"]+)""")


def split_command(text: str, *, windows: bool) -> list[str]:
    """Split a command into words; [] when there is none. Comment lines and line ends with a backslash are removed."""
    lines = "\n".join(_continued(line) for line in strip_comments(text).split("\n"))
    return _split_windows(lines) if windows else _split_posix(lines)


def strip_comments(text: str) -> str:
    """Return the text without the lines that begin with ``#``; the other lines stay the same."""
    return "\n".join(line for line in text.split("\n") if not line.strip().startswith("#"))


def _continued(line: str) -> str:
    trimmed = line.strip()
    return trimmed[:-1] + " " if trimmed.endswith("\\") else line


def _split_posix(text: str) -> list[str]:
    words: list[str] = []
    word: str | None = None
    for piece in _POSIX.finditer(text):
        match piece.lastgroup:
            case "space":
                if word is not None:
                    words.append(word)
                word = None
            case "double":
                word = (word or "") + _ESCAPED_IN_DOUBLE.sub(lambda escape: escape[1] or "", piece["double"])
            case None:
                pass  # a backslash at the end of the text
            case "escaped" if piece["escaped"] == "\n":
                pass
            case kind:
                word = (word or "") + piece[kind]
    return words if word is None else [*words, word]


def _split_windows(text: str) -> list[str]:
    """Split like CommandLineToArgvW: a backslash is special before a quote; a doubled quote inside quotes is one."""
    words: list[str] = []
    word: str | None = None
    quoted = False
    at = 0
    while piece := _WINDOWS.match(text, at):
        at = piece.end()
        if piece.lastgroup == "space" and not quoted:
            if word is not None:
                words.append(word)
            word = None
        elif piece.lastgroup != "before":
            word = (word or "") + piece[0]
        else:
            backslashes, escaped = divmod(len(piece["before"]), 2)
            doubled = not escaped and quoted and text.startswith('"', at)
            word = (word or "") + "\\" * backslashes + '"' * (escaped or doubled)
            at += doubled
            quoted ^= not (escaped or doubled)
    return words if word is None else [*words, word]
