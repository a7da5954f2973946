"""``llama-server ...``: stands in for llama-server, with its own flags, environment and configuration file.

The front (address, keys, CORS, page) is this program; every other flag goes to the model process as it was written.
The configuration file has the form of a preset file: what stands in front of the first section counts, and ``[*]``
below that; other sections and unknown keys do not. Its options are weaker than the environment. Vertex AI's variables
(``AIP_*``) are read as llama-server reads them. ``config show --models-preset`` prints the options of each model of
router mode, and their sources. Source of the behaviour: llama-server of llama.cpp b11434.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
import trio
from msgspec import Struct, structs

from appliance.catalog.catalog import scan_models
from appliance.catalog.found import cache_directory
from appliance.catalog.sources import ModelFolders, NamedFile
from appliance.cli.app import verbs_of
from appliance.cli.options import tools_of_options
from appliance.cli.show import print_json, print_table
from appliance.cli.verb import Bring
from appliance.core.bodies.usual_path import usual_path
from appliance.core.config.nodes import Problem
from appliance.core.llama import flags
from appliance.core.llama import flags as llama_flags
from appliance.core.llama.flags import FLAGS, Kind, Option, explained
from appliance.core.models.model import Model
from appliance.core.models.names import is_speakable
from appliance.core.settings import DEFAULT_PORT, FleetSettings, HttpSettings, UnixSocket, at_port
from appliance.engines.found import find_engine
from appliance.errors import InvalidConfig, UsageError
from appliance.features.stand_in.core.older import modern_variables, modern_words, spelled_out
from appliance.features.stand_in.core.preset_file import (
    DEFAULT,
    EVERYWHERE,
    HF_TOKEN,
    EffectiveOption,
    is_known,
    parse,
    read_key,
)
from appliance.features.stand_in.core.presets import Layers, ToldOption, explain
from appliance.features.stand_in.front import FRONT, LOG_FILE, http_settings, is_on, value, warn_of_open_door
from appliance.features.stand_in.models import REMOTE, ModelPaths, cached, fetch, missing, needs_of
from appliance.features.stand_in.preset_models import PresetSource, read_ini
from appliance.features.stand_in.router import preset_of_repository, router_mode
from appliance.platform.children import inherited_env
from appliance.platform.console import EXIT_OURS, say
from appliance.platform.home import users_home
from appliance.settings import AppSettings, AsyncCommand, Later
from appliance.upstream.hub import hub_access

PREDICTION = "PREDICTION"
"""The only ``AIP_MODE`` there is."""
BELOW = Path("llama.cpp") / "config.ini"
OF_THE_SYSTEM = Path("/etc")
ANSWERED_BY_ENGINE = ("--version", "--cache-list", "--completion-bash", "--list-devices")
NAMES_A_MODEL = ("--model", "--model-url", "--hf-repo", "--docker-repo")
"""llama-server itself does not count ``--model-url``, and then has no model to serve."""
PROXY, NO_PAGE = "--ui-mcp-proxy", "--no-ui"
"""The front is the proxy and has the page; only the front reaches the model process, which reports both in ``/props``.
"""
STOP_TIMEOUT = 1.5
"""Programs that use llama-server expect it to end about three seconds after SIGTERM, busy or not."""
HERE = {
    "cli": "run MODEL", "client": "run MODEL", "completion": "run MODEL PROMPT", "complete": "run MODEL PROMPT",
    "download": "pull NAME", "get": "pull NAME", "update": "engines update", "bench": "engines prove",
    "batched-bench": "engines prove", "fit-params": "load MODEL --dry-run", "quantize": "", "perplexity": "",
    "licenses": "", "credits": "",
}  # fmt: skip
"""The other commands of llama.cpp's program ``llama`` (b11434), and what this program has for the same purpose."""


def on_vertex(settings: AppSettings, environ: Mapping[str, str]) -> AppSettings:
    """Return the settings for that environment; without it they stay the same. Raises UsageError."""
    if environ.get("AIP_MODE") != PREDICTION:
        return settings
    return structs.replace(settings, http=_served(settings.http, environ))


def _served(http: HttpSettings, environ: Mapping[str, str]) -> HttpSettings:
    text = environ.get("AIP_HTTP_PORT") or str(DEFAULT_PORT)
    if not (text.isascii() and text.isdecimal() and int(text) <= 65535):
        raise UsageError(f"AIP_HTTP_PORT={text}: a port is a number from 0 to 65535")
    port = int(text)
    others = {place[1] for place in http.listen if not isinstance(place, UnixSocket)} - {port}
    for other in others:
        say(f"AIP_HTTP_PORT counts: listening on port {port}, not {other}")
    return structs.replace(
        http,
        listen=at_port(http.listen, port),
        predict=_route(environ, "AIP_PREDICT_ROUTE") or "/predict",
        health=_route(environ, "AIP_HEALTH_ROUTE"),
    )


def _route(environ: Mapping[str, str], name: str) -> str | None:
    path = environ.get(name)
    return usual_path(f"/{path}") if path else None


def config_files(environ: Mapping[str, str], home: Path) -> list[Path]:
    """Return the existing files, the weaker first."""
    own = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    return [folder / BELOW for folder in (OF_THE_SYSTEM, own) if (folder / BELOW).is_file()]


def options_of(file: Path) -> list[Option]:
    """Read the file's options and print its oddities. Raises UsageError, or InvalidConfig for all mistakes."""
    sections, problems = parse(read_ini(file, named_by="llama-server's configuration"), str(file))
    settings = {section.name: section.settings for section in sections}
    options: list[Option] = []
    for setting in (*settings.get(EVERYWHERE, ()), *settings.get(DEFAULT, ())):
        if not is_known(setting.key):
            message = f"llama-server has no option '{setting.key}'; it is ignored"
            problems.append(Problem(message=message, at=setting.at, level="warning"))
            continue
        choice = read_key(setting.key, setting.value, f"{file}:{setting.at.line}")
        if isinstance(choice, str):
            problems.append(Problem(message=choice, at=setting.at))
        else:
            options += _option(choice)
    if errors := [problem for problem in problems if problem.level == "error"]:
        raise InvalidConfig(errors)
    for problem in problems:
        say(str(problem))
    return options


def _option(choice: EffectiveOption) -> Iterator[Option]:
    """Return nothing for a switch that is off, which the command line cannot express."""
    if choice.words:
        name, *values = choice.words
        yield Option(
            flag=choice.origin, canonical=choice.name, values=tuple(values), on=choice.on, words=(name, *values)
        )


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
        return _run_engine(said)
    for note in (*notes, *more_notes):
        say(f"warning: {note}")
    bring = next((verb.brings for verb in verbs_of(ctx) if verb.brings is not None), None)
    return stand_in(from_argv, environ, bring)


@click.command(name="llama", cls=Verbatim, add_help_option=False)
@click.pass_context
def llama(ctx: click.Context, words: tuple[str, ...]) -> object:
    """Take the place of llama.cpp's program llama: 'llama serve' is llama-server."""
    verb = words[0] if words else "help"
    if verb in ("serve", "server"):
        return ctx.invoke(llama_server, words=words[1:])
    if verb in ("version", "--version"):
        return _run_engine(("--version",))
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


def stand_in(from_argv: Sequence[Option], environ: Mapping[str, str], bring: Bring | None) -> AppSettings | Later:
    """The server that these options, LLAMA_ARG_* and llama-server's configuration file ask for.

    Without a model, or with a repository of presets, it is the router, as in llama-server. Raises UsageError for what
    is wrong or cannot be done yet.
    """
    return _mode(spelled_out(from_argv), from_surroundings(environ), environ, bring)


def from_surroundings(environ: Mapping[str, str]) -> list[Option]:
    """Return the options from the environment and llama-server's configuration files. Raises UsageError."""
    from_files = [option for file in config_files(environ, users_home()) for option in options_of(file)]
    from_environ = [option for option in flags.from_env(environ) if option.flag != HF_TOKEN]
    return flags.merge(from_environ, from_files)


def _mode(
    from_argv: Sequence[Option], from_environ: Sequence[Option], environ: Mapping[str, str], bring: Bring | None
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
        find_engine(None)
        status = await fetch(bring, needs, hub, cache)
        if status is not None:
            return status
        found = _mode(from_argv, from_environ, environ, bring)
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


def single_mode(options: Sequence[Option], places: ModelPaths) -> AppSettings:
    """Return the server of one model, whose files are here. Raises UsageError."""
    rest = flags.partition(options, FRONT)[1]
    fetched, engine_options = flags.partition(rest, REMOTE)
    for place, named in ((places.draft, "--spec-draft-model"), (places.mmproj, "--mmproj")):
        if place is not None:
            engine_options = flags.partition(engine_options, (named,))[1]
    model_id = _model_id(fetched, flags.last(engine_options, "--alias"), places)
    companions = (("--mmproj", places.mmproj), ("--model-draft", places.draft))
    http = http_settings(options, single=model_id)
    files = [word for flag, path in companions if path is not None for word in (flag, path)]
    told = [*((PROXY,) if http.cors_proxy else ()), *(() if http.page else (NO_PAGE,))]
    return AppSettings(
        http=http,
        fleet=FleetSettings(
            models_max=1,
            stop_timeout=STOP_TIMEOUT,
            engine_args=(*files, *told, *flags.render(engine_options)),
            metrics=False,
            fit=False,
        ),
        tools=tools_of_options(options),
        sources=ModelFolders(files=(NamedFile(model_id, places.model),), models_dir=None, cache=None, starter=None),
        preload=(model_id,),
        echo=True,
        quiet=is_on(options, "--log-disable", unsaid=False),
        log_file=value(options, LOG_FILE, "") or None,
    )


async def _run_engine(words: Sequence[str]) -> int:
    """Let the engine answer what only the engine can; return its exit status."""
    command = [*find_engine(None).command, *words]
    done = await trio.run_process(command, check=False, env=inherited_env(), stdin=None)
    return done.returncode


def _model_id(fetched: Sequence[Option], alias: Option | None, places: ModelPaths) -> str:
    """llama-server's own rule: the alphabetically first alias, else the repository as it was written, else the file."""
    names = sorted(name.strip() for name in alias.values[0].split(",")) if alias else []
    named = value(fetched, "--hf-repo", "") or value(fetched, "--docker-repo", "")
    model_id = next((name for name in names if name), None) or named or Path(places.model).name
    if not is_speakable(model_id):
        raise UsageError(f"the name {model_id!r} cannot be used for a model; give another with --alias")
    return model_id


class ShownModel(Struct, frozen=True, kw_only=True):
    """One model as ``--json`` prints it."""

    source: str
    path: str
    fetch: list[str]
    """The downloads that wait for the first request."""
    error: str | None
    options: list[ToldOption]


def show_presets(file: Path, flags: Sequence[str], as_json: bool) -> int:
    """Print it for these flags of llama-server and this environment. Raises UsageError, InvalidConfig."""
    from_argv = llama_flags.split(("--models-preset", str(file), *flags))
    sources = router_mode(from_argv, from_surroundings(os.environ), os.environ).sources
    layers = sources.presets.layers if isinstance(sources.presets, PresetSource) else Layers()
    snapshot = scan_models(sources)
    shown = {model.id: _shown(model, layers) for model in snapshot.models}
    if as_json:
        print_json({"models": shown, "notes": snapshot.notes})
        return 0
    for place, (model_id, model) in enumerate(shown.items()):
        click.echo(("\n" if place else "") + f"{model_id}{_about(model)}")
        rows = [(f"  {told.option}", told.said.value, _who(told), _instead(told)) for told in model.options]
        print_table(("  OPTION", "VALUE", "FROM", "INSTEAD OF"), rows)
    return 0


def _shown(model: Model, layers: Layers) -> ShownModel:
    section = next((name for name in (model.id, *model.aliases) if name in layers.presets.sections), model.id)
    settings = (line.partition(" = ") for line in model.preset.splitlines() if " = " in line)
    return ShownModel(
        source=model.source,
        path=model.path,
        fetch=[str(wanted) for wanted in model.fetch],
        error=model.error,
        options=explain(layers, section, model.origins, {f"--{name}": value for name, _, value in settings}),
    )


def _about(model: ShownModel) -> str:
    if model.error is not None:
        return f": cannot be used: {model.error}"
    if model.fetch:
        return f": {' and '.join(model.fetch)} is downloaded on the first request"
    return f": {model.path}" if model.path else ""


def _who(told: ToldOption) -> str:
    return f"{told.said.layer} ({told.said.origin})"


def _instead(told: ToldOption) -> str:
    return ", ".join(f"{said.value} of {said.layer} ({said.origin})" for said in told.instead_of)
