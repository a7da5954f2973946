"""The documents tell the truth about names, routes, errors, flags, limits, settings and keys."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from subprocess import PIPE, run
from textwrap import dedent
from typing import get_args

import click
import msgspec
import msgspec.inspect as mi
import pytest
from any_request import app_of, edge_gets
from http_harness import OpenServer
from landing import COLLECTED
from msgspec import structs
from whole_config import WHOLE

from appliance import plugins
from appliance.cli.app import command_line
from appliance.cli.serve import serve
from appliance.core.answers.families import FAMILIES
from appliance.core.config.additions import PluginConfig, RunsConfig
from appliance.core.llama import flags
from appliance.core.models.swap_listing import ListedModel
from appliance.core.turns.messages import FailReason, FinishReason, RunState
from appliance.errors import ApplianceError
from appliance.feature import verb_ground
from appliance.features import FEATURES
from appliance.features.config_editing.verb import config
from appliance.features.engines.core.standing import Standing
from appliance.features.engines.core.trials import SPEED_KEPT
from appliance.features.engines.verbs.commands import engines
from appliance.features.plugins.registry import AgentList, ListedPlugin
from appliance.features.runs.record import RunResult, RunStatus
from appliance.features.runs.routes import KEYS
from appliance.features.runs.verb import agent
from appliance.features.stand_in.core.older import SHORTHANDS, modern_words
from appliance.features.stand_in.front import FRONT
from appliance.features.stand_in.single import REMOTE
from appliance.features.stand_in.verb import ANSWERED_BY_ENGINE
from appliance.http import errors as http_errors
from appliance.http.way import routes
from appliance.platform.home import ENGINES_VARIABLE
from appliance.plugins import testing
from appliance.plugins.loading import HOOKS, SETTINGS
from appliance.plugins.manifest import DEFAULT_TIMEOUT
from appliance.plugins.manifest import KEYS as PLUGIN_KEYS
from appliance.traffic.request import PAGE_PATHS

CLI = command_line(verb_ground(FEATURES))
ROOT = Path(__file__).resolve().parents[1]


def page(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


ARCHITECTURE, README = page("ARCHITECTURE.md"), page("README.md")
WHERE = page("docs/where-to-change.md")
AGENTS, COMMANDS, ENGINES = page("docs/agents.md"), page("docs/command-line.md"), page("docs/engines.md")
HTTP, PLUGINS, STAND_IN = page("docs/http.md"), page("docs/plugins.md"), page("docs/llama-server.md")
SWAP = page("docs/llama-swap.md")
SWAP_KEYS = SWAP[SWAP.index("\n## Keys\n") : SWAP.index("\n## Macros and environment\n")]
ABSENT = "absent"

flags_of = partial(re.findall, r"(?<![\w-])--[a-z][a-z0-9-]+")
"""The options that a page names."""


spelled = partial(re.findall, r"(?<![\w-])--[a-z][a-z0-9_.-]*[a-z0-9]")
"""The options of llama-server that a page names; some have a point in them."""


def options(commands: Iterable[click.Command]) -> set[str]:
    """Every spelling of every option of these."""
    parameters = [parameter for command in commands for parameter in command.params]
    return {flag for parameter in parameters for flag in (*parameter.opts, *parameter.secondary_opts)}


# ---- the whole program -----------------------------------------------------------------------------------------------


def classes(cls: type[ApplianceError]) -> list[type[ApplianceError]]:
    return [leaf for sub in cls.__subclasses__() for leaf in classes(sub)] or [cls]


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 90
    for link in re.findall(r"\]\(([\w./-]+)\)", README):
        assert (ROOT / link).exists(), link


def test_architecture_is_short_and_its_names_exist() -> None:
    assert len(ARCHITECTURE.splitlines()) <= 150
    paths = r"`((?:appliance|tests|llama-builds|starter-model|packaging|plugins|installer|docs)/[\w./-]*)`"
    for name in re.findall(paths, ARCHITECTURE + WHERE):
        assert (ROOT / name).exists(), name
    source = "\n".join(path.read_text("utf-8") for path in (ROOT / "appliance").rglob("*.py"))
    for name in ("open_appliance", "open_fleet", "RequestHead", "Grant", "Exchange", "Sink", "RequestContext"):
        assert name in ARCHITECTURE
        assert re.search(rf"\b(def|class) {name}\b", source), name


def test_where_to_change_is_short_and_each_name_is_in_its_file() -> None:
    assert WHERE.count("\n| ") <= 40
    for names, path in re.findall(r"((?:`[\w.]+`(?: and )?)+) in `([\w./]+)`", WHERE):
        for name in re.findall(r"\w+(?=[.`])", names):
            defined = rf"\b(def|class|function|const) {name}\b|^ *{name} ?[:=]"
            assert re.search(defined, page(path), re.MULTILINE), (name, path)


@pytest.mark.parametrize(
    "folder", sorted(p.name for p in (ROOT / "appliance").iterdir() if (p / "__init__.py").exists())
)
def test_every_room_says_what_it_does_and_refuses(folder: str) -> None:
    assert f"appliance/{folder}/" in ARCHITECTURE
    assert "Refuses" in (ROOT / "appliance" / folder / "__init__.py").read_text("utf-8")


def test_the_rooms_are_those_of_the_contract_in_its_order_and_every_feature_is_listed() -> None:
    table = ARCHITECTURE.partition("| room |")[2].partition("\n\n")[0]
    cells = [line.split(" | ")[0].strip("| ") for line in table.splitlines()[2:]]
    named = [room for cell in cells for room in cell.split(" > ")]
    rooms = [re.sub(r"\.py|/?`", "", room).replace("/", ".").replace("·", "|") for room in named]
    layers: list[str] = tomllib.loads(page("pyproject.toml"))["tool"]["importlinter"]["contracts"][0]["layers"]
    assert rooms == layers
    features = ARCHITECTURE.partition("| for | features |")[2].partition("\n\n")[0]
    assert all(features.count(f"`{feature.name}`") == 1 for feature in FEATURES)


def test_every_model_route_and_every_field_of_a_listed_model_is_documented() -> None:
    for path in (*routes._POST, *routes._ASK, *routes._LISTS):
        assert f"`{path}" in HTTP, path
    for field in structs.fields(ListedModel):
        assert f"`{field.encode_name}`" in HTTP, field.name


@pytest.mark.slow
def test_the_walk_of_a_first_feature_leads_to_a_verb_a_route_and_a_finding(tmp_path: Path) -> None:
    """In a copy of the program that has the files of the text, its test and those of every feature pass."""
    walk = page("CONTRIBUTING.md").partition("## Your first feature")[2].partition("\n## ")[0]
    steps = re.findall(r"^`([\w./]+)`(?:.*\n)+?\n((?: {4}.*\n|\n)+)", walk, re.MULTILINE)
    texts = {path: dedent(text).strip("\n") for path, text in steps}
    for name in ("appliance", "tests"):
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules", "src")
        )
    for name in ("bench", "llama-builds", "plugins", "pyproject.toml", "tools"):
        (tmp_path / name).symlink_to(ROOT / name)
    listed = tmp_path / "appliance" / "features" / "__init__.py"
    lines = listed.read_text("utf-8").splitlines()
    for line in texts.pop("appliance/features/__init__.py").splitlines():
        alike = re.compile(r" {4}[A-Z_]+,$" if line.startswith(" ") else r"from appliance\.features\.")
        lines.insert(max(at for at, each in enumerate(lines, 1) if alike.match(each) and each < line), line)
    listed.write_text("\n".join([*lines, ""]), "utf-8")
    for path, text in texts.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(f"{text}\n", "utf-8")
    tests = [next(path for path in texts if path.startswith("tests/")), "tests/features/test_deletable.py"]
    words = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "not slow", "-p", "no:cacheprovider", *tests]
    told = run(
        words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, stdout=PIPE, text=True, timeout=120
    )
    assert told.returncode == 0, told.stdout


async def test_every_route_of_the_server_is_documented(open_server: OpenServer) -> None:
    async with open_server() as server:
        app, gets = app_of(server), edge_gets(server)
    paths = {rule.rule for rule in app.url_map.iter_rules()} | gets.keys() | PAGE_PATHS
    assert len(paths) >= 30
    for path in (*paths, routes.STREAM, routes.LOOKUP, routes.SOCKET):
        assert path.partition("<")[0].rstrip("/") in HTTP, path
    for path in paths:
        if path.startswith(("/api/runs", "/api/workers")):
            assert path.replace("<run_id>", "ID").replace("<path:model>", "MODEL") in AGENTS, path
        if path.startswith("/api/engines"):
            assert path in ENGINES, path


def test_every_error_is_documented_with_its_status() -> None:
    for cls in classes(ApplianceError):
        status, _ = next(http_errors.TABLE[c] for c in cls.__mro__ if c in http_errors.TABLE)
        rows = [line for line in HTTP.splitlines() if line.startswith(f"| {status} |")]
        assert rows, status
        assert f"`{cls.reason}`" in rows[0], cls


def test_every_verb_is_documented_and_explains_itself() -> None:
    for verb in CLI.verbs:
        assert f"`{verb}" in COMMANDS, verb
        command = CLI.get_command(click.Context(CLI), verb)
        assert command.help or verb.startswith("llama")


def test_flags_in_the_documents_exist() -> None:
    commands = [command for verb in CLI.verbs if (command := CLI.get_command(click.Context(CLI), verb)) is not None]
    commands += [part for command in commands if isinstance(command, click.Group) for part in command.commands.values()]
    known = options(commands)
    bootstrap = page("bootstrap.py") + page("llama-builds/build.py")
    suites = page("tools/upstream_suite/run.py")
    for flag in spelled(STAND_IN):
        older = modern_words([flag]) != ([flag], [])
        assert flags.lookup(flag) or older or flag in known or flag in bootstrap or f'"{flag}"' in suites, flag
    for flag in flags_of(README + COMMANDS + HTTP):
        assert flag in known or flags.lookup(flag) or flag in bootstrap or flag == "--help", flag
    assert set(flags_of(AGENTS)) <= options([*agent.commands.values(), serve])
    building = set(flags_of(page("llama-builds/build.py")))
    assert set(flags_of(ENGINES)) <= options([*engines.commands.values(), serve]) | building | {"--help"}
    assert set(flags_of(SWAP)) <= options([*config.commands.values(), serve])


ALSO_HERE = ("--timeout", "--sse-ping-interval", "--offline", "--log-disable", "--ui-config", "--ui-config-file")
"""What this program acts on, and the engine gets as well."""


def table_of(heading: str) -> list[tuple[str, str]]:
    """The two columns of the first table below a heading of the stand-in's page."""
    section = STAND_IN.split(f"\n## {heading}\n", 1)[1]
    rows = re.search(r"\|---\|---\|\n((?:\|.*\n)+)", section)
    found = (re.fullmatch(r"\| (.+?) \| (.+) \|", line) for line in rows[1].splitlines())
    return [(row[1], row[2]) for row in found if row is not None]


def test_every_option_of_llama_server_is_there_once_with_what_becomes_of_it() -> None:
    named = [(flags.canonical(flag), told) for cell, told in table_of("Options") for flag in spelled(cell)]
    assert sorted(name for name, _ in named) == sorted(flag.name for flag in flags.FLAGS)
    acted_on = {flags.canonical(flag) for flag in (*FRONT, *REMOTE, *ANSWERED_BY_ENGINE, "--help", *SHORTHANDS)}
    also_here = {flags.canonical(flag) for flag in ALSO_HERE}
    removed = {flag.name for flag in flags.FLAGS if flag.kind is flags.Kind.REMOVED}
    passed_on = {name for name, told in named if told.startswith("the engine gets them as written")}
    assert passed_on == {flag.name for flag in flags.FLAGS} - acted_on - also_here - removed
    assert also_here == {name for name, told in named if told.startswith("both") or "ui_settings" in told}
    assert removed == {name for name, told in named if told.startswith("removed")}


SWITCHED_ON = ("/tools", "/cors-proxy")
"""Routes that a server has only where somebody asked for them."""


async def test_every_route_of_llama_server_is_there(open_server: OpenServer) -> None:
    told = set(re.findall(r"`(/[\w/.-]+)", " ".join(cell for cell, _ in table_of("Routes"))))
    passed = {path for path in routes.POSTED if path not in routes._MEDIA and not path.startswith("/audioapi")}
    assert sorted(passed - told) == []
    async with open_server() as server:
        app, gets = app_of(server), edge_gets(server)
    own = {rule.rule.partition("<")[0] for rule in app.url_map.iter_rules()} | gets.keys() | PAGE_PATHS
    known = {*routes.POSTED, *routes._ASK, *own, routes.STREAM, routes.LOOKUP, "/slots/ID", *SWITCHED_ON}
    assert sorted(told - known) == []


# ---- agent runs ------------------------------------------------------------------------------------------------------


def rows(after: str) -> str:
    """The first table behind some words."""
    return re.split(r"\n\n", AGENTS.split(after, 1)[1].split("\n|", 1)[1])[0]


def test_every_key_of_a_run_is_there_and_no_other() -> None:
    cells = [row.split("|")[0 if at == 0 else 1] for at, row in enumerate(rows("## Asking for one").split("\n"))]
    told = set(re.findall(r"`([a-z_]+)`", "".join(cells)))
    assert told == set(KEYS)


def test_states_reasons_fields_and_settings_of_runs_are_there() -> None:
    table = rows("whatever the reason")
    assert set(re.findall(r"^\| `([a-z_]+)`", table, re.MULTILINE)) == set(get_args(FailReason))
    for word in (*get_args(RunState), *get_args(FinishReason)):
        assert f"`{word}`" in AGENTS, word
    for field in {*RunStatus.__struct_fields__, *RunResult.__struct_fields__} - {"id", "model"}:
        assert f"`{field}`" in AGENTS, field
    names = {info.encode_name for info in structs.fields(RunsConfig)}
    assert set(re.findall(r"`runs\.([A-Za-z]+)`", AGENTS)) <= names


# ---- engines ---------------------------------------------------------------------------------------------------------


def test_every_verb_of_engines_is_there_and_every_option_of_one_that_changes_something() -> None:
    for verb in engines.commands:
        assert f"`engines {verb}" in ENGINES, verb
    elsewhere = ("--api-key", "--config-dir", "--config-root")
    for verb in ("install", "update", "use", "remove"):
        for parameter in engines.commands[verb].params:
            if isinstance(parameter, click.Option) and parameter.opts[-1] not in elsewhere:
                assert any(flag in ENGINES for flag in parameter.opts), (verb, parameter.opts)


def test_standings_and_figures_of_engines_are_the_programs() -> None:
    for standing in get_args(Standing):
        assert f"| `{standing}` |" in ENGINES
    assert f"{SPEED_KEPT * 100:.0f} %" in ENGINES
    assert ENGINES_VARIABLE in ENGINES


# ---- the configuration -----------------------------------------------------------------------------------------------


def bare(kind: mi.Type) -> mi.Type:
    if isinstance(kind, mi.Metadata):
        return bare(kind.type)
    if isinstance(kind, mi.UnionType):
        rest = [each for each in kind.types if not isinstance(each, mi.NoneType)]
        return bare(rest[0]) if len(rest) == 1 else kind
    return kind


def keys_below(info: mi.StructType, path: str) -> dict[str, object]:
    """Dotted path to default of everything below a struct that is not a struct itself."""
    found: dict[str, object] = {}
    for field in info.fields:
        here = f"{path}.{field.encode_name}" if path else field.encode_name
        kind = bare(field.type)
        if isinstance(kind, mi.DictType) and isinstance(item := bare(kind.value_type), mi.StructType):
            found |= keys_below(item, f"{here}.<id>")
        elif isinstance(kind, mi.StructType):
            found |= keys_below(kind, here)
        elif field.default_factory is not msgspec.NODEFAULT:
            found[here] = msgspec.to_builtins(field.default_factory())
        else:
            found[here] = ABSENT if field.default is msgspec.NODEFAULT else field.default
    return found


def documented() -> dict[str, str]:
    """Dotted path to the text of its default, of every row of every table; a table is headed by where its keys are."""
    found: dict[str, str] = {}
    for section in SWAP_KEYS.split("\n### ")[1:]:
        heading = section.splitlines()[0]
        places = re.findall(r"`([^`]+)`", heading) or [""]
        for key, default in re.findall(r"^\| `([\w.]+)` \| `(.+?)` \|", section, re.MULTILINE):
            for place in places:
                path = f"{place}.{key}" if place else key
                assert path not in found, f"{path} is documented twice"
                found[path] = default.replace("\\|", "|")
    return found


def test_every_key_of_the_configuration_is_there_and_no_other() -> None:
    info = mi.type_info(WHOLE)
    assert isinstance(info, mi.StructType)
    known, told = keys_below(info, ""), documented()
    assert sorted(known.keys() - told.keys()) == []
    assert sorted(told.keys() - known.keys()) == []
    assert told == {path: default if default == ABSENT else json.dumps(default) for path, default in known.items()}


def test_the_verbs_and_files_of_the_page_exist() -> None:
    for verb in re.findall(r"`config ([a-z]+)", SWAP):
        assert verb in config.commands
    for name in re.findall(r"`(tests/[\w./-]+)`", SWAP):
        assert (ROOT / name).exists(), name


# ---- plugins ---------------------------------------------------------------------------------------------------------


def test_every_key_hook_and_route_of_plugins_is_there() -> None:
    for key in PLUGIN_KEYS:
        assert f"| `{key}` |" in PLUGINS, key
    assert f"| `timeout` | `{DEFAULT_TIMEOUT:g}` |" in PLUGINS
    for hook in HOOKS:
        assert f"def {hook}(" in PLUGINS, hook
    for path in FAMILIES:
        assert path in PLUGINS, path


def test_what_the_configuration_says_of_plugins_and_lists_show_is_there() -> None:
    section = PLUGINS[PLUGINS.index("## Settings in the configuration") : PLUGINS.index("## Slash commands")]
    for key in PluginConfig.__struct_fields__:
        assert f"| `{key}` |" in section, key
    listing = PLUGINS[PLUGINS.index("`GET /api/agents` lists") : PLUGINS.index("## config.json")]
    for key in (*AgentList.__struct_fields__, *ListedPlugin.__struct_fields__):
        assert f'"{key}": ' in listing or f"`{key}`" in listing, key
    assert f"dataclass `{SETTINGS}`" in PLUGINS
    for flag in ("--plugins DIR", "--no-plugins"):
        assert f"`{flag}`" in PLUGINS


def test_everything_a_hook_is_given_is_there() -> None:
    for kind, name in ((plugins.Context, "context"), (plugins.Request, "request"), (plugins.Response, "response")):
        fields = getattr(kind, "__struct_fields__", ()) or [m for m, _ in inspect.getmembers(kind) if m[0] != "_"]
        assert fields
        for field in fields:
            assert f"`{name}.{field}`" in PLUGINS, field
    for method, _ in inspect.getmembers(plugins.Appliance, inspect.isfunction):
        assert method.startswith("_") or f"`{method}`" in PLUGINS, method
    for name in ("question", "reply", "streamed", "take_turn", "Asked"):
        assert hasattr(testing, name)
        assert name in PLUGINS


def test_the_modules_of_the_frozen_program_are_the_ones_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "packaging"))
    import plugin_modules

    told = (
        PLUGINS[PLUGINS.index("of the standard library\n") : PLUGINS.index("## Testing one")].split("\n", 1)[1].split()
    )
    assert tuple(told) == plugin_modules.STANDARD
    assert {name.partition(".")[0] for name in told} <= sys.stdlib_module_names
    files = {source for source, _ in plugin_modules.bundled_files(ROOT / "plugins")}
    shipped = [path for path in (ROOT / "plugins").iterdir() if path.is_dir() and (path / "agent.py").is_file()]
    assert shipped
    for folder in shipped:
        assert {str(folder / "agent.py"), str(folder / "config.json")} <= files
    assert not [file for file in files if "__pycache__" in file or "/test_" in file]
    assert "appliance.plugins" in plugin_modules.hidden_imports(ROOT / "plugins")
    source = "import a.b\nfrom . import c\nfrom email import parser, nothing\nfrom __future__ import annotations"
    assert list(plugin_modules.imports(source)) == ["a.b", "email", "email.parser"]


ROW = re.compile(r"\| (?P<number>\d+) \| .+ \| (?P<state>works|partly|differs|missing) \| (?P<told>.+) \|")
NAMED = re.compile(r"`tests/([\w/.]+?)(?:::(\w+))?`")


def test_every_promise_of_the_seeds_names_tests_that_run_or_a_reason(request: pytest.FixtureRequest) -> None:
    """Pytest has collected each of them, where it was asked for all tests, and not for those that have failed."""
    whole = request.config.args_source is not pytest.Config.ArgsSource.ARGS and not request.config.getoption("lf")
    coverage = page("docs/seed-coverage.md")
    rows = [found for line in coverage.splitlines() if re.match(r"\| \d", line) and (found := ROW.fullmatch(line))]
    assert [int(row["number"]) for row in rows] == list(range(1, 481))
    for row in rows:
        named, reason = NAMED.findall(row["told"]), NAMED.sub("", row["told"]).strip(" ,;")
        assert named if row["state"] == "works" else len(reason) > 3, row[0]
    for path, name in set(NAMED.findall(coverage)):
        file = ROOT / "tests" / path
        assert file.exists(), path
        if name and whole:
            assert f"tests/{path}::{name}" in request.config.stash[COLLECTED]
        elif name:
            assert re.search(rf"^(async )?def {name}\(", file.read_text("utf-8"), re.MULTILINE), f"{path}::{name}"
    counts = dict(re.findall(r"^\| (works|differs|partly|missing) \| (\d+) \|$", coverage, re.MULTILINE))
    assert {state: str(sum(row["state"] == state for row in rows)) for state in counts} == counts
    assert len(counts) == 4


def test_every_room_whose_mutants_are_recorded_is_there() -> None:
    rooms = re.findall(r"^\| `([\w/]+)` \| \d+ \| \d+ % \|$", page("docs/reliability.md"), re.MULTILINE)
    assert len(rooms) > 10
    assert [room for room in rooms if room != "top" and not (ROOT / "appliance" / room).is_dir()] == []


def test_every_mutant_that_no_test_can_see_is_of_a_line_that_there_is() -> None:
    for each in tomllib.loads(page("tools/mutants_equivalent.toml"))["equivalent"]:
        assert each["before"] in map(str.strip, page(each["file"]).splitlines()), each
