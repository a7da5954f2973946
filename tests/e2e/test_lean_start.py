"""What a server has not imported that nobody, or only a monitor or a browser, has asked for anything: it starts sooner,
takes less memory, and answers the first probe at once.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from gguf_files import write_model
from program import Server, StartServer, http
from waiting import wait

from appliance.engines.named import ENGINE_VARIABLE

ON_DEMAND = (
    "quart", "werkzeug", "jsonschema", "rich", "huggingface_hub", "filelock", "trio_websocket", "importlib.metadata",
    "email", "prometheus_client", "asyncio", "difflib",
    "opentelemetry", "google.protobuf", "appliance.features.traces.otlp",
    "appliance.http.control.app", "appliance.features.tools.mcp_server",
    "appliance.features.tools.core.mcp_serving", "appliance.features.tools.builtins",
    "appliance.features.tools.mcp_client",
    "appliance.features.embedded.start", "appliance.features.embedded.params", "re2",
    "appliance.features.pool.owner", "appliance.features.pool.core.keys", "appliance.features.pool.door",
    "nacl", "wsgiref", "appliance.features.engines.core.trials", "appliance.features.page.static_files",
    "appliance.features.anthropic.core", "appliance.features.responses.core", "appliance.features.repairs.core.plan",
    "appliance.features.ollama.core", "appliance.features.ollama.known", "appliance.features.ollama.routes",
    "appliance.features.lm_studio.reading", "appliance.features.lm_studio.routes",
    "appliance.features.conversations.file_routes", "appliance.features.conversations.documents",
    "appliance.features.conversations.store", "appliance.features.cors_proxy.proxy", "appliance.features.pool.edges",
    "appliance.features.tools.chat_tools", "appliance.features.traces.rules", "appliance.features.downloads.sources",
)  # fmt: skip
BEHIND = re.compile(r"(quart|hypercorn|werkzeug|flask|jinja2|h2|asyncio)\b")
"""What comes with Quart."""
PROBED = (
    *("/health", "/v1/health", "/v1/models", "/models", "/v1/models/m", "/running", "/metrics", "/props", "/slots"),
    "/api/pool",
)
BROWSED = (
    *("/", "/ui/", "/ui/status", "/ui/sandbox", "/ui/assets/none.js", "/upstream", "/wol-health", "/favicon.ico"),
    *("/sw.js", "/manifest.webmanifest", "/_app/version.json", "/robots.txt", "/.well-known/security.txt"),
)
UNSAMPLED = ("psutil", "appliance.platform.sampler")
"""What the first sample of the machine needs, which is not taken where samples are off."""
MOST = 428
"""Modules of the program that a start imports, each at a third of a millisecond. One that only some requests need is
imported by the first of those (`appliance.http.late`); raise this for what every start needs.
"""
UNCONFIGURED = ("appliance.core.config.load", "appliance.core.config.secret_places", "yaml")
CONFIGURATION = """\
performance: {disabled: true}
models:
  m:
    cmd: >
      serve
      --port ${PORT}
    aliases: [a, "b"]
"""


def imported_by(server: Server) -> set[str]:
    return set(re.findall(r"^import time: +\d+ \| +\d+ \| +(\S+)$", server.told(), re.MULTILINE))


@pytest.mark.parametrize("mode", ["serve", "configured", "router", "single"])
def test_an_idle_server_has_not_imported_what_few_requests_need(
    start_server: StartServer, fake_engine: Path, tmp_path: Path, mode: str
) -> None:
    model = write_model(tmp_path / "m.gguf")
    config = tmp_path / "c.yaml"
    config.write_text(CONFIGURATION)
    words = {
        "configured": ("serve", "--config", str(config), "--listen", "127.0.0.1:0"),
        "serve": ("serve", "--listen", "127.0.0.1:0"),
        "router": ("llama-server", "--port", "0"),
        "single": ("llama-server", "-m", str(model), "--port", "0"),
    }
    server = start_server(*words[mode], env={ENGINE_VARIABLE: str(fake_engine), "PYTHONPROFILEIMPORTTIME": "1"})
    wait(lambda: re.search(r"^ +models:|^main: model loaded", server.told(), re.MULTILINE), within=30, told=server.told)
    imported = imported_by(server)
    assert {"trio", "appliance.main", "appliance.http.way.gateway"} <= imported
    if sys.platform == "win32":
        imported.discard("asyncio")  # Trio itself takes its pipes from there
    assert sorted(imported & {*ON_DEMAND, *(UNSAMPLED if mode == "configured" else UNCONFIGURED)}) == []
    assert not [name for name in imported if name.startswith("appliance_plugin_")]
    assert len([name for name in imported if name.partition(".")[0] == "appliance"]) <= MOST
    for path in (*PROBED, *BROWSED):
        assert http(server, "GET", path, Accept="text/html").status != 500, path
    assert http(server, "POST", "/health").status == 404
    assert sorted(name for name in imported_by(server) - imported if BEHIND.match(name)) == []
    assert http(server, "GET", "/api/agents" if mode in ("serve", "configured") else "/tools").status in (200, 403)
    if mode == "serve":
        assert "quart" in server.told()
