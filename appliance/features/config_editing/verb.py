"""``config``: explains a configuration file, checks it, predicts its effects; `edit_verbs` changes it."""

from __future__ import annotations

from pathlib import Path

import click
from msgspec import Struct

from appliance.catalog.configuration import Files
from appliance.cli.app import ground_of, presets_of
from appliance.cli.options import source_options
from appliance.cli.show import json_option, print_json
from appliance.core.config.nodes import Problem
from appliance.core.config.show import schema as json_schema
from appliance.core.config.show import shown, yaml_text
from appliance.core.config.types import Config
from appliance.core.scheduling.policy import Eviction, policy_of
from appliance.core.scheduling.routing import Local, Remote, Router, Virtual
from appliance.errors import UsageError
from appliance.features.config_editing.edit_verbs import edit, restore, versions
from appliance.platform.console import EXIT_USER, say
from appliance.plugins.folders import choice_of, places_of, unknown_plugins


class CheckOutput(Struct, frozen=True, kw_only=True):
    """The output of ``config check --json``."""

    ok: bool
    models: int
    problems: tuple[Problem, ...]


class Resolved(Struct, frozen=True, kw_only=True):
    """The output of ``config resolve --json``; both fields are None for an unknown name."""

    model: str | None = None
    peer: tuple[str, str] | None = None


@click.group()
def config() -> None:
    """Check, explain and edit a configuration: llama-swap's files, and those with this program's additions.

    \b
    Examples:
      llama-appliance config check --config config.yaml
      llama-appliance config plan --config config.yaml --running llama,qwen --want gemma
    """


@config.command()
@source_options
@json_option
def check(files: Files, as_json: bool) -> int:
    """Report everything that is wrong or odd; the exit status is 2 when the configuration cannot be used.

    \b
    Example:
      llama-appliance config check --config config.yaml
    """
    outcome = files.read()
    models = len(outcome.config.models) if outcome.config else 0
    problems = outcome.problems
    if outcome.config is not None and outcome.config.plugins:
        places, _ = places_of(choice_of(outcome.config, ()).folders)
        problems = (*problems, *unknown_plugins(outcome.config.plugins, places))
    if as_json:
        print_json(CheckOutput(ok=outcome.config is not None, models=models, problems=problems))
    else:
        for problem in problems:
            say(str(problem))
        if outcome.config is not None:
            click.echo(f"OK: {models} model{'' if models == 1 else 's'}")
    return 0 if outcome.config is not None else EXIT_USER


@config.command()
@source_options
@click.option(
    "--models-preset",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Show presets instead of a configuration, and where each value comes from.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of YAML.")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- LLAMA-SERVER FLAGS]")
@click.pass_context
def show(
    ctx: click.Context,
    files: Files,
    models_preset: Path | None,
    as_json: bool,
    flags: tuple[str, ...],
) -> int:
    """Print the configuration with macros, defaults, ports and inherited values filled in.

    With --models-preset: print the options of every model in llama-server's router mode with these flags and this
    environment, and the source of each: the command line, the model's section, its files, [*] or the environment.

    \b
    Examples:
      llama-appliance config show --config config.yaml --json
      llama-appliance config show --models-preset models.ini -- --models-dir ~/models --ctx-size 8192
    """
    if models_preset is not None:
        if files.named:
            raise UsageError("--models-preset cannot be combined with --config and --config-dir; leave those out")
        return presets_of(ctx).show(models_preset, flags, as_json)
    if flags:
        raise UsageError(f"unexpected argument {flags[0]!r}; llama-server's flags go with --models-preset")
    used = _used(files)
    if as_json:
        print_json(shown(used))
    else:
        click.echo(yaml_text(shown(used)), nl=False)
    return 0


@config.command()
@source_options
@json_option
@click.argument("name")
def resolve(files: Files, as_json: bool, name: str) -> int:
    """Say which model a request for NAME reaches, or which peer's model. A selector is resolved as if nothing were
    loaded.

    \b
    Example:
      llama-appliance config resolve gpt-4o-mini --config config.yaml
    """
    used = _used(files)
    router = Router(used)
    found = _resolved(used, router, name)
    if as_json:
        print_json(found)
    elif found.model is not None:
        click.echo(f"{name} is the model {found.model}")
    elif found.peer is not None:
        click.echo(f"{name} is the model {found.peer[1]} of the peer {found.peer[0]}")
    else:
        raise _not_in_it(name, router)
    return 0


@config.command()
@source_options
@click.option("--running", default="", metavar="NAME,...", help="The running models.")
@click.option("--want", required=True, metavar="NAME", help="The requested model.")
@json_option
def plan(files: Files, running: str, want: str, as_json: bool) -> int:
    """Say which running models the groups or the matrix would unload for another one, and why.

    \b
    Example:
      llama-appliance config plan --config config.yaml --running llama,qwen --want gemma
    """
    used = _used(files)
    router = Router(used)
    target = _local(used, router, want)
    now = sorted({_local(used, router, name.strip()) for name in running.split(",") if name.strip()})
    eviction = policy_of(used).plan(target, now)
    if as_json:
        print_json(eviction)
    else:
        click.echo(_why(used, target, now, eviction))
    return 0


@config.command()
@click.pass_context
def schema(ctx: click.Context) -> None:
    """Print the JSON schema of configuration files, for editors.

    \b
    Example:
      llama-appliance config schema > config-schema.json
    """
    print_json(json_schema(ground_of(ctx).config_type()))


for changing in (edit, versions, restore):
    config.add_command(changing)


def _used(files: Files) -> Config:
    """Return the configuration, and report every problem. Ends the command for one that has errors."""
    outcome = files.read()
    for problem in outcome.problems:
        say(str(problem))
    if outcome.config is None:
        raise click.exceptions.Exit(EXIT_USER)
    return outcome.config


def _resolved(used: Config, router: Router, name: str) -> Resolved:
    match router.resolve(name):
        case Local(model_id=id):
            return Resolved(model=id)
        case Remote(peers=((peer, model), *_)):
            return Resolved(peer=(peer, model))
        case Virtual(selector=selector) if selector.targets:
            return _resolved(used, router, selector.targets[0])
        case _:
            may_have = (id for id, peer in used.peers.items() if not peer.models and name.startswith(f"{id}/"))
            peer = next(may_have, None)  # it lists its models only while the server runs
            return Resolved(peer=(peer, name.removeprefix(f"{peer}/")) if peer is not None else None)


def _local(used: Config, router: Router, name: str) -> str:
    """Return the id of a model of this machine. Raises UsageError for a peer's model and for an unknown name."""
    found = _resolved(used, router, name)
    if found.peer is not None:
        raise UsageError(f"'{name}' is a model of the peer '{found.peer[0]}'; only models of this machine are unloaded")
    if found.model is None:
        raise _not_in_it(name, router)
    return found.model


def _not_in_it(name: str, router: Router) -> UsageError:
    near = router.near(name)
    hint = f"; did you mean {' or '.join(repr(one) for one in near)}?" if near else ""
    return UsageError(f"nothing in the configuration is called '{name}'{hint}")


def _why(used: Config, target: str, now: list[str], eviction: Eviction) -> str:
    if target in now and not eviction.evict:
        return f"{target} is running already; nothing is unloaded"
    router = used.routing.router.use
    place = f"the {'set' if router == 'matrix' else 'group'} '{eviction.set}'" if eviction.set else f"no {router} set"
    if not eviction.evict:
        return f"nothing is unloaded: {target} may run beside the running models ({place})"
    beside = f"; with {target} may run: {', '.join(eviction.target_set)}" if eviction.target_set else ""
    return f"unloaded for {target}: {', '.join(eviction.evict)} (cost {eviction.cost}, {place}{beside})"
