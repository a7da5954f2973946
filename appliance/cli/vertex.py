"""The environment (``AIP_*``) that Vertex AI gives a container, as llama-server of llama.cpp b11434 reads it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from appliance.core.settings import DEFAULT_PORT, HttpSettings, UnixSocket
from appliance.errors import UsageError
from appliance.platform.console import say
from appliance.settings import AppSettings

PREDICTION = "PREDICTION"
"""The only ``AIP_MODE`` there is."""


def on_vertex(settings: AppSettings, environ: Mapping[str, str]) -> AppSettings:
    """Return the settings for that environment; without it they stay the same. Raises UsageError."""
    if environ.get("AIP_MODE") != PREDICTION:
        return settings
    return structs.replace(settings, http=_served(settings.http, environ))


def _served(http: HttpSettings, environ: Mapping[str, str]) -> HttpSettings:
    text = environ.get("AIP_HTTP_PORT") or str(DEFAULT_PORT)
    if not (text.isascii() and text.isdecimal() and int(text) <= 65535):
        raise UsageError(f"AIP_HTTP_PORT={text}: a port is a number from 0 to 65535")
    port = int(text)
    others = {place[1] for place in http.listen if not isinstance(place, UnixSocket)} - {port}
    for other in others:
        say(f"AIP_HTTP_PORT counts: listening on port {port}, not {other}")
    places = (place if isinstance(place, UnixSocket) else (place[0], port) for place in http.listen)
    return structs.replace(
        http,
        listen=tuple(places),
        predict=_route(environ, "AIP_PREDICT_ROUTE") or "/predict",
        health=_route(environ, "AIP_HEALTH_ROUTE"),
    )


def _route(environ: Mapping[str, str], name: str) -> str | None:
    path = environ.get(name)
    return f"/{path.removeprefix('/')}" if path else None
