"""The program beside nginx, haproxy and its peers in one run: its cost, its lateness, its weight.

`python3 bootstrap.py bench`, or `python3 bench/bench.py` where the program is set up. docs/performance.md has the
method. Numbers of different runs do not compare, since the machine differs; ratios within one run do. Relays take
turns, so that other work of the machine hits all of them. Loopback only; everything that is started is ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from fnmatch import fnmatch
from pathlib import Path

from ends import compiled
from goals import Samples
from processes import Failed, used
from relays import DIRECT, HAPROXY, NGINX, PROGRAM, Contestant, Program, Relay, contestants, engine_alone
from report import DOCUMENT, Run
from rows import ALONE, DECISIONS, ROWS, SWAP, UNDER_LOAD, Bench, Row
from swaps import engines, swaps

ROOT = Path(__file__).resolve().parent.parent
QUIET_CPU = 0.05
"""Seconds of CPU in five that a relay at rest may use."""
HERE = Path(__file__).resolve().parent


class Measuring:
    """One run under way: its samples, and everything that was left out, with its reason."""

    def __init__(self, bench: Bench, found: dict[str, Contestant], main: list[str]) -> None:
        self.bench = bench
        self.contestants = found
        self.main = main
        """Those that go through every row that does not name its own."""
        self.samples: Samples = {}
        self.left_out: list[str] = []

    def attempt(self, row: Row, name: str, measure: Callable[[], dict[str, list[dict[str, float]]]]) -> None:
        """One measurement; if it does not work, the reason is noted, and the run goes on."""
        began = time.monotonic()
        try:
            for relay, samples in measure().items():
                self.samples.setdefault(row.name, {}).setdefault(relay, []).extend(samples)
        except (Failed, OSError) as cause:
            self.left_out.append(f"{row.name}, {name}: {cause}")
        print(f"... {row.name}, {name}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)

    def alone(self, rows: list[Row]) -> None:
        """Rows whose relays are started for them."""
        for row in rows:
            for contestant in [self.contestants[name] for name in self.names(row) if name in self.contestants]:
                if (measure := row.alone) and (contestant.has_models or not row.needs_models):
                    self.attempt(row, contestant.name, lambda m=measure, c=contestant: {c.name: [m(c, self.bench)]})

    def under_load(self, rows: list[Row], rounds: int) -> None:
        """Rows that relays go through in turn, all of which run meanwhile."""
        wanted = dict.fromkeys(name for row in rows for name in self.names(row))
        with ExitStack() as stack:
            relays: dict[str, Relay] = {}
            for name in wanted:
                try:
                    started = engine_alone(self.bench.ends) if name == DIRECT else self.start(name)
                    relays[name] = stack.enter_context(started)
                except (Failed, OSError) as cause:
                    self.left_out.append(f"{name}: {cause}")
            self.wait_quiet(list(relays.values()))
            for _ in range(rounds):
                for row in rows:
                    for relay in [relays[name] for name in self.names(row) if name in relays]:
                        if measure := row.under_load:
                            self.attempt(row, relay.name, lambda m=measure, r=relay: {r.name: [m(r, self.bench)]})

    def names(self, row: Row) -> tuple[str, ...]:
        return row.relays or tuple(self.main)

    def start(self, name: str) -> contextlib.AbstractContextManager[Relay]:
        if name not in self.contestants:
            raise Failed("not installed")
        return self.contestants[name].started(self.bench.ends)

    def wait_quiet(self, relays: list[Relay]) -> None:
        """Until no relay does anything by itself any more, as some do after their start; for half a minute at most."""
        pids = [relay.pid for relay in relays if relay.pid]
        for _ in range(6):
            before = {pid: used(pid, self.bench.ends.engine).cpu for pid in pids}
            time.sleep(5)
            if all(used(pid, self.bench.ends.engine).cpu - before[pid] < QUIET_CPU for pid in pids):
                return


def decided(python: Path) -> dict[str, list[dict[str, float]]]:
    """The cost of decisions in that Python's program. Failed where its parts were moved."""
    done = subprocess.run([python, HERE / "decisions.py"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(done.stderr.strip().rpartition("\n")[2])
    return {what: [figures] for what, figures in json.loads(done.stdout).items()}


def measured(options: argparse.Namespace, folder: Path) -> Run:
    program, python, peers = _program(options), Path(options.python), dict(options.peer)
    bench = Bench(compiled(folder), options.seconds, starts=3 if options.quick else 10)
    found = contestants(bench.ends, program, peers)
    main = [*options.relays.split(","), *peers]
    run = Measuring(bench, found, main)
    rows = _rows(options.rows)
    run.alone([row for row in ALONE if row in rows])
    if SWAP in rows:
        repeats = 3 if options.quick else 16
        for engine in engines(python, options.engine):
            run.attempt(SWAP, Path(engine.name).name, lambda e=engine: swaps(program, peers, e, repeats, folder))
    if DECISIONS in rows:
        run.attempt(DECISIONS, PROGRAM, lambda: decided(python))
    run.under_load([row for row in UNDER_LOAD if row in rows], options.rounds)
    words = [word for word in sys.argv[1:] if not word.startswith("--json") and word != str(options.json)]
    command = shlex.join(["bench", *words])
    return Run(_machine(python), _commit(python), command, run.samples, run.left_out)


def _program(options: argparse.Namespace) -> Program:
    if options.program:
        return Program(tuple(shlex.split(options.program)))
    beside = Path(options.python).parent / PROGRAM
    return Program((str(beside),) if beside.is_file() else (options.python, "-m", "appliance"))


def _rows(names: str | None) -> list[Row]:
    if names is None:
        return list(ROWS.values())
    found = [row for name in names.split(",") for row in ROWS.values() if fnmatch(row.name, name)]
    if not found:
        raise Failed(f"there is no row {names}; there are {', '.join(ROWS)}")
    return found


def _machine(python: Path) -> str:
    told = subprocess.run([python, ROOT / "packaging" / "python_build.py"], capture_output=True, text=True, check=False)
    models = [line for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines() if line.startswith("model name")]
    name = models[0].partition(": ")[2] if models else platform.machine()
    system = f"{platform.system()} {platform.release()}, load {os.getloadavg()[0]:.1f}"
    return f"{name}, {os.cpu_count()} cores, {system}; {told.stdout.strip() or 'an unknown Python'}"


def _commit(python: Path) -> str:
    """Return the commit of the checkout that the program runs from."""
    words = ["git", "-C", str(python.absolute().parent), "describe", "--always", "--dirty"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _peer(text: str) -> tuple[str, str]:
    name, sign, command = text.partition("=")
    if not sign:
        raise argparse.ArgumentTypeError(f"{text} is not NAME=COMMAND")
    return name, command


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", metavar="NAMES", help=f"comma-separated, such as 'json*', of: {', '.join(ROWS)}")
    main = ",".join((DIRECT, NGINX, HAPROXY, PROGRAM))
    parser.add_argument("--relays", default=main, metavar="NAMES", help="comma-separated; default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="one round of two seconds, three starts, three swaps")
    parser.add_argument("--rounds", type=int, help="default 3")
    parser.add_argument("--seconds", type=float, help="of each load; default 4")
    python = str(ROOT / ".venv" / "bin" / "python")
    parser.add_argument("--python", default=python, help="of the checkout whose program is measured")
    parser.add_argument("--program", metavar="COMMAND", help="of the program, in place of the one beside that Python")
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        type=_peer,
        metavar="NAME=COMMAND",
        help="another relay; {port}, {config} (llama-swap's schema), {engine} and {engine_port} (of one that runs) and "
        "{engine_program} are filled in; may be given several times",
    )
    parser.add_argument("--engine", help="llama-server for the swaps, or 'embedded'; default: both")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all samples there")
    parser.add_argument("--publish", action="store_true", help=f"write the figures into {DOCUMENT.relative_to(ROOT)}")
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.seconds = options.seconds or (2.0 if options.quick else 4.0)
    return options


def main() -> int:
    options = _options()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with tempfile.TemporaryDirectory(prefix="llama-appliance-bench-") as folder:
            run = measured(options, Path(folder))
    except Failed as cause:
        print(f"bench: {cause}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(run.text())
    if options.json:
        options.json.write_text(json.dumps(run.json(), indent=2), "utf-8")
    if options.publish:
        run.publish(DOCUMENT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
