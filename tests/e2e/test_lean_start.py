"""What a server that nobody has asked for anything has not imported: it starts sooner, and takes less memory."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from gguf_files import write_model
from program import StartServer, http
from waiting import wait

from appliance.engines.found import ENGINE_VARIABLE

ON_DEMAND = (
    "quart", "werkzeug", "jsonschema", "rich", "huggingface_hub", "filelock", "trio_websocket", "importlib.metadata",
    "email", "prometheus_client", "asyncio", "difflib", "ruamel.yaml", "appliance.core.config.yaml_library",
    "appliance.core.config.env", "appliance.http.control.app", "appliance.http.mcp.server",
    "appliance.core.mcp.serving", "appliance.tools.builtins", "appliance.tools.mcp_client",
    "appliance.engines.embedded.start", "re2",
)  # fmt: skip
UNSAMPLED = ("psutil", "appliance.platform.sampler")
"""What the first sample of the machine needs, which is not taken where samples are off."""
UNCONFIGURED = ("appliance.core.config.load", "appliance.core.config.yaml_quick")
CONFIGURATION = """\
performance: {disabled: true}
models:
  m:
    cmd: >
      serve
      --port ${PORT}
    aliases: [a, "b"]
"""


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
    imported = set(re.findall(r"^import time: +\d+ \| +\d+ \| +(\S+)$", server.told(), re.MULTILINE))
    assert {"trio", "appliance.main", "appliance.http.way.gateway"} <= imported
    if sys.platform == "win32":
        imported.discard("asyncio")  # Trio itself takes its pipes from there
    assert sorted(imported & {*ON_DEMAND, *(UNSAMPLED if mode == "configured" else UNCONFIGURED)}) == []
    assert not [name for name in imported if name.startswith("appliance_plugin_")]
    assert http(server, "GET", "/api/agents" if mode in ("serve", "configured") else "/tools").status in (200, 403)
    if mode == "serve":
        assert "quart" in server.told()
