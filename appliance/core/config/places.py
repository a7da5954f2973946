"""Where the keys of a configuration stand in its files, and the problems found there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from msgspec import Struct

from appliance.core.config.nodes import Position, Problem


class Places(Struct, frozen=True):
    """Dotted path (``models.llama.aliases[0]``) to the place of its value. A key without a value has no place."""

    known: Mapping[str, Position]

    def given(self, path: str) -> bool:
        """Whether the file says something there."""
        return path in self.known

    def at(self, path: str) -> Position | None:
        """The place of ``path``, else of the nearest thing around it, None where nothing was read from a file."""
        while path and path not in self.known:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.known.get(path)


class Report:
    """Collects problems; ``places`` says where they are."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.problems: list[Problem] = []

    def error(self, path: str, message: str) -> None:
        self.problems.append(Problem(message=message, path=path, at=self.places.at(path)))

    def warn(self, path: str, message: str) -> None:
        self.problems.append(Problem(message=message, path=path, at=self.places.at(path), level="warning"))


def near(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant: the same but for case and punctuation, else one that looks like it."""
    by_fold = {fold(candidate): candidate for candidate in known}
    found = difflib.get_close_matches(fold(name), by_fold, n=1, cutoff=0.6)
    return by_fold[found[0]] if found else None


def fold(name: str) -> str:
    """``strip_params`` and ``StripParams`` are one name."""
    return name.casefold().replace("_", "").replace("-", "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name; empty where nothing looks like it."""
    meant = near(name, known)
    return f"; did you mean '{meant}'?" if meant else ""
