"""``cache``: what came from the prompts' cache of the running server, what was read again, and why."""

from __future__ import annotations

from typing import get_args
from urllib.parse import urlencode

import click

from appliance.cli.remote import RunningServer, ask, server_options
from appliance.cli.show import json_option, print_json, print_table
from appliance.core.records.cache import DEFAULT_SPAN, CacheAnswer, CacheBy, CacheTotals
from appliance.platform.console import harmless, say

FIGURES = ("REQUESTS", "PROMPT", "CACHED", "SHARE", "AGAIN", "SAVED", "LOST")
SESSIONS = ("MODEL", "SLOT", "CONVERSATION", "CLIENT", "TOKENS", "CACHED", "LAST USE")


@click.command()
@server_options
@click.option(
    "--by", type=click.Choice(get_args(CacheBy)), default="client", show_default=True, help="A line for each."
)
@click.option("--span", default=DEFAULT_SPAN, show_default=True, metavar="TIME", help="So far back: 30m, 12h or 7d.")
@json_option
async def cache(server: RunningServer, by: CacheBy, span: str, as_json: bool) -> int:
    """Show what came from the cache of prompts, which conversation sits in which slot, and the reason of each miss.

    AGAIN are tokens that the conversation's request before had as well, and that were read again anyway. SAVED
    and LOST are the seconds for CACHED and AGAIN at the speed at which the model has read prompts: estimates.

    \b
    Examples:
      llama-appliance cache --span 7d
      llama-appliance cache --by model
    """
    answer = await ask(server, "GET", f"/api/cache?{urlencode({'by': by, 'span': span})}", CacheAnswer)
    if as_json:
        print_json(answer)
        return 0
    if not answer.by:
        say(f"no request whose tokens are known has ended in the last {span}")
        return 0
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
    return 0


def _cells(name: str, total: CacheTotals) -> tuple[str, ...]:
    share = f"{total.cached / total.prompt:.0%}" if total.prompt else "-"
    seconds = (_seconds(total.saved_seconds), _seconds(total.again_seconds))
    return (name, str(total.requests), str(total.prompt), str(total.cached), share, str(total.again), *seconds)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"~{value:.1f} s"
