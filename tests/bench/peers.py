"""The two ends of every measurement: the upstream that costs next to nothing, and the clients."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from processes import HOST, Failed

HERE = Path(__file__).resolve().parent
CHUNKS = 201
"""Records of one stream: 200 chunks and [DONE]."""
LOAD_TIMEOUT = 60.0
MODEL = "bench"
WRK_SCRIPT = """wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = [[%s]]
"""


class Peers(NamedTuple):
    """How to start the upstream (an executable that takes llama-server's flags) and the clients."""

    upstream: Path
    load: tuple[str, ...]
    wrk: str | None
    compiled: bool
    folder: Path


def prepare(folder: Path) -> Peers:
    """Compile the C programs into ``folder``, or wrap the Python ones where there is no compiler."""
    wrk = shutil.which("wrk")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler and sys.platform != "win32":
        for name in ("upstream", "load"):
            build = [compiler, "-O2", "-o", str(folder / name), str(HERE / f"{name}.c")]
            done = subprocess.run(build, capture_output=True, text=True, check=False)
            if done.returncode:
                raise Failed(f"{name}.c does not compile: {done.stderr.strip()}")
        return Peers(folder / "upstream", (str(folder / "load"),), wrk, True, folder)
    script = folder / "upstream"
    script.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{HERE / 'peer.py'}' upstream \"$@\"\n")
    script.chmod(0o755)
    return Peers(script, (sys.executable, str(HERE / "peer.py"), "load"), wrk, False, folder)


def body(*, stream: bool) -> bytes:
    request = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "stream": stream}
    return json.dumps(request, separators=(",", ":")).encode()


def _request(*, stream: bool) -> bytes:
    payload = body(stream=stream)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload


def run_streams(peers: Peers, port: int, connections: int, rounds: int) -> int:
    """``connections`` clients read ``rounds`` streams each; how many records arrived. Failed if one is missing."""
    counts = _run_load(peers, port, "stream", connections, rounds)
    expected = connections * rounds * CHUNKS
    if counts["errors"] or counts["records"] != expected:
        raise Failed(f"{counts['records']:.0f} of {expected} records arrived, {counts['errors']:.0f} answers broke off")
    return expected


def run_json(peers: Peers, port: int, connections: int, seconds: int) -> float:
    """Requests per second over ``connections`` kept-alive connections, by wrk where it is installed."""
    if peers.wrk is None:
        counts = _run_load(peers, port, "json", connections, seconds)
        if counts["errors"]:
            raise Failed(f"{counts['errors']:.0f} requests failed")
        return counts["answers"] / counts["seconds"]
    script = peers.folder / "request.lua"
    script.write_text(WRK_SCRIPT % body(stream=False).decode())
    url = f"http://{HOST}:{port}/v1/chat/completions"
    wrk = [peers.wrk, "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script), url]
    done = _finish(wrk)
    text = done.stdout
    if "Non-2xx" in text or "Socket errors" in text:
        raise Failed(next(line.strip() for line in text.splitlines() if "Non-2xx" in line or "errors" in line))
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith("Requests/sec:"))


def _run_load(peers: Peers, port: int, kind: str, connections: int, amount: int) -> dict[str, float]:
    file = peers.folder / f"{kind}.request"
    file.write_bytes(_request(stream=kind == "stream"))
    argv = [*peers.load, str(port), kind, str(connections), str(amount), str(file)]
    done = _finish(argv)
    counts: dict[str, float] = json.loads(done.stdout)
    return counts


def _finish(argv: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the clients to their end. Failed when they fail, or do not end."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=LOAD_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise Failed(f"the clients were not done after {LOAD_TIMEOUT:g} s") from None
    if done.returncode:
        raise Failed(done.stderr.strip() or f"the clients exited with status {done.returncode}")
    return done
