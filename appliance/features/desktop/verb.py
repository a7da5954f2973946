"""``desktop``: the program of the desktop, with its icon."""

from __future__ import annotations

import click


@click.command()
@click.option("--no-page", is_flag=True, help="Do not open the page.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- SERVE OPTIONS]")
async def desktop(no_page: bool, words: tuple[str, ...]) -> int:
    """Start the server if none runs, open the page, and show an icon with start, stop, log and quit.

    A second start opens the page of the first. Without a place for icons the page is opened anyway.

    \b
    Examples:
      llama-appliance desktop
      llama-appliance desktop -- --models-dir ~/models
    """
    from appliance.features.desktop.session import run_desktop  # with D-Bus, which nothing else needs

    return await run_desktop(words, page=not no_page)
