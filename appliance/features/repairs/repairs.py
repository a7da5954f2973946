"""The repairs of one server: what has helped which model, and the bodies of requests that are refused."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from appliance.core.config.types import Config
from appliance.core.models.model import Model, started_with
from appliance.errors import BadRequest
from appliance.features.repairs.core.abilities import EMBEDDINGS, RANKS, ROUTES, TOKENS, has_no_tools, unable
from appliance.traffic.metrics import Metrics

if TYPE_CHECKING:
    from appliance.http.way.hooks import Repairing

_CHATS = ROUTES | {"/apply-template"}
_QUESTIONS = frozenset((*TOKENS, *EMBEDDINGS, *RANKS))


class _Known(Struct):
    """The facts of a model on a build, as long as its process is started like this."""

    made_of: tuple[object, ...]
    has_no_tools: bool
    names: tuple[str, ...] = ()


class Repairs:
    """A `Repair`."""

    def __init__(self, metrics: Metrics, arguments: Sequence[str] = ()) -> None:
        """``arguments`` are the engine's for every model."""
        self._arguments = arguments
        self._known: dict[tuple[str, str], _Known] = {}
        self.remembered: Collection[tuple[str, str]] = self._known
        self._on = True
        self._metrics = metrics
        self._counter = metrics.counter("repairs_total", "Repairs in requests that were answered.", ("repair", "model"))

    def adopt(self, config: Config) -> Sequence[str]:
        self._on = config.repair_messages
        return ()

    def wants(self, model: Model, build: str, body: bytes) -> bool:
        known = self._known[model.id, build]
        return bool(known.names) or (known.has_no_tools and b'"tools"' in body)

    def holds(self, route: str, model: Model, build: str) -> bool:
        is_on = self._is_on(model)
        if is_on and route in _CHATS and has_no_tools(model):
            self._known_of(model, build)
        return is_on and (route in _CHATS or route in _QUESTIONS)

    def unable(self, route: str, model: Model, body: bytes) -> BadRequest | None:
        return unable(route, model, self._arguments, body) if self._is_on(model) else None

    def _is_on(self, model: Model) -> bool:
        config = model.config
        return self._on if config is None else config.repair_messages is not False and bool(config.engine)

    def _known_of(self, model: Model, build: str) -> _Known:
        """Make it, or make it anew where the model is another one now."""
        known = self._known.get((model.id, build))
        if known is None or known.made_of != started_with(model):
            known = self._known[model.id, build] = _Known(started_with(model), has_no_tools(model))
        return known

    def begin(self, route: str, model: Model, build: str, body: bytes) -> Repairing | None:
        if not self.holds(route, model, build):
            return None
        # With all repairs, which no start needs.
        from appliance.features.repairs.refused import RefusedChat, RefusedQuestion

        if route in _QUESTIONS:
            return RefusedQuestion(route, body)
        known = self._known.get((model.id, build))
        if known is not None and known.made_of != started_with(model):
            del self._known[model.id, build]
            known = None
        return RefusedChat(model, body, known.names if known is not None else (), partial(self._helped, model, build))

    def _helped(self, model: Model, build: str, names: Sequence[str], kept: Sequence[str]) -> None:
        """Count these, and keep some. Tools stay tools where the template knows some: another chat may fit as it is."""
        for name in names:
            self._counter.values[name, self._metrics.label(model.id)] += 1
        if not kept:
            return
        known = self._known_of(model, build)
        kept = [name for name in kept if name != "tools-as-text" or known.has_no_tools]
        known.names = tuple(dict.fromkeys((*known.names, *kept)))
