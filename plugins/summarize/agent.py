"""Summarizes a text of any length: one that fits the model's context as it is, a longer one by its parts.

The parts are summarized first, then their summaries as one text, and so on until what is left fits; the final summary
is the request's own answer, so it streams as any other. README.md has the settings.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from appliance.plugins import AskFailed, Context, Event, JsonObject, Refused, Request, Response
from appliance.plugins.chat import finished
from appliance.plugins.options import options

from .model import Reader
from .text import Subject, joined, marked, subject

MEMBER = "summarize"
"""A member of the answer: the number of parts."""
SURE = 2048
"""Tokens of prompt and answer that every model is assumed to have room for."""
FILLER = " x"
"""One token; placeholders for the answer take its room while the plugin finds out what fits."""
SPARE = 0.03
"""Part of the context that is kept free for other plugins' additions."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    instruction: str = "Summarize the following text. Keep names, numbers and conclusions."
    part_instruction: str = "Summarize this part of a longer text. Keep names, numbers and conclusions."
    context_tokens: int = 0
    answer_tokens: int = 512
    part_tokens: int = 512
    at_once: int = 2
    max_parts: int = 200

    def __post_init__(self) -> None:
        for name in ("answer_tokens", "part_tokens", "at_once", "max_parts"):
            if getattr(self, name) < 1:
                raise ValueError(f"'{name}' must be 1 or more")


@dataclass(frozen=True, kw_only=True)
class Reduced:
    """The model's text. ``parts``: the number of parts each time that it did not fit."""

    text: str
    parts: Sequence[int] = ()

    @property
    def told(self) -> JsonObject:
        """Return the ``summarize`` member of the answer."""
        return {"parts": [*self.parts]}


async def on_request(request: Request, context: Context) -> None:
    settings = options(context.settings, Settings)
    about = subject(request.body, settings.instruction)
    reader = Reader(context, request.body)
    context_tokens = await _context_tokens(about, settings, reader)
    reduced = Reduced(text=about.text)
    if context_tokens is not None:
        reduced = await _reduced(about, settings, reader, context_tokens, context)
    request.body["messages"] = about.put(reduced.text)
    context.state["reduced"] = reduced


async def _context_tokens(about: Subject, settings: Settings, reader: Reader) -> int | None:
    """Return the length of the model's context; None if the text fits in any case."""
    if settings.context_tokens:
        return settings.context_tokens
    whole = about.put(about.text)
    if await reader.prompt_tokens(whole) + settings.answer_tokens <= SURE:
        return None
    return await reader.context_unless_fits(about.put(about.text + FILLER * settings.answer_tokens))


async def _reduced(
    about: Subject, settings: Settings, reader: Reader, context_tokens: int, context: Context
) -> Reduced:
    """Return the text, or its summary when that fits ``context_tokens``. Raises Refused, AskFailed."""
    part_tokens = min(settings.part_tokens, context_tokens // 4)
    answer_tokens = min(settings.answer_tokens, context_tokens // 4)
    spare = int(context_tokens * SPARE)
    room = context_tokens - answer_tokens - spare - await reader.prompt_tokens(about.put(""))
    asked: JsonObject = {"role": "user", "content": marked(settings.part_instruction, "")}
    part_room = context_tokens - part_tokens - spare - await reader.prompt_tokens([asked])
    if room < part_tokens or part_room < 2 * part_tokens:
        raise Refused(f"a context of {context_tokens} tokens has no room for the text beside the instructions")
    text, size, told = about.text, await reader.tokens(about.text), list[int]()
    while size > room:
        parts = await reader.parts(text, part_room)
        if len(parts) > settings.max_parts:
            raise Refused(
                f"the text has {size} tokens, {len(parts)} parts for this model; 'max_parts' in the plugin's settings "
                f"allows {settings.max_parts}"
            )
        context.logger.info("%d tokens do not fit %d: summarizing %d parts", size, room, len(parts))
        told.append(len(parts))
        text = joined(await reader.summaries(parts, settings.part_instruction, part_tokens, settings.at_once))
        before, size = size, await reader.tokens(text)
        if size >= before:
            raise AskFailed(f"the summaries of {len(parts)} parts are not shorter than the text: {size} tokens")
    return Reduced(text=text, parts=told)


async def on_response(response: Response, context: Context) -> None:
    reduced = context.state.get("reduced")
    if isinstance(reduced, Reduced):
        response.body[MEMBER] = reduced.told


async def on_stream(events: AsyncIterator[Event], context: Context) -> AsyncIterator[Event]:
    reduced = context.state.get("reduced")
    async for event in events:
        if isinstance(reduced, Reduced) and event.data is not None and finished(event):
            event.data[MEMBER] = reduced.told
        yield event
