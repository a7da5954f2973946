"""``llama-server ...``: stands in for llama-server, with its own flags, environment and configuration file.

The front (address, keys, CORS, page) is this program; every other flag goes to the model process as it was written.
Source of the behaviour: llama-server of llama.cpp b11434.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import click
import trio
from msgspec import structs

from appliance.catalog.found import cache_directory
from appliance.cli.app import ground_of
from appliance.cli.options import tools_of_options
from appliance.cli.verb import Bring
from appliance.core.llama import flags
from appliance.core.llama.flags import FLAGS, Kind, Option, explained
from appliance.errors import UsageError
from appliance.features.stand_in.core.older import modern_variables, modern_words, spelled_out
from appliance.features.stand_in.front import http_settings, is_on, value, warn_of_open_door
from appliance.features.stand_in.router import preset_of_repository, router_mode
from appliance.features.stand_in.single import cached, fetch, missing, needs_of, single_mode
from appliance.features.stand_in.surroundings import from_surroundings, on_vertex
from appliance.fleet.chooser import EngineSource
from appliance.platform.children import inherited_env
from appliance.platform.console import EXIT_OURS, say
from appliance.platform.home import users_home
from appliance.settings import AppSettings, AsyncCommand, Later
from appliance.upstream.hub import hub_access

ANSWERED_BY_ENGINE = ("--version", "--cache-list", "--completion-bash", "--list-devices")
NAMES_A_MODEL = ("--model", "--model-url", "--hf-repo", "--docker-repo")
"""llama-server itself does not count ``--model-url``, and then has no model to serve."""
HERE = {
    "cli": "run MODEL", "client": "run MODEL", "completion": "run MODEL PROMPT", "complete": "run MODEL PROMPT",
    "download": "pull NAME", "get": "pull NAME", "update": "engines update", "bench": "engines prove",
    "batched-bench": "engines prove", "fit-params": "load MODEL --dry-run", "quantize": "", "perplexity": "",
    "licenses": "", "credits": "",
}  # fmt: skip
"""The other commands of llama.cpp's program ``llama`` (b11434), and what this program has for the same purpose."""


class Verbatim(click.Command):
    """Every word after the verb belongs to llama-server, including ``--help``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params["words"] = tuple(args)
        return []


@click.command(name="llama-server", cls=Verbatim, add_help_option=False)
@click.pass_context
def llama_server(ctx: click.Context, words: tuple[str, ...]) -> AppSettings | Later | AsyncCommand | int:
    """Take llama-server's place, with one model or as router: the same flags, environment and behaviour."""
    said, notes = modern_words(words)
    unknown = first_unknown(said)
    if unknown is not None:
        say(f"error: invalid argument: {unknown}")
        return EXIT_OURS
    try:
        from_argv = flags.split(said)
        environ, more_notes = modern_variables(os.environ)
    except UsageError as mistake:
        say(f"error: {mistake}")
        return EXIT_OURS
    if flags.partition(from_argv, ("--help",))[0]:
        click.echo("usage: llama-server [options]\n\nWith a model it serves this one; without, it is the router.\n")
        click.echo("\n".join(explained(flag) for flag in FLAGS if flag.kind is not Kind.REMOVED))
        return 0
    if flags.partition(from_argv, ANSWERED_BY_ENGINE)[0]:
        return _run_engine(ground_of(ctx).engines(), said)
    for note in (*notes, *more_notes):
        say(f"warning: {note}")
    bring = next((verb.brings for verb in ground_of(ctx).verbs if verb.brings is not None), None)
    return stand_in(from_argv, environ, ground_of(ctx).engines(), bring)


@click.command(name="llama", cls=Verbatim, add_help_option=False)
@click.pass_context
def llama(ctx: click.Context, words: tuple[str, ...]) -> object:
    """Take the place of llama.cpp's program llama: 'llama serve' is llama-server."""
    verb = words[0] if words else "help"
    if verb in ("serve", "server"):
        return ctx.invoke(llama_server, words=words[1:])
    if verb in ("version", "--version"):
        return _run_engine(ground_of(ctx).engines(), ("--version",))
    if verb in ("help", "--help"):
        click.echo(
            "usage: llama serve [options], as llama-server\n       llama version\n\nIn place of other commands:\n"
        )
        click.echo("\n".join(f"  {name:15} llama-appliance {here}" for name, here in HERE.items() if here))
        return 0
    instead = f"there is 'llama-appliance {HERE[verb]}'" if HERE.get(verb) else "'llama serve' and 'llama version' are"
    say(f"error: command '{verb}' is {'not here' if verb in HERE else 'unknown'}; {instead}")
    return EXIT_OURS


def first_unknown(words: Sequence[str]) -> str | None:
    """Return the first word that llama-server would not know."""
    at = 0
    while at < len(words):
        flag = flags.lookup(words[at])
        if flag is None:
            return words[at]
        spelled = flags.normalise(words[at])
        at += 1 + (flag.arity if spelled in flag.spellings else 0)
    return None


def stand_in(
    from_argv: Sequence[Option], environ: Mapping[str, str], engines: EngineSource, bring: Bring | None
) -> AppSettings | Later:
    """The server that these options, LLAMA_ARG_* and llama-server's configuration file ask for.

    Without a model, or with a repository of presets, it is the router, as in llama-server. Raises UsageError for what
    is wrong or cannot be done yet.
    """
    return _mode(spelled_out(from_argv), from_surroundings(environ), environ, engines, bring)


def _mode(
    from_argv: Sequence[Option],
    from_environ: Sequence[Option],
    environ: Mapping[str, str],
    engines: EngineSource,
    bring: Bring | None,
) -> AppSettings | Later:
    options = flags.merge(from_argv, from_environ)
    named = flags.partition(options, NAMES_A_MODEL)[0]
    cache = cache_directory(environ, users_home()).absolute()
    presets = preset_of_repository(named, cache)
    if presets or not named:
        return _finished(router_mode(from_argv, from_environ, environ), options, environ)
    needs = needs_of(options)
    if places := cached(needs, options, cache):
        return _finished(single_mode(options, places), options, environ)
    hub = hub_access(
        environ, token=value(options, "--hf-token", "") or None, offline=is_on(options, "--offline", unsaid=False)
    )
    if bring is None or hub.offline:
        raise missing(needs, cache, downloads=bring is not None)
    http_settings(options, single=None)  # a mistake is reported before the download, not after it
    tools_of_options(options)

    async def prepare() -> AppSettings | int:
        engines.find(None)
        status = await fetch(bring, needs, hub, cache)
        if status is not None:
            return status
        found = _mode(from_argv, from_environ, environ, engines, bring)
        if isinstance(found, Later):
            raise UsageError(f"the download is missing from the cache at {cache}; somebody has removed it")
        return found

    return Later(prepare)


def _finished(settings: AppSettings, options: Sequence[Option], environ: Mapping[str, str]) -> AppSettings:
    """Add what only the surroundings say: Vertex AI's port, else the engine's own where nobody has said one."""
    settings = on_vertex(settings, environ)
    warn_of_open_door(settings.http, options)
    is_said = flags.last(options, "--port") is not None or settings.http.predict is not None
    return structs.replace(settings, port_of_engine=not is_said)


async def _run_engine(engines: EngineSource, words: Sequence[str]) -> int:
    """Let the engine answer what only the engine can; return its exit status."""
    command = [*engines.find(None).command, *words]
    done = await trio.run_process(command, check=False, env=inherited_env(), stdin=None)
    return done.returncode
