"""One turn of the model in a run: its text, its calls and its cost, put together from the deltas."""

from __future__ import annotations

from msgspec import Struct

from appliance.core.directives import DirectiveReader, Reading
from appliance.core.line_repeats import LineRepeats
from appliance.core.runs import CallDelta, Usage


class Written(Struct, frozen=True, kw_only=True):
    """A call in the model's spelling, not yet examined. ``id`` is "" if the model gave none."""

    id: str
    name: str
    arguments: str
    raw: str


class _Pieces(Struct):
    id: str = ""
    name: str = ""
    arguments: list[str] = []


class Turn:
    """Collects the deltas of one turn."""

    def __init__(self, *, reads_directives: bool, line_limit: int) -> None:
        self.usage = Usage()
        self._reader = DirectiveReader() if reads_directives else None
        self._repeats = (LineRepeats(line_limit), LineRepeats(line_limit)) if line_limit else None
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _Pieces] = {}

    @property
    def text(self) -> str:
        """The part of the text that has been shown."""
        return "".join(self._text)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    def say(self, text: str) -> str:
        """Return the text that may be shown now."""
        if self._repeats is not None:
            self._repeats[0].feed(text)
        return self.show(text if self._reader is None else self._reader.feed(text))

    def think(self, text: str) -> None:
        if self._repeats is not None:
            self._repeats[1].feed(text)
        self._reasoning.append(text)

    def call(self, piece: CallDelta) -> str:
        """Return the text that this frees: if calls are structured, the text contains none."""
        call = self._calls.setdefault(piece.index, _Pieces())
        call.id = call.id or piece.id
        if piece.name != call.name:  # some servers repeat the whole name in every piece
            call.name += piece.name
        call.arguments.append(piece.arguments)
        freed = self.release()
        self._reader = None
        return freed

    def show(self, text: str) -> str:
        """Note that ``text`` is shown; returns it."""
        if text:
            self._text.append(text)
        return text

    def release(self) -> str:
        """Show the held text, as ordinary text after all."""
        return self.show("" if self._reader is None else self._reader.release())

    @property
    def repeated_line(self) -> str | None:
        """The line that came too often."""
        found = [repeats.found for repeats in self._repeats or () if repeats.found is not None]
        return found[0] if found else None

    def structured(self) -> list[Written]:
        """Return the structured calls, in the order of their index; an entry without a name is not a call."""
        calls: list[Written] = []
        for _, call in sorted(self._calls.items(), key=lambda entry: entry[0]):
            arguments = "".join(call.arguments)
            if call.name or arguments.strip():
                calls.append(Written(id=call.id, name=call.name, arguments=arguments, raw=arguments))
        return calls

    def written(self) -> Reading:
        """Read the held text; none of it is shown yet. Call this once, at the turn's end."""
        return Reading(text="", raw="") if self._reader is None else self._reader.end()
