"""Models that a configuration's ``cmd`` serves: starting, being ready, failing to start, dying."""

from __future__ import annotations

import os
import socket
import statistics
import time
from pathlib import Path

import psutil
import pytest
import trio
from configured_harness import KILLED, PLAIN, SLEEP, WINDOWS, Fleets, Settings, World, ask, script
from waiting import PATIENCE, SOON

from appliance.errors import ModelFailedToStart, ModelUnloaded, UpstreamFailed
from appliance.fleet import run
from appliance.platform.ports import free_port


async def test_any_server_serves_and_later_requests_find_it(fleets: Fleets) -> None:
    async with fleets.open({"m": {"cmd": fleets.command("m", "${PORT}")}}, startPort=free_port()) as world:
        async with world.lease("m") as address:
            assert address.key is None
            assert await ask(address) == b"hello"
        pid = world.status("m").pid
        async with world.lease("m") as address:
            assert await ask(address) == b"hello"
        assert world.status("m").pid == pid == world.event("m", "begun").pid


async def test_llama_server_is_one_of_them(
    fleets: Fleets, fake_llama_server: tuple[str, ...], fake_model: Path
) -> None:
    """It is started as the user says, without a key, and takes SIGTERM for its end."""
    cmd = " ".join([*fake_llama_server, "-m", str(fake_model), "--port", "${PORT}", "--load-delay", "0.1"])
    async with fleets.open({"m": {"cmd": cmd}}, startPort=free_port()) as world, world.lease("m") as address:
        answer = await ask(address, "/v1/chat/completions", b'{"messages":[{"role":"user","content":"hi"}]}')
        assert b'"chat.completion"' in answer
        assert "cmd_child_to_router" not in world.log("m")


async def test_the_environment_is_the_programs_with_the_models_later_settings_winning(
    fleets: Fleets, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"LLAMA_ARG_CTX_SIZE": "7", "LLAMA_API_KEY": "k", "with.dot": "a b", "TWICE": "outer"}.items():
        monkeypatch.setenv(name, value)
    env = ["TWICE=inner", "TWICE=last=one", "MINUS-SIGN=2", "EMPTY=", "ALONE", "=nameless"]
    async with fleets.open({"m": fleets.server("m", {"env": env})}) as world, world.lease("m") as address:
        lines = (await ask(address, "/env", b"", "GET")).decode().split("\0")
    found = dict(line.split("=", 1) for line in lines)
    assert found["LLAMA_ARG_CTX_SIZE"] == "7"
    assert found["LLAMA_API_KEY"] == "k"
    assert found["WITH.DOT" if WINDOWS else "with.dot"] == "a b", (
        "shells drop what they could not say; a server gets it all the same"
    )
    assert found["TWICE"] == "last=one"
    assert found["MINUS-SIGN"] == "2"
    assert found["EMPTY"] == ""
    assert "ALONE" not in found
    assert found["PATH"] == os.environ["PATH"]


async def test_a_path_of_the_model_does_not_hide_the_program(fleets: Fleets, tmp_path: Path) -> None:
    """The program is looked for where this one would find it, whatever PATH it then gets."""
    path = f"PATH={tmp_path / 'missing'}"
    model = fleets.server("m", {"env": [path]}, within='cmd /d /s /c "{}"' if WINDOWS else 'sh -c "exec {}"')
    async with fleets.open({"m": model}) as world, world.lease("m") as address:
        assert f"{path}\0".encode() in await ask(address, "/env", b"", "GET") + b"\0"


async def test_a_program_on_the_models_own_path_is_found(fleets: Fleets, tmp_path: Path) -> None:
    port = free_port()
    program = tmp_path / ("only-here.cmd" if WINDOWS else "only-here")
    command = fleets.command("m", port)
    program.write_text(f"@{command}\n" if WINDOWS else f"#!/bin/sh\nexec {command}\n")
    program.chmod(0o755)
    env = [f"PATH={tmp_path}{os.pathsep}{os.environ['PATH']}"]
    async with fleets.open({"m": {"cmd": "only-here", "proxy": f"http://127.0.0.1:{port}", "env": env}}) as world:
        await world.load("m")


@pytest.mark.parametrize(
    "check", ["/ready", "ready", "http://elsewhere:1/ready", "/ready?deep=1", "/re ädy"], ids=lambda check: check
)
async def test_the_check_and_requests_go_below_the_base_path(fleets: Fleets, check: str) -> None:
    path = "/re%20%C3%A4dy" if "ä" in check else "/ready"
    server = fleets.server("m", {"checkEndpoint": check}, base="/api/v2", check=path)
    server["proxy"] = f"{server['proxy']}/api/v2/"
    async with fleets.open({"m": server}) as world, world.lease("m") as address:
        assert await ask(address) == b"hello"


async def test_without_a_check_it_is_ready_when_it_runs(fleets: Fleets) -> None:
    async with fleets.open({"m": {"cmd": SLEEP, "proxy": "http://127.0.0.1:1", "checkEndpoint": "none"}}) as world:
        began = time.monotonic()
        await world.load("m")
        assert time.monotonic() - began < SOON
        assert world.state("m") == "loaded"
        with pytest.raises(UpstreamFailed, match="does not accept connections"):
            async with world.lease("m") as address:
                await ask(address)


@pytest.mark.parametrize("before", ["503", "hang", "closed"])
async def test_readiness_is_noticed_at_once(fleets: Fleets, before: str, record_property: object) -> None:
    """Within 10 ms of the instant from which the server answers 200, whatever it did before."""
    late: list[float] = []
    servers = {
        f"{before}{n}": fleets.server(f"{before}{n}", before=before, ready_after=0.05 + n * 0.0274) for n in range(6)
    }
    async with fleets.open(servers, groups={"all": {"swap": False, "members": list(servers)}}) as world:
        for name in servers:
            async with world.lease(name):
                now = time.monotonic()
            late.append(now - world.event(name, "ready").at)
            await world.fleet.unload(name)
    shown = [f"{value * 1000:.1f}" for value in (min(late), statistics.median(late), max(late))]
    print(f"\nready is noticed after {' / '.join(shown)} ms (least, median, most; before: {before})")
    assert min(late) > 0
    assert min(late) < (0.05 if WINDOWS else 0.02), "its clock has steps of 16 ms on Windows"
    assert max(late) < SOON, "a busy machine is no excuse for more"


async def test_a_server_that_swallows_checks_before_it_is_ready_is_asked_again(fleets: Fleets) -> None:
    server = fleets.server("m", before="swallow", ready_after=0.9)
    async with fleets.open({"m": server}) as world, world.lease("m"):
        assert time.monotonic() - world.event("m", "ready").at < SOON


async def test_a_check_that_takes_its_time_is_waited_for(fleets: Fleets) -> None:
    async with fleets.open({"m": fleets.server("m", slow=1.2)}) as world:
        began = time.monotonic()
        await world.load("m")
        assert 1.2 < time.monotonic() - began < SOON


async def test_what_is_never_ready_is_given_up_and_the_reason_told(fleets: Fleets) -> None:
    async with fleets.open(
        {"m": fleets.server("m", {"checkEndpoint": "/other"})}, {"m": {"health_check_timeout": 1.0}}
    ) as world:
        began = time.monotonic()
        with pytest.raises(ModelFailedToStart, match=r"not ready within 1 s \(GET /other .* status 404\)"):
            await world.load("m")
        assert time.monotonic() - began < SOON
        assert not psutil.pid_exists(world.event("m", "begun").pid)


async def test_a_server_that_ends_before_it_is_ready_is_reported_at_once(fleets: Fleets) -> None:
    server = fleets.server("m", before="closed", ready_after=60, exit_after=0, status=9, say="no such GPU")
    async with fleets.open({"m": server}) as world:
        began = time.monotonic()
        with pytest.raises(ModelFailedToStart) as failure:
            await world.load("m")
        assert time.monotonic() - began < SOON
        assert "exit status" in str(failure.value)
        assert "no such GPU" in failure.value.log_tail
        with pytest.raises(ModelFailedToStart) as failure:
            await world.load("m")
        assert failure.value.log_tail.count("no such GPU") == 1, "the lines of the last attempt are no news"
        assert world.status("m").state == "unloaded"
        assert "no such GPU" in str(world.status("m").error)


async def test_a_wrapper_that_leaves_its_server_behind_is_told_why_that_cannot_be(fleets: Fleets) -> None:
    """As ``docker run -d``: nothing would be left to be stopped. What it forked is ended, so that the port is free."""
    port = free_port()
    # long enough for the server to listen
    leaves = script("import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(0.3)")
    model = fleets.server("m", {"checkEndpoint": "/x"}, port=port, within=f"{leaves} {{}}")
    async with fleets.open({"m": model}) as world:
        with pytest.raises(ModelFailedToStart, match=r"exit status 0 before it was ready; its cmd must run as long"):
            await world.load("m")
        free_again = socket.create_server(("127.0.0.1", port))
        free_again.close()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"cmd": "no-such-program --port 5"}, "no such program in PATH"),
        ({"cmd": str(PLAIN)}, "cannot be executed: " if WINDOWS else "no such program in PATH, or it is not one"),
        ({"cmd": ""}, "its cmd is empty"),
        ({"cmd": "# only a comment"}, "its cmd is empty"),
        ({"cmd": f"{SLEEP} {'x' * 200_000}"}, f"cannot be executed: {'' if WINDOWS else 'Argument list too long'}"),
        ({"cmd": SLEEP, "env": ["A=\0"]}, "cannot be executed"),
        ({"cmd": f"cmd /d /s /c {PLAIN}.missing"}, "exit status ")
        if WINDOWS
        else ({"cmd": f"sh -c 'exec {PLAIN}.missing'"}, "exit status 127"),
    ],
    ids=["missing", "not executable", "empty", "comment", "too long", "zero byte", "inner"],
)
async def test_a_command_that_cannot_run_says_so(fleets: Fleets, settings: Settings, why: str) -> None:
    async with fleets.open({"m": {"proxy": "http://127.0.0.1:1", **settings}}) as world:
        for _ in range(2):  # the next request tries again, and hears the same
            with pytest.raises(ModelFailedToStart, match=why):
                await world.load("m")
        assert why.split(":")[0] in str(world.status("m").error)


async def test_a_port_of_another_program_is_an_error_before_anything_starts(
    fleets: Fleets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "PORT_RELEASE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        port = squatter.getsockname()[1]
        async with fleets.open({"m": fleets.server("m", port=port)}) as world:
            with pytest.raises(ModelFailedToStart, match=f"port {port} is taken by another program"):
                await world.load("m")
            assert world.events("m") == [], "its command never ran"


async def test_a_port_that_is_free_a_little_later_is_waited_for(fleets: Fleets) -> None:
    """As with a container, whose published port goes a moment after the client that ran it."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        async with fleets.open({"m": fleets.server("m", port=held.getsockname()[1])}) as world:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(world.load, "m")
                await world.until_state("m", "loading")
                assert world.status("m").pid is None
                held.close()
                released = time.monotonic()
            assert world.event("m", "begun").at - released < SOON


async def test_an_unload_ends_the_wait_for_a_port(fleets: Fleets) -> None:
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        async with fleets.open({"m": fleets.server("m", port=squatter.getsockname()[1])}) as world:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(unload_when_loading, world, "m")
                with pytest.raises(ModelUnloaded):
                    await world.load("m")
            assert world.events("m") == []


async def unload_when_loading(world: World, model: str) -> None:
    await world.until_state(model, "loading")
    began = time.monotonic()
    assert await world.fleet.unload(model)
    assert time.monotonic() - began < SOON


async def test_two_models_that_run_together_cannot_have_one_port(fleets: Fleets) -> None:
    port = free_port()
    servers = {"a": fleets.server("a", port=port), "b": fleets.server("b", port=port)}
    async with fleets.open(servers, groups={"g": {"swap": False, "members": ["a", "b"]}}) as world:
        await world.load("a")
        with pytest.raises(ModelFailedToStart, match=f"model 'a' runs at its port {port}"):
            await world.load("b")


async def test_a_command_may_stand_for_a_server_that_runs_already(fleets: Fleets) -> None:
    """What it calls is not what it listens on."""
    servers = {"real": fleets.server("real")}
    proxy = str(servers["real"]["proxy"])
    servers["stand-in"] = {"cmd": f"{SLEEP} wake {proxy}/wake", "proxy": proxy}
    async with fleets.open(servers, groups={"g": {"swap": False, "members": list(servers)}}) as world:
        await world.load("real")
        async with world.lease("stand-in") as address:
            assert await ask(address) == b"hello"


async def test_two_models_that_take_turns_may_have_one_port(fleets: Fleets) -> None:
    port = free_port()
    servers = {name: fleets.server(name, port=port, term=0.1) for name in ("a", "b")}
    async with fleets.open(servers) as world:
        for name, other in (("a", "b"), ("b", "a"), ("a", "b")):
            async with world.lease(name) as address:
                assert await ask(address) == b"hello"
                assert world.loaded() == {name}
            if world.events(other) and not WINDOWS:  # there it is killed, and tells nothing of its end
                assert world.event(other, "end").at <= world.event(name, "begun").at


async def test_a_server_that_dies_is_an_error_for_its_clients_and_runs_again_for_the_next(fleets: Fleets) -> None:
    async with fleets.open({"m": fleets.server("m")}) as world:
        async with world.lease("m") as address, world.lease("m"):
            with pytest.raises(UpstreamFailed, match="ended early"):
                await ask(address, "/die")
            await world.until_state("m", "unloaded")
        assert "it died: exit status 3" in str(world.status("m").error)
        assert world.status("m").exit_code == 3
        async with world.lease("m") as address:
            assert await ask(address) == b"hello"
        psutil.Process(world.event("m", "begun").pid).kill()
        await world.until_state("m", "unloaded")
        assert KILLED in str(world.status("m").error)
        await world.load("m")


async def test_a_command_has_nobody_to_ask(fleets: Fleets) -> None:
    """A program that reads its input gets the end of it at once, rather than waiting for ever."""
    reads = script("import subprocess, sys; sys.stdin.read(); subprocess.call(sys.argv[1:])")
    async with fleets.open({"m": fleets.server("m", within=f"{reads} {{}}")}) as world:
        with trio.fail_after(PATIENCE):
            await world.load("m")
