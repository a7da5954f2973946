"""Facts as text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gguf_files import write_model

from appliance.cli.show import human_count, human_size, print_table
from appliance.platform.console import say


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
def test_sizes(size: int, text: str) -> None:
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
