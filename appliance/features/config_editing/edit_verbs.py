"""``config edit``, ``versions`` and ``restore``: a configuration's file changed on the machine, where everything may
change.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

import click
import trio
from msgspec import Struct

from appliance.catalog.configuration import Files
from appliance.cli.options import source_options
from appliance.cli.remote import NotRunning, RequestRefused, RunningServer, ask, server_options
from appliance.cli.show import human_size, json_option, print_json, print_table
from appliance.errors import UsageError
from appliance.features.config_editing.core.splices import difference
from appliance.features.config_editing.editor import FOLDER, ConfigEditor, OpenedText, TextChanged
from appliance.platform.console import EXIT_OURS, EXIT_USER, can_ask, say
from appliance.platform.home import users_data

T = TypeVar("T")
ENDING = ".yaml"  # that of the editor's copy, from which editors know how to colour it


class ReloadAnswer(Struct, frozen=True):
    """``POST /api/config/reload``."""

    changed: tuple[str, ...] = ()


def _editing(command: Callable[..., T]) -> Callable[..., T]:
    """The options that name a configuration, and the argument FILE, as ``editor`` and ``file``."""

    @functools.wraps(command)
    def with_editor(*, files: Files, file: str | None, **given: object) -> T:
        editor = ConfigEditor(files, users_data() / FOLDER)
        return command(editor=editor, file=file, **given)

    return click.argument("file", required=False)(source_options(with_editor))


_yes = click.option("--yes", is_flag=True, help="Write without asking.")


@click.command()
@_editing
@server_options
@_yes
async def edit(server: RunningServer, editor: ConfigEditor, file: str | None, yes: bool) -> int:
    """Open the configuration in $EDITOR, check the result, show the difference, write it and reload the server.

    With several files, FILE names one. The text before is kept: see 'config versions'. Nothing is written that
    'config check' would refuse, or if the file has changed meanwhile.

    \b
    Example:
      llama-appliance config edit --config config.yaml
    """
    opened, text = editor.open(file), None
    while True:
        text = await _in_thread(partial(click.edit, text or opened.text, extension=ENDING)) or text
        if text is None or text == opened.text:
            say("nothing was changed")
            return 0
        if _checked(editor, opened.file, text):
            return await _write(server, editor, opened, text, yes=yes)
        if not can_ask() or not await _in_thread(partial(click.confirm, "Edit it again?", default=True)):
            say("nothing was written")
            return EXIT_USER


@click.command()
@_editing
@json_option
def versions(editor: ConfigEditor, file: str | None, as_json: bool) -> int:
    """List the earlier versions of the configuration's file, the newest first.

    \b
    Example:
      llama-appliance config versions --config config.yaml
    """
    kept = editor.kept(editor.open(file).file).list()
    if as_json:
        print_json(kept)
        return 0
    at = [f"{datetime.fromtimestamp(one.replaced_at, UTC):%Y-%m-%d %H:%M:%S}" for one in kept]
    rows = [(str(one.number), when, human_size(one.bytes)) for one, when in zip(kept, at, strict=True)]
    print_table(("VERSION", "REPLACED AT (UTC)", "SIZE"), rows, right=("VERSION", "SIZE"))
    return 0


@click.command()
@click.argument("number", type=click.IntRange(1))
@_editing
@server_options
@_yes
async def restore(server: RunningServer, editor: ConfigEditor, number: int, file: str | None, yes: bool) -> int:
    """Put version NUMBER of 'config versions' in the place of the configuration's file, and reload the server.

    \b
    Example:
      llama-appliance config restore 3 --config config.yaml
    """
    opened = editor.open(file)
    text = editor.earlier(number, opened.file)
    if text == opened.text:
        say(f"{opened.file} is the same as version {number}")
        return 0
    if not _checked(editor, opened.file, text):
        say("nothing was written")
        return EXIT_USER
    return await _write(server, editor, opened, text, yes=yes)


def _checked(editor: ConfigEditor, file: str, text: str) -> bool:
    """Report every problem; False for a text that cannot be used."""
    loaded = editor.check(file, text)
    for problem in loaded.problems:
        say(str(problem))
    return loaded.config is not None


async def _write(server: RunningServer, editor: ConfigEditor, opened: OpenedText, text: str, *, yes: bool) -> int:
    click.echo(difference(opened.text, text))
    if not yes:
        if not can_ask():
            raise UsageError("nothing was written: there is no terminal to ask on; --yes writes without asking")
        if not await _in_thread(partial(click.confirm, f"Write {opened.file}?")):
            say("nothing was written")
            return EXIT_OURS
    try:
        editor.write(opened.file, opened.version, lambda now: text)
    except TextChanged:
        editor.kept(opened.file).keep(text.encode())
        newest = editor.kept(opened.file).list()[0].number
        say(f"your text is kept as version {newest}: 'llama-appliance config restore {newest}' shows the difference")
        raise
    click.echo(f"written: {opened.file}")
    try:
        changed = (await ask(server, "POST", "/api/config/reload", ReloadAnswer)).changed
    except NotRunning:
        say("no server runs; the next start reads it")
    except RequestRefused as error:
        say(f"the running server did not take it: {error}")
    else:
        click.echo(f"the server has read it; processes out of date: {', '.join(changed) or 'none'}")
    return 0


async def _in_thread(act: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(act, abandon_on_cancel=True)
