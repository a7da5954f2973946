"""Parts of the documents, made from the program itself. Run by `bootstrap.py documents` and `check`.

docs/command-line.md has a table of each group of verbs, made from what the verbs say of themselves, and docs/http.md
one of the program's own routes, made from their registrations. With an argument the tables are written, and without
one they are compared.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import trio

from appliance.catalog.catalog import Catalog
from appliance.catalog.sources import ModelFolders
from appliance.catalog.supply import DownloadSettings
from appliance.cli.app import command_line
from appliance.cli.verb import GROUPS, VerbGround
from appliance.composition import AppliancePaths, open_appliance
from appliance.core.settings import FleetSettings, HttpSettings
from appliance.feature import verb_ground
from appliance.features import FEATURES
from appliance.features.engines.source import FoundHere
from appliance.http.control.app import create_app
from appliance.http.control.edge_routes import ONE_MODEL, EdgeRoutes
from appliance.http.control.openapi import PART
from appliance.http.route_facts import AS_MODELS, DescribedRoute
from appliance.settings import AppSettings
from appliance.traffic.request import Request

DOCS = Path(__file__).resolve().parents[1] / "docs"
MADE = re.compile(r"(<!-- made by bootstrap\.py documents -->\n).*?(<!-- end -->\n)", re.DOTALL)
QUOTED = re.compile(r"(?<!\w)'([a-z][^']*)'(?!\w)")
"""A command in the text of a help."""
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


def command_tables(ground: VerbGround) -> str:
    """Return the tables of all commands, a section for each group of verbs."""
    cli, parts = command_line(ground), list[str]()
    with click.Context(cli, info_name="") as context:
        for group in GROUPS:
            parts.append(f"\n## {group[0].upper()}{group[1:]}\n\n| command | purpose |\n|---|---|\n")
            for verb in ground.verbs:
                if verb.group == group:
                    command = cli.get_command(context, verb.name)
                    assert command is not None
                    more = f" ([{verb.page.partition('#')[0]}]({verb.page}))" if verb.page else ""
                    for words, purpose in rows(command, verb.name):
                        parts.append(f"| `{words}` | {purpose}{more} |\n")
                        more = ""
    return "".join(parts) + "\n"


def rows(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    """Yield the words and the purpose of a command, and of each one below it."""
    with click.Context(command, info_name=name) as context:
        is_group = isinstance(command, click.Group)
        if not is_group or command.invoke_without_command:
            pieces = (
                [] if is_group else [piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]"]
            )
            yield " ".join([name, *pieces]).replace("|", "\\|"), purpose_of(command)
        if isinstance(command, click.Group):
            for each in command.list_commands(context):
                below = command.get_command(context, each)
                if below is not None and not below.hidden:
                    yield from rows(below, f"{name} {each}")


def purpose_of(command: click.Command) -> str:
    """Return the paragraphs of the help before its examples, as one cell of a table."""
    told = re.split(r"[\b\f]", inspect.cleandoc(command.help or ""))[0]
    pieces = QUOTED.sub(r"`\1`", " ".join(told.split())).replace("|", "\\|").split("`")
    return "`".join(piece if odd % 2 else FLAG.sub(r"`\g<0>`", piece) for odd, piece in enumerate(pieces))


async def described_routes() -> list[tuple[str, DescribedRoute]]:
    """Return the program's own routes, each with its feature, as a program has them that is open."""
    with TemporaryDirectory() as folder:
        data = Path(folder)
        sources = ModelFolders(starter=None, cache=None, models_dir=None)
        settings = AppSettings(
            http=HttpSettings(listen=(("127.0.0.1", 0),), admin=True), fleet=FleetSettings(), sources=sources
        )
        places = AppliancePaths(
            catalog=Catalog(sources),
            engines=FoundHere(list, data, only=True),
            downloading=DownloadSettings(cache=data),
            data=data,
            learns=False,
            samples=False,
        )
        async with open_appliance(settings, places, FEATURES) as opened:
            kernel = opened.kernel
            app, facts = create_app(kernel, [each.routes for each in opened.parts if each.routes is not None])
            found = [("kernel", DescribedRoute("GET", path)) for path in (*EdgeRoutes.ROUTES, f"{ONE_MODEL}<model>")]
            for rule in app.url_map.iter_rules():
                owner = feature_of(app.view_functions[rule.endpoint].__module__)
                methods = sorted((rule.methods or set()) - {"HEAD", "OPTIONS"})
                found += [(owner, DescribedRoute(method, rule.rule, facts[rule.endpoint])) for method in methods]
            for each in opened.parts:
                gets = {path: make.func if isinstance(make, partial) else make for path, make in each.gets.items()}
                found += [(feature_of(make.__module__), DescribedRoute("GET", path)) for path, make in gets.items()]
                if each.described is not None:
                    found += [(feature_of(each.described.__module__), route) for route in each.described()]
            return found


def feature_of(module: str) -> str:
    """Return the name of the feature that a module belongs to."""
    parts = module.split(".")
    return parts[2] if parts[:2] == ["appliance", "features"] else "kernel"


def route_table() -> str:
    """Return the table of the program's own routes: by feature, and by what a request needs."""
    rows: dict[tuple[str, str, str], set[tuple[str, str]]] = {}
    for feature, route in trio.run(described_routes):
        asked = Request(method=route.method, path=route.path, target="", query={}, headers=(), http_version="1.1")
        needs = "nothing" if asked.public else "admin" if route.facts.admin is not None else "key"
        most = "as models" if route.facts.most == AS_MODELS else f"{route.facts.most >> 20} MiB"
        path = PART.sub(lambda found: found[1].upper(), route.path)
        size = "" if route.method in ("GET", "DELETE") else most
        rows.setdefault((feature, needs, size), set()).add((path, route.method))
    lines = [
        f"| `{name}` | {' '.join(f'`{method} {path}`' for path, method in sorted(routes))} | {needs} | {size} |\n"
        for (name, needs, size), routes in sorted(rows.items())
    ]
    return "".join(("\n| from | routes | needs | body |\n|---|---|---|---|\n", *lines, "\n"))


def main(*, write: bool) -> int:
    stale = 0
    for name, tables in (("command-line.md", command_tables(verb_ground(FEATURES))), ("http.md", route_table())):
        path = DOCS / name
        text = path.read_text(encoding="utf-8")
        made = MADE.sub(lambda found, tables=tables: found[1] + tables + found[2], text)
        if write:
            path.write_text(made, encoding="utf-8")
        elif made != text:
            print(f"docs/{name} does not say what the program says of itself: run 'python3 bootstrap.py documents'")
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main(write=len(sys.argv) > 1))
