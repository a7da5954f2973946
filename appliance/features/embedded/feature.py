"""The sign-in of the feature."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.core.engine import EMBEDDED as ID
from appliance.core.engine import Engine, EngineInside
from appliance.feature import Feature

if TYPE_CHECKING:
    from appliance.http.way.hooks import EngineTranslate


def _find() -> Engine | None:
    from appliance.features import embedded

    if not embedded.available():
        return None
    version = embedded.version()
    return Engine(
        name=ID,
        backend="cpu",
        version=version,
        command=tuple(embedded.command()),
        source="the Python environment",
        id=ID,
        digest=f"{embedded.WHEEL}-{version}",
        lacks=embedded.LACKS,
    )


def _translate() -> EngineTranslate:
    from appliance.features.embedded.translate import KeptSchemas

    return KeptSchemas()


EMBEDDED = Feature(
    name="embedded",
    engine=EngineInside(find=_find, install="pip install llama-appliance[embedded]"),
    engine_translates=(_translate,),
)
