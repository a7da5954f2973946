"""Single values of a configuration: text to value and back, times and sizes with a unit, and URLs.

The dialect is that of Go's yaml.v3 (which llama-swap reads) and of Go's ``%v`` (which it writes): YAML 1.2's with
additions. ``0777`` is octal, ``_`` may stand in numbers, ``0b`` is binary. Only ``true`` and ``false`` are booleans;
``on``, ``yes`` and ``12:30:45`` are text.

Regular expressions are RE2's, as in llama-swap's files. Python's own tries one way after the other: with some
expressions it takes hours for forty letters, and nobody else is served meanwhile.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from decimal import Decimal
from functools import lru_cache
from math import inf, isinf, isnan, nan
from typing import Any, Protocol
from urllib.parse import urlsplit

from appliance.core.config.nodes import Plain

MAX_PATTERN = 1000
"""Characters of one expression."""
_WORDS: dict[str, Plain] = {
    "": None,
    "~": None,
    **dict.fromkeys(("null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), nan),
}
_INT = re.compile(
    r"(?P<sign>[-+]?)(?:0[xX](?P<x>[0-9a-fA-F]+)|0[bB](?P<b>[01]+)|0[oO]?(?P<o>[0-7]+)|(?P<d>0|[1-9][0-9]*))"
)
_BASES = {"x": 16, "b": 2, "o": 8, "d": 10}
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_LONGEST_INT = 21
"""Characters of 64 bits in decimal digits, with the sign. Python refuses to read thousands of them."""
_INT64 = range(-(2**63), 2**63)
_UINT64 = range(2**64)
_CORE = "tag:yaml.org,2002:"
_KINDS = {"int": int, "float": float, "bool": bool, "null": type(None)}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b?)", re.IGNORECASE)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


class WrongTag(ValueError):
    """A tag whose value is not of its type. The text says so."""


class BadRegex(ValueError):
    """The engine does not know an expression; the text says why."""


def typed(text: str) -> Plain:
    """The value of a scalar without quotes and tag.

    A date stays text (yaml.v3 makes it a timestamp, which no key takes). Whole numbers beyond 64 bits become floats,
    numbers too large for a float stay text, as in Go.
    """
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789":
        return text
    digits = text if text[0] == "." else text.replace("_", "")
    found = _INT.fullmatch(digits)
    kind = found and found.lastgroup
    if found and kind and (kind != "d" or len(digits) <= _LONGEST_INT):
        number = int(found[kind], _BASES[kind])
        if (-number if found["sign"] == "-" else number) in _INT64 or (not found["sign"] and number in _UINT64):
            return -number if found["sign"] == "-" else number
    if _FLOAT.fullmatch(digits) and not isinf(value := float(digits)):
        return value
    return text


def tagged(text: str, tag: str) -> Plain | None:
    """The value of a scalar with a tag (``!``, or long form). Raises `WrongTag`; an unknown tag is a `KeyError`."""
    kind = tag.removeprefix(_CORE)
    if tag == "!" or kind in ("str", "timestamp"):
        return text
    if kind == "binary":
        try:
            return a2b_base64("".join(text.split()), strict_mode=True).decode()
        except ValueError:  # not base64, not ASCII, not UTF-8
            raise WrongTag(f"'{text}' is not text in base64, as !!binary says") from None
    wanted = _KINDS[kind]
    value = typed(text)
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        raise WrongTag(f"'{text}' is no {kind}, as the tag !!{kind} says; correct the value or remove the tag")
    return value


def text_of(value: str | int | float | bool) -> str:
    """A value inside other text: ``true``, and floats as short as possible, with ``e`` from 1e21 and below 1e-4."""
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            return _float_text(value)
        case int() | str():
            return str(value)


def _float_text(value: float) -> str:
    if isnan(value):
        return "NaN"
    if isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    number = Decimal(repr(value))  # repr gives the fewest digits that read back as the same float
    exponent = number.adjusted()
    if value == 0 or -4 <= exponent < 21:
        whole = f"{number:f}"
        return whole.rstrip("0").rstrip(".") if "." in whole else whole
    sign, digits, _ = number.as_tuple()
    text = "".join(map(str, digits)).rstrip("0")
    fraction = "." + text[1:] if text[1:] else ""
    return f"{'-' if sign else ''}{text[0]}{fraction}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def parse_duration(text: str) -> float | None:
    """Seconds of a Go duration (``5s``, ``1m30s``, ``0``); None for anything else, such as a number without a unit."""
    sign, rest = (-1.0, text[1:]) if text.startswith("-") else (1.0, text.removeprefix("+"))
    if rest == "0":
        return 0.0
    parts = list(_PART.finditer(rest))
    if not parts or "".join(part[0] for part in parts) != rest:
        return None
    seconds = sum(float(part[1]) * _SECONDS[part[2]] for part in parts)
    return None if isinf(seconds) else sign * seconds


def parse_size(size: str | int) -> int | None:
    """Bytes of ``12GiB``, ``12G`` (powers of 1024), ``500MB`` (powers of 1000) or a plain number; None otherwise."""
    if isinstance(size, int):
        return size if size >= 0 else None
    match = _SIZE.fullmatch(size.strip())
    if match is None:
        return None
    number, unit, end = match[1], match[2].lower(), match[3].lower()
    if end.startswith("i") and not unit:
        return None
    found = float(number) * (1000 if end == "b" else 1024) ** _POWER[unit]
    return None if isinf(found) else int(found)


def why_no_base_url(text: str) -> str | None:
    """Return the mistake in a base URL; None if requests can be sent there."""
    if not text:
        return "is empty"
    if any(char.isspace() or ord(char) < 32 for char in text):
        return f"'{text}' has a space in it"
    try:
        url = urlsplit(text)
        host, port = url.hostname, url.port
    except ValueError as error:
        return f"'{text}' is not a URL ({error})"
    if url.scheme not in ("http", "https"):
        return f"'{text}' does not begin with http:// or https://"
    if not host or port == 0:
        return f"'{text}' names no {'port' if host else 'host'}"
    return None


def is_found(pattern: str, text: str) -> bool:
    """Return whether ``pattern`` matches somewhere in ``text``. Raises BadRegex."""
    return _compiled(pattern).search(text) is not None


def check_pattern(pattern: str) -> None:
    """Raises BadRegex."""
    _compiled(pattern)


class _Pattern(Protocol):
    def search(self, text: str, /) -> object | None: ...


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> _Pattern:
    import re2  # not at the top: only configurations with expressions of their own, and /upstream/, need it

    if len(pattern) > MAX_PATTERN:
        raise BadRegex(f"it is longer than {MAX_PATTERN} characters")
    engine: Any = re2  # its types are not written down
    options = engine.Options()
    options.log_errors = False
    try:
        return engine.compile(pattern, options)
    except engine.error as error:
        raise BadRegex(error.args[0].decode(errors="replace")) from None
