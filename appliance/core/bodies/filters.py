"""The edits of request bodies: what a configuration asks for in JSON, compiled once per model or peer; one field of a
form.

The order is llama-swap's (0bdb3720): the model name, ``stripParams``, ``setParams``, ``setParamsByID``; within each the
sorted order of the paths. ``model`` belongs to the router: no strip or set reaches it, however its path is spelled.

Delimiters and part headers of forms are read as werkzeug reads them, which tells the router the field's value: CRLF, LF
and CR all end a line. Every field of the name gets the value, so that no reader finds the old one. Nothing in a form
raises, and every other byte of it stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote_plus, unquote_plus

import msgspec
from msgspec import Struct

from appliance.core.bodies.json_text import JsonEdit, Path, PathStep, apply_edits, parse_path
from appliance.core.config.additions import Json
from appliance.core.config.types import Filters, PeerFilters

_BREAK = rb"(?:\r\n|\n|\r)"
_LINE_BREAK = re.compile(_BREAK)
_BLANK_LINE = re.compile(rb"\r\n\r\n|\r\r|\n\n")
_CONTINUED = re.compile(_BREAK + rb"[ \t]")
_REST_OF_DELIMITER = re.compile(rb"(--)[^\S\r\n]*+%b?|[^\S\r\n]*+%b" % (_BREAK, _BREAK))
PROTECTED = b"model"
_MODEL = Path((PathStep(PROTECTED),))


class _Delimiter(Struct, frozen=True):
    """A boundary line, from its dashes to behind its line break. ``start`` includes the line break before it."""

    start: int
    dashes: int
    end: int
    closing: bool


def rewrite_field(body: bytes, boundary: bytes, name: str, value: str) -> bytes:
    """Give the multipart fields of this name the value, or add one as the last part; files of the name stay.

    A damaged body comes back as it is. ``name`` is plain ASCII without quotes, ``value`` does not contain the boundary.
    """
    written = value.encode("utf-8", "replace")
    pieces: list[bytes] = []
    kept = 0
    opening = _delimiter(body, boundary, 0, first=True)
    while opening is not None and not opening.closing:
        blank = _BLANK_LINE.search(body, opening.end)
        if blank is None:
            return body
        middle = (blank.start() + blank.end()) // 2
        following = _delimiter(body, boundary, middle)
        content = _LINE_BREAK.match(body, middle)
        disposition = _disposition(body[opening.end : blank.start()])
        if following is None or content is None or disposition is None:
            return body
        if disposition.get("name") == name and "filename" not in disposition:
            pieces += (body[kept : content.end()], written)
            kept = following.start  # of an empty part perhaps before content.end(): they share a line break
        opening = following
    if opening is None:
        return body
    if not pieces:
        part = b'--%b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (boundary, name.encode(), written)
        pieces += (body[: opening.dashes], part)
        kept = opening.dashes
    return b"".join((*pieces, body[kept:]))


def rewrite_urlencoded(body: bytes, name: str, value: str) -> bytes:
    """The same for a body of type ``application/x-www-form-urlencoded``."""
    written = quote_plus(value, errors="replace").encode()
    pairs = body.split(b"&") if body else []
    found = False
    for at, pair in enumerate(pairs):
        key = pair.partition(b"=")[0]
        if unquote_plus(key.decode("latin-1")) == name:
            pairs[at] = key + b"=" + written
            found = True
    if not found:
        pairs.append(quote_plus(name).encode() + b"=" + written)
    return b"&".join(pairs)


def _delimiter(body: bytes, boundary: bytes, at: int, *, first: bool = False) -> _Delimiter | None:
    """Find the next boundary. It begins a line, except for the first, which may be anywhere."""
    mark = b"--" + boundary
    dashes = body.find(mark, at)
    while dashes >= 0:
        rest = _REST_OF_DELIMITER.match(body, dashes + len(mark))
        before = body[max(0, dashes - 2) : dashes]
        start = dashes - (2 if before == b"\r\n" else 1 if before.endswith((b"\n", b"\r")) else 0)
        if rest is not None and (first or start < dashes):
            return _Delimiter(start, dashes, rest.end(), rest[1] is not None)
        dashes = body.find(mark, dashes + 1)
    return None


def _disposition(head: bytes) -> dict[str, str] | None:
    """Return the parameters of a part's Content-Disposition; None without one."""
    from werkzeug.http import parse_options_header  # 3 MB of memory, and most programs never see a form

    for line in _CONTINUED.sub(b" ", head).splitlines():
        key, _, value = line.partition(b":")
        if key.strip().lower() == b"content-disposition":
            return parse_options_header(value.strip().decode("utf-8", "replace"))[1]
    return None


class Edits(Struct, frozen=True, kw_only=True):
    """The edits of one model or peer.

    ``model`` is the name to send if it differs from the body's: the target that a pin or selector chose, or the bare
    name of a peer's model. ``rename`` (useModelName) overrides it.
    """

    rename: str | None = None
    always: tuple[JsonEdit, ...] = ()
    by_name: dict[str, tuple[JsonEdit, ...]]
    """All edits by requested name, those of ``always`` first."""

    def sent_model(self, model: str | None = None) -> str | None:
        """Return the name to write into a body, JSON or form; None leaves the existing one."""
        return self.rename or model

    def touches(self, requested: str, *, model: str | None = None) -> bool:
        """True if `apply` may change a JSON body; if not, the body need not be held."""
        return bool(self.rename or model or self.by_name.get(requested, self.always))

    def apply(self, body: bytes, requested: str, *, model: str | None = None) -> bytes:
        """Return the body to send. ``requested`` is the client's name for the model, aliases included. Never raises."""
        edits = self.by_name.get(requested, self.always)
        name = self.sent_model(model)
        if name is not None:
            edits = (JsonEdit(_MODEL, _json(name)), *edits)
        return apply_edits(body, edits) if edits else body


def compile_edits(filters: Filters | PeerFilters, use_model_name: str = "") -> Edits:
    """Leave out paths that cannot be used; `check_path` reports them when a configuration is read."""
    always = _strips(filters.strip_params) + _sets(filters.set_params)
    return Edits(
        rename=use_model_name or None,
        always=always,
        by_name={name: always + _sets(params) for name, params in filters.set_params_by_id.items()},
    )


def stripped_paths(strip_params: str) -> list[str]:
    """Return the paths in a comma-separated list: trimmed, sorted, without blanks, duplicates and the model."""
    paths = {path.strip() for path in strip_params.split(",")}
    return sorted(path for path in paths if path and not is_protected(path))


def is_protected(path: str) -> bool:
    """True if a path reaches the model name, or into it."""
    parsed = parse_path(path)
    return parsed is not None and parsed.steps[0].name == PROTECTED


def _strips(strip_params: str) -> tuple[JsonEdit, ...]:
    parsed = [parse_path(path) for path in stripped_paths(strip_params)]
    return tuple(JsonEdit(path) for path in parsed if path is not None)


def _sets(params: Mapping[str, Json]) -> tuple[JsonEdit, ...]:
    parsed = [(parse_path(path), params[path]) for path in sorted(params) if not is_protected(path)]
    return tuple(JsonEdit(path, _json(value)) for path, value in parsed if path is not None)


def _json(value: Json) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        import json  # see `core.bodies.json_text`

        return json.dumps(value).encode()  # half a surrogate pair exists as an escape only
