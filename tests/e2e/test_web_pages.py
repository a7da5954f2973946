"""What web pages are told and may do, by the installed program with real engines."""

from __future__ import annotations

from pathlib import Path

from program import StartServer, http, one_engine

from appliance.engines.named import ENGINE_VARIABLE


@one_engine
def test_the_one_model_tells_of_the_page_its_settings_and_the_proxy(
    start_server: StartServer, engine: str, starter_model: Path
) -> None:
    for more, told in ((("--ui-mcp-proxy", "--ui-config", '{"theme": "dark"}'), True), (("--no-ui",), False)):
        words = ("llama-server", "-m", str(starter_model), "-t", "1", "--port", "0", "-c", "256", *more)
        server = start_server(*words, env={ENGINE_VARIABLE: engine})
        server.wait_healthy()
        props = http(server, "GET", "/props").json()
        assert (props["cors_proxy_enabled"], props["ui"]) == (told, told)
        assert props["ui_settings"] == ({"theme": "dark"} if told else {})
        assert http(server, "GET", "/cors-proxy?url=http://127.0.0.1:1/").status == (502 if told else 403)
        server.process.terminate()
        server.wait(15)
