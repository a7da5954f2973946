"""Text of a document -> sections under their headings: Markdown, HTML, tables, JSON, plain text."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import PurePath

from appliance.plugins import JSON


@dataclass(frozen=True, kw_only=True)
class Section:
    """Text under one heading. ``line`` is where it begins in the file, 0 if lines mean nothing (HTML, JSON)."""

    heading: str
    line: int
    text: str


def sections(name: str, text: str) -> list[Section]:
    """Split by the ending of ``name``. Empty lines separate paragraphs; sections without text are left out."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    match PurePath(name).suffix.lower():
        case ".md" | ".markdown":
            found = _markdown(text)
        case ".html" | ".htm" | ".xhtml":
            found = _html(text)
        case ".csv" | ".tsv":
            found = _table(text)
        case ".json":
            found = _json(text)
        case ".jsonl" | ".ndjson":
            found = [Section(heading="", line=1, text="\n\n".join(text.split("\n")))]
        case _:
            found = [Section(heading="", line=1, text=text)]
    return [section for section in found if section.text.strip()]


class _Outline:
    """The headings above the current place."""

    def __init__(self) -> None:
        self._path: list[tuple[int, str]] = []

    def enter(self, level: int, title: str) -> None:
        self._path = [(depth, above) for depth, above in self._path if depth < level] + [(level, title)]

    def __str__(self) -> str:
        return " > ".join(title for _, title in self._path if title)


def _markdown(text: str) -> Iterator[Section]:
    """Find ``#`` headings, but not within fenced code."""
    outline, start, body, fence = _Outline(), 1, list[str](), ""
    for number, line in enumerate(text.split("\n"), 1):
        mark = re.match(r" {0,3}(`{3,}|~{3,})", line)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence):
            fence = ""
        title = None if fence else re.match(r" {0,3}(#{1,6})\s", line)
        if title:
            yield Section(heading=str(outline), line=start, text="\n".join(body))
            outline.enter(len(title[1]), line[title.end() :].strip().rstrip("#").rstrip())
            start, body = number + 1, []
        else:
            body.append(line)
    yield Section(heading=str(outline), line=start, text="\n".join(body))


class _Page(HTMLParser):
    """Reads the text of a page by its headings; scripts and styles are not text."""

    HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
    HIDDEN = ("script", "style", "template", "noscript", "svg")
    BLOCKS = (
        *("p", "div", "section", "article", "main", "header", "footer", "nav", "aside", "blockquote", "pre", "br"),
        *("hr", "ul", "ol", "li", "dl", "dt", "dd", "table", "tr", "form", "figure", "figcaption", "title", "body"),
    )

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[Section] = []
        self._outline = _Outline()
        self._text: list[str] = []
        self._title: list[str] | None = None
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self.HIDDEN:
            self._hidden += 1
        elif tag in self.HEADINGS:
            self.end_section()
            self._title = []
        elif tag in self.BLOCKS:
            self._text.append("\n\n")
        elif tag in ("td", "th"):
            self._text.append(" | ")

    def handle_endtag(self, tag: str) -> None:
        if tag in self.HIDDEN:
            self._hidden = max(0, self._hidden - 1)
        elif tag in self.HEADINGS and self._title is not None:
            self._outline.enter(self.HEADINGS.index(tag), " ".join("".join(self._title).split()))
            self._title = None
        elif tag in self.BLOCKS:
            self._text.append("\n\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            (self._text if self._title is None else self._title).append(data)

    def end_section(self) -> None:
        blocks = [" ".join(block.split()) for block in "".join(self._text).split("\n\n")]
        text = "\n\n".join(block for block in blocks if block)
        self.found.append(Section(heading=str(self._outline), line=0, text=text))
        self._text = []


def _html(text: str) -> list[Section]:
    page = _Page()
    page.feed(text)
    page.close()
    page.end_section()
    return page.found


def _table(text: str) -> list[Section]:
    """Make each row a paragraph that names its columns; text that is not a table stays text."""
    try:
        dialect = csv.Sniffer().sniff(text[:4096], ",;\t|")
        rows = [row for row in csv.reader(io.StringIO(text), dialect) if any(cell.strip() for cell in row)]
    except csv.Error:
        return [Section(heading="", line=1, text=text)]
    header, *rest = rows or [[]]
    told = [", ".join(f"{name}: {cell}" for name, cell in zip(header, row, strict=False) if cell) for row in rest]
    return [Section(heading=", ".join(header), line=0, text="\n\n".join(told))]


def _json(text: str) -> list[Section]:
    """Make each member or element a paragraph; text that is not JSON stays text."""
    try:
        value: JSON = json.loads(text)
    except (ValueError, RecursionError):
        return [Section(heading="", line=1, text=text)]
    if isinstance(value, dict):
        told = [f"{name}: {json.dumps(member, ensure_ascii=False)}" for name, member in value.items()]
    elif isinstance(value, list):
        told = [json.dumps(element, ensure_ascii=False) for element in value]
    else:
        told = [text]
    return [Section(heading="", line=0, text="\n\n".join(told))]
