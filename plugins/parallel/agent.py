"""Asks several models, or one of them several times, the same thing at once, and answers with the best.

The request's own answer is candidate 1. The others are asked when the request comes in, beside it, so that all are
written at the same time; they are compared when its answer is there. README.md has the settings.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from appliance.plugins import Context, Event, Refused, Request, Response
from appliance.plugins.chat import answer_message, last_user, set_text, text_of
from appliance.plugins.options import options

from .ask import MEMBER, Round, candidate_of
from .settings import Settings
from .streaming import chosen


async def on_request(request: Request, context: Context) -> None:
    settings = options(context.settings, Settings)
    if request.body.get("n") not in (None, 1):
        raise Refused("'n' must be 1: the plugin's setting 'samples' says how many answers are compared")
    asked = Round(settings=settings, question=text_of(last_user(request.body)), context=context)
    asked.begin(request.body)
    context.state["round"] = asked


async def on_response(response: Response, context: Context) -> None:
    """Wait for the others, choose, and put the winner into the answer; a call of tools stays as it is."""
    asked = context.state.get("round")
    if not isinstance(asked, Round):
        return
    message = answer_message(response.body)
    if message.get("tool_calls"):
        asked.cancel()
        return
    candidates, verdict = await asked.settle(candidate_of(1, context.model, message))
    if verdict is None:
        return
    set_text(message, verdict.winner.text)
    response.body[MEMBER] = asked.told(verdict, candidates)


async def on_stream(events: AsyncIterator[Event], context: Context) -> AsyncIterator[Event]:
    """Show nothing before the choice; then the winner at once, or the judge's merged text while it is written."""
    asked = context.state.get("round")
    async for event in chosen(events, asked) if isinstance(asked, Round) else events:
        yield event
