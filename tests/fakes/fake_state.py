"""What all connections of the fake share, the table of routes, and how a handler refuses."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from fake_generation import JSON, Slots
from fake_http import Connection, Request
from fake_json import Json, as_object, encode
from fake_options import Options

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
}


class ApiError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class State:
    """What all connections share."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.name = sorted(options.alias.split(","))[0] or options.model.replace("\\", "/").rpartition("/")[2]
        self.slots = Slots(options.parallel)
        self.ready = False
        self.started = int(time.time())

    def info(self) -> Json:
        """The entry of /v1/models, which is also the payload of the ready line."""
        inputs = ["text", "image", "audio"] if self.options.mmproj else ["text"]
        meta: Json = {"vocab_type": 2, "n_vocab": 256, "n_ctx": self.options.ctx_size, "n_ctx_train": 8192}
        return {
            "id": self.name,
            "aliases": sorted(self.options.alias.split(",")) if self.options.alias else [self.name],
            "tags": [],
            "object": "model",
            "architecture": {"input_modalities": inputs, "output_modalities": [self.options.output]},
            "created": int(time.time()),
            "owned_by": "llamacpp",
            "meta": meta | {"n_embd": 8, "n_params": 1000, "size": 1000, "ftype": "Q8_0"},
        }


Handler = Callable[[State, Connection, Request], None]
ROUTES: dict[tuple[str, str], Handler] = {}


def route(method: str, *paths: str) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        ROUTES.update({(method, path): handler for path in paths})
        return handler

    return register


def parse_json(request: Request) -> Json:
    try:
        body: object = json.loads(request.body)
    except ValueError as cause:
        raise ApiError(400, f"[json.exception.parse_error.101] parse error: {cause}") from None
    return as_object(body)


def answer(connection: Connection, value: object) -> None:
    connection.respond(200, JSON, encode(value))


def require(body: Json, field: str, status: int = 400) -> object:
    if field not in body:
        raise ApiError(status, f"'{field}' is required")
    return body[field]
