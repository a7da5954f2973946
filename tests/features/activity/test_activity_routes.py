"""The activity log, its export, its statistics and captures, as a client asks for them."""

from __future__ import annotations

import base64
import json

import pytest
from http_harness import CHAT, OpenServer, chat
from swap_harness import Configure

from appliance.features.activity import routes


async def test_activity_statistics_and_captures(
    open_server: OpenServer, configured: Configure, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(routes, "MAX_LIMIT", 1)  # an export takes more than one look
    file = configured({"alpha": {"aliases": ["al"]}, "beta": {}}, captureBuffer=5)
    async with open_server(config=file) as server:
        empty = (await server.ask("GET", "/api/metrics/activity")).json
        assert empty == {"data": [], "page": 1, "limit": 25, "total": 0, "total_pages": 0}
        await server.ask("POST", CHAT, chat("al"), headers=[("Authorization", "Bearer secret")])
        await server.ask("POST", CHAT, chat("beta", stream=True))
        page = (await server.ask("GET", "/api/metrics/activity?limit=1&sort=id&order=asc")).json
        assert (page["total"], page["total_pages"]) == (2, 2)
        [first] = page["data"]
        assert (first["client"], first["build"]) == ("127.0.0.1", ""), "its command is the configuration's"
        assert 0 <= first["first_token_ms"] <= first["duration_ms"]
        assert (first["model"], first["req_path"], first["resp_status_code"]) == ("alpha", CHAT, 200)
        assert first["has_capture"] is True
        some = (await server.ask("GET", "/api/metrics/activity?model=beta&model=gamma")).json["data"]
        assert [found["model"] for found in some] == ["beta"]
        assert (await server.ask("GET", "/api/metrics/activity?failed=1")).json["total"] == 0
        assert (await server.ask("GET", "/api/metrics/activity?search=BETA")).json["total"] == 1
        exported = await server.ask("GET", "/api/metrics/activity/export?format=csv")
        assert [line.split(",")[2] for line in exported.body.decode().splitlines()] == ["model", "beta", "alpha"]
        exported = await server.ask("GET", "/api/metrics/activity/export?model=beta")
        assert [json.loads(line)["model"] for line in exported.body.splitlines()] == ["beta"]
        assert int(json.loads(exported.body)["metadata"]["waited_ms"]) > 0, "its model was loaded for it"
        assert (await server.ask("GET", "/api/metrics/activity/export?format=xml")).error["param"] == "format"
        stats = (await server.ask("GET", "/api/metrics/stats")).json
        assert (stats["total_requests"], stats["total_output_tokens"] > 0) == (2, True)
        assert (await server.ask("GET", "/api/metrics/stats?model=gamma")).json["gen_histogram"] is None
        capture = (await server.ask("GET", f"/api/captures/{first['id']}")).json
        assert capture["req_path"] == CHAT
        assert capture["req_headers"]["Authorization"] == "[REDACTED]"
        assert b'"al"' in base64.b64decode(capture["req_body"])
        assert b"choices" in base64.b64decode(capture["resp_body"])
        await server.refuses(404, "not_found", "GET", "/api/captures/999")
