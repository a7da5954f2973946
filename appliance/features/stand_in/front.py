"""The meaning of llama-server's options for the server in front, in either of its modes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from appliance.cli.options import TOOL_FLAGS, api_keys, opens_pages, ui_settings
from appliance.core.llama import flags
from appliance.core.llama.flags import Option
from appliance.core.settings import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    Cors,
    HttpSettings,
    Listen,
    UnixSocket,
    open_door,
    refuse_open_door,
)
from appliance.core.whole_numbers import whole_number
from appliance.errors import UsageError
from appliance.platform.console import say

OPEN = "--allow-unauthenticated"  # this program's own: everybody who reaches the server may use it
LOG_FILE = "--log-file"
FRONT = (
    "--host", "--port", "--path", "--api-key", "--api-key-file", "--ssl-key-file", "--ssl-cert-file", "--api-prefix",
    "--cors-origins", "--cors-methods", "--cors-headers", "--cors-credentials", "--ui", "--ui-mcp-proxy", "--model",
    "--threads-http", "--reuse-port", OPEN, "--models-dir", "--models-preset", "--models-max", "--models-autoload",
    LOG_FILE, *TOOL_FLAGS,
)  # fmt: skip
"""Options that this program handles itself. llama-server also ignores the router's options when it is given a model."""
GRACE = 1.0
"""Seconds for requests under way. Programs that use llama-server expect it to end about three seconds after SIGTERM."""
SOCKET = ".sock"  # a host with this ending is a file
CORS_ORIGINS = "--cors-origins"


def http_settings(options: Sequence[Option], *, single: str | None, autoload: bool = True) -> HttpSettings:
    """Return where to listen and which callers to accept. ``single`` is the one model of single mode.

    Unless told otherwise, every page may use the models alone, and only if there is no more than models to use.
    A ping of -1 is never in llama-server, and 0 here.
    Raises UsageError, also where every machine could use tools without a key.
    """
    usual = HttpSettings()
    pages_do_more = is_on(options, "--ui-mcp-proxy", unsaid=False) or opens_pages(options)
    timeout, ping, keys, key_file = (
        flags.last(options, name) for name in ("--timeout", "--sse-ping-interval", "--api-key", "--api-key-file")
    )
    patience = float(number(options, "--timeout", 0, 0)) or math.inf if timeout is not None else None  # 0 is never
    settings = HttpSettings(
        listen=_listen(options),
        tls=_tls(options),
        api_keys=api_keys(keys.values if keys else (), Path(key_file.values[0]) if key_file else None, {}, ""),
        cors=_cors(options),
        open_inference=flags.last(options, CORS_ORIGINS) is None and not pages_do_more,
        body_stall=patience or usual.body_stall,
        write_stall=patience or usual.write_stall,
        grace=GRACE,
        ping_after=float(max(number(options, "--sse-ping-interval", 0, -1), 0)) if ping else usual.ping_after,
        api_prefix=value(options, "--api-prefix", ""),
        reuse_port=is_on(options, "--reuse-port", unsaid=False),
        page=is_on(options, "--ui"),
        ui_settings=_ui_settings(options),
        static=_static(value(options, "--path", "")),
        cors_proxy=is_on(options, "--ui-mcp-proxy", unsaid=is_on(options, "--agent", unsaid=False)),
        cors_proxy_allow=("loopback",),
        single=single,
        autoload=autoload,
    )
    if pages_do_more and not is_on(options, OPEN, unsaid=False):
        refuse_open_door(settings, variable="LLAMA_API_KEY")
    return settings


def warn_of_open_door(http: HttpSettings, options: Sequence[Option]) -> None:
    """Print a line where llama-server would let in other machines without a word."""
    host = open_door(http)
    if host is not None and not is_on(options, OPEN, unsaid=False):
        say(
            f"warning: listening on {host} without a key, as llama-server does: every machine that reaches this one "
            f"may use the models. --api-key KEY asks for a key; {OPEN} says that none is meant"
        )


def value(options: Sequence[Option], name: str, default: str) -> str:
    """Return the last value given."""
    option = flags.last(options, name)
    return option.values[0] if option else default


def is_on(options: Sequence[Option], name: str, *, unsaid: bool = True) -> bool:
    option = flags.last(options, name)
    return unsaid if option is None else option.on


def number(options: Sequence[Option], name: str, default: int, least: int) -> int:
    """Return a whole number of at least ``least``. Raises UsageError."""
    text = value(options, name, str(default))
    found = whole_number(text.removeprefix("-"))
    if found is None or (found := -found if text.startswith("-") else found) < least:
        raise UsageError(f"{name} {text}: expected a whole number of at least {least}")
    return found


def _listen(options: Sequence[Option]) -> tuple[Listen, ...]:
    text = value(options, "--port", str(DEFAULT_PORT))
    port = whole_number(text)
    if port is None or port > 65535:
        raise UsageError(f"--port {text}: a port is a number from 0 to 65535")
    hosts = [host.strip() for host in value(options, "--host", DEFAULT_HOST).split(",") if host.strip()]
    if not hosts:
        raise UsageError("--host contains no address; give one such as 127.0.0.1, or leave it out")
    if port == 0 and sum(not host.endswith(SOCKET) for host in hosts) > 1:
        raise UsageError("--port 0 works with only one --host")
    return tuple(UnixSocket(host) if host.endswith(SOCKET) else (host, port) for host in hosts)


def _tls(options: Sequence[Option]) -> tuple[str, str] | None:
    certificate, key = value(options, "--ssl-cert-file", ""), value(options, "--ssl-key-file", "")
    if bool(certificate) != bool(key):
        given, missing = ("--ssl-cert-file", "--ssl-key-file")[:: 1 if certificate else -1]
        raise UsageError(f"{given} needs {missing}; give both for HTTPS, or none")
    return (certificate, key) if certificate else None


def _cors(options: Sequence[Option]) -> Cors:
    default = Cors()
    return Cors(
        origins=value(options, CORS_ORIGINS, default.origins),
        methods=value(options, "--cors-methods", default.methods),
        headers=value(options, "--cors-headers", default.headers),
        credentials=is_on(options, "--cors-credentials"),
    )


def _ui_settings(options: Sequence[Option]) -> bytes:
    """Return the later one of ``--ui-config`` and ``--ui-config-file``, as llama-server does."""
    said = flags.partition(options, ("--ui-config", "--ui-config-file"))[0]
    if not said:
        return HttpSettings().ui_settings
    option = said[-1]
    is_file = option.canonical == flags.canonical("--ui-config-file")
    return ui_settings(option.flag, option.values[0], is_file=is_file)


def _static(text: str) -> str | None:
    if text and not Path(text).is_dir():
        raise UsageError(f"--path {text}: no such folder")
    return str(Path(text).absolute()) if text else None
