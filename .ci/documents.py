"""Parts of the documents, made from the program itself. Run by `bootstrap.py documents` and `check`.

docs/command-line.md has a table of each group of verbs, made from what the verbs say of themselves: with an argument
the tables are written, and without one they are compared.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from appliance.cli.app import command_line
from appliance.cli.verb import GROUPS, Verb
from appliance.feature import all_verbs
from appliance.features import FEATURES

DOCS = Path(__file__).resolve().parents[1] / "docs"
MADE = re.compile(r"(<!-- made by bootstrap\.py documents -->\n).*?(<!-- end -->\n)", re.DOTALL)
QUOTED = re.compile(r"(?<!\w)'([a-z][^']*)'(?!\w)")
"""A command in the text of a help."""
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


def command_tables(verbs: tuple[Verb, ...]) -> str:
    """Return the tables of all commands, a section for each group of verbs."""
    cli, parts = command_line(verbs), list[str]()
    with click.Context(cli, info_name="") as context:
        for group in GROUPS:
            parts.append(f"\n## {group[0].upper()}{group[1:]}\n\n| command | purpose |\n|---|---|\n")
            for verb in verbs:
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


def main(*, write: bool) -> int:
    path = DOCS / "command-line.md"
    text = path.read_text(encoding="utf-8")
    tables = command_tables(all_verbs(FEATURES))
    made = MADE.sub(lambda found: found[1] + tables + found[2], text)
    if write:
        path.write_text(made, encoding="utf-8")
    elif made != text:
        print(f"docs/{path.name} does not say what the verbs say of themselves: run 'python3 bootstrap.py documents'")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(write=len(sys.argv) > 1))
