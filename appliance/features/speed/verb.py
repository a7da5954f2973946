"""``speed``: how fast the running server has answered, by model, client or build, and what changed meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args
from urllib.parse import urlencode

import click

from appliance.cli.remote import RunningServer, ask, server_options
from appliance.cli.show import json_option, print_json, print_table
from appliance.features.speed.rules import DEFAULT_SPAN, By, SpeedAnswer, SpeedCurve
from appliance.platform.console import harmless, say

FIGURES = ("REQUESTS", "PROMPT/S", "TOKENS/S", "FIRST P50", "FIRST P95", "WAITED", "CACHED", "ACCEPTED")


@click.command()
@server_options
@click.option("--by", type=click.Choice(get_args(By)), default="model", show_default=True, help="One line for each.")
@click.option("--model", "models", multiple=True, metavar="MODEL", help="Only requests for MODEL; may be repeated.")
@click.option("--span", default=DEFAULT_SPAN, show_default=True, metavar="TIME", help="So far back: 30m, 12h or 7d.")
@json_option
async def speed(server: RunningServer, by: By, models: tuple[str, ...], span: str, as_json: bool) -> int:
    """Show how fast the running server has answered, and when an engine or the configuration changed.

    PROMPT/S and TOKENS/S are tokens a second. FIRST is the time to the first token, WAITED the mean wait for the model.
    CACHED is the share of the prompts' tokens that came from the cache, ACCEPTED that of the drafted tokens that were
    used. --json also has all of it over time.

    \b
    Examples:
      llama-appliance speed --span 7d
      llama-appliance speed --by build --model starter
    """
    query = urlencode([("by", by), ("span", span), *(("model", model) for model in models)])
    answer = await ask(server, "GET", f"/api/speed?{query}", SpeedAnswer)
    if as_json:
        print_json(answer)
        return 0
    if not answer.curves:
        say(f"no request has ended in the last {span}")
        return 0
    print_table((by.upper(), *FIGURES), [_cells(curve) for curve in answer.curves], right=FIGURES)
    if answer.marks:
        click.echo()
    for mark in answer.marks:
        click.echo(f"{mark.timestamp.astimezone():%Y-%m-%d %H:%M:%S}  {mark.kind:<9} {harmless(mark.why)}")
    return 0


def _cells(curve: SpeedCurve) -> tuple[str, ...]:
    total, name = curve.total, "all others" if curve.name is None else curve.name or "unknown"
    times = (total.first_token_p50_ms, total.first_token_p95_ms, total.waited_ms)
    return (
        name,
        str(total.requests),
        _known(total.prompt_per_second, "{:.1f}".format),
        _known(total.tokens_per_second, "{:.1f}".format),
        *(_known(time, "{:.2f} s".format, 1000) for time in times),
        *(_known(share, "{:.0%}".format) for share in (total.cached, total.accepted)),
    )


def _known(value: float | None, shown: Callable[[float], str], unit: int = 1) -> str:
    return "-" if value is None else shown(value / unit)
