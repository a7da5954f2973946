"""``explain``: what one client really sent, and what became of it."""

from __future__ import annotations

import click

from appliance.cli.remote import RunningServer, ask, server_options
from appliance.cli.show import json_option, print_json
from appliance.features.explain.rules import Explained, Outline
from appliance.platform.console import harmless


@click.command()
@click.argument("request", type=click.IntRange(min=1), required=False)
@server_options
@json_option
async def explain(server: RunningServer, request: int | None, as_json: bool) -> int:
    """Show what a client really sent, and what its engine saw. REQUEST is a row of the activity log, else the last.

    \b
    Examples:
      llama-appliance explain
      llama-appliance explain 12 --json | jq -r .prompt
    """
    told = await ask(server, "GET", f"/api/explain/{request or 'last'}", Explained)
    if as_json:
        print_json(told)
    else:
        click.echo(harmless("\n".join(_lines(told))))
    return 0


def _lines(told: Explained) -> list[str]:
    row, noted, found = told.row, told.row.metadata or {}, told.differs
    lines = [f"request {row.id} for {row.model}, {row.resp_status_code}: {row.client}", *_contents("came", told.came)]
    lines += _contents("translated", told.translated) if told.translated is not None else ["translated: no"]
    lines += _contents("sent", told.sent) if told.sent is not None else []
    lines += [f"prompt: {len(told.prompt)} characters, --json has them"] if told.prompt is not None else []
    lines += [f"repaired: {noted.get('repaired', 'nothing')}", f"ignored: {told.ignored or 'nothing'}"]
    lines.append(f"cache: {noted.get('prompt_cache') or row.error_msg or 'the engine did not say'}")
    lines += [f"  from the cache: ...{told.cached!r}", f"  read after it:  {told.read!r}..."] if told.cached else []
    place = f"at {found.where}, after {found.at} bytes" if found is not None else "nowhere in what both have"
    lines += [f"differs from request {told.previous} {place}"] if told.previous is not None else []
    lines += [f"  before: {found.before!r}", f"  now:    {found.now!r}"] if found is not None else []
    return [*lines, *(f"unknown {each}" for each in told.unknown)]


def _contents(what: str, found: Outline) -> list[str]:
    lines = [f"{what}: {found.path}, {found.size} bytes", *(f"  {role}: {size} bytes" for role, size in found.messages)]
    lines += [f"  tools: {', '.join(found.tools)}"] if found.tools else []
    return [*lines, *(f"  {name}: {value}" for name, value in found.others.items())]
