"""What web pages are told and may do, by the installed program with real engines."""

from __future__ import annotations

from pathlib import Path

from program import StartServer, http, one_engine

from appliance.engines.found import ENGINE_VARIABLE


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


def test_serve_has_a_page_of_ones_own_and_the_proxy(
    start_server: StartServer, fake_engine: Path, tmp_path: Path
) -> None:
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text("<!doctype html>mine")
    server = start_server(
        *("serve", "--listen", "127.0.0.1:0", "--no-stores", "--path", "page", "--cors-proxy"),
        *("--cors-proxy-allow", "127.0.0.1"),
        env={ENGINE_VARIABLE: str(fake_engine)},
    )
    assert http(server, "GET", "/").body == b"<!doctype html>mine"
    assert http(server, "GET", "/props").json()["cors_proxy_enabled"]
    seen = http(server, "GET", f"/cors-proxy?url={server.url}/health")
    assert (seen.status, seen.json()["status"]) == (200, "ok")
    elsewhere = http(server, "GET", "/cors-proxy?url=http://10.0.0.1/")
    assert elsewhere.status == 403
