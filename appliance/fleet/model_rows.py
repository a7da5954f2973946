"""The models that are on this machine, as ``ls`` and ``GET /api/ls`` show them: each with its file, and how it fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from msgspec import Struct

from appliance.core.engine import Manual
from appliance.core.memory import FitPlan
from appliance.core.models.model import Model
from appliance.fleet.estimate import Estimate


class ModelRow(Struct, frozen=True, kw_only=True):
    """One model. ``state`` is None when no server runs."""

    id: str
    source: str
    path: str | None
    state: str | None
    aliases: tuple[str, ...] = ()
    architecture: str | None = None
    parameters: int | None = None
    quantisation: str | None = None
    size: int | None = None
    context_length: int | None = None
    last_used: datetime | None = None
    """The time of its last request; None if the activity log has none, or no server runs."""
    error: str | None = None
    fit: FitPlan | None = None
    """None if it cannot be predicted."""


class ModelTable(Struct, frozen=True, kw_only=True):
    """The output of ``ls --json``, and of ``GET /api/ls``, where the server is not named."""

    models: list[ModelRow]
    models_dir: str | None
    server: str | None = None
    notes: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    """Folders of other programs whose models are among these."""


def model_rows(
    models: Iterable[Model],
    states: Mapping[str, str] | None,
    room: Mapping[str, int],
    manual: Manual | None,
    last_used: Mapping[str, datetime],
    estimate: Estimate,
) -> list[ModelRow]:
    """Return a row for each model, then one for each other name in ``states``. Asks the disk for sizes."""
    known = {model.id: model for model in models}
    rows = [
        _row(
            model,
            None if states is None else states.get(model.id, "unknown"),
            estimate.plan(model, room, manual),
            last_used.get(model.id),
        )
        for model in known.values()
    ]
    return rows + [
        ModelRow(id=name, source="server", path=None, state=state, last_used=last_used.get(name))
        for name, state in (states or {}).items()
        if name not in known
    ]


def _row(model: Model, state: str | None, plan: FitPlan | None, last_used: datetime | None) -> ModelRow:
    info = model.info
    return ModelRow(
        id=model.id,
        source=model.source,
        path=model.path,
        state=state,
        aliases=model.aliases,
        architecture=info.architecture if info else None,
        parameters=info.parameters if info else None,
        quantisation=info.quantisation if info else None,
        size=model.size,
        context_length=info.context_length if info else None,
        last_used=last_used,
        error=model.error,
        fit=plan,
    )
