"""Who is let in: names, pages and keys."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import any_request
import pytest
from http_harness import CHAT, UPGRADE, Appliance, OpenServer, chat
from http_harness import request as make_request
from hypothesis import given
from hypothesis import strategies as st
from plugin_folders import write_plugin

from appliance.core.settings import Cors, HttpSettings
from appliance.core.tools.choice import chosen_tools
from appliance.errors import Forbidden
from appliance.features.tools.box import open_own_tools
from appliance.http.way.guard import Guard
from appliance.traffic.request import Request


def request(*headers: tuple[str, str], method: str = "GET", path: str = "/v1/models", query: str = "") -> Request:
    return make_request(path, *headers, method=method, query=query)


def passes(guard: Guard, asks: Request, says: str = "") -> bool:
    """False if it is refused, and the refusal says this."""
    try:
        guard.check_place(asks)
    except Forbidden as refusal:
        return says not in str(refusal)
    return True


def is_let_in(settings: HttpSettings, *headers: tuple[str, str]) -> bool:
    """A refusal says how to be let in."""
    return passes(Guard(settings, [("192.168.1.5", 8080)]), request(*headers), "--allow-host")


GOOD_HOSTS = """localhost LOCALHOST:8080 chat.localhost:1 127.0.0.1:8080 10.1.2.3 [::1]:8080 [fe80::1] named.lan:80
 named.lan. a.wild.example bound.example:9 host.docker.internal:8080 HOST.containers.internal. box.local:1"""
BAD_HOSTS = """evil.example evil.example:8080 localhost.evil.example wild.example.evil.example notnamed.lan
 127.0.0.1.evil.example 127.1.evil [::1 [::1].evil.com [::1]evil.com [::1]:80.evil.com user@localhost <script> :80
 ..localhost .localhost a..localhost:1 internal local .internal box.internal.evil.example evilinternal"""


@pytest.mark.parametrize(("hosts", "good"), [(GOOD_HOSTS, True), (BAD_HOSTS, False)])
def test_hosts(hosts: str, good: bool):
    settings = HttpSettings(listen=(("bound.example", 9),), allow_hosts=("named.lan", "*.wild.example"))
    for host in [*hosts.split(), *([] if good else [f"{'x' * 64}.localhost"])]:
        assert is_let_in(settings, ("Host", host)) is good, host


@pytest.mark.parametrize("host", ["0.0.0.0", "0.0.0.0:8080", "[::]:8080", "[::ffff:0.0.0.0]"])
def test_an_unspecified_address_is_nobodys_name(host: str):
    """Browsers say nothing of the asking site to such an address, and some systems take it for this machine."""
    settings = HttpSettings(listen=(("0.0.0.0", 8080), ("::", 8080)), allow_hosts=("0.0.0.0", "::"))
    with pytest.raises(Forbidden, match=r"use 127\.0\.0\.1"):
        Guard(settings, [("0.0.0.0", 8080)]).check_place(request(("Host", host)))


EVIL = [("Host", "localhost"), ("Origin", "http://evil.example"), ("Sec-Fetch-Site", "cross-site")]


OPEN = """POST /v1/chat/completions, POST /completion, POST /v1/messages, GET /v1/models"""
CLOSED = """POST /props, POST /slots/0, POST /lora-adapters, GET /props, GET /slots, GET /logs, GET /api/events,
 GET /api/runs, POST /api/runs, GET /unload, GET /upstream/alpha/props, POST /models, DELETE /models,
 POST /models/unload, GET /v1/stream/ws, GET /v1/stream/id, POST /tools, POST /mcp, GET /cors-proxy"""


@pytest.mark.parametrize(("routes", "good"), [(OPEN, True), (CLOSED, False)])
def test_llama_servers_openness_is_for_its_inference_alone(routes: str, good: bool):
    """A page of another site asks, also at a name that such a page has bound to this machine."""
    guard = Guard(HttpSettings(open_inference=True), [("127.0.0.1", 8080)])
    beyond = Guard(HttpSettings(listen=(("0.0.0.0", 8080),), open_inference=True), [("0.0.0.0", 8080)])
    for method, path in (route.split() for route in routes.split(",")):
        page = request(*EVIL, method=method, path=path)
        rebound = request(("Host", "evil.example"), method=method, path=path)
        assert (passes(guard, page), passes(guard, rebound), passes(beyond, rebound)) == (good, False, good), path
        allowed = dict(guard.cors_headers(page)).get(b"Access-Control-Allow-Origin")
        assert allowed == (b"http://evil.example" if good else None)
        asked = ("Access-Control-Request-Method", method)
        preflight = dict(guard.cors_headers(request(*EVIL, asked, method="OPTIONS", path=path)))
        assert preflight.get(b"Access-Control-Allow-Origin") == allowed


OF_WINDOWS = ("file://", "FILE://", "file://localhost", "app://obsidian.md", "tauri://localhost", "vscode-webview://a1")
ASKED_OF_OLLAMA = {f"/api/{name}" for name in ("chat", "generate", "embed", "embeddings", "show")}
LISTS = {"/", "/health", "/v1/health", "/models", "/v1/models", "/v1/models/<path:model>"}
LISTS_OF_OLLAMA = {"/api/tags", "/api/ps", "/api/version"}
ASKED_OF_LM_STUDIO = {f"/api/{name}" for name in ("v0/chat/completions", "v0/completions", "v0/embeddings", "v1/chat")}
LISTS_OF_LM_STUDIO = {"/api/v0/models", "/api/v0/models/<ID>", "/api/v1/models"}


async def test_windows_of_applications_use_models_and_nothing_else(server: Appliance):
    """Every route that the program has, a new one included, is closed to them unless it is named here."""
    table = any_request.HTTP_PAGE.partition("| POST | API |")[2].partition("| GET | answer |")[0]
    cells = " ".join(row.split(" | ")[0] for row in table.splitlines())
    asked = set(re.findall(r"`(/[^`?]+)", cells)) - {"/slots/:id", "/props", "/lora-adapters"}
    expected = {("POST", path) for path in asked | ASKED_OF_OLLAMA | ASKED_OF_LM_STUDIO}
    lists = LISTS | LISTS_OF_OLLAMA | LISTS_OF_LM_STUDIO
    expected |= {(method, path) for path in lists for method in ("GET", "HEAD")}
    routes = any_request.all_routes(server)
    every = {(method, route.path) for route in routes for method in ("GET", "HEAD", "POST", "PUT", "DELETE")}
    assert len(every) > 500
    assert expected <= every
    keyless, keyed = Guard(HttpSettings(), []), Guard(HttpSettings(api_keys=("k",)), [])
    single = Guard(HttpSettings(single="alpha"), [])
    for origin in OF_WINDOWS:
        page = [("Host", "localhost"), ("Origin", origin)]
        named = Guard(HttpSettings(cors=Cors(origins=origin.lower())), [])
        let_in: set[tuple[str, str]] = set()
        tried = every if origin in ("file://", "app://obsidian.md") else {("POST", CHAT), ("GET", "/logs")}
        for method, path in tried:
            asks = request(*page, method=method, path=re.sub("<[^>]*>", "x", path))
            for guard in (keyed, named):
                guard.check_place(asks)
                assert not guard.answers_alone(asks)
            preflight = request(*page, ("Access-Control-Request-Method", method), method="OPTIONS", path=asks.path)
            may_read = dict(keyless.cors_headers(preflight)).get(b"Access-Control-Allow-Origin") is not None
            assert passes(keyless, asks) is may_read
            if may_read:
                let_in.add((method, path))
                assert keyless.answers_alone(asks)
            assert not passes(single, asks)
        assert let_in == expected & tried, let_in ^ expected
        with pytest.raises(Forbidden, match="start the server with --api-key KEY or --cors-origins"):
            keyless.check_place(request(*page, path="/api/conversations"))


async def test_a_window_has_no_tools_and_no_commands_by_way_of_a_chat(open_server: OpenServer, tmp_path: Path):
    write_plugin(tmp_path, "shout", "def on_request(request, context):\n    pass\n")
    tools = chosen_tools(["get_info"], runtime="", root="")
    window = ("Origin", "file://")
    with_tools = {**chat(), "appliance": {"tools": ["get_info"]}}
    command = {**chat(), "messages": [{"role": "user", "content": "/shout hi"}]}
    async with open_own_tools(tools) as box, open_server(tools=box, plugins=[tmp_path]) as server:
        for body in (with_tools, command):
            assert (await server.ask("POST", CHAT, body)).status == 200
            await server.refuses(403, "forbidden", "POST", CHAT, body, [window])
        for path, headers in ((CHAT, []), (CHAT, [("X-Conversation-Id", "a")]), ("/api/chat", [])):
            body = {**chat(), "stream": False}
            assert (await server.ask("POST", path, body, [window, *headers])).status == 200
        for path in ("/v1/stream/ws", "/api/link", "/upstream/alpha/ws", "/v1/realtime?model=alpha"):
            assert (await server.ask("GET", path, headers=[window, *UPGRADE])).status == 403, path


LED = """/unload /unload/ /upstream/alpha/ /comfyui/ /v1/audio/voices /sdapi/v1/loras /models?reload=1
 /v1/models?reload= /v1/models/?a&reload=1&reload="""


@pytest.mark.parametrize(
    ("headers", "good"),
    [
        ([], True),
        ([("User-Agent", "curl/8.0")], True),
        ([("User-Agent", "Mozilla/5.0")], False),
        ([("User-Agent", "Mozilla/5.0"), ("Referer", "http://evil.example/10.0.0.7:8080")], False),
        ([("User-Agent", "Mozilla/5.0"), ("Referer", "http://10.0.0.7:8080/ui/?a")], True),
        ([("User-Agent", "Mozilla/5.0"), ("Origin", "http://10.0.0.7:8080")], True),
        ([("User-Agent", "Mozilla/5.0"), ("Sec-Fetch-Site", "same-origin")], True),
        ([("User-Agent", "Mozilla/5.0"), ("Sec-Fetch-Site", "none")], True),
        ([("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "document")], False),
    ],
)
@pytest.mark.parametrize("origins", ["localhost", "*"])
def test_no_other_site_leads_a_browser_to_what_changes_something(
    headers: list[tuple[str, str]], good: bool, origins: str
):
    guard = Guard(HttpSettings(cors=Cors(origins=origins)), [("10.0.0.7", 8080)])
    guard.check_place(request(("Host", "10.0.0.7:8080")))  # a name that is known as good from then on
    for path, _, query in (target.partition("?") for target in LED.split()):
        led = request(("Host", "10.0.0.7:8080"), *headers, path=path, query=query)
        assert passes(guard, led) is good, path


GOOD_ORIGINS = """http://localhost:3000 https://127.0.0.1 http://[::1]:3000 tauri://localhost http://10.0.0.7:8080
 https://app.example http://named.lan:99"""
BAD_ORIGINS = """http://10.0.0.7:8081 http://10.0.0.8:8080 https://app.example.evil http://evil.example null http://[
 http://[::1].evil.com http://[::1]evil.com http://[::1 http://localhost@evil.com"""


@pytest.mark.parametrize(("origins", "good"), [(GOOD_ORIGINS, True), (BAD_ORIGINS, False)])
def test_origins(origins: str, good: bool):
    settings = HttpSettings(allow_hosts=("named.lan",), cors=Cors(origins="https://app.example, https://b.example"))
    everybody = HttpSettings(cors=Cors(origins="*"))
    for origin in origins.split():
        assert is_let_in(settings, ("Host", "10.0.0.7:8080"), ("Origin", origin)) is good, origin
        assert is_let_in(everybody, ("Host", "10.0.0.7:8080"), ("Origin", origin))
    assert is_let_in(settings, ("Host", "app.example"), ("Origin", "https://app.example"))  # it is a name of the server
    assert not is_let_in(settings, ("Host", "evil.example"))


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("headers", "good"),
    [
        ([], False),
        ([("Authorization", "Bearer one")], True),
        ([("Authorization", "bearer two")], True),
        ([("Authorization", "two")], True),
        ([("Authorization", basic("anybody", "two"))], True),
        ([("Authorization", basic("two", "wrong"))], False),
        ([("Authorization", "Basic !!!")], False),
        ([("x-api-key", "one")], True),
        ([("X-Api-Key", "Bearer one")], True),
        ([("Authorization", "Bearer wrong"), ("x-api-key", "one")], False),
        ([("Authorization", ""), ("x-api-key", "one")], True),
        ([("Authorization", "Bearer "), ("x-api-key", "one")], True),
        ([("Authorization", "Bearer onetwo")], False),
        ([("Authorization", "Bearer on")], False),
        ([("Authorization", "Bearer \xff")], False),
        ([("Authorization", "Bearer schl\xfcssel")], False),
        ([("Authorization", "Bearer " + "schlüssel".encode().decode("latin-1"))], True),
    ],
)
def test_keys(headers: list[tuple[str, str]], good: bool):
    guard = Guard(HttpSettings(api_keys=("one", "two", "schlüssel")), [])
    assert guard.knows(request(*headers)) is good


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        ("*", "http://evil.example", "http://evil.example"),
        ("*", "anything at all", "anything at all"),
        ("*", None, ""),
        ("localhost", "http://localhost:3000", "http://localhost:3000"),
        ("localhost", "http://[::1]:3000", "http://[::1]:3000"),
        ("localhost", "http://evil.example", None),
        ("localhost", None, None),
        ("https://a.example,https://b.example", "http://evil.example", "https://a.example,https://b.example"),
    ],
)
def test_cors(origins: str, origin: str | None, allowed: str | None):
    guard = Guard(HttpSettings(cors=Cors(origins=origins)), [])
    given = [("Origin", origin)] if origin is not None else []
    headers = dict(guard.cors_headers(request(*given)))
    assert headers.get(b"Access-Control-Allow-Origin") == (None if allowed is None else allowed.encode())
    assert headers.get(b"Vary") == (None if origin is None else b"Origin")  # no cache gives it to another page
    assert b"Access-Control-Allow-Methods" not in headers
    preflight = dict(guard.cors_headers(request(*given, method="OPTIONS")))
    assert preflight[b"Access-Control-Allow-Credentials"] == b"true"
    assert preflight[b"Access-Control-Allow-Methods"] == b"GET, POST, DELETE, OPTIONS"
    assert preflight[b"Access-Control-Allow-Headers"] == b"*"


SHELLS = """http://tauri.localhost https://tauri.localhost tauri://localhost capacitor://localhost ionic://localhost
 jan://localhost app://obsidian.md file:// null vscode-webview://1 http://box.internal http://evil.local http://a.b"""
"""Origins of windows and pages, of which some may ask."""


@given(
    st.sampled_from(SHELLS.split())
    | st.builds("{}://{}".format, st.sampled_from(["http", "x"]), st.text("ab.l:", max_size=9)),
    st.sampled_from(["localhost", "http://a.b", "http://a.b, http://tauri.localhost, null"]),
    st.sampled_from([("POST", CHAT), ("GET", "/logs"), ("GET", "/v1/models")]),
    st.sampled_from(["localhost", "box.internal", "a.b"]),
    st.booleans(),
)
def test_a_page_reads_what_it_may_ask_and_its_preflight_says_so(
    origin: str, origins: str, route: tuple[str, str], host: str, keyed: bool
):
    settings = HttpSettings(cors=Cors(origins=origins), api_keys=("k",) if keyed else (), allow_hosts=("a.b",))
    guard, page = Guard(settings, []), [("Host", host), ("Origin", origin)]
    method, path = route
    asks = request(*page, method=method, path=path)
    before = request(*page, ("Access-Control-Request-Method", method), method="OPTIONS", path=path)
    for each in (asks, before):
        told = dict(guard.cors_headers(each)).get(b"Access-Control-Allow-Origin")
        assert (told == origin.encode()) is passes(guard, asks)


LOCAL_PAGE = ("Origin", "http://localhost:3000")
ANNOUNCED = ("Access-Control-Request-Headers", "authorization,content-type,x-stainless-os")
"""What a browser says before it sends a request with a key."""


@pytest.mark.parametrize(
    ("cors", "origin", "headers", "sent_back"),
    [
        (Cors(), "http://localhost:3000", b"authorization, content-type, x-stainless-os", True),
        (Cors(), "app://obsidian.md", b"authorization, content-type, x-stainless-os", True),
        (Cors(origins="https://a.example"), "https://a.example", b"authorization, content-type, x-stainless-os", True),
        (Cors(), "https://evil.example", b"*", False),
        (Cors(origins="*"), "https://evil.example", b"*", False),
        (Cors(credentials=False), "http://localhost:3000", b"*", False),
        (Cors(headers="X-Own"), "http://localhost:3000", b"X-Own", True),
    ],
)
def test_a_page_that_is_named_may_send_its_key_with_credentials(
    cors: Cors, origin: str, headers: bytes, sent_back: bool
):
    guard = Guard(HttpSettings(cors=cors), [])
    asked = ("Access-Control-Request-Method", "GET")
    preflight = guard.cors_headers(request(("Origin", origin), ANNOUNCED, asked, method="OPTIONS"))
    assert dict(preflight)[b"Access-Control-Allow-Headers"] == headers
    answer = dict(guard.cors_headers(request(("Origin", origin))))
    assert answer.get(b"Access-Control-Allow-Credentials") == (b"true" if sent_back else None)
    assert b"Access-Control-Allow-Credentials" not in dict(guard.cors_headers(request()))


@given(
    st.lists(
        st.sampled_from(["Authorization", "x-own", " x y", "a\r\nSet-Cookie: b=c", "*", "", "ü", "\t"]) | st.text()
    )
)
def test_a_preflight_gets_back_the_names_of_headers_that_it_asked_for_and_no_other_bytes(asked: list[str]):
    given = ",".join(asked).encode()
    told = Guard(HttpSettings(), []).cors_headers(
        request(LOCAL_PAGE, ("Access-Control-Request-Headers", given.decode("latin-1")), method="OPTIONS")
    )
    names = [name.strip() for name in given.split(b",") if re.fullmatch(rb"[!#-'*+.^-z|~0-9A-Z-]+", name.strip())]
    assert dict(told)[b"Access-Control-Allow-Headers"] == (b", ".join(names) or b"*")


async def test_over_the_wire_refusals_carry_cors_and_the_order_is_place_key_route(open_server: OpenServer):
    here = LOCAL_PAGE
    async with open_server(api_keys=("secret",)) as server:
        refused = await server.refuses(401, "invalid_api_key", "GET", "/v1/models", headers=[here])
        assert refused.error["message"] == "Invalid API Key"
        assert ("Access-Control-Allow-Origin", "http://localhost:3000") in refused.headers
        assert (await server.ask("GET", "/nope")).status == 401
        assert (await server.ask("GET", "/", headers=[("Host", "evil.example")])).status == 403
        assert (await server.ask("GET", "/health", headers=[("Origin", "http://evil.example")])).status == 403
        assert (await server.ask("POST", CHAT, chat())).status == 401
        asked = [here, ANNOUNCED, ("Access-Control-Request-Method", "POST")]
        for path in (CHAT, "/v1/models", "/api/tags"):
            preflight = await server.ask("OPTIONS", path, headers=asked)
            assert (preflight.status, preflight.body) == (200, b"")
            assert preflight.header("access-control-allow-headers") == "authorization, content-type, x-stainless-os"
        for path in ("/health", "/v1/health", "/", "/ui/"):
            assert (await server.ask("GET", path)).status == 200
        key = ("Authorization", "Bearer secret")
        assert (await server.ask("GET", "/nope", headers=[key])).status == 404
        answer = await server.good("POST", CHAT, chat(), headers=[key, here])
        assert [value for name, value in answer.headers if name.lower() == "access-control-allow-origin"] == [here[1]]


async def test_a_stranger_learns_nothing_about_the_models(open_server: OpenServer):
    async with open_server(api_keys=("secret",)) as server:
        assert (await server.ask("GET", "/health")).json == {"status": "ok"}
        assert b"alpha" not in (await server.ask("GET", "/ui/status")).body
        known = await server.ask("GET", "/health", headers=[("x-api-key", "secret")])
        assert known.json == {"status": "ok", "pool": {"capacity": 4, "servers": []}, "models": []}
        assert b"alpha" in (await server.ask("GET", "/ui/status", headers=[("x-api-key", "secret")])).body


async def test_the_api_prefix_is_in_front_of_everything(open_server: OpenServer):
    async with open_server(api_prefix="/llm/api") as server:
        assert (await server.ask("GET", "/llm/api/v1/models")).status == 200
        assert (await server.ask("GET", "/v1/models")).status == 404
        assert (await server.ask("GET", "/health")).status == 200
        assert (await server.ask("GET", "/llm/api/health")).status == 200
        answer = await server.ask("POST", f"/llm/api{CHAT}?a=b%2Fc", chat(echo=True))
        assert answer.json["head"].startswith(f"POST {CHAT}?a=b%2Fc HTTP/1.1\r\n")
        assert b"http://localhost/llm/api/v1" in (await server.ask("GET", "/llm/api/ui/status")).body


CROSS = ("Sec-Fetch-Site", "cross-site")
LINK = [("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "document")]


@pytest.mark.parametrize(
    ("headers", "good"),
    [
        ([CROSS], False),
        ([CROSS, ("Sec-Fetch-Mode", "no-cors"), ("Sec-Fetch-Dest", "image")], False),
        ([CROSS, ("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "iframe")], False),
        ([CROSS, *LINK], True),
        ([CROSS, ("Origin", "http://localhost:3000")], True),
        ([CROSS, ("Origin", "null")], False),
        ([("Sec-Fetch-Site", "same-origin"), ("Sec-Fetch-Mode", "no-cors")], True),
        ([("Sec-Fetch-Site", "none"), *LINK], True),
    ],
)
def test_pages_of_other_sites_hold_nothing_from_here(headers: list[tuple[str, str]], good: bool):
    assert is_let_in(HttpSettings(), *headers) is good
    assert is_let_in(HttpSettings(cors=Cors(origins="*")), *headers)


def test_what_is_public_may_be_held():
    guard = Guard(HttpSettings(), [])
    assert passes(guard, request(CROSS, path="/favicon.ico"))
    assert not passes(guard, request(CROSS, *LINK, method="POST", path="/tools"))
