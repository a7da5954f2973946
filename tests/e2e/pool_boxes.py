"""Boxes of a pool, each in a network namespace on one bridge: programs, links and processes that a test breaks."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import slow_lines
from homes import Home
from program import COMMAND, Server, http
from random_models import EXACT
from slow_lines import open_tap
from waiting import wait

NATS = COMMAND.with_name("nats-server")
PORT = 8080
ENGINE_WORDS = ("--", "--threads", "1", "--ctx-size", "2048", "--parallel", "2", *EXACT)
_numbers = itertools.count(os.getpid() % 97)


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stderr)


class Line(NamedTuple):
    """The lines between boxes. ``delay`` and ``jitter`` in seconds, one way; ``loss`` of 1."""

    delay: float
    jitter: float
    loss: float


class Bridge:
    """A network of this machine alone; its last address is the test's own."""

    def __init__(self, boxes: int, line: Line | None = None) -> None:
        self.mark = f"lap{os.getpid() % 100000}x{next(_numbers) % 100}"
        self.net = f"10.{77 + next(_numbers) % 100}.7"
        self.boxes = boxes
        self._line = line
        self._switch: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Bridge:
        ports = [open_tap(self.mark)] if self._line is not None else []
        if not ports:
            ip("link", "add", self.mark, "type", "bridge")
        ip("address", "add", f"{self.net}.254/24", "dev", self.mark)
        ip("link", "set", self.mark, "up")
        for number in range(1, self.boxes + 1):
            space, outside = self.space(number), self.outside(number)
            ip("netns", "add", space)
            if ports:
                ports.append(open_tap(outside))
                ip("link", "set", outside, "netns", space, "name", "eth0")
            else:
                ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", space)
                ip("link", "set", outside, "master", self.mark, "up")
            ip("-n", space, "address", "add", f"{self.address(number)}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
            ip("-n", space, "link", "set", "lo", "up")
        if self._line is not None:
            command = [sys.executable, slow_lines.__file__, *map(str, (*self._line, *ports))]
            self._switch = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=ports)
            for port in ports:
                os.close(port)
        return self

    def __exit__(self, *_: object) -> None:
        if self._switch is not None:
            self._switch.communicate(timeout=10)
        for number in range(1, self.boxes + 1):
            subprocess.run(["ip", "netns", "del", self.space(number)], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self.mark], capture_output=True, check=False)

    def space(self, number: int) -> str:
        return f"{self.mark}n{number}"

    def outside(self, number: int) -> str:
        return f"v{self.mark[3:]}b{number}"[:15]

    def address(self, number: int) -> str:
        return f"{self.net}.{number}"


class PoolBox:
    """One machine: a home, a network namespace, and the program that runs there."""

    def __init__(self, bridge: Bridge, number: int, folder: Path, words: Sequence[str]) -> None:
        self.name = f"b{number}"
        self.address = bridge.address(number)
        self.home = Home(folder / self.name)
        self.home.apart = True
        self.models = folder / self.name / "models"
        self.models.mkdir(parents=True)
        self.space = bridge.space(number)
        self._under = ("ip", "netns", "exec", self.space)
        self.nats: Path | None = None
        """Another nats-server than the installed one."""
        self._outside = bridge.outside(number)
        self._words = words
        self.server: Server

    def start(self) -> None:
        where = ("--listen", f"{self.address}:{PORT}", "--models-dir", str(self.models))
        mount = ("sh", "-c", f'mount --bind {self.nats} {NATS} && exec "$@"', "sh") if self.nats is not None else ()
        self.server = Server(
            ["serve", *where, "--allow-unauthenticated", *self._words],
            self.home.folder,
            self.home.env,
            under=(*self._under, *mount),  # `ip netns exec` has made a namespace of mounts as well
        ).wait_listening()

    def processes(self) -> list[psutil.Process]:
        """The program and all below it."""
        return [psutil.Process(self.server.process.pid), *self.server.children()]

    def bus(self) -> psutil.Process | None:
        """Its nats-server."""
        return next((each for each in self.server.children() if each.name().startswith("nats-server")), None)

    def kill(self) -> None:
        """SIGKILL of the program; its children must end by themselves."""
        self.server.process.kill()
        self.server.wait(10)

    def stop(self) -> None:
        with contextlib.suppress(AttributeError):
            self.server.__exit__(None, None, None)

    @contextlib.contextmanager
    def frozen(self) -> Generator[None]:
        """The machine sleeps while the block runs."""
        processes = self.processes()
        for each in processes:
            each.suspend()
        try:
            yield
        finally:
            for each in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.resume()

    def move(self) -> None:
        """Give the machine another address while its program does not run."""
        net, _, number = self.address.rpartition(".")
        before, self.address = self.address, f"{net}.{100 + int(number)}"
        ip("-n", self.space, "address", "del", f"{before}/24", "dev", "eth0")
        ip("-n", self.space, "address", "add", f"{self.address}/24", "dev", "eth0")

    @contextlib.contextmanager
    def cut_off(self) -> Generator[None]:
        """Its cable is out while the block runs."""
        ip("link", "set", self._outside, "down")
        try:
            yield
        finally:
            ip("link", "set", self._outside, "up")

    # ---- asking ------------------------------------------------------------------------------------------------------

    def pool(self) -> Any:
        return self.home.json("pool", "ls")

    def up(self) -> set[str]:
        """The boxes that this one believes to be there."""
        return {box["name"] for box in self.pool()["boxes"] if box["me"] or box["up"]}

    def engines_are_known(self) -> bool:
        """True once the program has tried every engine."""
        seats = [seat for build in self.home.json("engines", "ls")["builds"] for seat in build["seats"]]
        return all(seat["standing"] != "untried" for seat in seats)

    def chat(self, model: str, text: str, timeout: float = 60, **more: object) -> tuple[int, dict[str, str], Any]:
        """Status, headers and body of one whole answer."""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 8,
            "temperature": 0,
            **more,
        }
        found = http(self.server, "POST", "/v1/chat/completions", body, timeout=timeout)
        return found.status, dict(found.headers), found.json()


@contextlib.contextmanager
def boxes(count: int, folder: Path, line: Line | None = None) -> Generator[list[PoolBox]]:
    """Machines whose programs do not run yet."""
    with Bridge(count, line) as bridge:
        found = [PoolBox(bridge, number, folder, ENGINE_WORDS) for number in range(1, count + 1)]
        try:
            yield found
        finally:
            for box in found:
                box.stop()


def make_pool(found: Sequence[PoolBox]) -> float:
    """Create and join. Returns the seconds."""
    began = time.monotonic()
    code = found[0].home.json("pool", "create", "--name", found[0].name)["code"]
    for number, box in enumerate(found[1:]):
        if number:
            code = found[0].home.json("pool", "invite")["code"]
        box.home.good("pool", "join", code, "--name", box.name)
    return time.monotonic() - began


def wait_together(found: Sequence[PoolBox], within: float = 30) -> None:
    """Return once each of these boxes sees exactly these."""
    names = {box.name for box in found}
    wait(lambda: all(box.up() >= names for box in found), within=within)
