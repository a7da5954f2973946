"""A configuration as the user would write it."""

from __future__ import annotations

import msgspec

from appliance.core.config.schema import schema as schema
from appliance.core.config.types import Config

ABSORBED = ("groups", "matrix", "macros", "server_pool")
"""Keys that a normalised configuration has under other names, or has used up."""


def shown(config: Config) -> dict[str, object]:
    """A normalised configuration under llama-swap's key names, every value told; reading it again gives the same one.

    Every key is there, but for those that have no value and those that `normalise` moved elsewhere.
    """
    tree: dict[str, object] = msgspec.to_builtins(config)
    for key in ABSORBED:
        del tree[key]
    for key in ("store", "modelsMax", "plugins"):
        if tree[key] is None:
            del tree[key]
    tree["models"] = {id: _model(msgspec.to_builtins(model)) for id, model in config.models.items()}
    tree["routing"] = _routing(config)
    return tree


def _model(tree: dict[str, object]) -> dict[str, object]:
    del tree["macros"]
    return tree


def _routing(config: Config) -> dict[str, object]:
    router = config.routing.router
    settings: dict[str, object] = {"groups": msgspec.to_builtins(router.settings.groups)}
    if router.settings.matrix is not None:
        settings["matrix"] = msgspec.to_builtins(router.settings.matrix)
    scheduler = msgspec.to_builtins(config.routing.scheduler)
    return {"router": {"use": router.use, "settings": settings}, "scheduler": scheduler}
