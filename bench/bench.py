"""The program beside nginx and its peers: what relaying costs, how late, how much, in one run.

`python3 bootstrap.py bench` or `python3 bench/bench.py`. Numbers of different runs do not compare, since the machine
differs; ratios within one run do. Relays take turns, so that what else the machine does hits all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shlex
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from ends import Figures, compiled
from processes import Failed, cpu
from relays import NGINX, PROGRAM, Program, Relay, contestants
from rows import ROWS, Bench, Row

ROOT = Path(__file__).resolve().parent.parent
Samples = dict[str, dict[str, list[Figures]]]
DEFAULT = ("direct", NGINX, PROGRAM)


def program(options: argparse.Namespace) -> Program:
    if options.program:
        return Program(tuple(shlex.split(options.program)))
    python = Path(options.python) if options.python else ROOT / ".venv" / "bin" / "python"
    beside = python.parent / "llama-appliance"
    return Program((str(beside),) if beside.is_file() else (str(python), "-m", "appliance"))


def combined(samples: list[Figures]) -> Figures:
    """The least CPU, since other work of a machine only adds to it; the median of everything else."""
    names = samples[0]
    return {
        name: (min if name.startswith("cpu") else statistics.median)(sample[name] for sample in samples)
        for name in names
        if all(name in sample for sample in samples)
    }


def wait_quiet(relays: list[Relay], bench: Bench) -> None:
    """Until no relay does anything by itself any more, as some do after their start; for half a minute at most."""
    pids = [relay.pid for relay in relays if relay.pid]
    for _ in range(6):
        before = {pid: cpu(pid, bench.ends.engine) for pid in pids}
        time.sleep(5)
        if all(cpu(pid, bench.ends.engine) - before[pid] < 0.05 for pid in pids):
            return


def run(rows: list[Row], names: list[str], options: argparse.Namespace, folder: Path) -> tuple[Samples, list[str]]:
    ends = compiled(folder)
    peers = dict(peer.split("=", 1) for peer in options.peer)
    starts, left_out = contestants(ends, program(options), peers)
    samples: Samples = {row.name: {} for row in rows}
    with ExitStack() as stack:
        relays: list[Relay] = []
        for name in (*names, *peers):
            try:
                relays.append(stack.enter_context(starts[name]()))
            except (Failed, OSError) as cause:
                left_out.append(f"{name}: {cause}")
            except KeyError:
                left_out.append(f"{name}: unknown or not installed")
        bench = Bench(ends, options.seconds)
        wait_quiet(relays, bench)
        for number in range(options.rounds):
            for row in rows:
                for relay in relays:
                    began = time.monotonic()
                    try:
                        samples[row.name].setdefault(relay.name, []).append(row.measure(relay, bench))
                    except Failed as cause:
                        left_out.append(f"{row.name}, {relay.name}: {cause}")
                    print(
                        f"... round {number + 1}, {row.name}, {relay.name}: {time.monotonic() - began:.1f} s",
                        file=sys.stderr,
                    )
    return samples, left_out


def table(row: Row, found: dict[str, Figures]) -> list[str]:
    lines = [f"{row.name}: {row.what}", f"  {'relay':<30}" + "".join(f"{name:>12}" for name in row.figures)]
    for relay, figures in found.items():
        cells = [f"{figures[name]:>12.4g}" if name in figures else f"{'-':>12}" for name in row.figures]
        lines.append(f"  {relay:<30}" + "".join(cells))
    if NGINX in found and PROGRAM in found:
        ratios = [
            f"{found[PROGRAM][name] / found[NGINX][name]:>11.2f}x" if found[NGINX].get(name) else f"{'-':>12}"
            for name in row.figures
        ]
        lines.append(f"  {'  against nginx':<30}" + "".join(ratios))
    return [*lines, ""]


def machine() -> str:
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", help=f"comma-separated, of: {', '.join(row.name for row in ROWS)}")
    parser.add_argument("--relays", default=",".join(DEFAULT), help="comma-separated; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--python", help="the Python of another checkout's .venv, whose program is measured")
    parser.add_argument("--program", help="the command of the program, in place of the one beside that Python")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--json", metavar="FILE", help="write all samples there")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    wanted = options.rows.split(",") if options.rows else [row.name for row in ROWS]
    rows = [row for row in ROWS if row.name in wanted]
    with tempfile.TemporaryDirectory(prefix="llama-appliance-bench-") as folder:
        samples, left_out = run(rows, options.relays.split(","), options, Path(folder))
    print(machine())
    for row in rows:
        print("\n".join(table(row, {name: combined(found) for name, found in samples[row.name].items()})))
    for line in left_out:
        print(f"left out: {line}")
    if options.json:
        Path(options.json).write_text(json.dumps(samples, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
