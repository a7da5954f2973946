"""``agents``: lists the plugins behind slash commands, has the server look for them again, and creates a new one."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import click

from appliance.catalog.configuration import Files
from appliance.cli.options import existing, plugin_option, source_options
from appliance.cli.remote import RunningServer, ask, server_options
from appliance.cli.show import json_option, print_json, print_table
from appliance.errors import UsageError
from appliance.features.plugins.core.slash import NAME
from appliance.features.plugins.found import DATA
from appliance.features.plugins.registry import AgentList, ListedPlugin, open_plugins
from appliance.platform.console import PROGRAM, say
from appliance.platform.home import users_data
from appliance.plugins.folders import choice_of
from appliance.plugins.manifest import PROMPTS

AGENT = '''"""What the plugin is for, in a line."""

from __future__ import annotations

from collections.abc import AsyncIterator

from appliance.plugins import Context, Event, Request


async def on_request(request: Request, context: Context) -> None:
    """Change the question: here, one more instruction goes before it."""
    messages = request.body["messages"]
    assert isinstance(messages, list)
    messages.insert(0, {"role": "system", "content": context.settings["instruction"]})


async def on_stream(events: AsyncIterator[Event], context: Context) -> AsyncIterator[Event]:
    """Change the answer, piece by piece. A whole answer comes as one piece."""
    async for event in events:
        choices = event.data.get("choices") if event.data is not None else None
        for choice in choices if isinstance(choices, list) else []:
            delta = choice.get("delta") if isinstance(choice, dict) else None
            text = delta.get("content") if isinstance(delta, dict) else None
            if isinstance(delta, dict) and isinstance(text, str):
                delta["content"] = text.upper()
        yield event
'''

TEST = '''"""Run with pytest. The plugin is loaded from this folder, as the program loads it."""

from __future__ import annotations

from pathlib import Path

from appliance.plugins.testing import question, reply, streamed, take_turn

HERE = Path(__file__).parent


def test_the_model_gets_the_instruction():
    turn = take_turn(HERE, question("Hello"), reply("Good day"))
    assert turn.sent["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
    ]


def test_the_answer():
    assert take_turn(HERE, question("Hello", stream=True), streamed("Good ", "day")).text == "GOOD DAY"
'''
COLUMNS = ("COMMAND", "STATE", "DESCRIPTION", "END POINTS", "FOLDER")
VALUES = ("COMMAND", "KEY", "VALUE", "FROM")


def write_agent(folder: Path, name: str) -> Path:
    """Write the files; existing files are not touched. Raises UsageError for a name that cannot be used."""
    if not NAME.fullmatch(name):
        raise UsageError(f"'{name}' cannot be a command; use letters, digits, dots, '-' and '_', at most 64")
    home = folder / name
    config = {
        "description": "Answers in capitals",
        "enabled": True,
        "end_point": "/v1/chat/completions",
        "settings": {"instruction": "Be brief."},
    }
    try:
        home.mkdir(parents=True)
    except FileExistsError:
        raise UsageError(f"{home} exists; choose another name, or another folder with --in") from None
    (home / "agent.py").write_text(AGENT, encoding="utf-8")
    (home / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    module = name.replace("-", "_").replace(".", "_")
    (home / f"test_{module}.py").write_text(TEST, encoding="utf-8")
    return home


@click.group()
def agents() -> None:
    """Manage plugins: a prompt that begins with /NAME goes through the plugin of that name, and so does its answer.

    \b
    Examples:
      llama-appliance agents ls
      llama-appliance agents new shout --in ~/plugins
      llama-appliance serve --plugins ~/plugins
    """


@agents.command()
@source_options
@plugin_option
@json_option
async def ls(files: Files, plugins: tuple[Path, ...], as_json: bool) -> int:
    """List the plugins that 'serve' would have with the same options, with the errors of broken ones.

    This loads them, as 'serve' does: their code runs. Below the list are the current settings, and whether each comes
    from the configuration or from the plugin's own config.json.

    \b
    Examples:
      llama-appliance agents ls
      llama-appliance agents ls --config config.yaml --plugins ~/plugins --json
    """
    config = files.read().require() if files.named else None
    choice = choice_of(config, existing(plugins))
    logging.getLogger("appliance").addHandler(logging.NullHandler())  # what goes wrong is listed
    async with open_plugins(choice, users_data() / DATA) as opened:
        await opened.wait_loaded()
        listing = opened.listed()
    _print(listing, as_json=as_json)
    return 0


@agents.command()
@server_options
@json_option
async def reload(server: RunningServer, as_json: bool) -> int:
    """Have the running server look for plugins again, and list those that it has then. Its secrets are hidden.

    \b
    Examples:
      llama-appliance agents reload
    """
    _print(await ask(server, "POST", "/api/agents/reload", AgentList), as_json=as_json)
    return 0


def _print(listing: AgentList, *, as_json: bool) -> None:
    if as_json:
        print_json(listing)
        return
    found = listing.agents
    if found:
        print_table(COLUMNS, [_cells(each) for each in found])
        if values := [row for each in found for row in _values(each)]:
            click.echo()
            print_table(VALUES, values)
    else:
        say(listing.off or "there are no plugins")
    for each in found:
        for line in (each.error, *each.warnings):
            if line:
                say(f"/{each.name}: {line}")
        for hidden in each.hides:
            say(f"/{each.name}: replaces the one in {hidden}")
    for problem in listing.problems:
        say(f"note: {problem}")


def _cells(each: ListedPlugin) -> tuple[str, ...]:
    ends = " ".join(each.end_points) or PROMPTS.replace(",", "")
    return (f"/{each.name}", each.state, each.description or "-", ends, each.folder)


def _values(each: ListedPlugin) -> list[tuple[str, ...]]:
    """The settings that somebody has set, and those in the plugin's own config.json."""
    return [
        (f"/{each.name}", key, json.dumps(each.values[key], ensure_ascii=False), source)
        for key, source in each.sources.items()
        if source == "configuration" or (source == "config.json" and key != "enabled")
    ]


@agents.command()
@click.argument("name")
@click.option(
    "--in", "folder", type=click.Path(path_type=Path), default=Path("plugins"), show_default=True, metavar="DIR"
)
def new(name: str, folder: Path) -> int:
    """Create a plugin: a folder with agent.py, config.json and a test, all of which work.

    \b
    Examples:
      llama-appliance agents new shout --in ~/plugins
      pytest ~/plugins/shout
    """
    home = write_agent(folder, name)
    click.echo(str(home))
    say(f"try it: 'pytest {home}', then '{PROGRAM} serve --plugins {folder}', and ask a model: /{name} Hello")
    return 0
