"""Replacing one field of a form body, every other byte left as it is: the order of parts, their headers, their types.

Delimiters and part headers are read as werkzeug reads them, which tells the router the field's value: CRLF, LF and CR
all end a line. Every field of the name gets the value, so that no reader finds the old one. Nothing here raises.
"""

from __future__ import annotations

import re
from urllib.parse import quote_plus, unquote_plus

from msgspec import Struct

_BREAK = rb"(?:\r\n|\n|\r)"
_LINE_BREAK = re.compile(_BREAK)
_BLANK_LINE = re.compile(rb"\r\n\r\n|\r\r|\n\n")
_CONTINUED = re.compile(_BREAK + rb"[ \t]")
_REST_OF_DELIMITER = re.compile(rb"(--)[^\S\r\n]*+%b?|[^\S\r\n]*+%b" % (_BREAK, _BREAK))


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
