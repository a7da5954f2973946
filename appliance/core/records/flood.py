"""Cuts the output of a process into lines, and of a flood takes only the newest lines of every moment.

A process may print 50,000 lines in a second, of which nobody reads more than the last few. To decode, keep and forward
each would take a fifth of the loop's time. So output beyond `LINES` in one `WINDOW` is held as bytes. The oldest are
dropped and counted, and the last lines are taken at the end of the window. The last lines before a silence or the end
are always among them: they say why a process died.
"""

from __future__ import annotations

WINDOW = 0.25
"""Seconds."""
LINES = 500
"""Lines taken in one window, with the rest of the piece in which that number was reached."""
HELD = 1 << 16
"""Bytes held of a flood, at most twice as many and a piece."""
MAX_LINE = 1 << 20
"""Bytes; a longer line is taken in parts."""


class FloodGate:
    """``urgent`` are bytes whose line is never dropped, and is taken with the piece that has its end."""

    def __init__(self, urgent: bytes) -> None:
        self.is_open = False
        """True while every line is taken, however many come."""
        self.is_holding = False
        """True while `release` has lines to give."""
        self.lost = 0
        """Lines dropped so far."""
        self._urgent = urgent
        self._rest = bytearray()
        """The beginning of a line, behind the lines that are held."""
        self._taken = 0
        self._until = 0.0
        self._lost_before = 0
        """`lost` when the window began."""

    def feed(self, piece: bytes, now: float) -> list[bytes]:
        """Return the lines to take, without their ends. An empty piece is the end of the output."""
        lines = list[bytes]()
        if not piece or now >= self._until:
            lines = self._release()
            goes_on = self.lost > self._lost_before
            self._taken = LINES if goes_on else len(lines)
            self._until, self._lost_before = now + WINDOW, self.lost
        if not piece:
            rest, self._rest = bytes(self._rest), bytearray()
            return [*lines, rest] if rest else lines
        if self.is_open or self._taken < LINES:
            return lines + self._cut(piece)
        unseen = max(len(self._rest) - len(self._urgent), 0) if self.is_holding else 0
        self.is_holding = True
        self._rest += piece
        # The cut is behind the end of a line, so that what is left begins with a whole one.
        cut = self._rest.find(b"\n", -HELD) + 1 if len(self._rest) > 2 * HELD else -1
        if cut == 0 or self._rest.find(self._urgent, unseen) >= 0:
            return lines + self._release()
        if cut > 0:
            self.lost += self._rest.count(b"\n", 0, cut)
            del self._rest[:cut]
        return lines

    def release(self, now: float) -> list[bytes]:
        """Return the newest of the lines that are held since an earlier window; the others are lost."""
        return self._release() if now >= self._until else []

    def _release(self) -> list[bytes]:
        if not self.is_holding:
            return []
        self.is_holding = False
        lines = self._cut(b"")
        kept = [line for line in lines[:-LINES] if self._urgent in line] + lines[-LINES:]
        self.lost += len(lines) - len(kept)
        return kept

    def _cut(self, piece: bytes) -> list[bytes]:
        # Lines are cut from bytes, before any decoding: a piece may end in the middle of a character.
        self._rest += piece
        *lines, rest = bytes(self._rest).split(b"\n")
        if len(rest) > MAX_LINE:
            lines, rest = [*lines, rest], b""
        self._rest = bytearray(rest)
        self._taken += len(lines)
        return lines
