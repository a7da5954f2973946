"""URLs of servers, and which of the client's headers travel on."""

from __future__ import annotations

import pytest

from appliance.core.config.types import PeerTimeouts, Timeouts
from appliance.errors import UsageError
from appliance.upstream.client import Address, address_of, forwardable_to_peer


@pytest.mark.parametrize(
    ("url", "host", "port", "tls", "base"),
    [
        ("http://localhost:5800", "localhost", 5800, False, ""),
        ("http://127.0.0.1:5800/", "127.0.0.1", 5800, False, ""),
        ("http://[::1]:80/", "::1", 80, False, ""),
        ("https://api.example.com/api/", "api.example.com", 443, True, "/api"),
        ("https://api.example.com:8443/a b/ü", "api.example.com", 8443, True, "/a%20b/%C3%BC"),
        ("HTTP://Host.example", "host.example", 80, False, ""),
    ],
)
def test_urls(url: str, host: str, port: int, tls: bool, base: str):
    address = address_of(url, "m")
    assert (address.host, address.port, address.tls, address.base_path) == (host, port, tls, base)


@pytest.mark.parametrize(
    ("base", "target", "joined"),
    [
        ("http://h", "/v1/models", "/v1/models"),
        ("http://h/", "/v1/models?x=%2F", "/v1/models?x=%2F"),
        ("http://h/api", "/v1/models?x=%2F", "/api/v1/models?x=%2F"),
        ("http://h/api//", "/", "/api/"),
        ("http://h/api", "", "/api"),
        ("http://h/api?version=1", "/v1/models", "/api/v1/models?version=1"),
        ("http://h?version=1", "/v1/models?x=2", "/v1/models?version=1&x=2"),
    ],
)
def test_one_slash_where_paths_meet(base: str, target: str, joined: str):
    assert address_of(base, "m").target(target) == joined


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("", "http://"),
        ("localhost:5800", "http://"),
        ("ftp://host/", "http://"),
        ("http://", "host"),
        ("http://host:0", "port 0"),
        ("http://host:99999", "not a URL"),
        ("http://host:x", "not a URL"),
        ("http://me:secret@host", "apiKey"),
        ("http://host/#top", "fragment"),
        ("http://hö.example", "punycode"),
        ("http://ho st/", "punycode"),
    ],
)
def test_what_is_no_address_is_told_with_its_owner(url: str, word: str):
    with pytest.raises(UsageError) as caught:
        address_of(url, "my-model")
    assert word in str(caught.value)
    assert "'my-model'" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_times_and_keys():
    address = address_of("http://h", "p", api_key="k", timeouts=PeerTimeouts())
    assert (address.connect_timeout, address.header_timeout, address.tls_timeout, address.keepalive) == (30, 60, 10, 30)
    assert address.key_headers == ((b"Authorization", b"Bearer k"), (b"x-api-key", b"k"))
    none = address_of("http://h", "p", timeouts=Timeouts(connect=0, keepalive=0, tls_handshake=0))
    assert (none.connect_timeout, none.header_timeout, none.tls_timeout, none.keepalive) == (None,) * 4
    assert none.key_headers == ()


def test_host_header_of_each_address():
    assert Address("127.0.0.1", 80, None, "m").authority == b"127.0.0.1:80"
    assert address_of("https://h.example", "m").authority == b"h.example"
    assert address_of("http://[::1]:99", "m").authority == b"[::1]:99"


def test_what_is_the_clients_own_stays_here():
    kept = [(b"Content-Type", b"application/json"), (b"X-Custom", b"1"), (b"User-Agent", b"x")]
    secret = [(b"Authorization", b"a"), (b"X-API-Key", b"b"), (b"Cookie", b"c"), (b"Connection", b"x"), (b"Host", b"h")]
    place = [(b"Origin", b"o"), (b"X-Forwarded-For", b"1"), (b"Forwarded", b"2"), (b"Sec-Fetch-Site", b"s")]
    assert forwardable_to_peer([*secret, *place, *kept]) == kept
