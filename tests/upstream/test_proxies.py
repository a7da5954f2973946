"""Through real proxies: programs that lead every name to this machine."""

from __future__ import annotations

import ssl

import pytest
from msgspec import structs
from proxy_process import proxies
from upstream_harness import OK, answering, listening

from appliance.upstream.client import Address, ConnectFailed, HttpCall, address_of

USER = "me:a b@c"
QUOTED = "me:a%20b%40c"


async def ask(address: Address) -> bytes:
    async with HttpCall(address, "GET", "/x") as response:
        return await response.read(1 << 16)


WAYS = [
    ("http", "http", "hub.test"),
    ("socks5h", "socks", "hub.test"),
    ("socks5", "socks", "192.0.2.7"),
    ("socks5", "socks", "2001:db8::7"),
]


@pytest.mark.needs("openssl")
@pytest.mark.parametrize("user", ["", USER])
@pytest.mark.parametrize(("scheme", "kind", "host"), WAYS)
async def test_tls_goes_through_a_tunnel(
    tls_server: ssl.SSLContext,
    trusted: None,
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
    kind: str,
    host: str,
    user: str,
) -> None:
    async with listening(answering(OK), tls=tls_server) as port:
        with proxies("--user", user) as running:
            proof = f"{QUOTED}@" if user else ""
            monkeypatch.setenv("ALL_PROXY", f"{scheme}://{proof}127.0.0.1:{running.ports[kind]}")
            shown = f"[{host}]" if ":" in host else host
            there = structs.replace(address_of(f"https://{shown}:{port}", "hub"), tls_name="localhost")
            assert await ask(there) == b"ok"
            assert running.said() == ["connect" if kind == "http" else "socks", shown if kind == "http" else host, port]


@pytest.mark.parametrize("scheme", ["http", "socks5h"])
async def test_http_is_relayed_where_it_may_be(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    seen: list[bytes] = []
    async with listening(answering(OK, seen)) as port:
        with proxies("--user", USER) as running:
            kind = scheme.removesuffix("5h")
            monkeypatch.setenv("http_proxy", f"{scheme}://{QUOTED}@127.0.0.1:{running.ports[kind]}")
            assert await ask(address_of(f"http://hub.test:{port}/base", "hub", proxied=True)) == b"ok"
            assert running.said()[1:3] == ["hub.test", port]
            assert await ask(address_of(f"http://127.0.0.1:{port}/base", "hub", proxied=True)) == b"ok"
            assert address_of(f"http://hub.test:{port}", "a box").proxy is None
    assert [head.split(b"\r\n")[0] for head in seen] == [b"GET /base/x HTTP/1.1"] * 2
    assert b"Host: hub.test:%d\r\n" % port in seen[0]
    assert b"Proxy-Authorization" not in seen[1]


@pytest.mark.parametrize(
    ("words", "url", "why"),
    [
        (["--user", "a:b"], "http://a:secret@127.0.0.1:{http}", "it answered 407; it wants a user name"),
        (["--status", "502"], "http://u:secret@127.0.0.1:{http}", "it answered 502; it cannot reach"),
        (["--status", "5"], "socks5h://127.0.0.1:{socks}", "the connection was refused"),
        (["--user", "a:b"], "socks5h://127.0.0.1:{socks}", "it wants a user name"),
        (["--user", "a:b"], "socks5h://a:secret@127.0.0.1:{socks}", "does not accept the user name"),
        ([], "http://127.0.0.1:{socks}", "gives no connection"),
        ([], "socks5h://127.0.0.1:{http}", "gives no connection"),
        ([], "socks5://127.0.0.1:{socks}", "is not known here"),
        ([], "http://u:secret@127.0.0.1:1", "does not accept connections"),
        ([], "https://u:secret@127.0.0.1:1", "cannot be used: name it as http://"),
    ],
)
async def test_a_refusal_names_the_proxy_without_its_password(
    monkeypatch: pytest.MonkeyPatch, words: list[str], url: str, why: str
) -> None:
    with proxies(*words) as running:
        url = url.format(**running.ports)
        monkeypatch.setenv("HTTPS_PROXY", url)
        with pytest.raises(ConnectFailed) as caught:
            await ask(structs.replace(address_of("https://hub.invalid", "hub"), connect_timeout=5.0))
    said = str(caught.value)
    assert why in said
    assert f"the proxy {url.partition('://')[0]}://{url.rpartition('//')[2].rpartition('@')[2]}" in said
    assert "secret" not in said
