"""The start of the program when the user logs in: a desktop entry, or on Windows a value of the registry."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from appliance.features.desktop.rules import autostart
from appliance.platform.console import PROGRAM
from appliance.platform.home import users_home
from appliance.start import in_shell
from appliance.store.model_files import write_whole

if sys.platform == "win32":
    import winreg

    RUN = r"Software\Microsoft\Windows\CurrentVersion\Run"

    def starts_at_login() -> bool:
        try:
            with winreg.OpenKey(winreg.HKEY_CURRENT_USER, RUN) as key:
                winreg.QueryValueEx(key, PROGRAM)
        except FileNotFoundError:
            return False
        return True

    def start_at_login(command: Sequence[str] | None) -> None:
        """Start this command at login from now on, or with None nothing. Raises OSError."""
        with winreg.CreateKey(winreg.HKEY_CURRENT_USER, RUN) as key:
            if command is None:
                winreg.DeleteValue(key, PROGRAM)
            else:
                winreg.SetValueEx(key, PROGRAM, 0, winreg.REG_SZ, in_shell(command))

else:

    def starts_at_login() -> bool:
        return _entry().exists()

    def start_at_login(command: Sequence[str] | None) -> None:
        """Start this command at login from now on, or with None nothing. Raises OSError."""
        if command is None:
            _entry().unlink(missing_ok=True)
        else:
            write_whole(_entry(), autostart(command).encode())

    def _entry() -> Path:
        """Return the desktop entry that starts the program at login, which may not be there."""
        config = Path(os.environ.get("XDG_CONFIG_HOME") or users_home() / ".config")
        return config / "autostart" / f"{PROGRAM}.desktop"
