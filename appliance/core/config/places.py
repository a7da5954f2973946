"""The places of a configuration's keys in its files, and the problems found there."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from appliance.core.config.nodes import Position, Problem


class Places(Struct, frozen=True):
    """Dotted path (``models.llama.aliases[0]``) to the place of its value. A key without a value has no place."""

    known: Mapping[str, Position]

    def given(self, path: str) -> bool:
        """True if the file has something there."""
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
