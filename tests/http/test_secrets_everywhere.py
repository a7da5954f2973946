"""A canary in every place of a configuration, and every route and every mistake asked: no answer has it."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any, cast

import pytest
from http_harness import OpenServer
from reload_harness import File

CANARY = "Kq7Canary"
ROUTES = (
    "/api/config", "/api/config/versions", "/api/config/versions/1", "/v1/models", "/models", "/running", "/props",
    "/health", "/logs", "/api/doctor", "/api/report?logs=1", "/api/history", "/api/agents", "/api/peers",
    "/api/engines", "/api/metrics/activity", "/api/profiles", "/api/hardware", "/api/memory",
    "/api/tags", "/api/ps",
    "/api/disk", "/api/runs", "/api/workers", "/api/mcp", "/metrics",
)  # fmt: skip
MISTAKES: tuple[dict[str, Any], ...] = (
    {"models": {"m": {"env": [CANARY]}}},
    {"models": {"m": {"env": {"A": CANARY}}}},
    {"models": {"m": {"cmd": f"HF_TOKEN={CANARY} x", "engine": "auto", "proxy": f"http://u:{CANARY}@h:x"}}},
    {"plugins": {"x": {"settings": CANARY}}},
    {"plugins": CANARY},
    {"apiKeys": CANARY},
    {"apiKeys": {CANARY: 1}},
    {"apiKeys": [f"${{{CANARY}}}", f"${{env.{CANARY}-x}}", f"{CANARY} b"]},
    {"tracing": {"headers": {"A": f"{CANARY}é"}}},
    {"tracing": {"endpoint": f"ftp://u:{CANARY}@h"}},
    {"mcp_servers": {"s": {"command": "x", "args": CANARY, "env": CANARY}}},
    {"mcp_servers": {"s": {"url": f"ftp://u:{CANARY}@h", "headers": CANARY}}},
    {"peers": {"p": {"proxy": f"u:{CANARY}@h", "apiKey": [CANARY]}}},
    {"hf_token": CANARY, "globalTTL": "x"},
)


def joined(old: Any, new: Any) -> Any:
    """The new value; of mappings the keys of both."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    mapping, more = cast("dict[str, Any]", old), cast("dict[str, Any]", new)
    return {**mapping, **{key: joined(mapping.get(key), value) for key, value in more.items()}}


def unpacked(body: bytes) -> bytes:
    """The files of a support bundle; another answer as it is."""
    if not body.startswith(b"PK"):
        return body
    with zipfile.ZipFile(io.BytesIO(body)) as packed:
        return b"\n".join(packed.read(name) for name in packed.namelist())


@pytest.mark.slow
async def test_no_route_and_no_mistake_shows_a_secret(open_server: OpenServer, file: File) -> None:
    words = file.cmd()
    secret: dict[str, Any] = {
        "logToStdout": "both",
        "apiKeys": [f"{CANARY}1"],
        "macros": {"mine": f"{CANARY}2", "mine_too": "${mine}x"},
        "peers": {"p": {"proxy": "http://127.0.0.1:9", "apiKey": f"{CANARY}4", "models": ["far"]}},
        "plugins": {"x": {"settings": {"any": f"{CANARY}5"}}},
        "mcp_servers": {"s": {"url": f"http://127.0.0.1:9/?token={CANARY}6", "headers": {"Any": f"{CANARY}7"}}},
    }
    model: dict[str, object] = {
        "cmd": f"env A_B={CANARY}8 HF_TOKEN=${{mine_too}} {words}",
        "cmdStop": f"curl -H X-Any:{CANARY}9 http://127.0.0.1:9/${{PID}}",
        "env": [f"ANY={CANARY}a"],
        "metadata": {"api_key": f"{CANARY}b"},
    }
    dead: dict[str, object] = {"cmd": f"TOKEN={CANARY}c nobody --api-key k,{CANARY}d --port ${{PORT}}"}
    path = file.write({"m": model, "dead": dead}, **secret)
    headers = [("Authorization", f"Bearer {CANARY}1")]
    async with open_server(config=path, admin=True) as server:
        asked = {"messages": [{"role": "user", "content": "hi"}]}
        for name in ("m", "dead"):
            told = await server.ask("POST", "/v1/chat/completions", {"model": name, **asked}, headers=headers)
            assert told.status == (200 if name == "m" else 500)
            assert CANARY.encode() not in told.body, told.body
        server.fleet.logs.append("m", f"an engine says {CANARY}8 and {CANARY}2x and {CANARY}a")
        now = (await server.ask("GET", "/api/config", headers=headers)).json
        edit = {"text": now["text"] + f"# --api-key {CANARY}e\n", "version": now["version"]}
        assert (await server.ask("PUT", "/api/config", edit, headers=headers)).status == 200
        good = path.read_text("utf-8").rpartition("#")[0]
        for mistake in ({}, *MISTAKES):
            tree: dict[str, Any] = json.loads(good)
            for key, value in mistake.items():
                tree[key] = joined(tree.get(key), value)
            path.write_text(json.dumps(tree, indent=1, ensure_ascii=False), "utf-8")
            for method, route in (
                ("POST", "/api/config/reload"),
                ("POST", "/api/config/check"),
                *(("GET", each) for each in ROUTES),
            ):
                told = await server.ask(method, route, {} if method == "POST" else None, headers=headers)
                body = unpacked(told.body)
                assert mistake or told.status == 200, (route, body[:300])
                assert CANARY.encode() not in body, (mistake, route, body[:3000])
