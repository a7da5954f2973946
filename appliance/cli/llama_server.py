"""``llama-server ...``: stands in for llama-server, with its own flags and environment.

The front (address, keys, CORS, page) is this program; every other flag goes to the model process as it was written.
Source of the behaviour: llama-server of llama.cpp b11434.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import click
import trio

from appliance.catalog.hub_cache import cache_directory
from appliance.catalog.sources import NamedFile, Sources
from appliance.cli.llama_config import config_files, options_of
from appliance.cli.llama_front import FRONT, NOT_YET, http_settings, value
from appliance.cli.plan import AppSettings, AsyncCommand
from appliance.cli.router_mode import preset_of_repository, router_mode
from appliance.cli.status import EXIT_OURS, say
from appliance.core import llama_flags
from appliance.core.llama_flags import Option
from appliance.core.naming import is_speakable
from appliance.core.preset_keys import HF_TOKEN
from appliance.core.settings import FleetSettings
from appliance.engines.found import find_engine
from appliance.errors import UsageError
from appliance.platform.env import child_env

ANSWERED_BY_ENGINE = ("--help", "--version", "--cache-list", "--completion-bash", "--list-devices")
NAMES_A_MODEL = ("--model", "--model-url", "--hf-repo", "--docker-repo")
"""llama-server itself does not count ``--model-url``, and then has no model to serve."""
STOP_TIMEOUT = 1.5
"""What uses llama-server expects it to be gone about three seconds after SIGTERM, busy or not."""


class Verbatim(click.Command):
    """Every word after the verb is llama-server's, ``--help`` included."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params["words"] = tuple(args)
        return []


@click.command(name="llama-server", cls=Verbatim, add_help_option=False)
def llama_server(words: tuple[str, ...]) -> AppSettings | AsyncCommand | int:
    """Stand in for llama-server, with one model or as router: the same flags, environment and behaviour."""
    unknown = first_unknown(words)
    if unknown is not None:
        say(f"error: invalid argument: {unknown}")
        return EXIT_OURS
    try:
        from_argv = llama_flags.split(words)
    except UsageError as mistake:
        say(f"error: {mistake}")
        return EXIT_OURS
    if llama_flags.partition(from_argv, ANSWERED_BY_ENGINE)[0]:
        return partial(_run_engine, words)
    return stand_in(from_argv, os.environ)


def first_unknown(words: Sequence[str]) -> str | None:
    """The first word that llama-server would not know."""
    at = 0
    while at < len(words):
        flag = llama_flags.lookup(words[at])
        if flag is None:
            return words[at]
        spelled = llama_flags.normalise(words[at])
        at += 1 + (flag.arity if spelled in flag.spellings else 0)
    return None


def stand_in(from_argv: Sequence[Option], environ: Mapping[str, str]) -> AppSettings:
    """The server that these options, LLAMA_ARG_* and llama-server's configuration file ask for.

    Without a model, or with a repository of presets, it is the router, as in llama-server. Raises UsageError for what
    is wrong or cannot be done yet.
    """
    from_files = [option for file in config_files(environ, Path.home()) for option in options_of(file)]
    from_environ = [option for option in llama_flags.from_env(environ) if option.flag != HF_TOKEN]
    from_environ = llama_flags.merge(from_environ, from_files)
    options = llama_flags.merge(from_argv, from_environ)
    named, others = llama_flags.partition(options, NAMES_A_MODEL)
    presets = preset_of_repository(named, cache_directory(environ, Path.home()).absolute())
    for option in llama_flags.partition(others if presets else options, NOT_YET)[0]:
        raise UsageError(f"{option.flag} is not supported yet by the stand-in for llama-server")
    if presets or not named:
        return router_mode(from_argv, from_environ, environ)
    return single_mode(options)


def single_mode(options: Sequence[Option]) -> AppSettings:
    """The server of one model. Raises UsageError."""
    front, engine_options = llama_flags.partition(options, FRONT)
    path = Path(value(front, "--model", "")).absolute()
    model_id = _model_id(path, llama_flags.last(engine_options, "--alias"))
    return AppSettings(
        http=http_settings(options, single=model_id),
        fleet=FleetSettings(
            models_max=1,
            stop_timeout=STOP_TIMEOUT,
            engine_args=tuple(llama_flags.render(engine_options)),
            metrics=False,
        ),
        sources=Sources(files=(NamedFile(model_id, str(path)),), models_dir=None, cache=None, starter=None),
        preload=(model_id,),
    )


async def _run_engine(words: Sequence[str]) -> int:
    """What the engine alone can answer, answered by it; the result is its exit status."""
    env = child_env(os.environ, frozen=getattr(sys, "frozen", False))
    done = await trio.run_process([*find_engine(None).command, *words], check=False, env=env, stdin=None)
    return done.returncode


def _model_id(path: Path, alias: Option | None) -> str:
    """llama-server's own rule: the alphabetically first alias, else the file's name."""
    names = sorted(name.strip() for name in alias.values[0].split(",")) if alias else []
    model_id = next((name for name in names if name), None) or path.name
    if not is_speakable(model_id):
        raise UsageError(f"the name {model_id!r} cannot be used for a model; give another with --alias")
    return model_id
