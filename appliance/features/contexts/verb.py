"""``cache``: what came from the prompts' cache of the running server, what was read again, why, and what is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args
from urllib.parse import urlencode

import click

from appliance.cli.remote import NotRunning, RunningServer, ask, files_options
from appliance.cli.show import human_size, json_option, print_json, print_table
from appliance.features.contexts.core.cache import (
    DEFAULT_SPAN,
    CacheAnswer,
    CacheBy,
    CacheTotals,
    ClearedContexts,
    cleared,
    kept_rows,
)
from appliance.features.contexts.core.kept import KeptRow
from appliance.features.contexts.files import clear_kept, read_kept
from appliance.platform.console import harmless, say

FIGURES = ("REQUESTS", "PROMPT", "CACHED", "SHARE", "AGAIN", "SAVED", "LOST")
SESSIONS = ("MODEL", "SLOT", "CONVERSATION", "CLIENT", "TOKENS", "CACHED", "LAST USE")
KEPT = ("MODEL", "CONVERSATION", "TOKENS", "SIZE", "SINCE", "LAST USE", "SAVED")


@click.command()
@click.argument("action", type=click.Choice(["clear"]), required=False, metavar="[clear")
@click.argument("model", required=False, metavar="[MODEL]]")
@files_options
@click.option(
    "--by", type=click.Choice(get_args(CacheBy)), default="client", show_default=True, help="A line for each."
)
@click.option("--span", default=DEFAULT_SPAN, show_default=True, metavar="TIME", help="So far back: 30m, 12h or 7d.")
@json_option
async def cache(
    server: RunningServer, action: str | None, model: str | None, by: CacheBy, span: str, as_json: bool
) -> int:
    """Show what came from the cache of prompts, which conversation sits in which slot, and the reason of each miss.

    Below are the contexts that are kept in files; without a server, they are all that is shown. 'cache clear' removes
    them all, or those of MODEL.

    AGAIN are tokens that the conversation's request before had as well, and that were read again anyway. SAVED
    and LOST are the seconds for CACHED and AGAIN at the speed at which the model has read prompts: estimates.

    \b
    Examples:
      llama-appliance cache --span 7d
      llama-appliance cache --by model
      llama-appliance cache clear qwen3-8b
    """
    if action is not None:
        return await _clear(server, model, as_json=as_json)
    try:
        answer = await ask(server, "GET", f"/api/cache?{urlencode({'by': by, 'span': span})}", CacheAnswer)
    except NotRunning:
        if server.named or not (kept := kept_rows(await read_kept())):
            raise
        if as_json:
            print_json({"kept": kept})
        else:
            _print_kept(kept)
        return 0
    if as_json:
        print_json(answer)
        return 0
    if answer.by:
        _print_requests(answer, by)
    else:
        say(f"no request whose tokens are known has ended in the last {span}")
    if answer.kept:
        click.echo()
        _print_kept(answer.kept)
    return 0


async def _clear(server: RunningServer, model: str | None, *, as_json: bool) -> int:
    """Ask the server, or remove the files where none runs."""
    query = f"?{urlencode({'model': model})}" if model else ""
    try:
        done = await ask(server, "DELETE", f"/api/cache/kept{query}", ClearedContexts)
    except NotRunning:
        if server.named:
            raise
        done = cleared(await clear_kept(model))
    if as_json:
        print_json(done)
    else:
        say(f"removed {done.contexts} kept contexts, {human_size(done.size)}")
    return 0


def _print_requests(answer: CacheAnswer, by: CacheBy) -> None:
    lines = [_cells(each.name or "unknown", each) for each in answer.by]
    print_table((by.upper(), *FIGURES), [*lines, _cells("all", answer.total)], right=FIGURES)
    click.echo()
    rows = [
        (
            each.model,
            "-" if each.slot is None else str(each.slot),
            each.conversation or "-",
            each.client,
            str(each.tokens),
            f"{each.cached} of {each.prompt}",
            f"{each.timestamp.astimezone():%Y-%m-%d %H:%M:%S}",
        )
        for each in answer.sessions
    ]
    print_table(SESSIONS, rows, right=("SLOT", "TOKENS"))
    if answer.misses:
        click.echo()
    for miss in answer.misses:
        when = f"{miss.timestamp.astimezone():%Y-%m-%d %H:%M:%S}"
        click.echo(harmless(f"{when}  {miss.id}  {miss.model}  {miss.miss:<8} {miss.why}"))


def _print_kept(kept: Sequence[KeptRow]) -> None:
    rows = [
        (
            each.model,
            each.conversation or "-",
            str(each.tokens),
            human_size(each.size),
            *(f"{time.astimezone():%Y-%m-%d %H:%M:%S}" for time in (each.made, each.used)),
            _seconds(each.saved_tokens * each.token_seconds),
        )
        for each in kept
    ]
    print_table(KEPT, rows, right=("TOKENS", "SIZE", "SAVED"))


def _cells(name: str, total: CacheTotals) -> tuple[str, ...]:
    share = f"{total.cached / total.prompt:.0%}" if total.prompt else "-"
    seconds = (_seconds(total.saved_seconds), _seconds(total.again_seconds))
    return (name, str(total.requests), str(total.prompt), str(total.cached), share, str(total.again), *seconds)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"~{value:.1f} s"
