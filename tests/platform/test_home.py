"""Home folders that the system does not know. That of the user is tried in a machine that boots (`test_packages`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from appliance.errors import UsageError
from appliance.platform.home import expanded, users_home

STRANGER = "~nobody-of-this-name"


def test_a_folder_of_an_unknown_user_is_refused_by_its_name() -> None:
    assert expanded("~/models") == users_home() / "models"
    assert expanded("models/~") == Path("models/~")
    if sys.platform != "win32":  # where another user's home is guessed
        with pytest.raises(UsageError, match=f"no home folder for {STRANGER}; write the path in full"):
            expanded(f"{STRANGER}/models")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows guesses the home of another user")
def test_a_verb_says_it_in_one_line() -> None:
    command = [sys.executable, "-m", "appliance", "ls", "--own", "--models-dir", f"{STRANGER}/models"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert f"no home folder for {STRANGER}" in done.stderr
