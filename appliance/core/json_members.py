"""Picks named members out of a JSON text while it passes, without ever holding the text.

The scanner follows nesting and strings only: below the level it looks at it jumps from bracket to bracket with one
regular expression, so an array of a million numbers is one jump per chunk. It holds the value of a wanted member,
at most MAX_VALUE bytes of it, and the first bytes of a name; it does not check that the text is valid JSON.
"""

from __future__ import annotations

import re
from collections.abc import Collection

MAX_VALUE = 64 << 10
"""Bytes of one member's value; a longer one is not picked. Usage and timings take a few hundred."""

_MAX_NAME = 64

_AT_LEVEL = re.compile(rb'["{}\[\],:]')
_BELOW = re.compile(rb'[^"{}\[\]]*+(?:"(?>[^"\\]+|\\.)*+"[^"{}\[\]]*+)*+', re.DOTALL)
"""Everything up to the next bracket, or to the string that is not finished in this chunk."""
_STRING = re.compile(rb"(?>[^\"\\]+|\\.)*+", re.DOTALL)

_QUOTE, _COMMA, _COLON, _BACKSLASH = b'",:\\'
_OPEN, _CLOSE = b"{[", b"}]"
_BLANK = b" \t\r\n"


class MemberScanner:
    """Finds members of the object that the text is or, with ``of_last``, of the last object of the array that it is.

    ``found`` holds the raw value of each wanted member seen, the last one where a name repeats. Names are compared
    as written: one spelled with escapes is not recognised.
    """

    def __init__(self, wanted: Collection[bytes], *, of_last: bool = False) -> None:
        self.found: dict[bytes, bytes] = {}
        self._wanted = frozenset(wanted)
        self._of_last = of_last
        self._level = 0  # the depth whose members count; 0 until the first byte says what the text is
        self._depth = 0
        self._in_object = False  # what has the depth ``_level`` now is an object
        self._in_string = False
        self._expects_name = False
        self._in_name = False
        self._escaped = False  # the chunk ended behind a backslash
        self._name = bytearray()  # of the member at hand
        self._value: bytearray | None = None  # of that member, while it is a wanted one
        self._from = 0  # where the value, or what comes of it in this chunk, begins
        self._done = False

    def feed(self, chunk: bytes) -> None:
        if self._done:
            return
        if self._level == 0:
            chunk = chunk.lstrip(_BLANK)
            self._begin(chunk[:1])
        at, self._from = 0, 0
        while at < len(chunk) and not self._done:
            at = self._step(chunk, at)
        self._keep(chunk, len(chunk))

    def _begin(self, first: bytes) -> None:
        if first == b"{":
            self._level = 1
        elif first == b"[" and self._of_last:
            self._level = 2
        else:
            self._done = bool(first)

    def _step(self, chunk: bytes, at: int) -> int:
        """Take what is at ``at``, up to the next place that matters; returns where to go on."""
        if self._in_string:
            return self._through_string(chunk, at)
        if self._depth > self._level:
            return self._below_level(chunk, at)
        found = _AT_LEVEL.search(chunk, at)
        if found is None:
            return len(chunk)
        if self._depth == self._level and self._in_object:
            self._in_member(chunk, found.start())
        self._nest(chunk[found.start()])
        return found.end()

    def _below_level(self, chunk: bytes, at: int) -> int:
        """Jump from bracket to bracket: most of a large answer passes here, so it is one loop without calls."""
        depth, level, end = self._depth, self._level, len(chunk)
        while depth > level:
            passed = _BELOW.match(chunk, at)
            at = passed.end() if passed else at
            if at == end:
                break
            token = chunk[at]
            at += 1
            if token == _QUOTE:
                self._in_string = True
                break
            depth += 1 if token in _OPEN else -1
        self._depth = depth
        return at

    def _in_member(self, chunk: bytes, mark: int) -> None:
        token = chunk[mark]
        if token == _QUOTE:
            self._in_name = self._expects_name
        elif token == _COLON:
            if bytes(self._name) in self._wanted:
                self._value, self._from = bytearray(), mark + 1
        elif token == _COMMA or token in _CLOSE:
            self._keep(chunk, mark)
            if self._value is not None:
                self.found[bytes(self._name)] = bytes(self._value)
            self._value = None
            self._name.clear()
            self._expects_name = True

    def _nest(self, token: int) -> None:
        if token == _QUOTE:
            self._in_string = True
        elif token in _OPEN:
            self._depth += 1
            if self._depth == self._level:
                self._in_object = self._expects_name = token == _OPEN[0]
                self.found.clear()
        elif token in _CLOSE:
            self._depth -= 1
            self._done = self._depth <= 0
        elif token == _COMMA and self._depth < self._level:
            self.found.clear()  # another element begins

    def _through_string(self, chunk: bytes, at: int) -> int:
        begin = at
        if self._escaped:
            self._escaped = False
            at += 1
        body = _STRING.match(chunk, at)
        end = body.end() if body else at
        if self._in_name and len(self._name) < _MAX_NAME:
            self._name += chunk[begin : min(end, begin + _MAX_NAME)]
        if end < len(chunk):
            self._escaped = chunk[end] == _BACKSLASH
            if not self._escaped:
                self._in_string = False
                if self._in_name:
                    self._in_name = self._expects_name = False
        return end + 1

    def _keep(self, chunk: bytes, end: int) -> None:
        """Add what this chunk has of the value up to ``end``; a value too long is let go."""
        if self._value is not None:
            self._value += chunk[self._from : end]
            if len(self._value) > MAX_VALUE:
                self._value = None
