"""A client's program and its settings file: found, written, started."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping
from difflib import unified_diff
from pathlib import Path

import trio
from msgspec import Struct

from appliance.errors import UsageError
from appliance.features.launch.core.clients import NO_KEY, Client, Variables, patch_of, paths
from appliance.features.launch.core.settings_text import NotEditable, edited
from appliance.platform.console import outer_environment
from appliance.platform.home import users_home
from appliance.store.model_files import write_whole

KEPT = ".before-llama-appliance"
"""The end of the name of a settings file as it was before the first edit."""


class SettingsEdit(Struct, frozen=True, kw_only=True):
    """A settings file and its new text. ``was`` is None if there is no file."""

    path: Path
    was: bytes | None
    new: bytes

    def difference(self) -> str:
        """Return the edit as a unified diff; empty if nothing changes."""
        old, new = ((text or b"").decode().splitlines() for text in (self.was, self.new))
        before = str(self.path) if self.was is not None else os.devnull
        return "\n".join(unified_diff(old, new, before, str(self.path), lineterm=""))

    def write(self) -> None:
        """Keep the file as it was before the first edit, and replace it. Raises OSError."""
        like = self.path.stat() if self.was is not None else None
        kept = self.path.with_name(self.path.name + KEPT)
        if self.was is not None and not kept.exists():
            write_whole(kept, self.was, like=like)
        write_whole(self.path, self.new, like=like)


def program_of(client: Client) -> str:
    """Return the path of the client's program. Raises UsageError with the command that installs it."""
    found = next(filter(None, map(shutil.which, client.programs or (client.name,))), None)
    if found is None:
        raise UsageError(f"{client.title} is not installed; this installs it: {client.install}")
    return found


def edit_of(client: Client, known: Mapping[str, str]) -> SettingsEdit | None:
    """Return what is to change in the client's settings; None if it needs none. Raises UsageError and OSError."""
    if not client.places:
        return None
    system = sys.platform if sys.platform in ("win32", "darwin") else "linux"
    usual = paths(client, system, str(users_home()), os.environ)
    path = Path(next(filter(os.path.lexists, usual), usual[-1])).resolve()  # a link stays, and its file is edited
    was = path.read_bytes() if path.exists() else None
    try:
        new = edited(client.form, (was or b"").decode(), patch_of(client, known))
    except (NotEditable, UnicodeDecodeError) as cause:
        raise UsageError(f"{path} cannot be edited, and stays as it is: {cause}") from None
    return SettingsEdit(path=path, was=was, new=new.encode())


def shell_line(argv: list[str], environment: Variables, key: str) -> str:
    """Return a start as a line for a shell, in which the variable KEY has the server's key."""
    words = [f"-u {name}" for name, value in environment.items() if value is None]
    for name, value in environment.items():
        if value is not None:
            words.append(f'{name}="$KEY"' if value == key != NO_KEY else f"{name}={shlex.quote(value)}")
    return " ".join(["env", *words, shlex.join(argv)])


async def become(argv: list[str], environment: Variables) -> int:
    """Go on as another program: this does not return. On Windows, which cannot do that, wait for its end."""
    given = {**outer_environment(), **environment}
    environ = {name: value for name, value in given.items() if value is not None}
    if sys.platform == "win32":
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the client's
        return (await trio.run_process(argv, stdin=None, check=False, env=environ)).returncode
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and a program would inherit that
    return os.execve(argv[0], argv, environ)
