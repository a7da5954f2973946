"""Answers from the operator's own documents: finds passages like the question, shows them to the model, names them.

README.md has the settings. The index lives in the plugin's data folder; nothing leaves the machine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from appliance.plugins import Context, Event, JsonObject, Refused, Request, Response
from appliance.plugins.chat import Streamed, answer_message, finished, last_user, set_text, text_of
from appliance.plugins.options import options

from .cite import Source, footer, listed, with_sources, within
from .index import embed_question, refresh
from .settings import Settings
from .store import Counts, Passage, open_store
from .vectors import nearest

INDEX = "index.sqlite"


@dataclass(frozen=True, kw_only=True)
class Shown:
    """The additions to a request: kept from `on_request` for the hooks of its answer."""

    sources: list[Source]
    counts: Counts
    settings: Settings
    body: JsonObject
    """The request's body, after other plugins' changes."""

    def footer(self, answer: str) -> str:
        """The text below an answer in prose; an answer with a prescribed form has none."""
        form = self.body.get("response_format")
        free = not isinstance(form, dict) or form.get("type") == "text"
        plain = free and not self.body.get("json_schema") and not self.body.get("grammar")
        return footer(answer, self.sources, self.counts) if self.settings.footer and plain else ""


async def on_request(request: Request, context: Context) -> None:
    settings = options(context.settings, Settings)
    message = last_user(request.body)
    question = text_of(message).strip()
    if not question:
        raise Refused("nothing is asked: put the question behind the slash command")
    model = settings.embedding_model or context.model
    database = context.data / INDEX
    vector = await embed_question(context, model, question[: settings.chunk_chars])
    counts = await refresh(context, settings, database, model, vector)
    if not counts.chunks:
        places = await context.in_thread(partial(settings.places, context.data))
        raise Refused(_nothing_there(places, counts))
    found = await context.in_thread(partial(_search, database, model, vector, settings))
    sources = within(found, settings.context_chars)
    context.logger.info("%d of %d passages are shown; left out: %s", len(sources), counts.embedded, counts.left_out)
    if sources:
        set_text(message, with_sources(question, sources))
    context.state["shown"] = Shown(sources=sources, counts=counts, settings=settings, body=request.body)


async def on_response(response: Response, context: Context) -> None:
    shown = context.state["shown"]
    message = answer_message(response.body)
    if not isinstance(shown, Shown) or not message:
        return
    answer = text_of(message)
    response.body["sources"] = listed(answer, shown.sources)
    if answer:
        set_text(message, answer + shown.footer(answer))


async def on_stream(events: AsyncIterator[Event], context: Context) -> AsyncIterator[Event]:
    """Yield every record as it comes; the footer goes before the one that ends the first choice, which lists the
    sources.
    """
    shown = context.state["shown"]
    streamed = Streamed()
    async for event in events:
        streamed.add(event)
        if isinstance(shown, Shown) and event.data is not None and 0 in finished(event):
            below = shown.footer(streamed.text) if streamed.text else ""
            if below:
                yield streamed.record({"content": below})
            event.data["sources"] = listed(streamed.text, shown.sources)
        yield event


def _search(database: Path, model: str, vector: bytes, settings: Settings) -> list[tuple[float, Passage]]:
    """Return the passages most like the question, best first."""
    with open_store(database) as store:
        best = nearest(vector, store.vectors(model), settings.top_k)
        return [(score, store.passage(chunk)) for score, chunk in best if score >= settings.min_score]


def _nothing_there(places: list[Path], counts: Counts) -> str:
    where = ", ".join(str(place) for place in places)
    left_out = ", ".join(f"{count} {reason}" for reason, count in counts.left_out.items())
    return f"there is no text to answer from in {where}" + (f" (left out: {left_out})" if left_out else "")
