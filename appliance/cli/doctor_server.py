"""The doctor's questions to the running server."""

from __future__ import annotations

from urllib.parse import quote

import click
import msgspec
from msgspec import Struct

from appliance.cli.remote import NotRunning, Refused, Server, ServerFailed, ask, ask_raw
from appliance.core.doctor.facts import Running, ServerFact
from appliance.core.fit.buffers import OFFLOADED
from appliance.engines.table import Table

PATIENCE = 10.0
"""Seconds for each answer; short, because a person waits for the page."""
ASKED_MODELS = 16
"""Number of loaded models whose log is read."""


class VersionAnswer(Struct, frozen=True):
    """``GET /api/version``; answers of other programs have no ``commit``."""

    version: str
    commit: str


class Status(Struct, frozen=True, kw_only=True):
    value: str = "unloaded"
    failed: bool = False
    error: str | None = None
    args: tuple[str, ...] = ()


class Entry(Struct, frozen=True, kw_only=True):
    id: str
    status: Status = Status()


class Entries(Struct, frozen=True):
    """``GET /models``, as far as the doctor needs it."""

    data: tuple[Entry, ...]


async def ask_server(server: Server) -> ServerFact:
    """The server at the address, and the state of its models."""
    try:
        raw = await ask_raw(server, "GET", "/api/version", patience=PATIENCE)
        version = msgspec.json.decode(raw, type=VersionAnswer).version
        entries = (await ask(server, "GET", "/models", Entries)).data
    except NotRunning as cause:
        slow = "did not answer" in cause.why
        return ServerFact(url=server.url, answer="failed" if slow else "absent", why=cause.why)
    except Refused as cause:
        wants_key = "answered 401" in cause.message
        return ServerFact(url=server.url, answer="refused" if wants_key else "other", why=cause.message)
    except ServerFailed as cause:
        return ServerFact(url=server.url, answer="failed", why=cause.message)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ServerFact(url=server.url, answer="other", why="another program listens there")
    table = await _table(server)
    seats = dict(table.running) if table is not None else {}
    loaded = [entry for entry in entries if entry.status.value in ("loaded", "sleeping")]
    layers = {entry.id: await _layers(server, entry.id) for entry in loaded[:ASKED_MODELS]}
    return ServerFact(
        url=server.url,
        answer="answers",
        version=version,
        engine=(table.used or "") if table is not None else "",
        running=tuple(_running(entry, seats, layers) for entry in entries),
    )


def _running(entry: Entry, seats: dict[str, str], layers: dict[str, tuple[int, int] | None]) -> Running:
    status = entry.status
    return Running(
        id=entry.id,
        state=status.value,
        error=(status.error or "it gave no reason") if status.failed else "",
        command=status.args,
        seat=seats.get(entry.id, ""),
        layers=layers.get(entry.id),
    )


async def _table(server: Server) -> Table | None:
    """Return None if somebody named the server's engine."""
    try:
        return await ask(server, "GET", "/api/engines", Table)
    except click.ClickException:
        return None


async def _layers(server: Server, model: str) -> tuple[int, int] | None:
    """Return how many layers are on the GPU, if the engine printed it."""
    found = OFFLOADED.findall(await log_of(server, model))
    return (int(found[-1][0]), int(found[-1][1])) if found else None


async def log_of(server: Server, source: str) -> str:
    """Return the stored lines of a log: a model's by its id, the program's own as ``proxy``; empty if unavailable."""
    path = f"/logs/stream/{quote(source, safe='')}?no-follow"
    try:
        return (await ask_raw(server, "GET", path, patience=PATIENCE)).decode("utf-8", "replace")
    except click.ClickException:
        return ""
