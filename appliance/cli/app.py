"""The command of the program: its verbs, and the one place where an error becomes an exit status."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from appliance import __version__
from appliance.cli.verb import GROUPS, ReadPresets, VerbGround
from appliance.errors import ApplianceError, CallerError, OpenDoor, UsageError
from appliance.platform.console import EXIT_BUG, EXIT_INTERRUPTED, EXIT_OURS, EXIT_USER, PROGRAM, say, say_error

if TYPE_CHECKING:
    from appliance.settings import Program, Start


class CommandLine(click.Group):
    """The group of all verbs. It knows their names and summaries, and imports only the verb that is used."""

    def __init__(self, ground: VerbGround, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.ground = ground
        self.verbs = {verb.name: verb for verb in sorted(ground.verbs, key=lambda verb: GROUPS.index(verb.group))}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = self.verbs.get(cmd_name)
        return verb.command() if verb is not None else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.verbs and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}; the commands are {', '.join(self.verbs)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.verbs))
        for group in GROUPS:
            with formatter.section(group.capitalize()):
                of_group = [verb for verb in self.verbs.values() if verb.group == group]
                formatter.write_dl([(verb.name.ljust(width), verb.summary) for verb in of_group])


def command_line(ground: VerbGround) -> CommandLine:
    """Return the command of the whole program."""

    @click.group(
        cls=CommandLine,
        ground=ground,
        invoke_without_command=True,
        no_args_is_help=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        epilog="'llama-appliance COMMAND --help' explains a command.",
    )
    @click.version_option(__version__, "--version", message=f"{PROGRAM} %(version)s")
    @click.pass_context
    def cli(ctx: click.Context) -> None:
        """A private AI server in one program: runs llama.cpp models, serves the OpenAI, Anthropic and llama.cpp APIs.

        \b
        Examples:
          llama-appliance serve                        # http://127.0.0.1:8080, with every model there is
          llama-appliance run starter "Tell me a joke"
          llama-appliance ls                           # the models, and where to put more
        """
        if ctx.invoked_subcommand is None and not any(verb.alone() for verb in ground.verbs if verb.alone is not None):
            click.echo(ctx.get_help())

    return cli


def ground_of(ctx: click.Context) -> VerbGround:
    """Return all verbs of the program that this command belongs to, and what they ask for."""
    program = ctx.find_root().command
    assert isinstance(program, CommandLine), "every command is one of the whole program"
    return program.ground


def presets_of(ctx: click.Context) -> ReadPresets:
    """Return what reads files of ``--models-preset``. Raises UsageError in a program without presets."""
    found = next((verb.presets for verb in ground_of(ctx).verbs if verb.presets is not None), None)
    if found is None:
        raise UsageError("--models-preset: this program has no presets of llama-server; leave that out")
    return found


def run(argv: Sequence[str], start: Start, ground: VerbGround) -> int:
    """Carry out ``argv`` and return the exit status; every error is reported on standard error."""
    try:
        cli = command_line(ground)
        again = partial(run, start=start, ground=ground)  # for a verb that runs one as a service
        outcome: int | Program | None = cli.main(args=list(argv), prog_name=PROGRAM, standalone_mode=False, obj=again)
        if outcome is None:
            return 0
        return outcome if isinstance(outcome, int) else start(outcome)
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        say(error.format_message())
        return error.exit_code
    except click.ClickException as error:
        return say_error(_in_one_line(error), error.exit_code)
    except ApplianceError as error:
        one_status = any(verb.exits_with_1 for verb in ground.verbs if verb.name == argv[0])
        told_apart = not one_status or isinstance(error, OpenDoor)  # llama-server refuses no address
        return say_error(str(error), EXIT_USER if told_apart and isinstance(error, CallerError) else EXIT_OURS)
    except BrokenPipeError:
        return _reader_left()
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return say_error(f"{where}{error.strerror or error}", EXIT_OURS)
    except BaseExceptionGroup as group:
        return EXIT_INTERRUPTED if group.split(KeyboardInterrupt)[1] is None else _bug()
    except Exception:  # noqa: BLE001  nobody foresaw it, so the user gets what a bug report needs
        return _bug()


def _in_one_line(error: click.ClickException) -> str:
    """Return the error's message in one line; after a mistake, with the command whose help explains it."""
    if not isinstance(error, click.UsageError):
        return error.format_message()
    message = " ".join(error.format_message().split())
    return message if error.ctx is None else f"{message} (see '{error.ctx.command_path} --help')"


def _bug() -> int:
    with contextlib.suppress(OSError):
        traceback.print_exc()
    return say_error("this is a bug in llama-appliance; the lines above say where", EXIT_BUG)


def _reader_left() -> int:
    """End quietly when standard output is a pipe whose reader has gone (``| head``), as tools do."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_OURS
