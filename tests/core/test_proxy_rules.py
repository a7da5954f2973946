"""Which proxy leads to a server, and which servers go without."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.proxies import goes_without, is_here, proxy_in, read_proxy

labels = st.lists(st.sampled_from(["a", "b", "example", "com"]), min_size=1, max_size=4)
numbers = st.integers(0x0A000000, 0x0A0000FF) | st.integers(0, 2**32 - 1)
ports = st.integers(1, 65535) | st.sampled_from([80, 443])
rules = st.lists(
    st.tuples(st.sampled_from(["name", "network"]), labels, numbers, st.integers(0, 32), st.none() | ports), max_size=4
)


@given(labels | numbers, ports, rules, st.data())
def test_the_rules_are_those_of_a_simple_model(
    host: list[str] | int, port: int, rules: list[tuple[str, list[str], int, int, int | None]], data: st.DataObject
) -> None:
    written: list[str] = []
    expected = False
    for kind, name, number, bits, only in rules:
        if kind == "name":
            text = data.draw(st.sampled_from(["", ".", "*."])) + ".".join(name)
            fits = not isinstance(host, int) and host[-len(name) :] == name
        else:
            text = f"{IPv4Address(number)}" + ("" if bits == 32 else f"/{bits}")
            fits = isinstance(host, int) and host >> (32 - bits) == number >> (32 - bits)
        text = text.upper() if data.draw(st.booleans()) else text
        written.append(text + ("" if only is None else f":{only}"))
        expected = expected or (fits and only in (None, port))
    said = data.draw(st.sampled_from([",", " ", ", ", ",,"])).join(written)
    shown = str(IPv4Address(host)) if isinstance(host, int) else ".".join(host) + data.draw(st.sampled_from(["", "."]))
    assert goes_without(shown, port, said) == expected
    assert goes_without(shown, port, f"{said},*")
    small, large = data.draw(st.permutations(["p1", "p2"]))
    environ = {"HTTPS_PROXY": large, "no_proxy": said} | ({"https_proxy": small} if data.draw(st.booleans()) else {})
    found = proxy_in(environ, "https", shown, port)
    direct = expected or is_here(shown)
    assert (None if found is None else found.host) == (None if direct else environ.get("https_proxy", large))
    assert proxy_in(environ, "http", shown, port) is None


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]", "0.0.0.0"]
)
def test_this_machine_is_never_asked_through_a_proxy(host: str) -> None:
    assert proxy_in({"all_proxy": "p", "https_proxy": "p", "HTTP_PROXY": "p"}, "https", host, 443) is None


@pytest.mark.parametrize(
    ("host", "rules", "without"),
    [
        ("fd00::7", "fd00::/8", True),
        ("fd00::7", "[fd00::7]:443", True),
        ("fd00::7", "[fd00::7]:80", False),
        ("::ffff:10.0.0.9", "10.0.0.0/8", True),
        ("192.168.4.5", "192.168.*", True),
        ("badexample.com", "example.com", False),
        ("example.com", ".example.com", True),
        ("anything", "*:443", True),
        ("anything", "*:80", False),
        ("x", ",.,", False),
    ],
)
def test_rules(host: str, rules: str, without: bool) -> None:
    assert goes_without(host, 443, rules) == without


@given(st.sampled_from(["http", "socks5", "socks5h"]), st.text(max_size=8), st.text(max_size=8))
def test_a_password_is_sent_as_meant_and_never_shown(kind: str, user: str, password: str) -> None:
    from urllib.parse import quote

    found = read_proxy(f"{kind}://{quote(user, safe='')}:{quote(password, safe='')}@box:81/")
    assert (found.user, found.password, found.host, found.port, str(found)) == (
        user,
        password,
        "box",
        81,
        f"{kind}://box:81",
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("https://u:pw@p:1", "name it as http://"),
        ("socks4://u:pw@p:1", "socks5://"),
        ("socks4a://p:1", "socks5h://"),
        ("http://:3128", "no host"),
        ("http://u:pw@p:x", "not an"),
    ],
)
def test_what_cannot_be_used_says_why(text: str, why: str) -> None:
    found = read_proxy(text)
    assert why in (found.error or "")
    assert "pw" not in f"{found}{found.error}"
