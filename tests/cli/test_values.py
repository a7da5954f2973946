"""Values on the command line, and facts as text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from gguf_files import write_model
from hypothesis import given
from hypothesis import strategies as st

from appliance.cli.options import ListenAddress, Size, api_keys
from appliance.cli.show import human_count, human_size, print_table
from appliance.core.settings import UnixSocket
from appliance.errors import UsageError
from appliance.platform.console import say


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


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (2_095_872, "2.1 MB"),
        (670_000, "670 kB"),
        (4_370_000_000, "4.4 GB"),
        (7 * 10**12, "7.0 TB"),
    ],
)
def test_sizes_as_text(size: int, text: str) -> None:
    assert human_size(size) == text


@pytest.mark.parametrize(
    ("count", "text"), [(7, "7"), (1000, "1k"), (110_000_000, "110M"), (7_240_000_000, "7.2B"), (8_030_000_000, "8B")]
)
def test_counts(count: int, text: str) -> None:
    assert human_count(count) == text


def test_a_table_in_a_pipe_is_plain_whole_and_takes_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    long = "organisation/" + "very-" * 60 + "long"
    print_table(("ID", "SIZE"), [(long, "1 B"), ("[bold]x[/bold]", "10 GB")], right=("SIZE",))
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["ID", "SIZE"]
    assert first == f"{long}    1 B"
    assert second.split() == ["[bold]x[/bold]", "10", "GB"]


def test_what_engines_and_folders_are_called_gives_a_terminal_no_orders(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("ID",), [("a\x1b]0;title\x07\x9b2J",)])
    say("no \x1b[2Jengine\r here")
    out, err = capsys.readouterr()
    assert out.splitlines()[1] == "a\ufffd]0;title\ufffd\ufffd2J"
    assert err == "no \ufffd[2Jengine here\n"


def test_names_pass_pipes_as_utf_8_whatever_the_language_of_the_machine(tmp_path: Path) -> None:
    """Windows' pipes have the code page of its language, in which most names cannot be written."""
    write_model(tmp_path / "größe-日本.gguf")
    language = {"PYTHONUTF8": "0"} if sys.platform == "win32" else {"LC_ALL": "C.UTF-8"}
    command = [sys.executable, "-m", "appliance", "ls", "--models-dir", str(tmp_path)]
    done = subprocess.run(command, env={**os.environ, **language}, capture_output=True, timeout=60, check=True)
    assert "größe-日本" in done.stdout.decode("utf-8")
