"""``doctor``: one page that answers why a model is on the processor, slow, or does not start.

``doctor --report`` makes a support bundle, which is shown before anything is written.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NoReturn

import click
import msgspec
import trio
from msgspec import structs

from appliance.cli.app import ground_of
from appliance.cli.options import gathered, models_dir_option
from appliance.cli.remote import server_options
from appliance.cli.show import human_size, print_json, print_table
from appliance.core.config.types import Config
from appliance.core.examination import Examiner, Known
from appliance.core.findings import Finding
from appliance.errors import ApplianceError, UsageError
from appliance.features.doctor.asking import DoctorOptions, log_of, look, timeline_of
from appliance.features.doctor.core.bundle import ReportFile, known_secrets, log_names
from appliance.features.doctor.core.diagnose import headlines
from appliance.features.doctor.core.facts import Facts
from appliance.features.doctor.core.findings import changes, is_wrong, machine_line
from appliance.features.doctor.gathering import bundled, zipped
from appliance.platform.console import EXIT_OURS, PROGRAM, as_called, can_ask, harmless, say
from appliance.upstream.hub import LoginUnusable, find_token

ALL_WELL = "Nothing is wrong."
MARKS = {"error": ("ERROR  ", "red"), "warning": ("WARNING", "yellow"), "note": ("note   ", "cyan")}
PAUSE = 5.0  # seconds between two looks of ``--watch``
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
@click.pass_context
async def doctor(
    ctx: click.Context,
    wish: DoctorOptions,
    as_json: bool,
    watching: bool,
    line: bool,
    report: str | None,
    logs: bool,
    yes: bool,
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
    ground = ground_of(ctx)
    wish = structs.replace(wish, estimate=ground.estimate(), config_type=ground.config_type)
    examiners = ground.examiners()
    if report is not None:
        return await write_report(wish, examiners, report, logs=logs, yes=yes)
    if sys.stderr.isatty():
        say("looking at the machine, the engines and the server ...")
    if watching:
        await watch(wish, examiners)
    found = await look(wish, examiners)
    if line:
        click.echo(msgspec.json.encode(machine_line(platform.node(), found.facts.known.version, found.findings)))
    elif as_json:
        print_json(found.told())
    else:
        click.echo(as_called(page(found.facts, found.findings)))
    return 0 if found.ok else EXIT_OURS


def page(facts: Facts, findings: Sequence[Finding], *, colours: bool = True) -> str:
    """The page for people."""
    width = max(len(name) for name, _ in headlines(facts))
    lines = [f"{PROGRAM} {facts.known.version}"]
    lines += [f"  {name:<{width}}  {harmless(value)}" for name, value in headlines(facts)]
    lines += [paragraph(finding, colours=colours) for finding in findings]
    if not is_wrong(findings):
        lines += ["", ALL_WELL]
    return "\n".join(lines)


def paragraph(finding: Finding, *, colours: bool = True) -> str:
    """One finding for people, below an empty line."""
    mark, colour = MARKS[finding.severity]
    shown = click.style(mark, fg=colour, bold=True) if colours else mark
    lines = ["", f"{shown} {harmless(finding.title)}  [{finding.id}]"]
    lines += [f"          {harmless(line)}" for line in finding.evidence]
    lines += [f"        {harmless(finding.advice)}"] if finding.advice else []
    lines += [f"        $ {harmless(command)}" for command in finding.commands]
    return "\n".join(lines)


async def watch(wish: DoctorOptions, examiners: Sequence[Examiner]) -> NoReturn:
    """Print the page, then what came and what went, until somebody ends it."""
    found = await look(wish, examiners)
    click.echo(as_called(page(found.facts, found.findings)))
    while True:
        await trio.sleep(PAUSE)
        before, found = found, await look(wish, examiners)
        came, went = changes(before.findings, found.findings)
        for finding in came:
            click.echo(as_called(paragraph(finding)))
        for finding in went:
            click.echo(f"\ngone    {harmless(finding.title)}  [{finding.id}]")


async def write_report(
    wish: DoctorOptions, examiners: Sequence[Examiner], target: str, *, logs: bool, yes: bool
) -> int:
    """Gather, show, ask, write. Raises UsageError if there is nobody to ask; nothing is written then."""
    path = free_path(target or f"llama-appliance-report-{datetime.now():%Y%m%d-%H%M%S}.zip")
    say("looking at the machine, the engines and the server ...")
    packed = await gather(wish, examiners, logs=logs)
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
    path.touch(mode=0o600, exist_ok=False)  # readable by this user only
    size = await trio.to_thread.run_sync(lambda: path.write_bytes(zipped(packed)))
    click.echo(f"written: {path} ({human_size(size)})")
    return 0


async def gather(wish: DoctorOptions, examiners: Sequence[Examiner], *, logs: bool) -> list[ReportFile]:
    """Return the bundle's files: the report, and the logs if they are wanted."""
    found = await look(wish, examiners)
    facts, known, server = found.facts, found.facts.known, wish.server
    history = await timeline_of(server) if known.server is not None and known.server.answer == "answers" else ()
    names = [("proxy", "logs/program.log"), *log_names(known)] if logs else []
    secrets = await _secrets(wish, known) if logs else ()
    said = [(name, await log_of(server, source)) for source, name in names]
    return await trio.to_thread.run_sync(bundled, facts, found.findings, history, said, secrets)


async def _secrets(wish: DoctorOptions, known: Known) -> set[str]:
    keys = [wish.server.address.key or ""]
    with suppress(LoginUnusable):
        keys.append(await find_token() or "")

    def find() -> set[str]:
        try:
            config = (wish.files.read().config if wish.files is not None else None) or Config()
        except ApplianceError:
            config = Config()  # the finding ``config-unreadable`` is in the report
        commands = [one.command for one in known.running]
        return known_secrets(config, os.environ, commands, keys)

    return await trio.to_thread.run_sync(find)


def free_path(name: str) -> Path:
    """Return where the bundle can be written. Raises UsageError."""
    path = Path(name)
    if path.exists():
        raise UsageError(f"{path} exists already; name another file with --report FILE.zip")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}; create it, or name another file with --report FILE.zip")
    return path
