"""Patterns for names and for text: globs, and ECMAScript regular expressions.

Globs follow llama-server's rule (b11434), in time linear in the name. ``*`` and ``?`` do not match a slash, ``**``
does; ``[a-c]`` and ``[!a-c]`` are sets. Beyond that rule ``**/`` may stand for no folder at all, so that
``src/**/*.c`` means ``src/a.c``, too, and a leading ``/`` for where the search began. RE2 matches them, so that no
pattern takes longer than its length times that of the name.

Regular expressions (llama-server's grep_search, b11434) are translated for Python's `re` and ``grep -E``. They are
matched against one line at a time. What cannot be said in the other notation is refused with its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

MAX_GLOB = 1000  # longest pattern in characters; the cost of a name grows with it

_GLOB_TOKEN = re.compile(
    r"""
      (?:^|(?<=/))\*\*/                                   # any folders, or none
    | \*\*?
    | \[ (?P<negated>[!^]?+) (?P<set>\]?+[^\]]*+) \]      # a set; a bracket that comes first is a member
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
_STARS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_RANGE = re.compile("(.)(?:-(.))?", re.DOTALL)
_NOTHING = r"[^\x00-\x{10ffff}]"
MAX_REGEX = 4000  # longest pattern, in characters
_CODE = r"x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|c[A-Za-z]"
_TOKEN = re.compile(
    rf"""
      \[\^?(?:\[:[a-z]+:\]|\\(?:{_CODE}|.)|[^\]\\])*\]   # a class
    | \\(?:{_CODE}|[1-9][0-9]*|.)                       # an escape
    | \((?:\?(?:[:=!]|<[=!]|<[A-Za-z_]\w*>|.?))?        # the beginning of a group
    | (?:[*+?]|\{{[0-9]+(?:,[0-9]*)?\}})\??             # a quantifier
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
_NAMED = re.compile(r"\(\?<([A-Za-z_]\w*)>")
_GROUPS = ("(?:", "(?=", "(?!", "(?<=", "(?<!")
_MEMBER = re.compile(rf"\[:([a-z]+):\]|\\({_CODE}|.)|(.)", re.DOTALL)
_NOT_DIGITS = r"\x00-\x2f\x3a-\U0010ffff"
_NOT_WORDS = r"\x00-\x2f\x3a-\x40\x5b-\x5e\x60\x7b-\U0010ffff"
_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_", "D": _NOT_DIGITS, "W": _NOT_WORDS, "s": r"\s", "S": r"\S"}
_NAMES = {
    "alpha": "A-Za-z",
    "digit": "0-9",
    "alnum": "A-Za-z0-9",
    "upper": "A-Z",
    "lower": "a-z",
    "space": r"\s",
    "blank": r" \t",
    "punct": r"!-/:-@\[-`{-~",
    "xdigit": "0-9A-Fa-f",
    "cntrl": r"\x00-\x1f\x7f",
    "print": r"\x20-\x7e",
    "graph": r"\x21-\x7e",
    "w": "A-Za-z0-9_",
    "d": "0-9",
    "s": r"\s",
}
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "v": "\v", "f": "\f", "0": "\0"}
_NOT_IN_GREP = "cannot be searched for in a tool runtime, where grep -E searches; leave it out"
_POSIX = {"d": "0-9", "w": "[:alnum:]_", "s": "[:space:]"}


class Glob:
    """One pattern for paths relative to where the search began. Raises ValueError for a pattern that is too long."""

    def __init__(self, pattern: str) -> None:
        import re2  # 10 ms, and a server that only talks to tool runtimes searches nothing itself

        if len(pattern) > MAX_GLOB:
            raise ValueError(f"the pattern has {len(pattern)} characters; the most is {MAX_GLOB}")
        self._basename = "/" not in pattern
        if not self._basename and not pattern.startswith(("**/", "/")):
            pattern = f"**/{pattern}"
        translated = _GLOB_TOKEN.sub(_in_re2, pattern.removeprefix("/"))
        engine: Any = re2  # its types are not written down
        self._whole: Callable[[str], object | None] = engine.compile(f"(?s){translated}").fullmatch

    def matches(self, path: str) -> bool:
        """True if the last name of the path matches or, for a pattern with a slash, all of it."""
        return self._whole(path.rpartition("/")[2] if self._basename else path) is not None


def _in_re2(token: re.Match[str]) -> str:
    if token["set"] is None:
        return _STARS[token[0]] if token[0] in _STARS else rf"\x{{{ord(token[0]):x}}}"
    ranges = [(first, last or first) for first, last in _RANGE.findall(token["set"])]
    if token["negated"]:
        return f"[^/{_members(ranges)}]"
    around = [half for first, last in ranges for half in ((first, min(last, ".")), (max(first, "0"), last))]
    return f"[{_members(around)}]" if _members(around) else _NOTHING


def _members(ranges: Iterable[tuple[str, str]]) -> str:
    """Write ranges of a set. One that ends before it begins has no members."""
    return "".join(rf"\x{{{ord(first):x}}}-\x{{{ord(last):x}}}" for first, last in ranges if first <= last)


class BadToolPattern(ValueError):
    """A pattern is invalid, or cannot be used where the search runs."""


def python_pattern(pattern: str, *, literal: bool, ignore_case: bool) -> re.Pattern[str]:
    """Translate for Python. Search with it in a process that can be killed: it may take for ever. Raises BadPattern."""
    if len(pattern) > MAX_REGEX:
        raise BadToolPattern(f"invalid regex: it has {len(pattern)} characters; the most is {MAX_REGEX}")
    text = re.escape(pattern) if literal else "".join(_in_python(match[0]) for match in _TOKEN.finditer(pattern))
    try:
        return re.compile(text, re.IGNORECASE if ignore_case else 0)
    except (re.error, OverflowError, RecursionError) as error:
        raise BadToolPattern(f"invalid regex: {error}") from None


def posix_pattern(pattern: str) -> str:
    """Translate to a POSIX extended regular expression. Raises BadPattern, also for features that those lack."""
    python_pattern(pattern, literal=False, ignore_case=False)
    return "".join(_in_posix(match[0]) for match in _TOKEN.finditer(pattern))


def _char(escape: str) -> str | None:
    """Return the character of an escape (without its backslash); None for classes and assertions."""
    if escape[0] in "xu" and len(escape) > 1:
        return chr(int(escape[1:], 16))
    if escape[0] == "c" and len(escape) == 2:
        return chr(ord(escape[1]) % 32)
    if escape in _CONTROLS:
        return _CONTROLS[escape]
    return None if escape in ("b", "B", *_CLASSES) or escape.isdecimal() else escape


def _in_python(token: str) -> str:
    if token.startswith("\\") and len(token) > 1:
        return _escape_in_python(token[1:])
    if token.startswith("[") and len(token) > 1:
        return _class_in_python(token)
    if token.startswith("(?"):
        if named := _NAMED.fullmatch(token):
            return f"(?P<{named[1]}>"
        if token not in _GROUPS:
            raise BadToolPattern(
                f"invalid regex: there is no group {token!r}; groups are (, (?:, (?=, (?!, (?<= and (?<!"
            )
        return token
    if token == "[":
        raise BadToolPattern("invalid regex: a '[' has no ']'; write \\[ for the character")
    if token == "$":
        return r"\Z"
    return rf"\{token}" if token in "{[\\" else token


def _escape_in_python(escape: str) -> str:
    char = _char(escape)
    if char is not None:
        return re.escape(char)
    if escape in _CLASSES:
        return f"[{_CLASSES[escape]}]"
    return rf"(?a:\{escape})" if escape in "bB" else f"(?:\\{escape})"


def _class_in_python(token: str) -> str:
    negated = token.startswith("[^")
    inside = token[2 if negated else 1 : -1]
    if not inside:
        return r"[\s\S]" if negated else r"(?!)"
    parts: list[str] = []
    for name, escape, char in _MEMBER.findall(inside):
        if name:
            if name not in _NAMES:
                raise BadToolPattern(f"invalid regex: there is no class [:{name}:]; there are {', '.join(_NAMES)}")
            parts.append(_NAMES[name])
        elif escape in _CLASSES:
            parts.append(_CLASSES[escape])
        elif escape:
            parts.append(re.escape("\b" if escape == "b" else _char(escape) or escape))
        else:
            parts.append(rf"\{char}" if char in "[&~|" else char)
    return f"[{'^' if negated else ''}{''.join(parts)}]"


def _in_posix(token: str) -> str:
    if token.startswith("\\") and len(token) > 1:
        return _escape_in_posix(token[1:])
    if token.startswith("[") and len(token) > 1:
        return _class_in_posix(token)
    if token == "(?:" or _NAMED.fullmatch(token):
        return "("
    if token.startswith("(?"):
        raise BadToolPattern(f"{token!r} {_NOT_IN_GREP}")
    if len(token) > 1 and token.endswith("?"):
        return token[:-1]  # whether a line matches is the same for the shortest match
    return rf"\{token}" if token in "{[\\" else token


def _escape_in_posix(escape: str) -> str:
    if escape in ("d", "w", "s"):
        return f"[{_POSIX[escape]}]"
    if escape in ("D", "W", "S"):
        return f"[^{_POSIX[escape.lower()]}]"
    char = _char(escape)
    if char is None:
        return f"\\{escape}"  # \b, \B and references: not POSIX's, and known to every grep
    if char in "\n\0":
        raise BadToolPattern("a line feed or zero byte cannot be searched for in a tool runtime; lines are searched")
    return rf"\{char}" if char in r"\.[]{}()*+?^$|" else char


# POSIX's classes have no escapes. Three characters are plain only at their own place: "]" first, "^" anywhere but
# first, "-" last. So they are collected apart and put there at the end. None of them can be the end of a range then.
def _class_in_posix(token: str) -> str:
    negated = token.startswith("[^")
    inside = token[2 if negated else 1 : -1]
    if not inside:
        raise BadToolPattern(f"{token!r} {_NOT_IN_GREP}")
    named, chars, special = list[str](), list[str](), list[str]()
    members = _MEMBER.findall(inside)
    for at, (name, escape, plain) in enumerate(members):
        if plain == "-" and at in (0, len(members) - 1):
            special.append(plain)
        elif name:
            named.append(f"[:{name}:]")
        elif escape in _POSIX:
            named.append(_POSIX[escape])
        elif escape in ("D", "W", "S"):
            raise BadToolPattern(f"'\\{escape}' in a class cannot be searched for in a tool runtime; use it outside")
        elif escape or plain in "^]":
            char = "\b" if escape == "b" else _char(escape) or escape if escape else plain
            # The end of a range: a hyphen is beside it, and something beyond the hyphen.
            in_range = (at > 1 and members[at - 1][2] == "-") or (at < len(members) - 2 and members[at + 1][2] == "-")
            if char in "]^-" and in_range:
                raise BadToolPattern(
                    f"{token!r} cannot be searched for in a tool runtime: a range has {char!r} at its end"
                )
            (special if char in "]^-" else chars).append(char)
        else:
            chars.append(plain)
    body = "".join((*named, *chars))
    first = "]" if "]" in special else ""
    last = ("^" if "^" in special else "") + ("-" if "-" in special else "")
    if not negated and first + body == "" and last.startswith("^"):
        return rf"\{last}" if last == "^" else "[-^]"
    return f"[{'^' if negated else ''}{first}{body}{last}]"
