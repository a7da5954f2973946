"""``doctor``: one page that answers why a model is on the processor, slow, or does not start.

``doctor --report`` makes a support bundle, which is shown before anything is written.
"""

from __future__ import annotations

import io
import os
import platform
import sys
import zipfile
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import click
import msgspec
import trio
from msgspec import Struct

from appliance import __version__
from appliance.catalog.configuration import Files
from appliance.catalog.download_status import LoginUnusable
from appliance.catalog.hub import find_token
from appliance.cli.doctor_facts import DoctorOptions, log_of, look
from appliance.cli.options import gathered, models_dir_option
from appliance.cli.remote import server_options
from appliance.cli.show import human_size, print_json, print_table
from appliance.core.config.types import Config
from appliance.core.doctor.bundle import Versions, numbered, report_of, secret_values, without_secrets
from appliance.core.doctor.diagnose import headlines
from appliance.core.doctor.facts import DoctorFacts, Finding, changes, is_wrong, machine_line
from appliance.errors import ApplianceError, UsageError
from appliance.platform.console import EXIT_OURS, PROGRAM, as_called, can_ask, harmless, say

ALL_WELL = "Nothing is wrong."
MARKS = {"error": "ERROR  ", "warning": "WARNING", "note": "note   "}
COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}
PAUSE = 5.0
"""Seconds between two looks of ``--watch``."""
MODEL_LOGS = 32
"""Number of models whose log is included; running or failed ones come first."""
WITHOUT_LOGS = (
    "The bundle has no text that you, a model or an engine wrote: no prompts, paths, keys or names of models.\n"
    "Logs are not included; add them with --logs if you are asked for them."
)
WITH_LOGS = (
    "Logs can hold prompts, answers, paths and names: read them before you send them. Only the keys and tokens\n"
    "that this program knows are removed. Without --logs the bundle has no such texts."
)


@click.command()
@gathered(
    "wish",
    DoctorOptions,
    server_options,
    click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="Also check this configuration."),
    models_dir_option,
    click.option("--model", metavar="MODEL", default="", help="Say which engine this model would get, and why."),
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the findings, and all facts behind them.")
@click.option("--watch", "watching", is_flag=True, help="Go on, and print what comes and what goes. Ctrl-C ends it.")
@click.option("--line", is_flag=True, help="Print one line of JSON: host, version, ok, and the findings' ids.")
@click.option(
    "--report",
    is_flag=False,
    flag_value="",
    metavar="[FILE.zip]",
    help="Write a support bundle: facts without any of your texts. Shows its content and asks first.",
)
@click.option("--logs", is_flag=True, help="With --report: add the logs. Known keys and tokens are removed from them.")
@click.option("--yes", is_flag=True, help="With --report: write without asking.")
async def doctor(
    wish: DoctorOptions, as_json: bool, watching: bool, line: bool, report: str | None, logs: bool, yes: bool
) -> int:
    """Report problems, their evidence and the commands that help: why is it on the processor, slow, not starting?

    Works with a running server and without one. The exit status is 1 when there is an error or a warning.

    \b
    Examples:
      llama-appliance doctor
      llama-appliance doctor --config llama-swap.yaml --json
      llama-appliance doctor --report bundle.zip
      ssh HOST sudo llama-appliance doctor --line
    """
    if (yes or logs) and report is None:
        raise UsageError(f"{'--yes' if yes else '--logs'} needs --report")
    if sum((report is not None, as_json, line, watching)) > 1:
        raise UsageError("--json, --line, --watch and --report are forms of the answer; give one of them")
    if report is not None:
        return await write_report(wish, report, logs=logs, yes=yes)
    if sys.stderr.isatty():
        say("looking at the machine, the engines and the server ...")
    if watching:
        await watch(wish)
    found = await look(wish)
    if line:
        click.echo(msgspec.json.encode(machine_line(platform.node(), found.facts.version, found.findings)))
    elif as_json:
        print_json(found)
    else:
        click.echo(as_called(page(found.facts, found.findings)))
    return 0 if found.ok else EXIT_OURS


def page(facts: DoctorFacts, findings: Sequence[Finding], *, colours: bool = True) -> str:
    """The page for people."""
    width = max(len(name) for name, _ in headlines(facts))
    lines = [f"{PROGRAM} {facts.version}"]
    lines += [f"  {name:<{width}}  {harmless(value)}" for name, value in headlines(facts)]
    lines += [paragraph(finding, colours=colours) for finding in findings]
    if not is_wrong(findings):
        lines += ["", ALL_WELL]
    return "\n".join(lines)


def paragraph(finding: Finding, *, colours: bool = True) -> str:
    """One finding for people, below an empty line."""
    mark = MARKS[finding.severity]
    shown = click.style(mark, fg=COLOURS[finding.severity], bold=True) if colours else mark
    lines = ["", f"{shown} {harmless(finding.title)}  [{finding.id}]"]
    lines += [f"          {harmless(line)}" for line in finding.evidence]
    lines += [f"        {harmless(finding.advice)}"] if finding.advice else []
    lines += [f"        $ {harmless(command)}" for command in finding.commands]
    return "\n".join(lines)


async def watch(wish: DoctorOptions) -> NoReturn:
    """Print the page, then what came and what went, until somebody ends it."""
    found = await look(wish)
    click.echo(as_called(page(found.facts, found.findings)))
    while True:
        await trio.sleep(PAUSE)
        before, found = found, await look(wish)
        came, went = changes(before.findings, found.findings)
        for finding in came:
            click.echo(as_called(paragraph(finding)))
        for finding in went:
            click.echo(f"\ngone    {harmless(finding.title)}  [{finding.id}]")


class Packed(Struct, frozen=True):
    """One file of the bundle. ``removed``: the number of secrets that were taken out of it."""

    name: str
    data: bytes
    removed: int = 0


async def write_report(wish: DoctorOptions, target: str, *, logs: bool, yes: bool) -> int:
    """Gather, show, ask, write. Raises UsageError if there is nobody to ask; nothing is written then."""
    path = free_path(target or f"llama-appliance-report-{datetime.now():%Y%m%d-%H%M%S}.zip")
    say("looking at the machine, the engines and the server ...")
    packed = await gather(wish, logs=logs)
    click.echo(f"The bundle would be {path} and contain:\n")
    rows = [(file.name, human_size(len(file.data)), str(file.removed or "-")) for file in packed]
    columns = ("FILE", "SIZE", "SECRETS REMOVED")
    print_table(columns, rows, right=columns[1:])
    click.echo(f"\n{WITH_LOGS if logs else WITHOUT_LOGS}")
    if not yes:
        if not can_ask():
            raise UsageError("nothing was written: there is no terminal to ask on; --yes writes without asking")
        if not await trio.to_thread.run_sync(partial(click.confirm, f"Write {path}?"), abandon_on_cancel=True):
            say("nothing was written")
            return EXIT_OURS
    size = await trio.to_thread.run_sync(_write, path, packed)
    click.echo(f"written: {path} ({human_size(size)})")
    return 0


async def gather(wish: DoctorOptions, *, logs: bool) -> list[Packed]:
    """Return the bundle's files: the report, and the logs if they are wanted."""
    found = await look(wish)
    facts = found.facts
    versions = Versions(
        program=__version__,
        server=facts.server.version if facts.server is not None else "",
        python=platform.python_version(),
        platform=platform.platform(),
        frozen=bool(getattr(sys, "frozen", False)),
    )
    report = report_of(facts, found.findings, versions, os.environ)
    packed = [Packed("report.json", msgspec.json.format(msgspec.json.encode(report), indent=2))]
    if logs:
        try:
            token = await find_token()
        except LoginUnusable:
            token = None
        secrets = {token or "", *await trio.to_thread.run_sync(_secrets, wish, facts)}
        for source, name in _logs(facts):
            text, removed = without_secrets(await log_of(wish.server, source), secrets)
            if text:
                packed.append(Packed(name, text.encode("utf-8", "replace"), removed))
    return packed


def _logs(facts: DoctorFacts) -> Iterator[tuple[str, str]]:
    """Return the sources of logs at the server, and the names of their files."""
    server = facts.server
    if server is None or server.answer != "answers":
        return
    yield "proxy", "logs/program.log"
    numbers = {model: number for number, model in enumerate(numbered(facts), 1)}
    busy = sorted(server.running, key=lambda one: (not one.error, one.state == "unloaded", one.id))
    for model in busy[:MODEL_LOGS]:
        yield model.id, f"logs/model-{numbers[model.id]}.log"


def _secrets(wish: DoctorOptions, facts: DoctorFacts) -> set[str]:
    """Return every key and token in the environment, commands and the configuration."""
    commands = [one.command for one in facts.server.running] if facts.server is not None else []
    keys: list[str] = []
    variables = list(os.environ.items())
    try:
        config = (Files(config=wish.config).read().config if wish.config is not None else None) or Config()
    except ApplianceError:
        config = Config()  # the finding ``config-unreadable`` is in the report
    keys += [*config.api_keys, *(peer.api_key for peer in config.peers.values())]
    keys += config.tracing.headers.values() if config.tracing is not None else ()
    for model in config.models.values():
        variables += [(name, value) for name, _, value in (line.partition("=") for line in model.env)]
        commands.append(tuple(model.cmd.split()))
    options = [pair for command in commands for pair in pairwise(command)]
    options += [(name, value) for command in commands for name, _, value in (word.partition("=") for word in command)]
    keys += [wish.server.address.key or "", *secret_values([*variables, *options])]
    return set(keys)


def _write(path: Path, packed: list[Packed]) -> int:
    """Write the whole file, readable by this user only; return its size."""
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as bundle:
        for file in packed:
            bundle.writestr(file.name, file.data)
    path.touch(mode=0o600, exist_ok=False)
    return path.write_bytes(memory.getvalue())


def free_path(name: str) -> Path:
    """Return where the bundle can be written. Raises UsageError."""
    path = Path(name)
    if path.exists():
        raise UsageError(f"{path} exists already; name another file with --report FILE.zip")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}; create it, or name another file with --report FILE.zip")
    return path
