"""Tool calls written as text, in the format that the BIOS explains to models without a call format of their own.

    ```tool_call
    {"tool": "read_file", "arguments": {"path": "notes.txt"}}
    ```

The fence opens at the start of a line and ends with the first line that ends in three backticks; inside valid JSON no
line can. Nothing else is a call: not JSON by itself, not JSON in any other fence.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Raw, Struct

MARK = "```tool_call"
FENCE = "```"

_OPENING = re.compile(r"^ {0,3}```tool_call(?![\w-])", re.MULTILINE)
_INDENT = 3
_CLOSING = re.compile(r"```[ \t\r]*$", re.MULTILINE)


class Directive(Struct, frozen=True, kw_only=True):
    """One call. ``arguments`` is JSON text; ``raw`` is the fence with all of its content."""

    tool: str
    arguments: str
    raw: str


class Reading(Struct, frozen=True, kw_only=True):
    """The result of a turn that may have directives. ``problem`` says why one of them cannot be read."""

    text: str
    """The text that was held back, without the directives."""
    raw: str
    """The text that was held back, unchanged."""
    directives: tuple[Directive, ...] = ()
    problem: str | None = None


class _Written(Struct):
    tool: str
    arguments: Raw = Raw(b"{}")


_decode = msgspec.json.Decoder(_Written).decode


class DirectiveReader:
    """Passes text on as it comes, except for possible directives: it holds back everything from the first one on.

    The held text is decided when the turn has ended, because structured calls turn directives into ordinary text.
    """

    def __init__(self) -> None:
        self._line: str = ""  # the line at hand, while it may still become an opening
        self._mid_line = False
        self._held: list[str] = []

    def feed(self, text: str) -> str:
        """Return the text that may be shown now."""
        if self._held:
            self._held.append(text)
            return ""
        if self._mid_line and "\n" not in text:
            return text
        text = self._line + text
        first_line = text.find("\n") + 1 if self._mid_line else 0
        opening = _OPENING.search(text, first_line)
        last_line = max(text.rfind("\n") + 1, first_line)
        if opening is not None and opening.end() < len(text):
            shown = text[: opening.start()]
            self._held.append(text[opening.start() :])
            self._line = ""
        elif _may_open(text, last_line):
            shown, self._line = text[:last_line], text[last_line:]
            self._mid_line = False
        else:
            shown, self._line = text, ""
            self._mid_line = True
        return shown

    def release(self) -> str:
        """Return all held text, as ordinary text after all."""
        held = "".join((self._line, *self._held))
        self._line = ""
        self._held.clear()
        return held

    def end(self) -> Reading:
        """End the turn and read the held text."""
        raw = self.release()
        text: list[str] = []
        directives: list[Directive] = []
        at = 0
        while (opening := _OPENING.search(raw, at)) is not None:
            closing = _CLOSING.search(raw, opening.end())
            body_end, end = (closing.start(), closing.end()) if closing else (len(raw), len(raw))
            try:
                written = _decode(raw[opening.end() : body_end].encode())
            except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                what = "nested too deeply" if isinstance(error, RecursionError) else str(error)
                return Reading(text=raw, raw=raw, problem=f"a call written as text cannot be read: {what}")
            arguments = bytes(written.arguments).decode()
            directives.append(Directive(tool=written.tool, arguments=arguments, raw=raw[opening.start() : end]))
            text.append(raw[at : opening.start()])
            at = end + (raw[end : end + 1] == "\n")
        text.append(raw[at:])
        return Reading(text="".join(text), raw=raw, directives=tuple(directives))


def _may_open(text: str, start: int) -> bool:
    """True if the text at ``start`` is the beginning of an opening, or an opening whose next character is not here
    yet.
    """
    if len(text) - start > _INDENT + len(MARK):
        return False
    line = text[start:]
    mark = line.lstrip(" ")
    return len(line) - len(mark) <= _INDENT and MARK.startswith(mark)
