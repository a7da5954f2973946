"""The repairs of one server: what has helped which model, and the bodies of requests that are refused."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from msgspec import Struct

from appliance.core.config.types import Config
from appliance.core.exchange import Refused
from appliance.core.lenient_json import decoded
from appliance.core.models.model import Model, started_with
from appliance.errors import BadRequest
from appliance.features.repairs.core.plan import Attempt, final, kept_names, next_try, reason_of, repaired
from appliance.traffic.metrics import Metrics

ROUTES = frozenset(
    f"{prefix}{path}"
    for path in ("/chat/completions", "/completions", "/completion", "/infill")
    for prefix in ("", "/v1", "/v/v1", "/v")
)
_OTHER_TEMPLATE = re.compile("--(chat-template|jinja|no-jinja)")


class _Choice(Struct):
    tools: list[object] | None = None
    tool_choice: object = None


class _Known(Struct):
    """The facts of a model on a build, as long as its process is started like this."""

    made_of: tuple[object, ...]
    names: tuple[str, ...] = ()
    has_no_tools: bool = False


class Repairs:
    """A `Repair`."""

    def __init__(self, metrics: Metrics) -> None:
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
        return bool(known.names) or b'"tool_choice"' in body

    def holds(self, route: str, model: Model) -> bool:
        config = model.config
        on = self._on if config is None else config.repair_messages is not False and bool(config.engine)
        return on and route in ROUTES

    def begin(self, route: str, model: Model, build: str, body: bytes) -> RefusedChat | None:
        """Raises BadRequest for a tool that has to be called, of a model whose template knows no tools."""
        if not self.holds(route, model):
            return None
        known = self._known.get((model.id, build))
        if known is None or known.made_of != started_with(model):
            known = _Known(started_with(model), has_no_tools=_has_no_tools(model))
            self._known.pop((model.id, build), None)
            if known.has_no_tools:
                self._known[model.id, build] = known
        if known.has_no_tools and b'"tool_choice"' in body and _must_call(body):
            raise BadRequest(
                f"the chat template of {model.id!r} has no place for tools, so no call can be required of it; leave "
                "tool_choice out, or ask another model",
                param="tool_choice",
            )
        return RefusedChat(self, model, build, body, known.names)

    def keep(self, model: Model, build: str, names: Sequence[str]) -> None:
        """These have helped. Tools stay tools where the template knows some: another chat may fit as it is."""
        if not _has_no_tools(model):
            names = [name for name in names if name != "tools-as-text"]
        known = self._known.setdefault((model.id, build), _Known(started_with(model)))
        if any(name not in known.names for name in names):
            known.names = tuple(dict.fromkeys((*known.names, *names)))

    def count(self, model: Model, names: Sequence[str]) -> None:
        for name in names:
            self._counter.values[name, self._metrics.label(model.id)] += 1


class RefusedChat:
    """A `Repairing`: one request."""

    def __init__(self, repairs: Repairs, model: Model, build: str, body: bytes, known: tuple[str, ...]) -> None:
        self._repairs, self._model, self._build = repairs, model, build
        self._given = body
        self._tried: list[Attempt] = []
        found = repaired(body, known)
        self.body, self.names = found.body, found.names

    def next_after(self, refused: Refused) -> Refused | None:
        self._tried.append(Attempt(self.names, refused))
        found = next_try(self._given, self._tried)
        if found is not None:
            self.body, self.names = found.body, found.names
            return None
        # A refusal that is not known is about something else: the repairs before it were right.
        return refused if reason_of(refused) is None else final(self._given, self._tried[0].refused)

    def helped(self) -> None:
        self._repairs.count(self._model, self.names)
        if kept := kept_names(self._tried, self.names):
            self._repairs.keep(self._model, self._build, kept)


def _has_no_tools(model: Model) -> bool:
    """The chat template is the file's own, and says nothing of tools: the engine then drops them in silence."""
    template = model.info.chat_template if model.info is not None else None
    return template is not None and "tool" not in template and not any(map(_OTHER_TEMPLATE.match, model.args))


def _must_call(body: bytes) -> bool:
    asked = decoded(_Choice, body)
    return (
        asked is not None
        and bool(asked.tools)
        and (asked.tool_choice in ("required", "any") or isinstance(asked.tool_choice, dict))
    )
