"""Runs a verb of ``llama-appliance`` and ends itself with SIGKILL right before its Nth change of a folder.

    killed_at.py N FOLDER [VERB AND OPTIONS]

Nothing of the program is altered: Python itself tells of every file that is opened for writing, renamed or removed
(`sys.addaudithook`). The changes that come about are listed in FOLDER's neighbour ``<FOLDER>.log``.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT
PATHS = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.symlink")
_inside = threading.local()


def changed_path(event: str, args: tuple[object, ...]) -> str | None:
    """The path that an audit event is about to change; None for anything else."""
    if event == "open" and isinstance(args[2], int) and args[2] & FLAGS:
        return os.fsdecode(args[0]) if isinstance(args[0], str | bytes) else None
    if event in PATHS:
        path = os.fsdecode(args[1] if event in ("os.rename", "os.symlink") else args[0])  # type: ignore[arg-type]
        by_descriptor = event in ("os.remove", "os.rmdir") and args[-1] != -1
        return f"<in a folder that goes>/{path}" if by_descriptor else path
    return None


def main() -> None:
    last, folder, argv = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    count = 0
    log = os.open(f"{folder}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)

    def watch(event: str, args: tuple[object, ...]) -> None:
        nonlocal count
        path = changed_path(event, args)
        if path is None or not (path.startswith((folder, "<"))) or path.endswith(".lock"):
            return
        count += 1
        os.write(log, f"{count} {event} {path}\n".encode())
        if count == last:
            os.kill(os.getpid(), signal.SIGKILL)

    from appliance.__main__ import start
    from appliance.cli.app import command_line
    from appliance.feature import verb_ground
    from appliance.features import FEATURES

    sys.argv[0] = os.environ.get("STARTED_AS", sys.argv[0])
    program = command_line(verb_ground(FEATURES)).main(args=argv, prog_name="llama-appliance", standalone_mode=False)
    sys.addaudithook(watch)
    sys.exit(program if isinstance(program, int) else start(program))


if __name__ == "__main__":
    main()
