"""Facts as text: tables for people, JSON for programs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from itertools import chain

import click
import msgspec

from appliance.platform.console import harmless

WIDE = 100_000
"""Columns of output that is not a screen: no line is folded."""
GAP = "  "

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def print_json(facts: object) -> None:
    """One JSON document on standard output."""
    click.echo(msgspec.json.format(msgspec.json.encode(facts), indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Columns in the terminal's width; plain and never cut when standard output is not a terminal."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDE
    click.echo("\n".join(table_lines(columns, rows, right, width)))


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str], width: int) -> list[str]:
    """Return the lines of a table that is at most ``width`` columns wide."""
    cells = [[harmless(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    if sum(widths) + len(GAP) * (len(widths) - 1) > width or not all(map(str.isascii, chain(*cells))):
        return _folded(columns, cells, right, width)
    lines = [
        GAP.join(
            cell.rjust(size) if name in right else cell.ljust(size)
            for name, cell, size in zip(columns, row, widths, strict=True)
        ).rstrip()
        for row in (columns, *cells)
    ]
    return [click.style(lines[0], bold=True), *lines[1:]]


def _folded(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str], width: int) -> list[str]:
    """The same where lines are too long, or letters of other scripts may be two columns wide."""
    from rich.console import Console  # a sixth of the time of `ls`
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, width=width)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # Text: a model's name is never markup
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().splitlines()]


def human_size(size: int) -> str:
    """``4.4 GB``, ``670 kB``: decimal units, as file managers and model pages use."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def human_count(count: int) -> str:
    """``7.2B``, ``110M``, ``8k`` parameters or tokens."""
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            value = count / size
            return f"{value:.0f}{unit}" if value >= 100 else f"{value:.1f}{unit}".replace(".0", "")
    return str(count)
