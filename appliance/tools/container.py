"""The container that ``--tools-runtime docker:<image>`` starts, and that ends with the program."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from appliance.core.tooling import ToolProblem
from appliance.core.tools.lines import CappedOutput
from appliance.core.tools.targets import Container, Image
from appliance.platform.children import REAP_TIME, Child, Children
from appliance.platform.env import inherited_env
from appliance.tools.processes import Command, run

START_TIME = 120.0
"""Seconds that a container may take to start, its image's download included."""
LOOK_EVERY = 0.05
END_TIME = 2.0
"""Seconds that a container gets to end once its shell's input is closed."""
REMOVE_TIME = 3.0
GRACE = 0.5
"""Seconds to wait for the last words of the containers' program."""

log = logging.getLogger(__name__)


class OwnContainer:
    """One container of an image, restarted if it dies. Made by `open_container`, which ends it."""

    def __init__(self, children: Children, image: Image, nursery: trio.Nursery) -> None:
        self._children = children
        self._image = image
        self._nursery = nursery
        self._starting = trio.Lock()
        self._running: Container | None = None

    async def running(self) -> Container:
        """Return the running container. Raises ToolProblem when it cannot be started."""
        async with self._starting:
            container = self._running
            if container is None:
                container = await self._nursery.start(self._run)
            return container

    async def _run(self, *, task_status: trio.TaskStatus[Container]) -> None:
        engine, name = self._image.engine, f"{self._image.engine}:{self._image.name}"
        if shutil.which(engine) is None:
            raise ToolProblem(name, f"there is no program '{engine}' on this machine; install it")
        with tempfile.TemporaryDirectory(prefix="llama-appliance-") as folder:
            file = Path(folder) / "cid"
            argv = [engine, "run", "--rm", "-i", "--cidfile", str(file), self._image.name, "sh"]
            try:
                child = await self._children.spawn(argv, inherited_env())
            except OSError as error:
                raise ToolProblem(name, f"it cannot be started: {error}") from None
            said = CappedOutput(4096)
            container: Container | None = None
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_keep, child, said)
                    container = await self._started(child, file)
                    if container is not None:
                        self._running = container
                        task_status.started(container)
                        await child.wait()
                        log.warning("the container of the tools, %s, has ended; the next use starts another", name)
                    nursery.cancel_scope.deadline = trio.current_time() + GRACE
            finally:
                self._running = None
                with trio.CancelScope(shield=True, deadline=trio.current_time() + END_TIME + REMOVE_TIME + REAP_TIME):
                    await self._end(child, container)
        if container is None:
            why = said.text().strip()[-500:] or f"it did not start within {START_TIME:g} s"
            raise ToolProblem(name, f"failed to start the container: {why}")

    async def _started(self, child: Child, file: Path) -> Container | None:
        """Return the container as soon as its id is known; None when there will be none."""
        found: list[Container] = []

        async def look() -> None:
            while not found:
                if id := _content(file):
                    found.append(Container(self._image.engine, id))
                    nursery.cancel_scope.cancel()
                await trio.sleep(LOOK_EVERY)

        with trio.move_on_after(START_TIME):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(look)
                await child.wait_exit()
                nursery.cancel_scope.cancel()
        return found[0] if found else None

    async def _end(self, child: Child, container: Container | None) -> None:
        """The container's first process is a shell that reads our input: closing that ends it, and ``--rm`` removes
        it.
        """
        with trio.move_on_after(END_TIME):
            await child.stdin.aclose()
            await child.wait()
            await child.output.aclose()
            return
        child.kill()
        await child.wait()
        await child.output.aclose()
        if container is not None:
            argv = (container.engine, "rm", "-f", container.id)
            await run(self._children, Command(argv=argv, env=inherited_env()), _ignore, seconds=REMOVE_TIME)


@asynccontextmanager
async def open_container(children: Children, image: Image) -> AsyncGenerator[OwnContainer]:
    """Own a container for the length of the block; it is started at once. Raises ToolProblem."""
    problem: ToolProblem | None = None
    async with trio.open_nursery() as nursery:
        container = OwnContainer(children, image, nursery)
        try:
            await container.running()
        except ToolProblem as error:
            problem = error
        else:
            yield container
        nursery.cancel_scope.cancel()
    if problem is not None:
        raise problem


async def _keep(child: Child, said: CappedOutput) -> None:
    try:
        while data := await child.output.receive_some(4096):
            said.feed(bytes(data))
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass


async def _ignore(data: bytes) -> bool:
    return True


def _content(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""  # not there yet
