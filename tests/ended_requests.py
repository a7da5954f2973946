"""The facts of a request that is over, for tests of what is made of them."""

from __future__ import annotations

from appliance.core.records.ended import EndedRequest


def ended(**more: object) -> EndedRequest:
    """Return a streamed chat of ten seconds with model ``alpha``, and with these facts in place of its own."""
    facts: dict[str, object] = {
        "route": "/v1/chat/completions",
        "headers": [(b"host", b"box:8080")],
        "requested": "al",
        "model": "alpha",
        "known": True,
        "streaming": True,
        "status": 200,
        "fault": None,
        "error": None,
        "usage": None,
        "metadata": {},
        "steps": (),
        "build": "",
        "began": 0.0,
        "first_byte": None,
        "first_token": None,
        "ended": 10.0,
        "epoch": 1000.0,
    }
    return EndedRequest(**(facts | more))  # pyright: ignore[reportArgumentType]
