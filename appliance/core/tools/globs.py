"""Matches files with a glob pattern, by llama-server's rule (b11434), in time linear in the name.

``*`` and ``?`` do not match a slash, ``**`` does; ``[a-c]`` and ``[!a-c]`` are sets. Beyond that rule ``**/`` may stand
for no folder at all, so that ``src/**/*.c`` means ``src/a.c``, too, and a leading ``/`` for where the search began.
A pattern is matched by following all of its positions at once, so that no pattern takes longer than its length times
that of the name.
"""

from __future__ import annotations

MAX_PATTERN = 1000
"""Longest pattern in characters; the cost of a name grows with it."""

_STAR, _ANY, _FOLDERS, _INSIDE = "*", "**", "**/", "/**/"
"""``**/`` is two positions: before it, where it may stand for nothing, and `_INSIDE` the names of folders."""


class Glob:
    """One pattern for paths relative to where the search began. Raises ValueError for a pattern that is too long."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MAX_PATTERN:
            raise ValueError(f"the pattern has {len(pattern)} characters; the most is {MAX_PATTERN}")
        self._basename = "/" not in pattern
        if not self._basename and not pattern.startswith((_FOLDERS, "/")):
            pattern = f"{_FOLDERS}{pattern}"
        pattern = pattern.removeprefix("/")
        self._tokens = _tokens(pattern)

    def matches(self, path: str) -> bool:
        """True if the last name of the path matches or, for a pattern with a slash, all of it."""
        text = path.rpartition("/")[2] if self._basename else path
        states = self._reached({0})
        for char in text:
            states = self._reached({after for state in states for after in self._after(state, char)})
            if not states:
                return False
        return len(self._tokens) in states

    def _after(self, state: int, char: str) -> tuple[int, ...]:
        if state == len(self._tokens):
            return ()
        match self._tokens[state]:
            case "**":
                return (state,)
            case "**/":
                return ()
            case "/**/":
                return (state, state + 1) if char == "/" else (state,)
            case "*":
                return (state,) if char != "/" else ()
            case token:
                return (state + 1,) if _one(token, char) else ()

    def _reached(self, states: set[int]) -> set[int]:
        """Add the positions that follow if a star matches nothing."""
        found = set(states)
        for state in states:
            at = state
            while at < len(self._tokens) and self._tokens[at] in (_STAR, _ANY, _FOLDERS):
                at += 1
                found.add(at)
                if self._tokens[at - 1] == _FOLDERS:
                    at += 1
                    found.add(at)
        return found


def _tokens(pattern: str) -> list[str]:
    """Split into stars, single characters, ``?``, and sets with their brackets; a literal is one character, escaped as
    itself.
    """
    found: list[str] = []
    at = 0
    while at < len(pattern):
        end = at + 1
        if pattern.startswith(_FOLDERS, at) and pattern[at - 1 : at] in ("", "/"):
            end = at + 3
        elif pattern.startswith(_ANY, at):
            end = at + 2
        elif pattern[at] == "[" and (close := _end_of_set(pattern, at)) is not None:
            end = close + 1
        found.append(pattern[at:end])
        if found[-1] == _FOLDERS:
            found.append(_INSIDE)
        at = end
    return found


def _end_of_set(pattern: str, at: int) -> int | None:
    first = at + 1
    if pattern[first : first + 1] in ("!", "^"):
        first += 1
    if pattern[first : first + 1] == "]":
        first += 1
    end = pattern.find("]", first)
    return None if end < 0 else end


def _one(token: str, char: str) -> bool:
    if token == "?":
        return char != "/"
    if len(token) == 1:
        return token == char
    return char != "/" and _in_set(token[1:-1], char)


def _in_set(members: str, char: str) -> bool:
    negated = members.startswith(("!", "^"))
    members = members[1:] if negated else members
    found = False
    at = 0
    while at < len(members):
        if members[at + 1 : at + 2] == "-" and at + 2 < len(members):
            found = found or members[at] <= char <= members[at + 2]
            at += 3
        else:
            found = found or members[at] == char
            at += 1
    return found is not negated
