"""The media that a model can read, as far as that is known before it is loaded."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.core.models.model import Model


def may_read(model: Model | None, medium: str, arguments: Sequence[str] = ()) -> bool:
    """Return False for a model that is known to have nothing that reads an ``image``, ``audio`` or ``video``.

    ``arguments`` are the engine's for every model.
    """
    if model is None or model.config is not None or model.fetch or model.unread:
        return True
    if model.input_modalities == ("text",):
        return bool(model.mmproj) or any("mmproj" in word for word in (*model.args, *arguments))
    return medium in model.input_modalities or medium == "video"
