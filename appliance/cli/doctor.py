"""``doctor``: one page that answers why a model is on the processor, slow, or does not start."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import click
from msgspec import Struct

from appliance.cli.doctor_facts import Wish, examine
from appliance.cli.plan import AsyncCommand
from appliance.cli.remote import parse_server, server_options
from appliance.cli.show import print_json
from appliance.core.doctor.diagnose import diagnose, headlines
from appliance.core.doctor.facts import DoctorFacts, Finding, is_wrong
from appliance.errors import UsageError
from appliance.platform.console import EXIT_OURS, PROGRAM, harmless, say

ALL_WELL = "Nothing is wrong."
MARKS = {"error": "ERROR  ", "warning": "WARNING", "note": "note   "}
COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}


class Examined(Struct, frozen=True, kw_only=True):
    """The output of ``doctor --json``. ``ok`` means that there are only notes."""

    ok: bool
    findings: tuple[Finding, ...]
    facts: DoctorFacts


@click.command()
@server_options
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="Also check this configuration.")
@click.option("--models-dir", metavar="DIR", help="Folder with models, instead of the usual one.")
@click.option("--model", metavar="MODEL", default="", help="Say which engine this model would get, and why.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the findings, and all facts behind them.")
@click.option(
    "--report",
    is_flag=False,
    flag_value="",
    metavar="[FILE.zip]",
    help="Write a support bundle: facts without any of your texts. Shows its content and asks first.",
)
@click.option("--logs", is_flag=True, help="With --report: add the logs. Known keys and tokens are removed from them.")
@click.option("--yes", is_flag=True, help="With --report: write without asking.")
def doctor(
    url: str | None,
    api_key: str | None,
    config: Path | None,
    models_dir: str | None,
    model: str,
    as_json: bool,
    report: str | None,
    logs: bool,
    yes: bool,
) -> AsyncCommand:
    """Report problems, their evidence and the commands that help: why is it on the processor, slow, not starting?

    Works with a running server and without one. The exit status is 1 when there is an error or a warning.

    \b
    Examples:
      llama-appliance doctor
      llama-appliance doctor --config llama-swap.yaml --json
      llama-appliance doctor --report bundle.zip
    """
    if (yes or logs) and report is None:
        raise UsageError(f"{'--yes' if yes else '--logs'} needs --report")
    if report is not None and as_json:
        raise UsageError("--report and --json cannot be given together; --json prints what the bundle leaves out")
    server = parse_server(url, api_key)
    wish = Wish(server=server, config=config, models_dir=models_dir, model=model)
    if report is not None:
        from appliance.cli.report import write_report

        return partial(write_report, wish, report, logs=logs, yes=yes)
    return partial(_doctor, wish, as_json)


async def _doctor(wish: Wish, as_json: bool) -> int:
    if sys.stderr.isatty():
        say("looking at the machine, the engines and the server ...")
    facts = await examine(wish)
    findings = diagnose(facts)
    if as_json:
        print_json(Examined(ok=not is_wrong(findings), findings=tuple(findings), facts=facts))
    else:
        click.echo(page(facts, findings))
    return EXIT_OURS if is_wrong(findings) else 0


def page(facts: DoctorFacts, findings: list[Finding], *, colours: bool = True) -> str:
    """The page for people."""
    width = max(len(name) for name, _ in headlines(facts))
    lines = [f"{PROGRAM} {facts.version}"]
    lines += [f"  {name:<{width}}  {harmless(value)}" for name, value in headlines(facts)]
    for finding in findings:
        mark = MARKS[finding.severity]
        shown = click.style(mark, fg=COLOURS[finding.severity], bold=True) if colours else mark
        lines += ["", f"{shown} {harmless(finding.title)}  [{finding.id}]"]
        lines += [f"          {harmless(line)}" for line in finding.evidence]
        lines += [f"        {harmless(finding.advice)}"] if finding.advice else []
        lines += [f"        $ {harmless(command)}" for command in finding.commands]
    if not is_wrong(findings):
        lines += ["", ALL_WELL]
    return "\n".join(lines)
