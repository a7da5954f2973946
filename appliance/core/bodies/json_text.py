"""JSON as text: the type of its values, dotted paths into it, and edits that leave every other byte as it is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, cast

import msgspec
from msgspec import Raw, Struct

from appliance.core.lenient_json import decoded

if TYPE_CHECKING:
    from json import JSONDecoder

JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]
JsonObject = dict[str, JSON]

# A cast, because msgspec cannot follow a type that refers to itself; untyped values are of this type.
OBJECT = cast("msgspec.json.Decoder[JsonObject]", msgspec.json.Decoder(dict[str, object]))
"""Decodes an object; raises MsgspecError and UnicodeDecodeError for anything else, RecursionError."""


MAX_DEPTH = 32
"""Largest number of parts in a path; request parameters are not nested deeper, and each part costs a look at a
level.
"""
MAX_INDEX = 1000
"""Highest index in a path: setting it fills the array up to it with nulls."""

QUERY = "*?#|@"
_UNENCODABLE = re.compile("[\ud800-\udfff]")
_SPACE = rb"[ \t\r\n]*+"
_HEAD = re.compile(_SPACE + rb"([\[{])")
_MEMBER = re.compile(rb'(%b,?%b)("[^"\\]*+(?:\\.[^"\\]*+)*+")(%b:%b)' % ((_SPACE,) * 4), re.DOTALL)
_ELEMENT = re.compile(rb"(%b,?%b)" % ((_SPACE,) * 2))
_TAIL = re.compile(rb"%b[\]}]%b" % ((_SPACE,) * 2))
_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_ARRAY = msgspec.json.Decoder(list[Raw])


class PathStep(Struct, frozen=True):
    """One part of a path."""

    name: bytes
    """The key that the part means."""
    index: int | None = None
    """The index that the part means in an array, if any; -1 is the end."""


class Path(Struct, frozen=True):
    steps: tuple[PathStep, ...]
    literal: bool = True
    """True without query characters; a path with them reaches existing values but creates none."""


class _Part(Struct):
    name: str = ""
    key_only: bool = False
    literal: bool = True


def check_path(path: str) -> str | None:
    """Return the problem of a configuration's path as a sentence, or None. A bad path changes nothing."""
    parsed = parse_path(path)
    if parsed is not None and parsed.literal:
        return None
    if parsed is not None:
        marks = " ".join(QUERY)
        return f"'{path}' is a pattern, and patterns are not followed; write \\ before each of {marks} it contains"
    parts = _split(path)
    if len(parts) > MAX_DEPTH:
        return f"the path has {len(parts)} parts, more than {MAX_DEPTH}; set the whole value further up instead"
    if not all(part.name for part in parts):
        return f"'{path}' has an empty part; write names joined by single dots, as in a.b"
    if _UNENCODABLE.search(path):
        return f"{path!a} has half a surrogate pair; write the character itself"
    return f"'{path}' has an index above {MAX_INDEX}; write ':' before a number that is a key"


def parse_path(path: str) -> Path | None:
    """Parse a path; None if it cannot be used, and `check_path` says why."""
    parts = _split(path)
    if len(parts) > MAX_DEPTH or _UNENCODABLE.search(path):
        return None
    steps: list[PathStep] = []
    literal = True
    for part in parts:
        index = None if part.key_only else -1 if part.name == "-1" else _number(part.name)
        if not part.name or (index is not None and index > MAX_INDEX):
            return None
        steps.append(PathStep(part.name.encode(), index))
        literal = literal and part.literal
    return Path(tuple(steps), literal)


def _split(path: str) -> list[_Part]:
    part = _Part()
    parts = [part]
    fresh = True
    characters = iter(path)
    for character in characters:
        if character == ".":
            part = _Part()
            parts.append(part)
        elif character == ":" and fresh:
            part.key_only = True
        elif character == "\\":
            part.name += next(characters, "")
        else:
            part.name += character
            part.literal = part.literal and character not in QUERY
        fresh = character == "."
    return parts


def _number(name: str) -> int | None:
    if not (name.isascii() and name.isdigit()):
        return None
    return int(name) if len(name) < 10 else MAX_INDEX + 1  # as good as any other that is too large


class JsonEdit(Struct, frozen=True):
    """One edit. ``value`` is JSON text; None deletes."""

    path: Path
    value: bytes | None = None


class _Damaged(Exception):
    """The text looks like a container but is not one; never leaves this file."""


class _Item:
    """A value with the text before it. ``name`` is the meaning of the key, None in arrays."""

    __slots__ = ("label", "lead", "name", "value")

    def __init__(self, lead: bytes, name: bytes | None, label: bytes, value: bytes | _Container) -> None:
        self.lead = lead
        self.name = name
        self.label = label
        self.value = value


class _Container(Struct):
    """An object or array as its bytes: ``head``, then each item's lead, label and value, then ``tail``."""

    array: bool
    head: bytes
    items: list[_Item]
    tail: bytes


def apply_edits(text: bytes, edits: Iterable[JsonEdit]) -> bytes:
    """Apply edits one after the other, reading the text once. Never raises; damaged JSON comes back as it is.

    Text that is neither an object nor an array (empty, a number, prose) is replaced by a new object when something is
    set.
    """
    root = _Item(b"", None, b"", text)
    try:
        for edit in edits:
            if edit.value is not None:
                _set(root, edit.path, edit.value)
            elif edit.path.literal:
                _delete(root, edit.path.steps)
    except _Damaged:
        return text
    if isinstance(root.value, bytes):
        return root.value
    pieces: list[bytes] = []
    _render(root.value, pieces)
    return b"".join(pieces)


def _set(item: _Item, path: Path, value: bytes) -> None:
    for depth, step in enumerate(path.steps):
        container = _opened(item)
        if container is None:
            if path.literal:
                item.value = _built(path.steps[depth:], value)
            return
        at = _find(container, step)
        if at is None or at < 0:
            if path.literal:
                _append(container, step, _built(path.steps[depth + 1 :], value))
            return
        item = container.items[at]
    item.value = value


def _append(container: _Container, step: PathStep, value: bytes) -> None:
    items = container.items
    if not container.array:
        items.append(_Item(b"," if items else b"", step.name, msgspec.json.encode(step.name.decode()) + b":", value))
    elif step.index is not None:
        for _ in range(len(items), step.index):
            items.append(_Item(b"," if items else b"", None, b"", b"null"))
        items.append(_Item(b"," if items else b"", None, b"", value))


def _delete(item: _Item, steps: tuple[PathStep, ...]) -> None:
    for step in steps[:-1]:
        container = _opened(item)
        at = None if container is None else _find(container, step)
        if container is None or at is None:
            return
        item = container.items[at]
    container = _opened(item)
    at = None if container is None else _find(container, steps[-1])
    if container is None or at is None:
        return
    if at == 0 and len(container.items) > 1:
        # the next one becomes the first: it keeps its line, and loses its comma
        second = container.items[1]
        second.lead = second.lead.partition(b",")[2]
    del container.items[at]


def _find(container: _Container, step: PathStep) -> int | None:
    """Return where the step leads: the first of equal keys; -1 is the last element of a non-empty array."""
    if container.array:
        index = step.index
        return index if index is not None and index < len(container.items) > 0 else None
    for at, item in enumerate(container.items):
        if item.name == step.name:
            return at
    return None


def _built(steps: tuple[PathStep, ...], value: bytes) -> bytes:
    """Create the containers that hold the value at a path that did not exist."""
    for step in reversed(steps):
        if step.index is None:
            value = b"{%b:%b}" % (msgspec.json.encode(step.name.decode()), value)
        else:
            value = b"[%b%b]" % (b"null," * step.index, value)
    return value


def _opened(item: _Item) -> _Container | None:
    """Return the item's value as a container, None if it is not one. Raises _Damaged."""
    if isinstance(item.value, _Container):
        return item.value
    text = item.value
    head = _HEAD.match(text)
    if head is None:
        return None
    array = head[1] == b"["
    container = _measured(text, head.end(), array) or _scanned(text, head.end(), array)
    item.value = container
    return container


def _measured(text: bytes, at: int, array: bool) -> _Container | None:
    """Open a container with the lengths that msgspec finds; None where they do not fit the text.

    They do not when a key occurs twice, since a dict keeps the last value. It cannot go unnoticed: a value that the
    text goes on with, and that is followed by a comma or the end, is the value that stands there.
    """
    found = decoded(_ARRAY, text) if array else decoded(_OBJECT, text)
    if found is None:
        return None
    values: Iterable[Raw] = found.values() if isinstance(found, dict) else found
    start = at
    pattern = _ELEMENT if array else _MEMBER
    items: list[_Item] = []
    for raw in values:
        member = pattern.match(text, at)
        if member is None:
            return None
        at = member.end()
        value = bytes(raw)
        if not text.startswith(value, at):
            return None
        items.append(_item(member, array, value))
        at += len(value)
    return _Container(array, text[:start], items, text[at:]) if _TAIL.fullmatch(text, at) else None


def _scanned(text: bytes, at: int, array: bool) -> _Container:
    """Open a container the slow way, by reading each value. Raises _Damaged."""
    letters = text.decode("latin-1")  # a letter for a byte
    start = at
    pattern = _ELEMENT if array else _MEMBER
    items: list[_Item] = []
    while not _TAIL.fullmatch(text, at):
        member = pattern.match(text, at)
        if member is None or (b"," in member[1]) != bool(items):
            raise _Damaged
        try:
            end = _scanner().raw_decode(letters, member.end())[1]
        except (ValueError, RecursionError):
            raise _Damaged from None
        items.append(_item(member, array, text[member.end() : end]))
        at = end
    if (text[at:].strip()[:1] == b"]") is not array:
        raise _Damaged
    return _Container(array, text[:start], items, text[at:])


def _item(member: re.Match[bytes], array: bool, value: bytes) -> _Item:
    if array:
        return _Item(member[1], None, b"", value)
    lead, key, colon = member.groups()
    return _Item(lead, key[1:-1] if b"\\" not in key else _meaning(key), key + colon, value)


@cache
def _scanner() -> JSONDecoder:
    from json import JSONDecoder  # a third of a megabyte, which a server without edits of bodies saves

    return JSONDecoder(strict=False, parse_int=str, parse_float=str)  # a long number would cost quadratic time


def _meaning(key: bytes) -> bytes:
    try:
        return str(_scanner().decode(key.decode())).encode("utf-8", "surrogatepass")
    except ValueError:
        return key


def _render(container: _Container, pieces: list[bytes]) -> None:
    pieces.append(container.head)
    for item in container.items:
        pieces.append(item.lead)
        pieces.append(item.label)
        if isinstance(item.value, bytes):
            pieces.append(item.value)
        else:
            _render(item.value, pieces)
    pieces.append(container.tail)


def object_of(value: JSON) -> JsonObject:
    """Return the object itself, or an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def objects_of(value: JSON) -> list[JsonObject]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
