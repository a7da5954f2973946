"""``activity``: the requests that the running server has answered, and an export of them."""

from __future__ import annotations

import math
from datetime import datetime
from urllib.parse import urlencode

import click

from appliance.cli.remote import RunningServer, ask, ask_raw, server_options
from appliance.cli.show import json_option, print_json, print_table
from appliance.core.records.activity import ActivityPage, Row

COLUMNS = ("TIME", "MODEL", "PATH", "STATUS", "PROMPT", "CACHED", "ANSWER", "TOKENS/S", "SECONDS", "NOTE")
NUMBERS = ("STATUS", "PROMPT", "CACHED", "ANSWER", "TOKENS/S", "SECONDS")


@click.command()
@server_options
@click.option("--model", "models", multiple=True, metavar="MODEL", help="Only requests for MODEL; may be repeated.")
@click.option("--failed", is_flag=True, help="Only requests that failed.")
@click.option("--search", default="", metavar="TEXT", help="Only rows with TEXT in model, path, error or metadata.")
@click.option("-n", "--limit", type=click.IntRange(1, 999), default=25, show_default=True, help="How many to show.")
@click.option("--export", type=click.Choice(["jsonl", "csv"]), help="Print all of them, one in a line.")
@json_option
async def activity(
    server: RunningServer,
    models: tuple[str, ...],
    failed: bool,
    search: str,
    limit: int,
    export: str | None,
    as_json: bool,
) -> int:
    """List the latest requests of the running server, the newest first.

    \b
    Examples:
      llama-appliance activity --failed
      llama-appliance activity --export csv > requests.csv
    """
    wanted = [*(("model", model) for model in models), ("failed", str(int(failed))), ("search", search)]
    if export is not None:
        path = f"/api/metrics/activity/export?{urlencode([*wanted, ('format', export)])}"
        click.echo(await ask_raw(server, "GET", path, patience=math.inf), nl=False)
        return 0
    page = await ask(server, "GET", f"/api/metrics/activity?{urlencode([*wanted, ('limit', limit)])}", ActivityPage)
    if as_json:
        print_json(page)
        return 0
    print_table(COLUMNS, [_cells(row) for row in page.data], right=NUMBERS)
    if page.total > len(page.data):
        click.echo(f"{page.total - len(page.data)} older ones: --limit shows more, --export all")
    return 0


def _cells(row: Row) -> tuple[str, ...]:
    cost = row.tokens
    metadata = row.metadata or {}
    note = row.error_msg or "; ".join(f"{name}: {text}" for name, text in metadata.items())
    return (
        f"{datetime.astimezone(row.timestamp):%m-%d %H:%M:%S}",
        row.model,
        row.req_path,
        str(row.resp_status_code),
        *(str(count) if count >= 0 else "-" for count in (cost.input_tokens, cost.cache_tokens, cost.output_tokens)),
        f"{cost.tokens_per_second:.1f}" if cost.tokens_per_second > 0 else "-",
        f"{row.duration_ms / 1000:.1f}",
        note.splitlines()[0] if note else "",
    )
