"""Bodies as real clients send them: compressed, or with half a character. Read once, before anything else looks."""

from __future__ import annotations

import re
import zlib

from appliance.errors import BadRequest, BodyTooLarge, UnsupportedCoding

_WINDOW = 47  # the largest window, with the head of zlib or of gzip
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def inflated(content: bytes, coding: str, most: int) -> bytes:
    """Return a body without its content coding. ``most`` is the largest number of bytes that it may have then.

    Raises UnsupportedCoding, BadRequest for bytes that are not so coded, and BodyTooLarge.
    """
    for one in reversed([name.strip().lower() for name in coding.split(",")]):
        if one in ("", "identity"):
            continue
        if one not in ("gzip", "x-gzip", "deflate"):
            raise UnsupportedCoding(one)
        bare = one == "deflate" and content[:1] != b"\x78"  # many send it without zlib's head
        whole = bytearray()
        while content:  # gzip may have several members
            reader = zlib.decompressobj(-zlib.MAX_WBITS if bare else _WINDOW)
            try:
                whole += reader.decompress(content, most + 1 - len(whole))
            except zlib.error as error:
                raise BadRequest(f"the request body is not {one}, as its Content-Encoding says: {error}") from None
            if len(whole) > most:
                raise BodyTooLarge(most)
            if not reader.eof:
                raise BadRequest(f"the request body ends in the middle of its {one} data")
            content = reader.unused_data
        content = bytes(whole)
    return content


def without_halves(content: bytes) -> bytes:
    """Return JSON in which each escaped half of a character is U+FFFD: no engine reads the half.

    JavaScript cuts texts between the halves. The same object comes back where there is none.
    """
    if b"\\ud" not in content and b"\\uD" not in content:
        return content
    found = _ESCAPE.sub(lambda escape: b"\\ufffd" if escape["half"] else escape[0], content)
    return found if found != content else content
