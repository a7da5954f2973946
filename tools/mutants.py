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
EXCHANGE = ("tests/core/test_exchange.py",)
PACE = ("tests/core/bodies/test_pace.py",)
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


def _core(file: str, *mutants: tuple[str, str, str]) -> list[Mutant]:
    """Mutants of a file in ``core``, whose room has its tests."""
    return _of(f"appliance/core/{file}", (f"tests/core/{file.partition('/')[0]}",), *mutants)


MUTANTS = [
    *_of(
        "appliance/http/bytes/connection.py",
        WIRE,
        (
            "a request that was not looked at makes way",
            "return self._receiver.waits and not self._has_news()",
            "return True",
        ),
        ("an answer that nobody reads keeps its place", "bool(self._unsent or self._unread", "bool(self._unread"),
    ),
    *_of(
        "appliance/core/bodies/pace.py",
        PACE,
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
            "return not limit or len(process.leases) + self.waiting(model) < limit",
            "return not limit or len(process.leases) + self.waiting(model) <= limit",
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
        ("a full client is given more", "self._io.pause()", "pass"),
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
            "self.connection.go_on_in_task(partial(self._fast_path.ending.go_on_in_task, self, failure))",
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
    *_core(
        "answers/continuation.py",
        ("an end that has been said is said again", "self._ending and not", "self._ending or not"),
        ("text that is none is kept", "and said:", "or said:"),
        (
            "a later response replaces the first",
            'or object_of(record.get("response"))',
            'and object_of(record.get("response"))',
        ),
    ),
    *_core(
        "answers/forms.py",
        ("a response that has ended goes on", 'part.get("type") in ENDS and isinstance(response, dict):', "False:"),
        ("a response forgets its id", '"id" not in self._response:', "True:"),
    ),
    *_core(
        "pool/lease.py",
        ("a holder stops with its term, without a margin", "put.sent + TERM - MARGIN", "put.sent + TERM"),
        ("a term counts from the acknowledgement", "put.sent + TERM - MARGIN", "now + TERM - MARGIN"),
        ("others wait for half a term", "self._unchanged_since < TERM:", "self._unchanged_since < TERM / 2:"),
        ("a new store is trusted at once", "if now >= self._store.settled_at else", "if True else"),
        ("a store is not asked again", "if value == put.founded and not ran_out", "if not ran_out"),
        ("a record's epoch is not noted", "self._fences.saw(self.model, record.epoch, record.holder)", "pass"),
        (
            "a term that ran out goes on",
            "self.epoch if self.held(now) and highest",
            "self.epoch if self.epoch and highest",
        ),
        ("a box obeys two holders", "self._known.get(model) == (epoch, holder)", "self.highest(model) == epoch"),
        ("a term is shorter than an election", "TERM = 15.0", "TERM = 6.0"),
        ("a holder that releases goes on", "self._until, self._certain = -math.inf, False", "self._certain = False"),
    ),
    *_core(
        "pool/members.py",
        ("a box does not hear that it is deaf", "or now - own.at > GAP", "or False"),
        ("the smaller part calls the others gone", " and 2 * sum(up.values()) >= len(up)", ""),
        ("silence before waking counts", "now - self._listens_since > GONE", "now >= self._listens_since"),
    ),
    *_core(
        "answers/ring.py",
        ("a reader at the end reads on", "at < len(self._blocks):", "True:"),
    ),
    *_core(
        "answers/splice.py",
        ("a block that is open is opened again", "and index", "or index"),
    ),
    *_core(
        "bodies/filters.py",
        ("a form's field is there twice", "not found:", "True:"),
        ("a line break stays in front of a boundary", 'before == b"\\r\\n"', "False"),
    ),
    *_core(
        "bodies/head.py",
        ("a form's stream is the other way round", 'in (b"true",', 'not in (b"true",'),
        ("every wrong type is the body's own", "not field:", "True:"),
    ),
    *_core(
        "bodies/http_message.py",
        ("what follows a chunk is always wrong", 'self._after_content and not b"\\r\\n".startswith(begun):', "True:"),
        ("trailers are wrong where they are right", "not _TRAILER.fullmatch(line):", "_TRAILER.fullmatch(line):"),
    ),
    *_core(
        "bodies/http_request.py",
        ("no version may be chunked", "not newer:", "True:"),
    ),
    *_core(
        "bodies/json_text.py",
        ("a path has any number of parts", "len(parts) > MAX_DEPTH or _UNENCODABLE.search(path):", "False:"),
    ),
    *_core(
        "bundles/keys.py",
        ("a key may have any length", "!= len(head)", "== len(head)"),
    ),
    *_core(
        "bundles/manifest.py",
        ("a manifest may have any form", "head.format != FORMAT:", "False:"),
        ("a link may lead up", '== "..":', '!= "..":'),
    ),
    *_core(
        "bundles/plan.py",
        ("a disk is too full for what is there", "standing.left and has", "standing.left or has"),
    ),
    *_core(
        "config/load.py",
        ("a configuration with mistakes is used", "failed else", "False else"),
    ),
    *_core(
        "config/macros.py",
        ("PORT means nothing in a model", "not in_model:", "in_model:"),
        ("what is null is filled in", "is None or is_null(node):", "is not None or is_null(node):"),
    ),
    *_core(
        "config/matrix_solver.py",
        ("groups do not matter to each other", "group[0] & relevant:", "False:"),
    ),
    *_core(
        "config/scalars.py",
        ("binary units are decimal", 'end.startswith("i") and not', 'end.startswith("i") or not'),
        ("a word may hold what no word holds", "or ord(char)", "and ord(char)"),
    ),
    *_core(
        "config/validate.py",
        ("no variable has a value", '"=" not in text.removeprefix("="):', "True:"),
        ("every command is the engine's", "model.argv and not", "model.argv or not"),
    ),
    *_core(
        "doctor/diagnose.py",
        ("a problem is none", "problems:", "False:"),
        ("a machine with devices has none", "devices:", "False:"),
    ),
    *_core(
        "doctor/engines.py",
        ("a card with a driver has none", "not card.driver", "card.driver"),
        ("everything is minutes ago", "seconds < 7200:", "True:"),
        ("what is open is closed", "not closed:", "False:"),
    ),
    *_core(
        "engines/listing.py",
        ("a list of devices is none", "not in output:", "in output:"),
    ),
    *_core(
        "engines/proofs.py",
        ("a faster build loses", "or new.nominal_seconds", "and new.nominal_seconds"),
        ("a failure is always the first", "not None and", "None and"),
    ),
    *_core(
        "engines/state.py",
        ("the builds that are wanted go", "in wanted:", "not in wanted:"),
    ),
    *_core(
        "engines/trials.py",
        ("every failure is a lack of memory", "NO_MEMORY.search(text)", "True"),
    ),
    *_core(
        "engines/workers.py",
        ("a worker with all it may have has too much", "> MAX_MEMORY:", ">= MAX_MEMORY:"),
        ("a worker that is full is kept", "refused and not fits(crew):", "False:"),
    ),
    *_core(
        "fit/budget.py",
        ("shared memory is a card's own", "0 and not gpu.integrated:", "0 and gpu.integrated:"),
    ),
    *_core(
        "fit/plan.py",
        ("an embedding has a cache", "asked.options.embedding or not", "asked.options.embedding and not"),
    ),
    *_core(
        "llama/older.py",
        ("a word is neither true nor false", "not in TRUE_WORDS", "in TRUE_WORDS"),
    ),
    *_core(
        "llama/preset_file.py",
        ("every key is a preset's own", "key in PRESET_ONLY:", "True:"),
        ("a file that is missing is read", "not opened:", "False:"),
    ),
    *_core(
        "llama/presets.py",
        ("an option that was given was not", 'is not None else ""', 'is None else ""'),
    ),
    *_core(
        "llama/schemas.py",
        ("a reference leads anywhere", '== "$ref"', '!= "$ref"'),
    ),
    *_core(
        "mcp/config.py",
        ("every environment is wrong", 'not name or "=" in name or "\\0" in name:', "True:"),
        ("something was always skipped", "if skipped:", "if True:"),
    ),
    *_core(
        "mcp/messages.py",
        ("a request is an answer", "isinstance(found.method, str):", "False:"),
    ),
    *_core(
        "mcp/serving.py",
        ("a tool is called by another header", "== NAME_HEADER:", "!= NAME_HEADER:"),
        ("a member is always missing", "name not in meta:", "True:"),
    ),
    *_core(
        "models/download.py",
        ("a tag that means any is one", "!= ANY_TAG", "== ANY_TAG"),
    ),
    *_core(
        "models/gguf_bytes.py",
        ("a key may come once at most, and never does", "in seen:", "not in seen:"),
    ),
    *_core(
        "models/swap_listing.py",
        ("no model is listed", "model.unlisted or model.disabled:", "True:"),
    ),
    *_core(
        "ollama/answering.py",
        ("a plain error is none", "found is None:", "found is not None:"),
        ("what was not given is told", "not None}", "None}"),
    ),
    *_core(
        "records/accounting.py",
        ("every error is JSON", 'not text.lstrip().startswith(b"{"):', "True:"),
    ),
    *_core(
        "runs/chat.py",
        ("the end of a stream is a record", "event.data.strip() == DONE:", "False:"),
    ),
    *_core(
        "runs/slash.py",
        ("every command is unknown", "word[2] not in known:", "False:"),
        ("one command too few", "> MAX_COMMANDS:", ">= MAX_COMMANDS:"),
    ),
    *_core(
        "runs/toolloop.py",
        ("every tool is the last", 'one.runner != "exit":', "True:"),
    ),
    *_core(
        "runs/turn.py",
        ("a call without a name is none", "or arguments.strip():", "and arguments.strip():"),
    ),
    *_core(
        "pool/nats.py",
        ("an end of a line that comes in two pieces", "max(len(self._buffer) - 1, 0) if", "len(self._buffer) if"),
        ("a message without its end is taken", 'if not self._buffer.startswith(b"\\r\\n", due.size):', "if False:"),
        ("a subject with white space", "if not SUBJECT.match(subject):", "if not subject:"),
    ),
    *_core(
        "pool/buckets.py",
        ("a message of a watch is missed", "place[1] == self._last + 1", "place[1] > self._last"),
        ("the last message of a watch is missed", "str(self._last)) != str(self._last)", "'') == 'x'"),
        ("another conflict is not known", "WRONG_REVISION = (10071, 10164)", "WRONG_REVISION = (10071,)"),
    ),
    *_of(
        "appliance/pool/bus_link.py",
        ("tests/pool/test_bus_keys.py",),
        ("pings of an idle client only", "if trio.current_time() >= ping_at:", "if not self._out:"),
    ),
    *_of(
        "appliance/pool/bus.py",
        ("tests/pool/test_bus_keys.py", "tests/pool/test_bus_servers.py"),
        ("a server that stops is left at once", "if link.leaving and not any(", "if link.leaving or any("),
        ("a request of a lost connection waits on", "if question.link is link:\n", "if question.link is None:\n"),
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
