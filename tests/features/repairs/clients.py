"""The official clients of each dialect: the bytes that they send, and how they read an answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

from neutral import Json

PATHS = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "ollama": "/api/chat",
}  # fmt: skip


class _Kept(Exception):
    """The body that a client was about to send."""


class _Transport:
    """The end of the way of every client here."""

    def handle_request(self, request: Any) -> None:
        raise _Kept(request.read())

    def close(self) -> None:
        """Nothing is open."""


@cache
def _call(dialect: str) -> Callable[..., Any]:
    end: Any = _Transport()
    if dialect == "messages":
        from anthropic import Anthropic, DefaultHttpxClient  # not at the top: each takes seconds

        http = DefaultHttpxClient(transport=end)
        return Anthropic(api_key="k", base_url="http://there", max_retries=0, http_client=http).messages.create
    if dialect == "ollama":
        from ollama import Client

        return Client(host="http://there", transport=end).chat
    import openai

    http = openai.DefaultHttpxClient(transport=end)
    client = openai.OpenAI(api_key="k", base_url="http://there/v1", max_retries=0, http_client=http)
    return client.chat.completions.create if dialect == "chat" else client.responses.create


def sent(dialect: str, arguments: Json, model: str) -> bytes:
    """Return the body that the official client sends for a call with these arguments."""
    given = dict(arguments)
    more = given.pop("extra_body", {}) if dialect == "ollama" else {}
    try:
        _call(dialect)(model=model, **given)
    except Exception as error:
        found: BaseException | None = error
        while found is not None and not isinstance(found, _Kept):
            found = found.__cause__ or found.__context__
        if found is None:
            raise
        return json.dumps({**json.loads(found.args[0]), **more}).encode() if more else found.args[0]
    raise AssertionError("the client sent nothing")


def words_in(dialect: str, body: bytes) -> str:
    """Return the text of an answer, read by the official client's own types."""
    match dialect:
        case "chat":
            from openai.types.chat import ChatCompletion

            return ChatCompletion.model_validate_json(body, strict=True).choices[0].message.content or ""
        case "messages":
            from anthropic.types import Message

            blocks = Message.model_validate_json(body, strict=True).content
            return "".join(block.text for block in blocks if block.type == "text")
        case "responses":
            from openai.types.responses import Response

            return Response.model_validate_json(body, strict=True).output_text
        case _:
            from ollama import ChatResponse

            return ChatResponse.model_validate_json(body).message.content or ""


def message_in(dialect: str, body: bytes) -> str:
    """Return the message of an error in the shape of the dialect."""
    error = json.loads(body)["error"]
    return error if dialect == "ollama" else error["message"]
