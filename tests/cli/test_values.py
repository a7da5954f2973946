"""Values on the command line, good and bad."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.cli.options import ListenAddress, Size, api_keys
from appliance.core.settings import UnixSocket
from appliance.errors import UsageError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:8080", ("::1", 8080)),
        ("[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
        ("0.0.0.0:65535", ("0.0.0.0", 65535)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert ListenAddress().convert(text, None, None) == address


@pytest.mark.parametrize("text", ["", "8080", ":8080", "host", "host:", "host:x", "::1:80", "[::1]", "h:65536", "h :1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not an address such as"):
        ListenAddress().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("10k", 10240), ("1MiB", 1 << 20), ("2 GB", 2 << 30), ("3m", 3 << 20), ("7b", 7)]
)
def test_sizes(text: str, size: int) -> None:
    assert Size().convert(text, None, None) == size


@given(st.text(max_size=12))
def test_a_size_is_a_positive_number_or_a_complaint(text: str) -> None:
    try:
        size = Size().convert(text, None, None)
    except click.BadParameter:
        return
    assert size > 0


def test_keys_come_from_options_the_environment_and_a_file_that_has_some(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# the team's\nfrom-file\n\n  second  \none\n")
    keys = api_keys(["one,two", " three"], file, {"K": "four, five,"}, "K")
    assert keys == ("one", "two", "three", "four", "five", "from-file", "second")
    file.write_text("# nothing here\n")
    with pytest.raises(UsageError, match="contains no key"):
        api_keys([], file, {}, "K")
    with pytest.raises(UsageError, match="cannot be read"):
        api_keys([], tmp_path / "missing", {}, "K")
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not text"):
        api_keys([], file, {}, "K")


@pytest.mark.parametrize("key", ["sch\u00fcssel", "a\x00b", "tab\there"])
def test_a_key_must_fit_a_header(key: str) -> None:
    with pytest.raises(UsageError, match="printable ASCII"):
        api_keys([key], None, {}, "K")


def test_a_socket_in_a_file_is_an_address() -> None:
    assert ListenAddress().convert("unix:/run/llama.sock", None, None) == UnixSocket("/run/llama.sock")
    with pytest.raises(click.BadParameter, match="is not an address such as"):
        ListenAddress().convert("unix:", None, None)
