"""Answers of the Responses API, read strictly by the types of OpenAI's own client."""

from __future__ import annotations

from typing import Any, get_args

from appliance.core.bodies.sse import Decoder


def whole(content: bytes) -> Any:
    """The response in a body. Raises where a member is missing, or of another type."""
    from openai.types.responses import Response  # not at the top: it takes a second of each process

    return Response.model_validate_json(content, strict=True)


def events(stream: bytes) -> list[Any]:
    """The events of a stream, whose numbers have no gap and whose names are their types."""
    from openai.types.responses import ResponseStreamEvent

    kinds = {
        get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(get_args(ResponseStreamEvent)[0])
    }
    read: list[Any] = []
    for number, event in enumerate(Decoder().feed(stream)):
        one = kinds[event.name].model_validate_json(event.data, strict=True)
        assert (one.type, one.sequence_number) == (event.name, number)
        read.append(one)
    return read
