"""The unit's text."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.installed import ENVIRONMENT_FILES, KEY_FILE
from appliance.features.service.core.systemd import exec_line, system_unit, user_unit

ARGUMENT = st.text(st.characters(min_codepoint=32, exclude_characters="\x7f", exclude_categories=["Cs"]), min_size=1)


def as_systemd_reads(line: str) -> list[str]:
    """Undo the quoting in systemd's order: words with their quotes and backslashes, then %, then $ after the first."""
    words: list[str] = []
    word, quoted, begun, escaped = "", False, False, False
    for char in line:
        if escaped:
            word, escaped = word + char, False
        elif char == "\\":
            escaped = begun = True
        elif char == '"':
            quoted, begun = not quoted, True
        elif char == " " and not quoted:
            if begun:
                words.append(word)
            word, begun = "", False
        else:
            word, begun = word + char, True
    assert not quoted
    words = [each.replace("%%", "%") for each in [*words, *([word] if begun else [])]]
    return [words[0], *(each.replace("$$", "$") for each in words[1:])]


@given(st.lists(ARGUMENT, min_size=1, max_size=5))
def test_every_argument_arrives_as_it_is(command: list[str]) -> None:
    assert as_systemd_reads(exec_line(command)) == command


@pytest.mark.parametrize("word", ["", "a\nb", "a\0b", "\x7f", "\x1b[0m"])
def test_what_no_unit_can_hold_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="cannot stand in a systemd unit"):
        exec_line(["/bin/true", word])


def test_nothing_hides_graphics_cards_or_breaks_their_drivers() -> None:
    text = system_unit(["/opt/x/llama-appliance", "serve"])
    assert "PrivateDevices" not in text
    assert "MemoryDenyWriteExecute" not in text
    assert {line.partition("=")[2] for line in text.splitlines() if line.startswith("DeviceAllow=char-nvidia")}


def test_the_administrators_settings_come_after_the_key_that_was_made() -> None:
    """So a key that stands there takes the place of the other one, and a service without either has none."""
    found = [line for line in system_unit(["/x", "serve"]).splitlines() if line.startswith("EnvironmentFile=")]
    assert found == [f"EnvironmentFile=-{file}" for file in ENVIRONMENT_FILES]
    assert ENVIRONMENT_FILES[0] == KEY_FILE
    assert "EnvironmentFile" not in user_unit(["/x", "serve"])


@pytest.mark.needs("systemd-analyze")
@pytest.mark.parametrize("unit", [system_unit, user_unit])
def test_systemd_accepts_the_unit(unit: Callable[[list[str]], str], tmp_path: Path) -> None:
    file = tmp_path / "llama-appliance.service"
    file.write_text(unit(["/bin/sh", "a b", "100%", "$HOME", 'say "x"']), "utf-8")
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if file.name in line]
    assert complaints == []
