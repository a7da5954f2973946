"""The container that ``--tools-runtime docker:<image>`` starts, and that ends with the program."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from appliance.core.tools.places import Container, Image
from appliance.core.tools.texts import CappedOutput
from appliance.core.tools.tool import ToolProblem
from appliance.platform.children import REAP_TIME, Child, Children, inherited_env
from appliance.platform.process import Command, Ending, before_end, ignore, into, open_process, run
from appliance.trio_parts import plain_nursery

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
            # The container's first process is a shell that reads our input: closing that ends it.
            command = Command(argv=argv, env=inherited_env(), stdin=None, ending=Ending(closed=END_TIME))
            said = CappedOutput(4096)
            container: Container | None = None
            child: Child | None = None
            try:
                async with open_process(self._children, command, into(said), rest=GRACE) as child:
                    container = await self._started(child, file)
                    if container is not None:
                        self._running = container
                        task_status.started(container)
                        await child.wait()
                        log.warning("the container of the tools, %s, has ended; the next use starts another", name)
            except OSError as error:
                raise ToolProblem(name, f"it cannot be started: {error}") from None
            finally:
                self._running = None
                if container is not None and child is not None and child.status != 0:
                    with trio.move_on_after(REMOVE_TIME + REAP_TIME, shield=True):
                        await self._remove(container)
        if container is None:
            why = said.text().strip()[-500:] or f"it did not start within {START_TIME:g} s"
            raise ToolProblem(name, f"failed to start the container: {why}")

    async def _started(self, child: Child, file: Path) -> Container | None:
        """Return the container as soon as its id is known; None when there will be none."""

        async def look() -> Container:
            while not (id := _content(file)):  # noqa: ASYNC110 - nothing tells of a file that another program writes
                await trio.sleep(LOOK_EVERY)
            return Container(self._image.engine, id)

        with trio.move_on_after(START_TIME):
            return await before_end(child, look)
        return None

    async def _remove(self, container: Container) -> None:
        """Remove a container whose program did not end in good order; ``--rm`` has removed all others."""
        command = Command(argv=(container.engine, "rm", "-f", container.id), env=inherited_env())
        await run(self._children, command, ignore, seconds=REMOVE_TIME)


@asynccontextmanager
async def open_container(children: Children, image: Image) -> AsyncGenerator[OwnContainer]:
    """Own a container for the length of the block; it is started at once. Raises ToolProblem."""
    async with plain_nursery() as nursery:
        container = OwnContainer(children, image, nursery)
        await container.running()
        yield container
        nursery.cancel_scope.cancel()


def _content(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""  # not there yet
