"""The configuration of a box's nats-server, and the meaning of the lines that it prints."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Literal

from msgspec import Struct

from appliance.core.settings import in_url
from appliance.features.pool.core.bus_words import BusPlace
from appliance.features.pool.core.keys import BoxCertificate, PoolKeys

MOST_STORE = 256 << 20  # bytes of disk; a pool's facts take less than 1 MB, and models need the disk
LOOPBACK = "127.0.0.1"
CONFIG, CA, CERTIFICATE, KEY = "bus.conf", "bus-ca.pem", "bus-cert.pem", "bus-key.pem"  # in its folder
STORE = "bus-store-"  # the beginning of the name of a group's store; see `store_of`

MONITOR = re.compile(r"Starting http monitor on (\S+)")
FATAL = re.compile(r"(?:\[FTL\]|^nats-server:) (.*)")  # why it ended; for a mistake in its configuration no time


class BusServing(Struct, frozen=True, kw_only=True):
    """One box's server of the bus. A new value of it restarts the server."""

    name: str  # The box. Servers know each other by it, so no other box may ever have it.
    group: str  # the servers that vote together; another group begins with an empty store, so nobody has to be removed
    host: str = "0.0.0.0"
    port: int  # port for clients
    routes_port: int = 0  # for the other voters; 0: it is alone. A server that changes over loses what it has stored.
    routes: tuple[BusPlace, ...] = ()  # the other voters
    files: BoxCertificate  # for servers and clients
    keys: PoolKeys


def store_of(group: str) -> str:
    """Return the name of a group's store and cluster."""
    return STORE + sha256(group.encode()).hexdigest()[:16]


def config_text(serving: BusServing, folder: str) -> str:
    """Return the configuration; ``folder`` has its files. A silent server is given up after 10 s, not 4 min."""
    tls = (
        f"cert_file: {_quoted(folder, CERTIFICATE)}, key_file: {_quoted(folder, KEY)}, ca_file: {_quoted(folder, CA)}, "
        "verify: true, timeout: 5"
    )
    store = store_of(serving.group)
    cluster = ""
    if serving.routes_port:
        password = serving.keys.derived("route").hex()
        routes = ", ".join(f'"tls://pool:{password}@{place}"' for place in serving.routes)
        cluster = f"""
cluster {{
  name: {_quoted(store)}, listen: "{in_url(serving.host)}:{serving.routes_port}"
  connect_retries: 1000000, ping_interval: "5s", no_advertise: true
  authorization {{ user: pool, password: {_quoted(password)}, timeout: 5 }}
  tls {{ {tls} }}
  routes: [ {routes} ]
}}
"""
    return f"""# Written by llama-appliance at each start of the server. Changes are lost.
server_name: {_quoted(serving.name)}
listen: "{in_url(serving.host)}:{serving.port}"
http: "{LOOPBACK}:-1"
ping_interval: "5s", ping_max: 2, write_deadline: "5s", max_payload: 1MB
tls {{ {tls}, handshake_first: true }}
accounts {{
  SYS {{ users: [ {{ user: sys, password: {_quoted(serving.keys.derived("system").hex())} }} ] }}
  POOL {{ jetstream: enabled, users: [ {{ nkey: {_quoted(serving.keys.bus_user)} }} ] }}
}}
system_account: SYS
jetstream {{ store_dir: {_quoted(folder, store)}, max_memory_store: 16MB, max_file_store: {MOST_STORE} }}
{cluster}"""


def _quoted(*parts: str) -> str:
    """Return a text in quotes, or a path of these parts. NATS takes forward slashes on Windows too."""
    return json.dumps("/".join(parts).replace("\\", "/"), ensure_ascii=False)


Sign = Literal["ready", "authority", "no-disk", "joined", "other"]
"""no-disk: a write has failed, and none is tried until the server is restarted. In a cluster it has switched JetStream
off, and asked for its health it says "JetStream not enabled (10076)"; alone it names the write.
authority: another server's certificate is of another pool. joined: a route to another server is made.
"""
_SIGNS: Sequence[tuple[str, Sign]] = (
    ("Server is ready", "ready"),
    ("certificate signed by unknown authority", "authority"),
    ("JetStream out of resources", "no-disk"),
    ("no space left on device", "no-disk"),
    ("JetStream not enabled", "no-disk"),
    ("Route connection created", "joined"),
)


def sign_of(line: str) -> Sign:
    """Return what a line of its log means for its owner, or its answer to /healthz."""
    for words, sign in _SIGNS:
        if words in line:
            return sign
    return "other"


def end_of(lines: Sequence[str]) -> str:
    """Return the words of the last lines that say why it ended; empty if they do not."""
    fatal = [found[1] for line in lines if (found := FATAL.search(line))]
    return fatal[-1] if fatal else next((line.strip() for line in reversed(lines) if "[ERR]" in line), "")
