"""Answers that are JSON and fit a schema: the engine is held to it, and what it says is checked and corrected.

README.md says where the schema may stand, and has the settings.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from appliance.plugins import Context, Event, JsonObject, Request, Response
from appliance.plugins.chat import Streamed, answer_message, last_user, saying, set_text, text_of, with_member
from appliance.plugins.options import options

from .fitting import Said, Settings, Wanted
from .schema import ANY_OBJECT, wanted_schema

MEMBER = "json"
"""A member of the answer: that it fits, and after how many corrections."""


async def on_request(request: Request, context: Context) -> None:
    settings = options(context.settings, Settings)
    body, message = request.body, last_user(request.body)
    text = text_of(message)
    schema = await context.in_thread(lambda: wanted_schema(body, text, context.settings.get("schema")))
    for other in ("json_schema", "grammar", "response_format"):
        body.pop(other, None)
    if settings.hold and not body.get("tools"):  # llama-server takes a grammar or tools, not both
        form: JsonObject = {"name": "answer", "schema": schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    if settings.tell:
        set_text(message, f"{text}\n\n{_told(schema)}")
    context.state["wanted"] = Wanted(schema=schema, settings=settings, body=body)


async def on_response(response: Response, context: Context) -> None:
    """Raises NeverFits. A call of tools is not an answer yet."""
    wanted = context.state.get("wanted")
    if not isinstance(wanted, Wanted) or answer_message(response.body).get("tool_calls"):
        return
    fitting = await wanted.fit(Said.of(response.body), context)
    set_text(answer_message(response.body), fitting.text)
    response.body[MEMBER] = fitting.told


async def on_stream(events: AsyncIterator[Event], context: Context) -> AsyncIterator[Event]:
    """Show nothing before it fits. Raises NeverFits."""
    wanted = context.state.get("wanted")
    said, records = Streamed(), list[Event]()
    async for event in events:
        said.add(event)
        records.append(event)
    if isinstance(wanted, Wanted) and not said.tool_calls:
        fitting = await wanted.fit(Said(text=said.text, cut=said.finish_reason == "length"), context)
        if fitting.text != said.text:
            records = saying(said, records, fitting.text)
        records = with_member(records, MEMBER, fitting.told)
    for event in records:
        yield event


def _told(schema: JsonObject) -> str:
    if schema is ANY_OBJECT:
        return "Answer with one JSON object alone."
    return f"Answer with JSON alone, fitting this JSON schema:\n{json.dumps(schema, ensure_ascii=False)}"
