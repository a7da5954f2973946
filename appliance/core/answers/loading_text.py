"""The text that a waiting client reads as the model's own "thinking". Pure: times are arguments.

The idea and the marks are llama-swap's ``sendLoadingState`` (0bdb3720); its text is typed out slowly, ours is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

RULE = "━" * 5
JOKE_PAUSE = 7.0
"""Seconds between two jokes."""

JOKES = (
    "Asking the disk nicely.",
    "Counting the weights; some of them have put on a few.",
    "Teaching the layers to stand in line.",
    "Warming up the attention heads, which is harder than it sounds.",
    "Unpacking a great many very small numbers.",
    "Looking for the end of the file; it is further away than expected.",
    "Reminding the tokens who is first.",
)


class LoadingText:
    """The text for one waiting request. ``jokes`` appear in the given order; an empty list means none."""

    def __init__(self, model: str, jokes: Sequence[str] = ()) -> None:
        self._model = model
        self._jokes: Iterator[str] = iter(jokes)
        self._next_joke = 0.0
        self._position: int | None = None
        self._wait: float | None = None
        self._percent: int | None = None
        self._arrived: int | None = None
        self._in_line = False

    def header(self) -> str:
        return f"{RULE}\nllama-appliance loading model: {self._model}\n"

    def tick(
        self,
        waited: float,
        position: int | None,
        progress: float | None,
        fetched: float | None = None,
        expected: float | None = None,
    ) -> str:
        """Return the text to add after ``waited`` seconds: news if there is any, else a dot.

        ``position`` is the request's place in the queue, from 1; ``progress`` of the load and of the download before
        it, ``fetched``, run from 0 to 1. ``expected`` are the seconds until the model is loaded, told with each place.
        """
        lines: list[str] = []
        arrived = _percent(fetched)
        if arrived is not None and arrived != self._arrived:
            lines.append(f"Downloading: {arrived} %")
        self._arrived = arrived
        wait = f"expected wait: {expected:.0f} s" if expected is not None else ""
        if position is not None and position != self._position:
            lines.append(f"Queue position: #{position}" + (f", {wait}" if wait else ""))
        elif wait and self._wait is None:
            lines.append(wait.capitalize())
        self._position, self._wait = position, expected
        percent = _percent(progress)
        if percent is not None and percent != self._percent:
            lines.append(f"Loading: {percent} %")
        self._percent = percent
        if waited >= self._next_joke and (joke := next(self._jokes, None)) is not None:
            self._next_joke = waited + JOKE_PAUSE
            lines.append(joke)
        if not lines:
            self._in_line = True
            return "."
        return self._ended_line() + "".join(f"{line}\n" for line in lines)

    def end(self, waited: float) -> str:
        """Return the last words, once the model is ready."""
        return f"{self._ended_line()}Done! ({waited:.2f}s)\n{RULE}\n "

    def _ended_line(self) -> str:
        ended, self._in_line = "\n" if self._in_line else "", False
        return ended


def _percent(part: float | None) -> int | None:
    return None if part is None else round(100 * min(max(part, 0.0), 1.0))
