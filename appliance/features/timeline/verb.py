"""``events``: the running server's timeline, with the reason of every decision."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

import click
import msgspec
from msgspec import Raw, Struct

from appliance.cli.remote import RunningServer, ask, following, server_options
from appliance.core.bodies.sse import Decoder
from appliance.core.config.scalars import parse_duration
from appliance.core.parameters import read_time
from appliance.core.records.history import DEFAULT_LIMIT, KINDS, MAX_LIMIT
from appliance.errors import BadRequest, UsageError
from appliance.platform.console import harmless, say

MAX_MESSAGE = 16 << 20
"""Characters of one message of the feed: the states of a thousand models are one."""


class _Cause(Struct, frozen=True):
    by: str = ""


class TimelineEntry(Struct, frozen=True):
    """One entry of ``GET /api/history``, as far as it is shown here."""

    id: int
    timestamp: datetime
    kind: str
    why: str
    model: str = ""
    cause: _Cause = _Cause()

    def fits(self, models: Sequence[str], kinds: Sequence[str]) -> bool:
        """True if it is one of these kinds, and about one of these models; none names all."""
        return (not kinds or self.kind in kinds) and (not models or self.model in models or self.cause.by in models)


class TimelineAnswer(Struct, frozen=True):
    """``GET /api/history``."""

    data: list[Raw]


class FeedMessage(Struct, frozen=True):
    """One message of ``GET /api/events``; ``data`` is JSON in a string."""

    type: str
    data: str


_decode = msgspec.json.Decoder(TimelineEntry).decode


@click.command()
@server_options
@click.option("-f", "--follow", is_flag=True, help="Keep printing new events as they come; Ctrl-C ends.")
@click.option("--model", "models", multiple=True, metavar="MODEL", help="Only of MODEL, or what made room for it.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS), help="Only of this kind.")
@click.option(
    "--since",
    metavar="TIME",
    help=f"All since then: 30m, 48h or 2026-11-20T08:30:00Z. [default: the last {DEFAULT_LIMIT}]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON Lines: one event in each line.")
async def events(
    server: RunningServer,
    *,
    follow: bool,
    models: tuple[str, ...],
    kinds: tuple[str, ...],
    since: str | None,
    as_json: bool,
) -> int:
    """Show what the running server did, and why: loads, unloads, evictions, refusals, fallbacks, crashes, reloads.

    --model and --kind may be given several times.

    \b
    Examples:
      llama-appliance events
      llama-appliance events --since 24h --kind evicted --kind refused
      llama-appliance events -f --model starter --json
    """
    query = [*(("model", model) for model in models), *(("kind", kind) for kind in kinds)]
    if since is not None:
        query += [("start", _start(since).isoformat(timespec="milliseconds")), ("limit", str(MAX_LIMIT))]
    if not follow:
        if not await _print_past(server, query, as_json=as_json):
            say("nothing of that kind has happened" if query else "nothing has happened yet")
        return 0
    async with following(server, "/api/events") as response:
        # The feed is open before the past is read, so that nothing falls between them.
        decoder, chunk = Decoder(MAX_MESSAGE), await response.receive()
        last = await _print_past(server, query, as_json=as_json)
        while chunk:
            for event in decoder.feed(chunk):
                message = msgspec.json.decode(event.data, type=FeedMessage)
                entry = _decode(message.data) if message.type == "history" else None
                if entry is not None and entry.id > last and entry.fits(models, kinds):
                    _print_entry(message.data.encode(), entry, as_json=as_json)
            chunk = await response.receive()
    say("the server ended the events")
    return 0


def _start(since: str) -> datetime:
    """Raises UsageError."""
    if (seconds := parse_duration(since)) is not None and seconds >= 0:
        return datetime.now(UTC) - timedelta(seconds=seconds)
    try:
        return read_time(since, "--since")
    except BadRequest:
        raise UsageError(f"--since {since}: expected 30m, 48h, or a time such as 2026-11-20T08:30:00Z") from None


async def _print_past(server: RunningServer, query: Sequence[tuple[str, str]], *, as_json: bool) -> int:
    """Return the id of the last entry, 0 for none."""
    last = 0
    while True:
        after = [("after", str(last))] if last else []
        page = (await ask(server, "GET", f"/api/history?{urlencode([*query, *after])}", TimelineAnswer)).data
        for raw in page:
            entry = _decode(raw)
            _print_entry(raw, entry, as_json=as_json)
            last = entry.id
        if len(page) < MAX_LIMIT:
            return last


def _print_entry(raw: bytes | Raw, entry: TimelineEntry, *, as_json: bool) -> None:
    if as_json:
        click.echo(bytes(raw))
    else:
        click.echo(f"{entry.timestamp.astimezone():%Y-%m-%d %H:%M:%S}  {entry.kind:<9} {harmless(entry.why)}")
    sys.stdout.flush()
