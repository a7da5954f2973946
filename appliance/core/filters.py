"""The edits of request bodies that a configuration asks for, compiled once per model or peer.

The order is llama-swap's (0bdb3720): the model name, ``stripParams``, ``setParams``, ``setParamsByID``; within each the
sorted order of the paths. ``model`` belongs to the router: no strip or set reaches it, however its path is spelled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from appliance.core.config.types import Filters, Json, PeerFilters
from appliance.core.json_edit import Edit, apply_edits
from appliance.core.json_path import Path, Step, parse_path

PROTECTED = b"model"
_MODEL = Path((Step(PROTECTED),))


class Edits(Struct, frozen=True, kw_only=True):
    """The edits of one model or peer.

    ``model`` is the name to send if it differs from the body's: the target that a pin or selector chose, or the bare
    name of a peer's model. ``rename`` (useModelName) overrides it.
    """

    rename: str | None = None
    always: tuple[Edit, ...] = ()
    by_name: dict[str, tuple[Edit, ...]]
    """All edits by requested name, those of ``always`` first."""

    def sent_model(self, model: str | None = None) -> str | None:
        """Return the name to write into a body, JSON or form; None leaves the existing one."""
        return self.rename or model

    def touches(self, requested: str, *, model: str | None = None) -> bool:
        """True if `apply` may change a JSON body; if not, the body need not be held."""
        return bool(self.rename or model or self.by_name.get(requested, self.always))

    def apply(self, body: bytes, requested: str, *, model: str | None = None) -> bytes:
        """Return the body to send. ``requested`` is the client's name for the model, aliases included. Never raises."""
        edits = self.by_name.get(requested, self.always)
        name = self.sent_model(model)
        if name is not None:
            edits = (Edit(_MODEL, _json(name)), *edits)
        return apply_edits(body, edits) if edits else body


def compile_edits(filters: Filters | PeerFilters, use_model_name: str = "") -> Edits:
    """Leave out paths that cannot be used: `core.json_path.check_path` reports them when a configuration is read."""
    always = _strips(filters.strip_params) + _sets(filters.set_params)
    return Edits(
        rename=use_model_name or None,
        always=always,
        by_name={name: always + _sets(params) for name, params in filters.set_params_by_id.items()},
    )


def stripped_paths(strip_params: str) -> list[str]:
    """Return the paths in a comma-separated list: trimmed, sorted, without blanks, duplicates and the model."""
    paths = {path.strip() for path in strip_params.split(",")}
    return sorted(path for path in paths if path and not is_protected(path))


def is_protected(path: str) -> bool:
    """True if a path reaches the model name, or into it."""
    parsed = parse_path(path)
    return parsed is not None and parsed.steps[0].name == PROTECTED


def _strips(strip_params: str) -> tuple[Edit, ...]:
    parsed = [parse_path(path) for path in stripped_paths(strip_params)]
    return tuple(Edit(path) for path in parsed if path is not None)


def _sets(params: Mapping[str, Json]) -> tuple[Edit, ...]:
    parsed = [(parse_path(path), params[path]) for path in sorted(params) if not is_protected(path)]
    return tuple(Edit(path, _json(value)) for path, value in parsed if path is not None)


def _json(value: Json) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value).encode()  # half a surrogate pair exists as an escape only
