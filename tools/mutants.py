"""Breaks one line after the other, on purpose, and says whether the tests notice: a spot-check of what they prove.

    .venv/bin/python tools/mutants.py [WORD...]     only mutants with all these words in their names

Each mutant is a line of the program and what takes its place. It is made in a copy of the checkout, in which the tests
of that part must pass first; then one of them has to fail. The exit status is 1 if a mutant survives, or if its line is
not there any more: then give it another line, or another mutant.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 600
"""Seconds for the tests of one part; a mutant that hangs them is noticed, too."""

SCHEDULE = ("tests/core/scheduling/test_schedule.py", "tests/core/scheduling/test_schedule_squeeze.py")
FLEET = (
    "tests/owners/test_lease_cancellation.py",
    "tests/children/test_fleet.py",
    "tests/children/test_fleet_seats.py",
)
UPSTREAM = ("tests/upstream",)
STREAMS = ("tests/core/answers/test_ring.py", "tests/owners/test_stream_owner.py")
EXCHANGE = ("tests/core/test_exchange.py", "tests/http/test_relay.py")
FALLBACK = ("tests/http/test_fallback.py",)
FAST_PATH = ("tests/http/test_fast_path.py",)
RESUMABLE = ("tests/http/test_resumable.py",)
WIRE = ("tests/http/test_wire.py",)


class Mutant(NamedTuple):
    """``old`` stands exactly once in ``file``, and becomes ``new``."""

    name: str
    file: str
    old: str
    new: str
    tests: Sequence[str]


def _of(file: str, tests: Sequence[str], *mutants: tuple[str, str, str]) -> list[Mutant]:
    return [Mutant(name, file, old, new, tests) for name, old, new in mutants]


MUTANTS = [
    *_of(
        "appliance/http/bytes/connection.py",
        WIRE,
        (
            "a request that was not looked at makes way",
            "return self._receiver.waits and not self._has_news()",
            "return True",
        ),
        ("an answer that nobody reads keeps its place", "bool(self._unsent or self._owed", "bool(self._owed"),
    ),
    *_of(
        "appliance/core/bodies/pace.py",
        WIRE,
        (
            "much at once pays for drops",
            "max(0.0, self.behind + seconds - size / LEAST_RATE)",
            "self.behind + seconds - size",
        ),
    ),
    *_of(
        "appliance/http/way/gateway.py",
        WIRE,
        ("strangers take no turns", "async with self._turns:", "if True:"),
    ),
    *_of(
        "appliance/core/scheduling/waiting.py",
        SCHEDULE,
        ("nothing is ever overdue", "overdue = now >= self.overdue_at()", "overdue = False"),
        ("low priority goes first", "0 if overdue else -self", "0 if overdue else self"),
    ),
    *_of(
        "appliance/core/scheduling/schedule.py",
        SCHEDULE,
        ("a leased model may be stopped", "bool(self.leases) or now <", "now <"),
        ("min_loaded is ignored", "now < self.ready_at + self.terms.min_loaded", "False"),
        (
            "one lease too many",
            "if limit and len(process.leases) + self.waiting(model) >= limit:",
            "if limit and len(process.leases) + self.waiting(model) > limit:",
        ),
        ("one too many in the queue", "self.queued() >= self.limits.queue", "self.queued() > self.limits.queue"),
        (
            "a failed start refuses nobody",
            "return [*self._refuse(process.waiting, error), *self._serve_queue(now)]",
            "return self._serve_queue(now)",
        ),
        (
            "a draining model does not stop",
            "if process.state is ProcessState.DRAINING and not process.leases:",
            "if process.state is ProcessState.DRAINING and process.leases:",
        ),
        ("who is behind may evict who is ahead", "if any(other.model in going for other in ahead):", "if False:"),
        ("pinned models idle out", "ttl = math.inf if self.terms.pinned else self", "ttl = self"),
    ),
    *_of(
        "appliance/core/scheduling/policy.py",
        SCHEDULE,
        ("models in use are squeezed out", "fixed=occupant.fixed or occupant.held", "fixed=occupant.fixed"),
    ),
    *_of(
        "appliance/fleet/lease.py",
        FLEET,
        ("who waits and is cancelled keeps the ticket", "except BaseException as error:", "except Exception as error:"),
        ("the queue's timeout is ignored", "trio.move_on_after(lender.queue_timeout)", "trio.move_on_after(1e9)"),
    ),
    *_of(
        "appliance/fleet/owner.py",
        FLEET,
        (
            "unload does not wait",
            "if wait:\n            await self.wait_gone",
            "if not wait:\n            await self.wait_gone",
        ),
        ("what is condemned goes on", "run.condemn(why, crashed=crashed)", "pass"),
        (
            "models in use move to another seat",
            "if not self.is_ready(model_id) or self._schedule.leases(model_id) or self._schedule.waiting(model_id):",
            "if not self.is_ready(model_id):",
        ),
        ("leases outlive the stop timeout", "trio.move_on_after(run.stop_timeout)", "trio.move_on_after(1e9)"),
        ("the alarm is never earlier", "if deadline < self._alarm_at:", "if deadline > self._alarm_at:"),
    ),
    *_of(
        "appliance/upstream/client.py",
        UPSTREAM,
        ("half an answer leaves a good connection", "self._stays and self._body.complete and", "self._stays and"),
        ("a connection that closed is not made anew", "if found is None and used is not None:", "if False:"),
        ("an answer may have any length", "if len(body) > limit:", "if len(body) > limit << 20:"),
        ("an answer may begin at any time", "inf if limit is None else limit", "inf"),
    ),
    *_of(
        "appliance/streams/owner.py",
        STREAMS,
        (
            "a refusal costs the id its stream",
            "if entry.before is not None:\n                self._current[entry.generation.conversation] = entry.before",
            "if False:\n                pass",
        ),
        ("streams are kept for ever", "if entry.expires <= now:", "if entry.expires < 0:"),
        (
            "room is made by dropping what runs",
            "if entry.generation.end is not None:\n                self._drop(entry)",
            "if entry.generation.end is None:\n                self._drop(entry)",
        ),
        ("what is dropped goes on counting", "self.held -= generation.ring.held + OVERHEAD", "self.held -= OVERHEAD"),
    ),
    *_of(
        "appliance/core/answers/ring.py",
        STREAMS,
        ("the oldest byte is gone too early", "if offset < self.dropped:", "if offset <= self.dropped:"),
    ),
    *_of(
        "appliance/core/exchange.py",
        EXCHANGE,
        ("the server's wish to close is ignored", 'b"close" in header[1].lower()', 'b"closed" in header[1].lower()'),
        ("a record that is torn ends well", "self._records.torn:", "False:"),
        ("the engine's CORS headers go out", '_OF_ITS_SERVER, (b"access-control-",)', "_OF_ITS_SERVER"),
        ("a late refusal is a record like others", "if status >= 400 or", "if status >= 600 or"),
        ("a full client is given more", "self._io.pause()\n        return room", "pass\n        return room"),
        (
            "an exchange ends twice",
            "if self.state is ExchangeState.OVER:\n            return False",
            "if False:\n            return False",
        ),
        ("an engine is released twice", "if not released:", "if True:"),
        (
            "a torn answer's connection is used again",
            "self._io.release(reusable=False, failure=failure)",
            "self._io.release(reusable=True)",
        ),
        ("the end of the connection leaves it open", "self._complete(reusable=False)", "self._complete()"),
        ("a length is remembered", "headers[usual.length_at] = headers[usual.length_at][0], length[1]", "pass"),
        ("a request that was not read is not asked again", "if self._reused and not self._held:", "if False:"),
        (
            "a client that left while it was given something is forgotten",
            "if self.state is not ExchangeState.BODY:\n                    return False",
            "if False:\n                    return False",
        ),
    ),
    *_of(
        "appliance/core/exchange.py",
        FALLBACK,
        ("what has passed is not kept for the seam", "if self._trail is not None and content:", "if False:"),
    ),
    *_of(
        "appliance/http/way/fast_path.py",
        FAST_PATH,
        ("the fast path keeps its lease", "self._lease.give_back(GivenUp() if given_up else failure)", "pass"),
        ("a head is known for ever", "if self._rules != self._guard.adopted:", "if False:"),
        ("half a request is one", "len(data) - end != int(length[1])", "len(data) - end > int(length[1])"),
        ("two requests are one", "len(data) - end != int(length[1])", "len(data) - end < int(length[1])"),
        ("nobody can cancel", "self._exchange.cancel(why)", "pass"),
        (
            "an engine that is full waits for ever",
            "self.connection.when_drained(self._exchange.on_client_drained)",
            "pass",
        ),
        (
            "a failure needs no words",
            "self.connection.go_on(partial(self._fast_path.ending.go_on, self, failure))",
            "pass",
        ),
    ),
    *_of(
        "appliance/streams/generation.py",
        RESUMABLE,
        (
            "a first reader that falls behind never catches up",
            "self._when_drained(self._catch_up)\n        return False",
            "return False",
        ),
        ("what a first reader misses is skipped", "self._behind = True", "pass"),
    ),
]


def main(words: Sequence[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if all(word in mutant.name for word in words)]
    bad: list[str] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = copied(Path(folder) / "checkout")
        for tests in dict.fromkeys(tuple(mutant.tests) for mutant in chosen):
            status, seconds, said = run(copy, tests)
            print(
                f"{'passed' if status == 0 else 'FAILED'} in {seconds:5.1f} s, unchanged: {' '.join(tests)}", flush=True
            )
            if status != 0:
                sys.exit(f"these tests fail already:\n{said}")
        for mutant in chosen:
            fate = tried(copy, mutant)
            print(f"{fate}: {mutant.file}: {mutant.name}", flush=True)
            if not fate.startswith("killed"):
                bad.append(mutant.name)
    print(f"{len(chosen) - len(bad)} of {len(chosen)} killed" + "".join(f"\n  not: {name}" for name in bad))
    return 1 if bad else 0


def copied(folder: Path) -> Path:
    """The files of this checkout as they are now, under ``folder``."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def tried(copy: Path, mutant: Mutant) -> str:
    """What became of a mutant, in words that begin with "killed" if a test failed."""
    path = copy / mutant.file
    source = path.read_text("utf-8")
    if source.count(mutant.old) != 1:
        return f"NO SUCH LINE ({source.count(mutant.old)} of them)"
    try:
        path.write_text(source.replace(mutant.old, mutant.new), "utf-8")
        status, seconds, said = run(copy, mutant.tests)
    finally:
        path.write_text(source, "utf-8")
    if status == 1:
        first = next((line for line in said.splitlines() if line.startswith("FAILED ")), "")
        return f"killed in {seconds:5.1f} s by {first.removeprefix('FAILED ').partition(' - ')[0]}"
    return f"killed in {seconds:5.1f} s by the clock" if status is None else f"SURVIVED ({status}, {seconds:.1f} s)"


def run(copy: Path, tests: Sequence[str]) -> tuple[int | None, float, str]:
    """pytest's exit status (None: it took too long), seconds, and the end of what it said."""
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
    command += ["--hypothesis-profile", "unshrunk", *tests]
    env = {**os.environ, "PYTHONPATH": str(copy), "PYTHONPYCACHEPREFIX": str(copy.parent / "bytecode")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # thirty runs would compile everything thirty times
    try:
        done = subprocess.run(
            command, cwd=copy, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return None, time.monotonic() - began, ""
    return done.returncode, time.monotonic() - began, done.stdout[-3000:]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
