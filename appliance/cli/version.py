"""``version``: shows the versions in use."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from appliance import __version__
from appliance.cli.app import ground_of
from appliance.cli.show import json_option, print_json
from appliance.core.engine import Engine
from appliance.core.payload import LIST, Payload, digest_of, read_payload
from appliance.engines.named import ENGINE_HELP
from appliance.errors import EngineNotFound
from appliance.platform.console import PROGRAM, is_frozen

if TYPE_CHECKING:
    from appliance.fleet.chooser import EngineSource


class VersionOutput(Struct, frozen=True, kw_only=True):
    """The output of ``version --json``."""

    version: str
    commit: str | None
    """The commit that the frozen program was made from, ``-edited`` behind it if files were changed; None elsewhere."""
    payload: str | None
    """The sha256 of payload.json, which lists every file of the frozen program; None elsewhere."""
    python: str
    platform: str
    frozen: bool
    engine: Engine | None
    engine_error: str | None
    engines: tuple[str, ...]
    """The ids of all engines that are here, best place first."""


@click.command()
@click.option("--engine", metavar="ENGINE", help=ENGINE_HELP)
@json_option
@click.pass_context
def version(ctx: click.Context, engine: str | None, as_json: bool) -> None:
    """Show the versions of the program, Python and platform, and the engine that would be used.

    \b
    Example:
      llama-appliance version --json
    """
    facts = _facts(ground_of(ctx).engines(), engine)
    if as_json:
        print_json(facts)
        return
    click.echo(f"{PROGRAM} {facts.version}" + (f" (commit {facts.commit[:12]})" if facts.commit else ""))
    click.echo(f"  Python    {facts.python}{' (frozen)' if facts.frozen else ''}")
    click.echo(f"  platform  {facts.platform}")
    click.echo(f"  engine    {facts.engine.in_words() if facts.engine else facts.engine_error}")


def _facts(engines: EngineSource, named: str | None) -> VersionOutput:
    engine, error = None, None
    try:
        engine = engines.find(named)
    except EngineNotFound as missing:
        error = str(missing)
    listed, digest = _payload()
    return VersionOutput(
        version=__version__,
        commit=listed.commit if listed is not None else None,
        payload=digest,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        frozen=is_frozen(),
        engine=engine,
        engine_error=error,
        engines=engines.ids(),
    )


def _payload() -> tuple[Payload | None, str | None]:
    """Return the list of files beside the frozen program, and its digest; Nones where there is no readable list."""
    if not is_frozen():
        return None, None
    try:
        content = (Path(sys.executable).resolve().parent / LIST).read_bytes()
        return read_payload(content), digest_of(content)
    except (OSError, ValueError):
        return None, None
