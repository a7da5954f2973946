"""The bodies of one request that an engine may refuse: of a chat, or of a question about texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from appliance.core.exchange import Refused
from appliance.core.models.model import Model
from appliance.features.repairs.core.abilities import has_no_tools, has_tools
from appliance.features.repairs.core.plan import (
    Attempt,
    blamed,
    final,
    kept_names,
    next_try,
    reason_of,
    repaired,
)


class RefusedChat:
    """A `Repairing`. ``helped`` gets the repairs with which the engine answers, and those worth to be kept."""

    def __init__(
        self, model: Model, body: bytes, known: tuple[str, ...], helped: Callable[[Sequence[str], Sequence[str]], None]
    ) -> None:
        self._given, self._helped = body, helped
        self._tried: list[Attempt] = []
        found = repaired(body, known)
        self.body, self.names = found.body, found.names
        self.ignored: tuple[str, ...] = ("tools",) if has_no_tools(model) and has_tools(body) else ()

    def next_after(self, refused: Refused) -> Refused | None:
        self._tried.append(Attempt(self.names, refused))
        found = next_try(self._given, self._tried)
        if found is not None:
            self.body, self.names = found.body, found.names
            return None
        # A refusal that is not known is about something else: the repairs before it were right.
        return refused if reason_of(refused) is None else final(self._given, self._tried[0].refused)

    def helped(self) -> None:
        self._helped(self.names, kept_names(self._tried, self.names))


class RefusedQuestion:
    """A `Repairing` without repairs: of tokens, embeddings and ranks, only the blame for a refusal can be wrong."""

    names: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def __init__(self, route: str, body: bytes) -> None:
        self._route = route
        self.body = body

    def next_after(self, refused: Refused) -> Refused:
        return blamed(self._route, refused)

    def helped(self) -> None:
        """Nothing was changed."""
