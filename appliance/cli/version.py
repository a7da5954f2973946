"""``version``: shows the versions in use."""

from __future__ import annotations

import platform
import sys

import click
from msgspec import Struct

from appliance import __version__
from appliance.cli.show import print_json
from appliance.cli.status import PROGRAM
from appliance.engines.found import ENGINE_HELP, Engine, find_engine
from appliance.errors import EngineNotFound


class Facts(Struct, frozen=True, kw_only=True):
    """The output of ``version --json``."""

    version: str
    python: str
    platform: str
    frozen: bool
    engine: Engine | None
    engine_error: str | None


@click.command()
@click.option("--engine", metavar="ENGINE", help=ENGINE_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def version(engine: str | None, as_json: bool) -> None:
    """Show the versions of the program, Python and platform, and the engine that would be used.

    \b
    Example:
      llama-appliance version --json
    """
    facts = _facts(engine)
    if as_json:
        print_json(facts)
        return
    click.echo(f"{PROGRAM} {facts.version}")
    click.echo(f"  Python    {facts.python}{' (frozen)' if facts.frozen else ''}")
    click.echo(f"  platform  {facts.platform}")
    click.echo(f"  engine    {in_words(facts.engine) if facts.engine else facts.engine_error}")


def in_words(engine: Engine) -> str:
    """Describe an engine for people."""
    return f"{engine.name} {engine.version or ''}".rstrip() + f" ({engine.backend}; {engine.source})"


def _facts(named: str | None) -> Facts:
    engine, error = None, None
    try:
        engine = find_engine(named)
    except EngineNotFound as missing:
        error = str(missing)
    return Facts(
        version=__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        frozen=bool(getattr(sys, "frozen", False)),
        engine=engine,
        engine_error=error,
    )
