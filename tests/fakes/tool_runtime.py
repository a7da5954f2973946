"""Stands in for docker, podman and ssh, whichever it is called: runs commands in folders of this machine.

As with the real ones, what runs inside does not end because the program outside is killed: it is in a session of its
own, and all it notices is that its input ends. TOOL_RUNTIME_STATE is a folder with a folder for each container, and one
called ``ssh`` for the other machine. An image called ``missing`` cannot be had.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

STATE = Path(os.environ["TOOL_RUNTIME_STATE"])


def main() -> int:
    name, words = Path(sys.argv[0]).name, sys.argv[1:]
    if name == "ssh":
        while words[0].startswith("-"):
            words = words[2:] if words[0] == "-o" else words[1:]
        target, command = words  # a third word would be the user's own mistake
        if target != "somewhere":
            print(f"ssh: Could not resolve hostname {target}: Name or service not known", file=sys.stderr)
            return 255
        return inside(STATE / "ssh", ["sh", "-c", command])
    match words:
        case ["exec", "-i", id, *command]:
            if not (STATE / id).is_dir():
                print(f"Error response from daemon: No such container: {id}", file=sys.stderr)
                return 1
            return inside(STATE / id, command)
        case ["run", "--rm", "-i", "--cidfile", cidfile, image, *command]:
            return run(Path(cidfile), image, command)
        case ["rm", "-f", id]:
            shutil.rmtree(STATE / id, ignore_errors=True)
            return 0
        case _:
            print(f"unknown command: {words}", file=sys.stderr)
            return 125


def run(cidfile: Path, image: str, command: list[str]) -> int:
    if image == "missing":
        print(f"Unable to find image '{image}:latest' locally", file=sys.stderr)
        return 125
    id = f"c{os.getpid()}"
    (STATE / id).mkdir()
    cidfile.write_text(id, "utf-8")
    try:
        return inside(STATE / id, command)
    finally:
        shutil.rmtree(STATE / id, ignore_errors=True)


def inside(folder: Path, command: list[str]) -> int:
    """Run it in the folder, which is its home, too; standard input is handed on until it ends."""
    env = os.environ | {"HOME": str(folder), "INSIDE": folder.name}
    process = subprocess.Popen(command, cwd=folder, env=env, stdin=subprocess.PIPE, start_new_session=True)
    assert process.stdin is not None
    stdin = process.stdin

    def hand_on() -> None:
        while data := os.read(0, 65536):
            try:
                stdin.write(data)
                stdin.flush()
            except OSError:
                return
        try:
            stdin.close()
        except OSError:
            pass

    threading.Thread(target=hand_on, daemon=True).start()
    return process.wait()


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status if status >= 0 else 128 - status)
