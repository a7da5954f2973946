"""Small answers of the program's own routes."""

from __future__ import annotations

import msgspec
from quart import Response
from quart.wrappers.response import ResponseBody

TEXT = "text/plain; charset=utf-8"


def json_answer(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, content_type="application/json; charset=utf-8")


def text_answer(text: str) -> Response:
    return Response(text, content_type=TEXT)


def see(place: str) -> Response:
    """302 to a place relative to the request's own path, so that it also holds under a path prefix."""
    response = Response("", 302, content_type=TEXT)
    response.headers["Location"] = place
    return response


def endless_answer(body: ResponseBody, content_type: str) -> Response:
    """An answer that goes on until its client leaves or the server ends."""
    response = Response(body, content_type=content_type)
    response.timeout = None
    response.headers["Cache-Control"] = "no-cache"
    response.headers["X-Accel-Buffering"] = "no"
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response
