"""Try a package on a throw-away machine: install, serve, chat, restart, stop, remove, and look what is left.

    python3 packaging/smoke.py FILE [--commit ID]

Knows .deb, .rpm, .pkg, .exe, .msi and .tar.gz. All but the last need root, or an administrator's console: they install
the service of the machine. An archive is unpacked, and serves from where it lies. Ends with an error at the first step
that fails.
"""

from __future__ import annotations

import argparse
import json
import os
import plistlib
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

NAME = "llama-appliance"
URL = "http://127.0.0.1:8080"
PATIENCE = 300.0
"""Seconds for one step."""
APP = "/Applications/Llama Appliance.app"
WINDOWS = Path(os.environ.get("PROGRAMFILES", "C:/Program Files")) / "Llama Appliance"
WINDOWS_KEY = str(Path(os.environ.get("PROGRAMDATA", "C:/ProgramData")) / NAME / "key")
SERVICE_CHOICE = [{"choiceIdentifier": "service", "choiceAttribute": "selected", "attributeSetting": 1}]


@dataclass(frozen=True)
class Kind:
    """How packages of one kind are installed and removed.

    ``left``: folders and files that must be gone then. ``key``: the file with the key of the service.
    """

    install: tuple[str, ...]
    program: str
    remove: tuple[str, ...]
    left: tuple[str, ...]
    key: str = f"/etc/{NAME}/key.env"


LINUX = (f"/usr/lib/{NAME}", f"/usr/bin/{NAME}", f"/usr/lib/systemd/system/{NAME}.service")
KINDS = {
    ".deb": Kind(
        ("apt-get", "install", "--yes", "FILE"), f"/usr/bin/{NAME}", ("apt-get", "purge", "--yes", NAME),
        (*LINUX, f"/var/lib/{NAME}", f"/etc/default/{NAME}", f"/etc/{NAME}"),
    ),
    ".rpm": Kind(
        ("dnf", "install", "--assumeyes", "FILE"), f"/usr/bin/{NAME}", ("dnf", "remove", "--assumeyes", NAME), LINUX
    ),
    ".pkg": Kind(
        ("installer", "-pkg", "FILE", "-target", "/", "-applyChoiceChangesXML", "CHOICES"), f"/usr/local/bin/{NAME}",
        ("sh", f"{APP}/Contents/Resources/uninstall.sh", "--purge"),
        (APP, f"/usr/local/bin/{NAME}", "/Library/LaunchDaemons/io.llama-appliance.plist",
         f"/Library/Application Support/{NAME}"),
        f"/Library/Application Support/{NAME}/key",
    ),
    ".exe": Kind(
        ("FILE", "/S", "/ALLUSERS", "/SERVICE=1"), f"{WINDOWS / NAME}.exe",
        (f"{WINDOWS / 'uninstall.exe'}", "/S", "/PURGE=1"), (str(WINDOWS),), WINDOWS_KEY,
    ),
    ".msi": Kind(
        ("msiexec", "/i", "FILE", "/qn", "ALLUSERS=1", "SERVICE=1"), f"{WINDOWS / NAME}.exe",
        ("msiexec", "/x", "FILE", "/qn"), (str(WINDOWS),), WINDOWS_KEY,
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--commit", help="the commit that the program must say it was made from")
    args = parser.parse_args()
    file: Path = args.file.absolute()
    if not file.is_file():
        sys.exit(f"error: there is no {file}")
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # Windows keeps files of a process for a moment
        if file.name.endswith(".tar.gz"):
            try_archive(file, args.commit, Path(folder))
        elif file.suffix in KINDS:
            try_installed(file, KINDS[file.suffix], args.commit, Path(folder))
        else:
            sys.exit(f"error: {file.name} is of no kind that is known here: {', '.join(KINDS)}, .tar.gz")
    print(f"{file.name}: all steps passed")


def try_installed(file: Path, kind: Kind, commit: str | None, folder: Path) -> None:
    """Install the package with its service, use it, and remove it."""
    choices = folder / "choices.xml"
    choices.write_bytes(plistlib.dumps(SERVICE_CHOICE))
    words = {"FILE": str(file), "CHOICES": str(choices)}
    run("install", *(words.get(word, word) for word in kind.install))
    look(kind.program, commit)
    for verb in ("", "restart"):
        if verb:
            run(verb, kind.program, "service", verb)
        until("the service runs", lambda: status(kind.program) == "active")
        chat(URL, Path(kind.key).read_text("utf-8").strip().split("=", 1)[-1])
    run("stop", kind.program, "service", "stop")
    if status(kind.program) == "active" or answers(URL):
        sys.exit("error: the service runs on after its stop")
    run("start", kind.program, "service", "start")
    until("the service runs again", lambda: status(kind.program) == "active")
    run("remove", *(words.get(word, word) for word in kind.remove))
    if answers(URL):
        sys.exit(f"error: something still answers at {URL} after the removal")
    until(f"nothing is left of {', '.join(kind.left)}", lambda: not any(os.path.lexists(path) for path in kind.left))


def try_archive(file: Path, commit: str | None, folder: Path) -> None:
    """Unpack the archive and let the program serve from there."""
    with tarfile.open(file) as archive:
        archive.extractall(folder, filter="tar")
    [unpacked] = [path for path in folder.iterdir() if path.is_dir()]
    program = str(unpacked / (f"{NAME}.exe" if sys.platform == "win32" else NAME))
    look(program, commit)
    ready = folder / "ready.json"
    command = [
        program,
        "serve",
        "--port",
        "0",
        "--home",
        str(folder / "home"),
        "--ready-file",
        str(ready),
        "--no-stores",
    ]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        try:
            until("the program serves", lambda: ready.exists() or process.poll() is not None)
            if process.poll() is not None:
                sys.exit(f"error: the program ended with {process.returncode} before it served")
            chat(json.loads(ready.read_bytes())["url"])
        finally:
            process.terminate()


def look(program: str, commit: str | None) -> None:
    """The program says what it is, and that its engine and its model work."""
    facts = json.loads(run("version", program, "version", "--json"))
    if commit is not None and facts["commit"] != commit:
        sys.exit(f"error: the program is of commit {facts['commit']}, and should be of {commit}")
    run("selftest", program, "selftest")


def status(program: str) -> str:
    """Return the state of the service; its exit status says the same."""
    done = subprocess.run([program, "service", "status", "--json"], capture_output=True, text=True, check=False)
    return str(json.loads(done.stdout)["state"]) if done.stdout else done.stderr


def chat(url: str, key: str = "") -> None:
    """Ask the starter model for its name, which it knows. A server that has a key must refuse to be asked without."""
    body = {"model": "starter", "messages": [{"role": "user", "content": "What is your name?"}]}
    request = Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    if key:
        try:
            urlopen(request, timeout=PATIENCE).close()
            sys.exit("error: the service answers everybody, without its key")
        except HTTPError as refused:
            refused.close()
        request.add_header("Authorization", f"Bearer {key}")
    with urlopen(request, timeout=PATIENCE) as answer:
        said = str(json.load(answer)["choices"][0]["message"]["content"])
    print(f"==> chat: {said}", flush=True)
    if "appliance" not in said.lower():
        sys.exit(f"error: the starter model does not say its name but: {said}")


def answers(url: str) -> bool:
    try:
        with urlopen(f"{url}/health", timeout=5):
            return True
    except URLError:
        return False


def until(what: str, fact: Callable[[], bool]) -> None:
    """Wait until it is so; ends with an error if it does not become so."""
    deadline = time.monotonic() + PATIENCE
    while not fact():
        if time.monotonic() > deadline:
            sys.exit(f"error: not in {PATIENCE:.0f} s: {what}")
        time.sleep(0.2)


def run(what: str, *command: str) -> str:
    """Run one step and return its output; ends with an error if it fails."""
    print(f"==> {what}: {' '.join(command)}", flush=True)
    output = shown(command)
    if output is None:
        sys.exit(f"error: {what} failed")
    return output


def shown(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as cause:
        print(cause, file=sys.stderr)
        return None
    if done.returncode != 0:
        print(done.stdout + done.stderr, file=sys.stderr)
    return done.stdout if done.returncode == 0 else None


if __name__ == "__main__":
    main()
