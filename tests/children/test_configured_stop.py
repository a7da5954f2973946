"""Models that a configuration's ``cmd`` serves: how they are stopped, and what of them may be left over."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Generator

import pytest
import trio
from configured_harness import PYTHON, SLEEP, WINDOWS, Fleets, Settings, World, ask, script
from leftovers import is_alive
from waiting import SOON, until

from appliance.errors import ModelFailedToStart, ModelUnloaded, UpstreamFailed
from appliance.platform.ports import free_port

CONTAINER = '''
import os, signal, subprocess, sys, time
"""Stands for a container engine: ``run`` is a client of a server that belongs to somebody else, ``stop`` ends it."""
verb, note, *command = sys.argv[1:]
if verb == "run":
    server = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(note, "w") as file:
        file.write(str(server.pid))
    if os.fork() == 0:
        os.setsid()  # the engine, which outlives the client and clears away what has ended
    server.wait()
else:
    pid = int(open(note).read())
    os.kill(pid, signal.SIGTERM)
    try:
        while open(f"/proc/{pid}/stat").read().split()[2] != "Z":
            time.sleep(0.005)
    except (FileNotFoundError, ProcessLookupError):
        pass  # it was cleared away between two looks, or between opening and reading
    print("stopped the container", flush=True)
'''


sigterm = pytest.mark.skipif(WINDOWS, reason="Windows has no SIGTERM")
forks = pytest.mark.skipif(WINDOWS, reason="Windows has no fork")

BOTH = """
import subprocess, sys
end = sys.argv.index("and")
subprocess.Popen(sys.argv[1:end])
subprocess.call(sys.argv[end + 1:])
"""


def beside(fleets: Fleets) -> str:
    """A command that starts a server called inner, and then becomes the other one or waits for it."""
    inner = fleets.command("inner", free_port(), term="ignore")
    return f"{script(BOTH)} {inner} and {{}}" if WINDOWS else f'sh -c "{inner} & exec {{}}"'


async def unload_timed(world: World, model: str) -> float:
    began = time.monotonic()
    assert await world.fleet.unload(model)
    assert world.state(model) == "unloaded"
    return time.monotonic() - began


@sigterm
async def test_sigterm_is_enough_and_nobody_waits_longer_than_it_takes(fleets: Fleets) -> None:
    async with fleets.open({"m": fleets.server("m", term=0.2)}) as world:
        await world.load("m")
        assert 0.2 < await unload_timed(world, "m") < SOON
        assert world.event("m", "end")
        assert world.status("m").error is None


async def test_what_ignores_sigterm_is_killed_with_all_it_has_started(fleets: Fleets) -> None:
    server = fleets.server("m", term="ignore", within=beside(fleets))
    async with fleets.open({"m": server}, {"m": {"unload_timeout": 0.4}}) as world:
        await world.load("m")
        grandchild = (await world.until_event("inner", "listening")).pid
        assert (0 if WINDOWS else 0.4) < await unload_timed(world, "m") < SOON
        assert WINDOWS or world.event("m", "term"), "it was asked first"
        assert not is_alive(grandchild)
        assert not is_alive(world.event("m", "begun").pid)


@sigterm
async def test_a_server_may_end_after_its_wrapper(fleets: Fleets) -> None:
    """A shell dies of SIGTERM at once; the server that it ran still has what it has to do, and keeps its port."""
    async with fleets.open({"m": fleets.server("m", term=0.3, within='sh -c "{}; true"')}) as world:
        await world.load("m")
        assert world.event("m", "begun").pid != world.status("m").pid, "the shell executes it in its own place"
        assert 0.3 < await unload_timed(world, "m") < SOON
        assert world.event("m", "end").at - world.event("m", "term").at > 0.29


async def test_the_stop_command_gets_the_process_and_the_environment(fleets: Fleets) -> None:
    stop = "import os, sys; print(os.environ['WORD'], 'for', sys.argv[1], flush=True); sys.stdin.read(); "
    stop += "os.kill(int(sys.argv[1]), 2); open(os.environ['NOTE'], 'w')"
    note = fleets.folder / "note"
    server = fleets.server(
        "m", {"cmdStop": f"{script(stop)} ${{PID}}", "env": ["WORD=goodbye", f"NOTE={note}"]}, term="ignore"
    )
    async with fleets.open({"m": server}) as world:
        await world.load("m")
        pid = world.status("m").pid
        assert await unload_timed(world, "m") < SOON
        assert f"goodbye for {pid}" in world.log("m")
        assert note.exists()
        assert not any(event.what == "term" for event in world.events("m"))


async def test_a_stop_command_that_outlasts_the_process_is_let_finish(fleets: Fleets) -> None:
    """It may have to clear away what the next start would stumble over."""
    note = fleets.folder / "cleared"
    # the process is gone long before the command
    stop = "import os, sys, time; os.kill(int(sys.argv[1]), 15); time.sleep(0.3); open(sys.argv[2], 'w')"
    server = fleets.server("m", {"cmdStop": f"{script(stop)} ${{PID}} {note}"})
    async with fleets.open({"m": server}) as world:
        await world.load("m")
        assert 0.3 < await unload_timed(world, "m") < SOON
        assert note.exists()


@pytest.mark.parametrize(
    ("stop", "logged"),
    [
        (script("raise SystemExit(3)"), "cmdStop ended with exit status 3"),
        ("no-such-program ${PID}", "cmdStop cannot be run" if WINDOWS else "cmdStop ended with exit status 127"),
        ("# nothing but a comment", ""),
        ('""', "cmdStop cannot be run" if WINDOWS else "cmdStop ended with exit status 12"),
    ],
    ids=["fails", "missing", "no words", "an empty word"],
)
async def test_a_stop_command_that_does_not_work_is_replaced_by_sigterm(fleets: Fleets, stop: str, logged: str) -> None:
    async with fleets.open({"m": fleets.server("m", {"cmdStop": stop}, term=0)}) as world:
        await world.load("m")
        assert await unload_timed(world, "m") < SOON
        assert WINDOWS or world.event("m", "term")
        assert not is_alive(world.event("m", "begun").pid)
        assert logged in world.log("m")


@pytest.mark.parametrize("stop", [SLEEP, script("pass")], ids=["sleeps", "does nothing"])
async def test_a_stop_command_without_effect_ends_in_a_kill(fleets: Fleets, stop: str) -> None:
    server = fleets.server("m", {"cmdStop": stop})
    async with fleets.open({"m": server}, {"m": {"unload_timeout": 0.4}}) as world:
        await world.load("m")
        assert 0.4 < await unload_timed(world, "m") < SOON
        assert ("cmdStop has not ended in time" in world.log("m")) is (stop == SLEEP)
        assert not is_alive(world.event("m", "begun").pid)


@pytest.fixture
def container(fleets: Fleets) -> Generator[Settings]:
    """A model in a "container": its server is no descendant of the command, and in no process group of ours."""
    script, note, port = fleets.folder / "container.py", fleets.folder / "container.pid", free_port()
    script.write_text(CONTAINER, encoding="utf-8")
    engine = f"{sys.executable} -S -E {script}"
    yield {
        "cmd": f"{engine} run {note} {fleets.command('m', port, term=0.2)}",
        "cmdStop": f"{engine} stop {note}",
        "proxy": f"http://127.0.0.1:{port}",
    }
    if note.exists() and is_alive(int(note.read_text())):
        os.kill(int(note.read_text()), signal.SIGKILL)


@forks
async def test_a_container_is_stopped_by_its_command(fleets: Fleets, container: Settings) -> None:
    async with fleets.open({"m": container}) as world:
        for _ in range(2):
            async with world.lease("m") as address:
                assert await ask(address) == b"hello"
            assert 0.2 < await unload_timed(world, "m") < SOON
            assert "stopped the container" in world.log("m")
            assert not is_alive(world.event("m", "begun").pid)


@forks
async def test_a_container_in_use_is_stopped_by_its_command_when_its_time_is_over(
    fleets: Fleets, container: Settings
) -> None:
    """A killed client would leave the container behind."""
    async with fleets.open({"m": container}, {"m": {"unload_timeout": 0.5}}) as world, world.lease("m") as address:
        began = time.monotonic()
        assert await world.fleet.unload("m")
        assert 0.7 < time.monotonic() - began < 0.7 + SOON
        assert "stopped the container" in world.log("m")
        assert not is_alive(world.event("m", "begun").pid)
        with pytest.raises(UpstreamFailed):
            await ask(address)


async def test_a_stop_while_it_starts_is_polite_but_short(fleets: Fleets) -> None:
    note = fleets.folder / "stopped"
    stop = script("import os, sys; open(sys.argv[2], 'w'); os.kill(int(sys.argv[1]), 15)")
    server = fleets.server("m", {"cmdStop": f"{stop} ${{PID}} {note}"}, ready_after=60, term=0.1)
    refused: list[ModelUnloaded] = []

    async def wait_for_it(world: World) -> None:
        try:
            await world.load("m")
        except ModelUnloaded as error:
            refused.append(error)

    async with fleets.open({"m": server}) as world, trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_it, world)
        await world.until_event("m", "listening")
        assert (0 if WINDOWS else 0.1) < await unload_timed(world, "m") < SOON
        assert note.exists()
        assert WINDOWS or world.event("m", "end")
    assert refused


async def test_cancelling_the_fleet_kills_at_once_and_all(fleets: Fleets) -> None:
    began, pids = 0.0, list[int]()
    server = fleets.server("m", term="ignore", within=beside(fleets))
    with trio.CancelScope() as scope:
        async with fleets.open({"m": server}) as world:
            await world.load("m")
            pids += [(await world.until_event(name, "listening")).pid for name in ("inner", "m")]
            began = time.monotonic()
            scope.cancel()
            await trio.sleep_forever()
    assert time.monotonic() - began < SOON
    await until(lambda: not any(is_alive(pid) for pid in pids))


async def test_ttl_unloads_what_nobody_uses_and_never_what_somebody_does(fleets: Fleets) -> None:
    servers = {name: fleets.server(name) for name in ("used", "idle", "pinned", "for-ever")}
    servers["pinned"]["pinned"] = True
    ttl = {name: {"ttl": 0.3} for name in ("used", "idle", "pinned")}
    groups = {"all": {"swap": False, "members": list(servers)}}
    async with fleets.open(servers, ttl, groups=groups) as world:
        await world.load("for-ever", "pinned", "idle")
        ready_at = world.event("idle", "listening").at
        async with world.lease("used") as address:
            await world.until_state("idle", "unloaded")
            assert 0.3 < time.monotonic() - ready_at < SOON, "also where no request ever came"
            await trio.sleep(0.4)  # for longer than the ttl
            assert await ask(address) == b"hello"
            assert world.loaded() == {"for-ever", "pinned", "used"}
            released = time.monotonic()
        await world.until_state("used", "unloaded")
        assert 0.3 < time.monotonic() - released < SOON, "counted from the last use"
        await trio.sleep(0.1)
        assert world.loaded() == {"for-ever", "pinned"}


ZOMBIE = """
import os, sys, time
if os.fork() == 0:
    if os.fork() == 0:
        os._exit(0)  # a zombie in the group for as long as its parent, in another group now, takes no notice
    os.setsid()
    os.dup2(os.open("/dev/null", os.O_RDWR), 1)
    os.dup2(1, 2)
    with open(sys.argv[1], "w") as file:
        file.write(str(os.getpid()))
    time.sleep(20)  # longer than the test
    os._exit(0)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.001)
os.execvp(sys.argv[2], sys.argv[2:])
"""


@forks
async def test_a_zombie_in_the_group_is_nothing_to_wait_for(fleets: Fleets) -> None:
    """Where process 1 reaps no orphans, what a wrapper leaves behind stays in the group for ever."""
    script, note = fleets.folder / "zombie.py", fleets.folder / "zombie.pid"
    script.write_text(ZOMBIE, encoding="utf-8")
    async with fleets.open({"m": fleets.server("m", within=f"{PYTHON} {script} {note} {{}}")}) as world:
        await world.load("m")
        try:
            assert await unload_timed(world, "m") < SOON
            assert is_alive(int(note.read_text())), "or there was no zombie"
        finally:
            os.kill(int(note.read_text()), signal.SIGKILL)


@sigterm
async def test_a_server_that_gets_ready_while_it_is_given_up_is_given_to_nobody(fleets: Fleets) -> None:
    server = fleets.server("m", ready_after=1.3, term=1.2)
    async with fleets.open({"m": server}, {"m": {"health_check_timeout": 1.0}}) as world:
        with pytest.raises(ModelFailedToStart, match=r"not ready within 1 s \(GET /health .* status 503\)"):
            await world.load("m")
        assert world.event("m", "end").at > world.event("m", "ready").at, "or it was not put to the test"
