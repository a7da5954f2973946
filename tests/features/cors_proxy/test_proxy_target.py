"""Addresses for ``/cors-proxy``: how they are read, and which of them are out of reach."""

from __future__ import annotations

import re
from ipaddress import ip_address

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from appliance.features.cors_proxy import rules


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://a.example", rules.ProxyTarget("http", "a.example", 80, "/")),
        ("https://A.Example:8443/x/y?q=1&r=a%20b", rules.ProxyTarget("https", "a.example", 8443, "/x/y?q=1&r=a%20b")),
        ("http://[2001:db8::1]:81/", rules.ProxyTarget("http", "2001:db8::1", 81, "/")),
        ("http://a.example/a b?c d#e", rules.ProxyTarget("http", "a.example", 80, "/a%20b?c%20d")),
        ("http://b\u00fccher.example/", rules.ProxyTarget("http", "xn--bcher-kva.example", 80, "/")),
        ("http://a.example?x", rules.ProxyTarget("http", "a.example", 80, "/?x")),
    ],
)
def test_addresses_are_read_as_browsers_read_them(url: str, target: rules.ProxyTarget):
    assert rules.parse_target(url) == target


@pytest.mark.parametrize(
    "url",
    [
        "", "a.example", "//a.example/", "ftp://a.example/", "file:///etc/passwd", "http://", "http://user@a.example/",
        "http://a.example:0/", "http://a.example:99999/", "http://a.example:x/", "http://[::1/",
        "http://a.example\r\nHost: b/", "http://a.example\\@b.example/", "http://a.example%00.b/", "http://a b/",
        "http://[fe80::1%eth0]/", "http://\ud800/", "http://a.example/" + "x" * 20_000,
    ],
)  # fmt: skip
def test_what_is_no_such_address_is_refused(url: str):
    with pytest.raises(rules.BadTarget):
        rules.parse_target(url)


@given(st.text() | st.text().map("http://".__add__) | st.text().map("https://a.example/".__add__))
@example("http://[")
@example("http://[::1]]")
@example("http://\u2100/")
def test_no_text_does_anything_else(url: str):
    try:
        target = rules.parse_target(url)
    except rules.BadTarget:
        return
    assert re.fullmatch(r"/[!-~]*", target.path)
    assert rules.parse_target(target.url) == target


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("/b", "https://a.example:443/b"),
        ("c?x=1", "https://a.example:443/dir/c?x=1"),
        ("//b.example/", "https://b.example:443/"),
        ("https://b.example:8443/y", "https://b.example:8443/y"),
    ],
)
def test_redirections_are_resolved(location: str, url: str):
    assert rules.redirected(rules.parse_target("https://a.example/dir/page"), location).url == url


@pytest.mark.parametrize(
    "location", ["http://a.example/", "ftp://x/", "file:///etc/passwd", "https://u:p@a/", "https://["]
)
def test_redirections_that_are_not_followed(location: str):
    with pytest.raises(rules.BadTarget):
        rules.redirected(rules.parse_target("https://a.example/"), location)


PRIVATE = (
    "127.0.0.1", "127.255.255.254", "0.0.0.0", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.0.1",
    "169.254.169.254", "100.64.0.1", "192.0.0.8", "198.18.0.1", "224.0.0.1", "239.255.255.250", "240.0.0.1",
    "255.255.255.255", "192.0.2.1", "::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:8.8.8.8",
    "::127.0.0.1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "ff02::1", "2002:7f00:1::",
    "2002:c0a8:101::1", "2001:db8::1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "fec0::1", "2001:0:7f00:1::1",
    "64:ff9b:1::1", "2001:20::1", "2001:2::1", "2001:1ff:ffff::1", "3fff:fff::1", "2002::1", "5f00::1",
)  # fmt: skip
PUBLIC = (
    "8.8.8.8", "1.1.1.1", "93.184.216.34", "172.32.0.1", "2606:4700::1111", "64:ff9b::808:808", "2002:808:808::1",
    "2001:200::1", "3ffe::1",
)  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_that_are_not_of_the_internet(address: str):
    assert not rules.is_public(address)
    assert not rules.Reach(()).allows("any.example", [address])
    assert not rules.Reach(()).allows("any.example", ["8.8.8.8", address])
    assert rules.Reach(("*",)).allows("any.example", [address])


@pytest.mark.parametrize("address", PUBLIC)
def test_addresses_of_the_internet(address: str):
    assert rules.is_public(address)
    assert rules.Reach(()).allows("any.example", [address])


@given(st.ip_addresses(v=4, network="10.0.0.0/8") | st.ip_addresses(v=4, network="127.0.0.0/8"))
def test_private_addresses_stay_private_in_every_disguise(address: object):
    number = int(ip_address(str(address)))
    disguises = (
        f"::ffff:{address}",
        f"::{address}",
        str(ip_address((0x2002 << 112) | (number << 80) | 1)),
        str(ip_address((0x64FF9B << 96) | number)),
    )
    for disguise in (str(address), *disguises):
        assert not rules.is_public(disguise), disguise


def test_what_is_allowed_by_name_and_by_address():
    reach = rules.Reach(("localhost", "*.lan", "192.168.1.0/24", "10.0.0.5", "fd00::/8"))
    assert reach.allows("localhost", ["127.0.0.1", "::1"])
    assert reach.allows("box.lan", ["192.168.7.7"])
    assert reach.allows("x.example", ["192.168.1.9", "8.8.8.8", "fd00::7"])
    assert reach.allows("10.0.0.5", ["10.0.0.5"])
    assert not reach.allows("lan", ["192.168.7.7"])
    assert not reach.allows("evil-box.lan.example", ["192.168.7.7"])
    assert not reach.allows("x.example", ["192.168.1.9", "192.168.2.9"])
    assert not reach.allows("127.0.0.1", ["127.0.0.1"])


@pytest.mark.parametrize(
    ("host", "addresses", "allowed"),
    [
        ("localhost", ["127.0.0.1", "::1"], True),
        ("127.8.9.10", ["127.8.9.10"], True),
        ("::1", ["::1"], True),
        ("localhost", ["127.0.0.1", "10.0.0.1"], False),
        ("rebind.example", ["127.0.0.1"], False),
        ("x.localhost", ["127.0.0.1"], False),
        ("127.1", ["127.0.0.1"], False),
        ("0.0.0.0", ["0.0.0.0"], False),
        ("10.0.0.1", ["10.0.0.1"], False),
        ("169.254.169.254", ["169.254.169.254"], False),
    ],
)
def test_this_machine_alone_and_by_its_own_names(host: str, addresses: list[str], allowed: bool):
    reach = rules.Reach((rules.LOOPBACK,))
    assert reach.allows(host, addresses) == allowed
    assert not reach.allows(host, addresses, led=True)
    assert reach.allows("any.example", ["8.8.8.8"], led=True)


@pytest.mark.parametrize("entry", ["", "http://localhost", "10.0.0.0/99", "a b", "localhost:8080"])
def test_entries_that_are_none_are_refused(entry: str):
    with pytest.raises(rules.BadTarget, match="not a name"):
        rules.Reach((entry,))
