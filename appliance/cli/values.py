"""Values on the command line: addresses, sizes, keys."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import click
import msgspec

from appliance.core.settings import Listen, UnixSocket
from appliance.errors import UsageError

MAX_FILE = 1 << 20
"""Largest number of characters in a file that an option names."""
UNIX = "unix:"
MAX_SECONDS = 1_000_000
SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class ListenAddress(click.ParamType[Listen]):
    """``HOST:PORT`` or ``[IPV6]:PORT``; port 0 takes a free one. ``unix:PATH`` is a socket in the file system."""

    name = "HOST:PORT"

    def convert(self, value: str | Listen, param: click.Parameter | None, ctx: click.Context | None) -> Listen:
        if not isinstance(value, str):
            return value
        if value.startswith(UNIX) and value != UNIX:
            return UnixSocket(value.removeprefix(UNIX))
        match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+(?:%[^\s\[\]]+)?)\]|([^\[\]:\s]+)):(\d{1,5})", value)
        if match is None or int(match[3]) > 65535:
            self.fail(
                f"{value!r} is not an address such as 127.0.0.1:8080, [::1]:8080 or unix:/run/llama.sock", param, ctx
            )
        return match[1] or match[2], int(match[3])


class Size(click.ParamType[int]):
    """A number of bytes, with K, M or G for powers of 1024."""

    name = "SIZE"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d{1,15})\s*([kmg]?)(?:i?b)?", value.strip().lower())
        if match is None or int(match[1]) == 0:
            self.fail(f"{value!r} is not a size such as 100M or 1G", param, ctx)
        return int(match[1]) * SIZE_UNITS[match[2]]


class Seconds(click.ParamType[float]):
    """A length of time; infinite and NaN are refused, because no clock can be set to them."""

    name = "SECONDS"

    def __init__(self, minimum: float = 0) -> None:
        self._minimum = minimum

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not self._minimum <= seconds <= MAX_SECONDS:
            self.fail(f"{value!r} is not a number of seconds from {self._minimum:g} to {MAX_SECONDS}", param, ctx)
        return seconds


def api_keys(options: Iterable[str], file: Path | None, environ: Mapping[str, str], variable: str) -> tuple[str, ...]:
    """The keys that let a client in: options (each may be a comma-separated list), the key file, the environment.

    The file holds one key per line; empty lines and lines that begin with ``#`` are passed over. Raises UsageError for
    a file that cannot be read or holds no key: a server that silently listens without one would be worse.
    """
    keys = [key.strip() for option in options for key in option.split(",")]
    keys += [key.strip() for key in environ.get(variable, "").split(",")]
    if file is not None:
        from_file = _key_lines(file)
        if not from_file:
            raise UsageError(f"--api-key-file {file} contains no key; put each key on a line of its own")
        keys += from_file
    found = tuple(dict.fromkeys(key for key in keys if key))
    for key in found:
        if not (key.isascii() and key.isprintable()):
            raise UsageError("an API key may contain only printable ASCII characters, so that it fits into a header")
    return found


def text_of(option: str, file: Path) -> str:
    """Return the text of the file that an option names, up to one character beyond `MAX_FILE`. Raises UsageError."""
    try:
        with file.open(encoding="utf-8-sig") as opened:
            return opened.read(MAX_FILE + 1)
    except (OSError, UnicodeDecodeError) as cause:
        why = cause.strerror if isinstance(cause, OSError) else "it is not text"
        raise UsageError(f"{option} {file} cannot be read: {why}") from None


def _key_lines(file: Path) -> list[str]:
    text = text_of("--api-key-file", file)
    return [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def certificate(cert_file: str | None, key_file: str | None) -> tuple[str, str] | None:
    """Return the files of ``--ssl-cert-file`` and ``--ssl-key-file``, None without them. Raises UsageError for one
    alone.
    """
    if bool(cert_file) != bool(key_file):
        given, missing = ("--ssl-cert-file", "--ssl-key-file")[:: 1 if cert_file else -1]
        raise UsageError(f"{given} needs {missing}; give both for HTTPS, or none")
    return (cert_file, key_file) if cert_file and key_file else None


def ui_settings(option: str, text: str, *, is_file: bool = False) -> bytes:
    """Parse the JSON object that web pages get as their settings; ``option`` is the option that gave it. Raises
    UsageError.
    """
    where = f"{option} {text}" if is_file else option
    if is_file:
        text = text_of(option, Path(text))
    if len(text) > MAX_FILE:
        raise UsageError(f"{where} is longer than {MAX_FILE >> 20} MiB, which is too long for settings")
    try:
        return msgspec.json.encode(msgspec.json.decode(text, type=dict[str, msgspec.Raw]))
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        raise UsageError(f'{where} is not a JSON object such as {{"theme": "dark"}}: {error}') from None
