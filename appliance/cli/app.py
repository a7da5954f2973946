"""The verbs, and the one place where an error becomes an exit status.

The module of a verb is imported when the verb is used, so that ``--help`` and ``version`` answer at once.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from appliance import __version__
from appliance.errors import ApplianceError, CallerError, OpenDoor
from appliance.platform.console import EXIT_BUG, EXIT_INTERRUPTED, EXIT_OURS, EXIT_USER, PROGRAM, say, say_error
from appliance.programs.start import ONE_FILE
from appliance.settings import Program, Start

STAND_IN = "llama-server"
UNIFIED = "llama"
VERBS = {
    "serve": "Run the server.",
    "run": "Chat with a model in the terminal, or ask it one question.",
    "desktop": "Start the server, open the page and show an icon.",
    "pull": "Download a model from the Hugging Face hub.",
    "ls": "List the models on this machine.",
    "rm": "Remove a downloaded model.",
    "ps": "List the models that are running.",
    "top": "Show the requests under way, live.",
    "load": "Load a model into the running server.",
    "load-test": "Ask models many times at once, and show how fast each answers.",
    "activity": "List the latest requests of the running server, or export all.",
    "memory": "Show the memory of the machine, and what one more model would push out.",
    "disk": "Show what models, downloads and folders take on the disk, and what their removal would free.",
    "unload": "Unload a model from the running server.",
    "logs": "Show the output of the model processes.",
    "speed": "Show how fast the running server has answered.",
    "cache": "Show what came from the cache of prompts, and why the rest did not.",
    "events": "Show what the running server did, and why.",
    "agent": "Run agent tasks on the running server, and list, follow, answer and cancel them.",
    "agents": "List the plugins behind slash commands, load them again, or create one.",
    "rpc-worker": "Lend this machine's devices to models on another machine.",
    "engines": "Manage the llama.cpp builds of this machine.",
    "bundle": "Carry models, engines and settings to a machine without a network.",
    "pool": "Use several machines as one.",
    "doctor": "Report problems, their evidence and the commands that help.",
    "config": "Check, explain and edit a configuration file.",
    "service": "Run the program as a service of the system.",
    "upgrade": "Switch to a newer version of the program, and back.",
    "selftest": "Prove that the engine and the starter model work here.",
    "version": "Show versions of the program, Python, platform and engine.",
    "mcp": "Connect a desktop client to the running server, by MCP.",
    STAND_IN: "Take llama-server's place: its flags, its behaviour.",
    UNIFIED: "Take the place of llama.cpp's llama: 'llama serve' is llama-server.",
}


class Verbs(click.Group):
    """A group that knows every verb's name and summary, and imports only the verb that is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _import_verb(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}; the commands are {', '.join(VERBS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(
    cls=Verbs,
    invoke_without_command=True,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="'llama-appliance COMMAND --help' explains a command.",
)
@click.version_option(__version__, "--version", message=f"{PROGRAM} %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """A private AI server in one program: runs llama.cpp models and serves the OpenAI, Anthropic and llama.cpp APIs.

    \b
    Examples:
      llama-appliance serve                        # http://127.0.0.1:8080, with every model there is
      llama-appliance run starter "Tell me a joke"
      llama-appliance ls                           # the models, and where to put more
    """
    if ctx.invoked_subcommand is None and not _is_bundle():
        click.echo(ctx.get_help())


def _is_bundle() -> bool:
    """Introduce the bundle behind the one-file program; False: there is no bundle."""
    if ONE_FILE not in os.environ:
        return False
    from appliance.bundles.container import is_runnable
    from appliance.cli.bundle.commands import introduce

    if found := is_runnable(own := Path(os.environ[ONE_FILE])):
        introduce(own)
    return found


def run(argv: Sequence[str], start: Start) -> int:
    """Carry out ``argv`` and return the exit status; every error is reported on standard error."""
    try:
        again = partial(run, start=start)  # for a verb that runs another one as a service
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
        # llama-server exits with 1 for every error, and refuses no address.
        told_apart = argv[0] not in (STAND_IN, UNIFIED) or isinstance(error, OpenDoor)
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


def _import_verb(name: str) -> click.Command | None:
    """Return the command of a verb. The imports are written out, so that a freezer and a type checker see them."""
    match name:
        case "serve":
            from appliance.cli.serve import serve as command
        case "desktop":
            from appliance.cli.desktop import desktop as command
        case "run":
            from appliance.cli.run import run_model as command
        case "pull":
            from appliance.cli.pull import pull as command
        case "rm":
            from appliance.cli.models import rm as command
        case "ls":
            from appliance.cli.models import ls as command
        case "ps":
            from appliance.cli.control import ps as command
        case "top":
            from appliance.cli.top import top as command
        case "load":
            from appliance.cli.control import load as command
        case "load-test":
            from appliance.cli.load_test import load_test as command
        case "activity":
            from appliance.cli.activity import activity as command
        case "memory":
            from appliance.cli.memory import memory as command
        case "disk":
            from appliance.cli.disk import disk as command
        case "unload":
            from appliance.cli.control import unload as command
        case "logs":
            from appliance.cli.control import logs as command
        case "speed":
            from appliance.cli.speed import speed as command
        case "cache":
            from appliance.cli.cache import cache as command
        case "events":
            from appliance.cli.events import events as command
        case "agent":
            from appliance.cli.agent import agent as command
        case "agents":
            from appliance.cli.agents import agents as command
        case "engines":
            from appliance.cli.engines.commands import engines as command
        case "bundle":
            from appliance.cli.bundle.commands import bundle as command
        case "pool":
            from appliance.cli.pool_export import pool as command
        case "doctor":
            from appliance.cli.doctor import doctor as command
        case "config":
            from appliance.cli.config import config as command
        case "rpc-worker":
            from appliance.cli.engines.commands import rpc_worker as command
        case "service":
            from appliance.cli.service import service as command
        case "upgrade":
            from appliance.cli.upgrade import upgrade as command
        case "selftest":
            from appliance.cli.selftest import selftest as command
        case "version":
            from appliance.cli.version import version as command
        case "mcp":
            from appliance.cli.mcp import mcp as command
        case "llama-server":
            from appliance.cli.llama_server.command import llama_server as command
        case "llama":
            from appliance.cli.llama_server.command import llama as command
        case _:
            return None
    return command


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
