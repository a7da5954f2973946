"""Child processes on Linux and macOS.

A *warden*, a few lines of /bin/sh in a session of its own, outlives this program by an instant: when its standard
input ends, because this program ended in whatever way, it kills the process group of every child that was registered
with it and not reported as gone. Each child registers itself before it becomes the engine: it starts as a shell whose
standard error is the warden's input, writes its own pid there, and only then executes the engine with both outputs on
one pipe. So no engine ever runs unregistered, whatever instant this program is killed at, and grandchildren go with
their group.

Why not PR_SET_PDEATHSIG: it fires when the forking *thread* ends, which under Trio is a worker thread that retires
after ten idle seconds; it needs fork without vfork; it knows no grandchildren; and macOS does not have it.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import signal
import subprocess
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import trio
from trio.abc import ReceiveStream, SendStream

from appliance.trio_parts import AGAIN, beside, lacking

# It ignores every signal that a terminal or a session may send to it, because it has to outlive the program. Its input
# is also the standard error of each child's shell, so any line that is not a sign and a number is skipped: a shell's
# complaint must not become a kill. The minus sign in front of the pid kills the whole group.
WARDEN = """
trap '' HUP INT QUIT TERM PIPE
live=' '
while read -r word pid rest; do
  case $pid in ''|*[!0-9]*) continue;; esac
  case $word in
    +) live="$live$pid ";;
    -) case $live in *" $pid "*) live="${live%% $pid *} ${live#* $pid }";; esac;;
  esac
done
for pid in $live; do kill -s KILL -- "-$pid" 2>/dev/null; done
"""

# Where memory ends, the kernel ends a process of its choice. It shall take a child, which can be started again, and
# not this program with all that it serves. The number is the largest, so that none is lowered, which takes rights.
VICTIM = "{ echo 1000 >/proc/$$/oom_score_adj; } 2>/dev/null"
CHILD = f'echo "+ $$" >&2; {VICTIM}; exec "$@" 2>&1'
CHILD_WITH_ERRORS = f'errors=$1; shift; echo "+ $$" >&2; {VICTIM}; exec "$@" 2>"$errors"'
"""As `CHILD`, but its standard error goes to the pipe that the first word names."""

SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Environment variables of any other name do not get through every shell (dash drops them): `env` sets them."""

REAP_TIME = 5.0
"""Seconds after SIGKILL within which the kernel must have ended a process (one stuck in a driver may take longer)."""

SHELL = ("/bin/sh", "-c")
"""The start of an argv whose last word is a command for the system's shell."""

SPARE = 6
"""Descriptors that are kept for the next warden: a pipe, what `subprocess` takes to start it, and its own number."""

WARDEN_TIME = 5.0
"""Seconds that a child's start waits for a warden that is being replaced."""

NO_WARDEN = (
    "no model or command is started until the process that would end them with this program runs again, for which the "
    "system has no room; raise its limit of processes or of memory"
)

GROUP_LOOK = 0.005
LOOKS_FOR_ZOMBIES = 10
"""Every so many looks at a process group, it is found out whether anything in it is alive; costs milliseconds."""

log = logging.getLogger(__name__)


class Child:
    """A running child in its own process group. ``output``: both outputs, but for ``errors`` where it has one."""

    def __init__(self, process: trio.Process, stdin: SendStream, output: ReceiveStream, warden: Warden) -> None:
        self._process = process
        self._warden = warden
        self._down = False
        self._empty = False
        self.pid: int = process.pid
        self.stdin = stdin
        self.output = output
        self.errors: ReceiveStream | None = None

    @property
    def status(self) -> int | None:
        """The exit status, as `wait` returns it; None while the child runs."""
        return self._process.returncode

    def printed(self, most: int) -> bytes:
        """Return output that is here and has not been read; b"" if there is none. Nothing waits."""
        try:
            return os.read(self.output.fileno(), most) if isinstance(self.output, trio.lowlevel.FdStream) else b""
        except OSError:
            return b""  # it has printed nothing more, or the pipe is closed

    async def wait(self) -> int:
        """Wait for its end, take the rest of its group down, return the exit status; minus a signal's number."""
        status = await self.wait_exit()
        self.take_down()
        return status

    async def wait_exit(self) -> int:
        """As `wait`, but the rest of the group lives on until `take_down`."""
        return await self._process.wait()

    async def wait_group(self) -> None:
        """Wait until nothing is left of the process group; the child itself has ended."""
        looks = 0
        while self._has_members(zombies=looks % LOOKS_FOR_ZOMBIES != LOOKS_FOR_ZOMBIES - 1):
            looks += 1
            await trio.sleep(GROUP_LOOK)

    def take_down(self) -> None:
        """End what is left of the process group. To be called once the child has ended; again does nothing."""
        if not self._down:
            self._down = True
            # While the group has a member, the kernel gives its number to no other process. Once it is empty it may, so
            # this is done once, right after the child's end. The kill comes before `forget`: in the other order the
            # program could die in between, and nothing would end the group.
            self._signal_group(signal.SIGKILL)
            self._warden.forget(self.pid)

    def terminate(self) -> None:
        """Ask the process group to end (SIGTERM)."""
        self._signal_group(signal.SIGTERM)

    def kill(self) -> None:
        """End the process group now (SIGKILL)."""
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: signal.Signals) -> None:
        if self._empty:
            return  # by now the number may belong to others
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # already gone (macOS says EPERM for a group of zombies)

    def _has_members(self, *, zombies: bool) -> bool:
        """The kernel counts zombies, too, which stay for ever where process 1 does not reap orphans (containers)."""
        if self._empty:
            return False
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            self._empty = True
            return False
        return zombies or _anyone_alive_in(self.pid)


def _anyone_alive_in(group: int) -> bool:
    import psutil  # seven milliseconds, which a server whose models end at once saves

    for pid in psutil.pids():
        try:
            if os.getpgid(pid) == group and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                return True
        except (OSError, psutil.Error):
            continue  # it ended while we looked
    return False


class Warden:
    """The sending end of the warden's standard input."""

    def __init__(self) -> None:
        self.fd = -1
        self._live: set[int] = set()
        self._spare: list[int] = []
        self._here = trio.Event()
        self._gone_at = trio.current_time()

    def remember(self, pid: int) -> None:
        """Note a child that has registered itself, so that it can be registered with a new warden."""
        self._live.add(pid)

    def forget(self, pid: int) -> None:
        """Tell the warden that this child and its group are gone."""
        self._live.discard(pid)
        self._write(f"- {pid}\n")

    async def keep(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Keep a warden running until cancelled; a new one, should somebody kill it, learns of every live child.

        Raises OSError, or RuntimeError, where the first one cannot be started. A later one is tried for until it can.
        """
        process = await self._start()
        task_status.started()
        try:
            while True:
                await self._stay(process)
                process, told = None, False
                while process is None:
                    try:
                        process = await self._start()
                    except (OSError, RuntimeError, MemoryError) as error:
                        if not (why := lacking(error)):
                            raise
                        if not told:
                            log.warning("%s (%s)", NO_WARDEN, why)
                        told = True
                        await trio.sleep(AGAIN)
                if told:
                    log.warning("models and commands are started again")
        finally:
            self._release_spare()

    async def wait_here(self) -> None:
        """Wait until there is a warden: without one, a child could outlive the program.

        Raises OSError where there is none `WARDEN_TIME` after the last one has gone.
        """
        with trio.move_on_at(self._gone_at + WARDEN_TIME):
            await self._here.wait()
        if self.fd < 0:
            raise OSError(errno.EAGAIN, NO_WARDEN)

    async def _start(self) -> trio.Process:
        self._release_spare()
        reading, writing = os.pipe()
        try:
            process = await trio.lowlevel.open_process(
                ["/bin/sh", "-c", WARDEN, "llama-appliance-warden"],
                env={},  # this program's own may hold the key of clients, and others may read it in /proc
                stdin=reading,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        self.fd = writing
        return process

    async def _stay(self, process: trio.Process) -> None:
        """Tell this warden of all children, and return when it has ended."""
        writing = self.fd
        try:
            for pid in self._live:
                self._write(f"+ {pid}\n")
            # All live children are registered first. No new one can start before this warden knows as much as the last
            # one.
            self._here.set()
            with suppress(OSError):
                while len(self._spare) < SPARE:
                    self._spare.append(os.dup(writing))
            await process.wait()
        finally:
            self._here, self._gone_at = trio.Event(), trio.current_time()
            os.close(writing)
            self.fd = -1
            if process.returncode is None:
                self._release_spare()  # they hold the warden's input open
                with trio.move_on_after(REAP_TIME, shield=True):
                    await process.wait()

    def _release_spare(self) -> None:
        while self._spare:
            os.close(self._spare.pop())

    def _write(self, line: str) -> None:
        try:
            os.write(self.fd, line.encode())
        except OSError:
            pass  # the warden is being replaced: `keep` tells the next one what is live


class Children:
    """Starts children. Owned by `open_children`; every child must be waited for by the task that spawned it."""

    def __init__(self, warden: Warden) -> None:
        self._warden = warden

    async def spawn(
        self, argv: Sequence[str], env: Mapping[str, str], *, cwd: str | None = None, own_errors: bool = False
    ) -> Child:
        """Start ``argv`` in a process group of its own, in ``cwd`` or else in this program's working directory.

        ``own_errors``: its standard error comes on a pipe of its own, `Child.errors`. Raises OSError when the process
        cannot be created. Whether ``argv[0]`` can be executed shows as exit status 126 or 127, as in the shell: check
        it beforehand. Raises ValueError for a zero byte in a word.
        """
        unspeakable = [f"{name}={value}" for name, value in env.items() if name and not SHELL_NAME.fullmatch(name)]
        if unspeakable:
            argv = ["/usr/bin/env", "--", *unspeakable, *argv]
        if not own_errors:
            return await self._start(CHILD, argv, env, cwd)
        reading, writing = os.pipe()
        try:
            # By name, since a portable shell knows no file descriptor beyond 9 by its number.
            words = [f"/dev/fd/{writing}", *argv]
            child = await self._start(CHILD_WITH_ERRORS, words, env, cwd, passed=(writing,))
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        child.errors = trio.lowlevel.FdStream(reading)
        return child

    async def _start(
        self, script: str, words: Sequence[str], env: Mapping[str, str], cwd: str | None, passed: Sequence[int] = ()
    ) -> Child:
        await self._warden.wait_here()
        # One of our own: the warden's may be closed while the process is made in a thread, and its number be another's.
        told = os.dup(self._warden.fd)
        try:
            process = await trio.lowlevel.open_process(
                ["/bin/sh", "-c", script, "llama-appliance-child", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=told,
                env=dict(env),
                cwd=cwd,
                process_group=0,
                pass_fds=passed,
            )
        except RuntimeError as error:  # of the thread in which Trio starts processes
            if not (why := lacking(error)):
                raise
            raise OSError(errno.EAGAIN, why) from None
        finally:
            os.close(told)
        assert process.stdin is not None
        assert process.stdout is not None
        self._warden.remember(process.pid)
        return Child(process, process.stdin, process.stdout, self._warden)


@asynccontextmanager
async def open_children() -> AsyncGenerator[Children]:
    """Own the warden for as long as children may run. They must be gone before the block is left."""
    warden = Warden()
    async with beside() as nursery:
        await nursery.start(warden.keep)
        yield Children(warden)
