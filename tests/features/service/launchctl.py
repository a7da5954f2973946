"""A launchctl that really starts and ends the programs of plists; prints and fails as launchctl(1) of macOS 15 does.

LAUNCHCTL_STATE names the folder where it keeps the loaded jobs. It does not start a job again that has failed.
"""

from __future__ import annotations

import json
import os
import plistlib
import signal
import subprocess
import sys
import time
from pathlib import Path

STATE = Path(os.environ["LAUNCHCTL_STATE"])


def say(text: str, status: int) -> None:
    print(text, file=sys.stderr)
    sys.exit(status)


def state_of(label: str) -> Path:
    return STATE / f"{label}.json"


def keep(label: str, **facts: object) -> None:
    new = state_of(label).with_suffix(".new")
    new.write_text(json.dumps(facts))
    new.replace(state_of(label))


def watch(plist: str, runs: str) -> None:
    """The part of launchd that is the job's parent."""
    job = plistlib.loads(Path(plist).read_bytes())
    with Path(job["StandardErrorPath"]).open("ab") as log:
        process = subprocess.Popen(job["ProgramArguments"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    keep(job["Label"], plist=plist, pid=process.pid, runs=int(runs), watcher=os.getpid())
    status = process.wait()
    ended = (
        f"exit code = {status}" if status >= 0 else f"terminating signal = {signal.Signals(-status).name}: {-status}"
    )
    keep(job["Label"], plist=plist, ended=ended, runs=int(runs))


def begin(plist: str, label: str, runs: int) -> None:
    keep(label, plist=plist, runs=runs - 1)
    subprocess.Popen([sys.executable, "-I", "-S", __file__, "--watch", plist, str(runs)], start_new_session=True,
                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip


def main(words: list[str]) -> None:
    match words:
        case ["--watch", plist, runs]:
            watch(plist, runs)
        case ["bootstrap", _, plist]:
            label = plistlib.loads(Path(plist).read_bytes())["Label"]
            if state_of(label).exists():
                say("Bootstrap failed: 5: Input/output error", 5)
            begin(plist, label, 1)
        case ["print", target]:
            label = target.rpartition("/")[2]
            if not state_of(label).exists():
                say(f'Bad request.\nCould not find service "{label}" in domain for user gui: 501', 113)
            job = json.loads(state_of(label).read_text())
            lines = [f"path = {job['plist']}", f"state = {'running' if 'pid' in job else 'not running'}", ""]
            lines += ["arguments = {", "\tstate = active", "\tpid = 1", "}", f"runs = {job['runs']}"]
            lines += [f"pid = {job['pid']}"] if "pid" in job else []
            lines += [f"last {job['ended']}" if "ended" in job else "last exit code = (never exited)"]
            print(f"{target} = {{\n" + "\n".join(f"\t{line}" for line in lines) + "\n}")
        case ["kickstart", target]:
            label = target.rpartition("/")[2]
            job = json.loads(state_of(label).read_text())
            begin(job["plist"], label, job["runs"] + 1)
        case ["bootout", target]:
            job = json.loads(state_of(target.rpartition("/")[2]).read_text())
            if "pid" in job:
                os.kill(job["pid"], signal.SIGTERM)
                while Path(f"/proc/{job['watcher']}").exists():
                    time.sleep(0.02)
            state_of(target.rpartition("/")[2]).unlink()
        case ["enable", _]:
            pass
        case ["print-disabled", _]:
            print('\tdisabled services = {\n\t\t"com.example.other" => disabled\n\t}')
        case _:
            say(f"Unrecognized subcommand: {words}", 64)


main(sys.argv[1:])
