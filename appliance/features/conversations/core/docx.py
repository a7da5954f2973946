"""The text of Word documents (.docx), with headings, lists and tables as Markdown has them. Source: ECMA-376, part 1.

Libraries make a tree of the document first, many times its size: python-docx with lxml (11 MB unpacked), mammoth with a
DOM, docx2txt with ElementTree, which also loses headings and tables. Here Expat tells of one element after the other,
and nothing is kept but the text. A document may not declare entities (ECMA-376, part 2, 8.1.4), so one that declares
anything is refused before Expat replaces a single one.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from xml.parsers import expat

from appliance.core.archives import BadArchive, open_members
from appliance.errors import BadRequest

MAX_PARTS = 50_000  # files in the document; each picture is one
MAX_XML = 128 << 20  # Bytes that its parts may unpack to. Markup takes ten times the room of the text.
PIECE = 1 << 20
"""Bytes that Expat gets at once. With each piece it reads an unfinished tag anew, so smaller ones take longer."""
MAIN = re.compile(r"word/document\d*\.xml")
NOTES = re.compile(r"word/(footnotes|endnotes)\.xml")
STYLES = re.compile(r"word/styles\.xml")
_WORDS = (
    "http://schemas.openxmlformats.org/wordprocessingml/2006/main ",
    "http://purl.oclc.org/ooxml/wordprocessingml/main ",
)
"""The namespace as Word writes it, and that of ISO's strict form."""
_HIDDEN = {"del", "moveFrom", "pPrChange", "rt", "Fallback"}
"""Deleted and moved text, former properties, the pronunciation of a word, and the older form of a text box."""
_BREAKS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_HEADING = re.compile(r"heading ([1-6])|(title)", re.IGNORECASE)


def read_docx(data: bytes, most: int) -> str:
    """The text of a document with at most so many characters. Raises BadRequest with what is wrong with it."""
    styles = _Styles()
    found = _Text(styles.levels, most)
    try:
        _parse(data, STYLES, styles.start)
        if not _parse(data, MAIN, found.start, found.end, found.say):
            raise BadRequest("the file is a ZIP without a Word document in it")
        _parse(data, NOTES, found.start, found.end, found.say)
    except BadArchive as error:
        raise BadRequest(f"the Word document cannot be read: {error}") from None
    except expat.ExpatError as error:
        raise BadRequest(f"the Word document is damaged: {error}") from None
    text = re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+\n", "\n", "".join(found.text))).strip()
    if not text:
        raise BadRequest("the Word document has no text; if its pages are pictures, attach them as pictures")
    return text


Start = Callable[[str, dict[str, str]], None]
Told = Callable[[str], None]


def _parse(data: bytes, part: re.Pattern[str], start: Start, end: Told | None = None, say: Told | None = None) -> bool:
    """Tell of all parts with such a name; False if there is none."""
    left, found = MAX_XML, False
    with open_members(io.BytesIO(data), "zip", MAX_PARTS) as members:
        for member in members:
            if member.open is None or not part.fullmatch(member.path):
                continue
            found = True
            parser = expat.ParserCreate(namespace_separator=" ")
            parser.buffer_text = True
            parser.StartDoctypeDeclHandler = _refuse
            parser.StartElementHandler = start
            parser.EndElementHandler = end
            parser.CharacterDataHandler = say
            with member.open() as file:
                while piece := file.read(PIECE):
                    left -= len(piece)
                    if left < 0:
                        told = f"the Word document unpacks to more than {MAX_XML >> 20} MiB; take a part of it"
                        raise BadRequest(told)
                    parser.Parse(piece)
            parser.Parse(b"", True)
    return found


def _refuse(*_: object) -> None:
    raise BadRequest("the Word document declares entities, which none may; save it again with a word processor")


def _value(attributes: Mapping[str, str], name: str = "val") -> str:
    return next((attributes[each + name] for each in _WORDS if each + name in attributes), "")


def _level(attributes: Mapping[str, str], first: int) -> int:
    value = _value(attributes)
    return int(value) - first + 1 if re.fullmatch(r"[0-8]", value) else 0


class _Styles:
    """Which styles are headings: their ids are in the language of the writer, and their names are not."""

    def __init__(self) -> None:
        self.levels: dict[str, int] = {}
        self._style = ""

    def start(self, name: str, attributes: dict[str, str]) -> None:
        match name.rpartition(" ")[2]:
            case "style":
                self._style = _value(attributes, "styleId")
            case "name" if heading := _HEADING.fullmatch(_value(attributes)):
                self.levels[self._style] = int(heading[1] or 1)
            case "outlineLvl" if self._style:
                self.levels.setdefault(self._style, _level(attributes, 0))
            case _:
                pass


class _Text:
    """Gathers the text. The properties of a paragraph come before its words, so its beginning is known in time."""

    def __init__(self, levels: Mapping[str, int], most: int) -> None:
        self.text: list[str] = []
        self._levels = levels
        self._left = self._most = most
        self._hidden = 0  # how many elements are open within one that is not shown, itself included
        self._heard = False  # characters are text only within a few elements; elsewhere they are positions and commands
        self._properties = False
        self._heading = self._indent = 0
        self._listed = False
        self._cells = 0

    def _write(self, text: str) -> None:
        self._left -= len(text)
        if self._left < 0:
            raise BadRequest(f"the Word document has more than {self._most} characters; take a part of it")
        self.text.append(text)

    def say(self, text: str) -> None:
        if self._heard and not self._hidden:
            self._write(text)

    def start(self, name: str, attributes: dict[str, str]) -> None:
        local = name.rpartition(" ")[2]
        if self._hidden or local in _HIDDEN:
            self._hidden += 1
        elif self._properties:
            self._learn(local, attributes)
        elif local == "t":
            self._heard = True
        elif local == "pPr":
            self._properties, self._heading, self._indent, self._listed = True, 0, 0, False
        elif local == "tc":
            self._cells += 1
            self._write("| " if self._cells == 1 else "")
        elif local in _BREAKS:
            self._write(" " if self._cells else _BREAKS[local])
        elif local in ("footnoteReference", "endnoteReference"):
            self._write(f"[^{local[0]}{_value(attributes, 'id')}]")
        elif local in ("footnote", "endnote") and not _value(attributes, "type"):
            self._write(f"[^{local[0]}{_value(attributes, 'id')}]: ")

    def _learn(self, local: str, attributes: Mapping[str, str]) -> None:
        match local:
            case "pStyle":
                self._heading = self._levels.get(_value(attributes), 0)
            case "outlineLvl":
                self._heading = _level(attributes, 0)
            case "ilvl":
                self._indent = max(0, _level(attributes, 1))
            case "numId":
                self._listed = _value(attributes) != "0"
            case _:
                pass

    def end(self, name: str) -> None:
        local = name.rpartition(" ")[2]
        if self._hidden:
            self._hidden -= 1
        elif local == "t":
            self._heard = False
        elif local == "pPr":
            self._properties = False
            if self._heading and not self._cells:
                self._write("#" * min(self._heading, 6) + " ")
            elif self._listed and not self._cells:
                self._write("  " * self._indent + "- ")
        elif local == "p":
            self._write(" " if self._cells else "\n" if self._listed and not self._heading else "\n\n")
        elif local == "tc":
            self._cells -= 1
        elif local == "tr" and not self._cells:
            self._write("|\n")
        elif local == "tbl" and not self._cells:
            self._write("\n")
