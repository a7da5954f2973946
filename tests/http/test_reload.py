"""Another configuration while the program runs: which processes stay, and when the others are replaced."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from http_harness import CHAT, OpenServer, chat
from hypothesis import given, settings
from hypothesis import strategies as st
from reload_harness import File, load, pid, reload, wait_state
from waiting import until


async def test_what_has_not_changed_goes_on_whatever_comes_before_it(open_server: OpenServer, file: File) -> None:
    elsewhere = {"proxy": "http://localhost:${PORT}", "cmd": file.cmd("--alias", "${PORT}")}
    async with open_server(config=file.write({"m": (), "n": elsewhere})) as server:
        before = await load(server, "m", "n")
        file.write({"a": (), "m": (), "n": elsewhere, "b": ()})
        assert (await reload(server))["changed"] == []
        assert await load(server, "m", "n") == before
        await load(server, "a", "b")
        ports = {status.port for status in server.fleet.status()}
        assert len(ports) == 4
        assert (await reload(server))["changed"] == []


async def test_a_port_is_kept_that_the_proxy_does_not_name(
    open_server: OpenServer, file: File, free_port: Callable[[], int]
) -> None:
    """The server listens at a port of its own and uses ``${PORT}`` for something else."""
    own = free_port()
    model = {"proxy": f"http://127.0.0.1:{own}", "cmd": file.cmd().replace("--port", f"--port {own} --alias")}
    async with open_server(config=file.write({"m": model})) as server:
        before = await load(server, "m")
        file.write({"a": (), "m": model})
        assert (await reload(server))["changed"] == []
        assert await load(server, "m") == before


async def test_a_changed_model_is_replaced_when_its_stream_has_ended(open_server: OpenServer, file: File) -> None:
    async with open_server(config=file.write({"m": ("--token-delay", "0.03"), "n": ()})) as server:
        (before, other) = await load(server, "m", "n")
        async with server.begun(chat("m", stream=True, tokens=40)) as one, trio.open_nursery() as nursery:
            file.write({"m": ("--ctx-size", "777"), "n": ()})
            assert (await reload(server))["changed"] == ["m"]
            nursery.start_soon(load, server, "m")  # waits for the next process
            text = b""
            while piece := await one.data():
                text += piece
                assert pid(server, "m") == before
        assert text.count(b"data: ") >= 40
        assert text.rstrip().endswith(b"data: [DONE]")
        assert pid(server, "m") not in (before, None)
        assert "777" in server.fleet.known("m").argv
        assert pid(server, "n") == other


async def test_a_removed_model_stops_when_it_is_idle(open_server: OpenServer, file: File) -> None:
    async with open_server(config=file.write({"m": ("--token-delay", "0.03"), "n": ()})) as server:
        await load(server, "m", "n")
        async with server.begun(chat("m", stream=True, tokens=30)) as one:
            file.write({"x": ()})
            assert sorted((await reload(server))["changed"]) == ["m", "n"]  # type: ignore[call-overload]
            assert (await server.ask("POST", CHAT, chat("m"))).status == 404
            assert (await one.rest()).rstrip().endswith(b"data: [DONE]")
        await wait_state(server, "m", "unloaded", "unknown")
        await wait_state(server, "n", "unloaded", "unknown")


async def test_who_waits_for_a_model_gets_its_new_process_and_never_one_that_was_removed(
    open_server: OpenServer, file: File
) -> None:
    slow = ("--load-delay", "90")
    async with open_server(config=file.write({"m": slow, "gone": slow})) as server:
        answers: dict[str, int] = {}

        async def ask(model: str) -> None:
            answers[model] = (await server.ask("POST", CHAT, chat(model))).status

        async with trio.open_nursery() as nursery:
            for model in ("m", "gone"):
                nursery.start_soon(ask, model)
                await wait_state(server, model, "loading")
            file.write({"m": ()})
            await reload(server)
        assert answers["m"] == 200
        assert answers["gone"] >= 400
        await wait_state(server, "gone", "unloaded", "unknown")


async def test_an_unloaded_process_that_is_out_of_date_does_not_live_for_its_stream(
    open_server: OpenServer, file: File
) -> None:
    model = {"cmd": file.cmd("--token-delay", "0.05", "--tokens", "1000"), "unloadTimeout": 1}
    async with open_server(config=file.write({"m": model})) as server, server.begun(chat("m", stream=True)):
        file.write({"x": ()})
        await reload(server)
        await server.good("POST", "/models/unload", {"model": "m", "wait": True})
        assert server.state("m") in ("unloaded", "unknown")


configurations = st.dictionaries(st.sampled_from("abcde"), st.sampled_from(("1000", "2000")), min_size=1)


@pytest.mark.slow
async def test_unchanged_processes_live_through_any_series_of_configurations(
    open_server: OpenServer, file: File
) -> None:
    """There and back: after every reload exactly the processes of models that say the same are still those."""
    examples: list[list[dict[str, str]]] = []

    @settings(max_examples=12, database=None)
    @given(st.lists(configurations, min_size=2, max_size=3))
    def collect(series: list[dict[str, str]]) -> None:
        examples.append(series)

    collect()
    file.write({"z": ()})
    async with open_server(config=file.path) as server:
        now: dict[str, str] = {}
        for contexts in [configuration for series in examples for configuration in series][:25]:
            before = {model: pid(server, model) for model in now}
            file.write({model: ("--ctx-size", size) for model, size in contexts.items()})
            await reload(server)
            for model, size in contexts.items():
                if now.get(model) == size:
                    assert pid(server, model) == before[model]
            some = sorted(contexts)[:2]
            await load(server, *some)
            for model in some:
                if now.get(model) not in (None, contexts[model]):
                    assert pid(server, model) != before[model]
            now = {model: contexts[model] for model in (set(now) & set(contexts)) | set(some)}
            now = {model: size for model, size in now.items() if pid(server, model) is not None}


async def test_no_request_fails_because_the_configuration_changes(open_server: OpenServer, file: File) -> None:
    """Clients ask all the time, whole and streamed, while their models change, come first and last, and swap."""
    statuses: list[int] = []
    async with open_server(config=file.write({"a": (), "b": ()})) as server:

        async def ask(model: str, number: int) -> None:
            answer = await server.good("POST", CHAT, chat(model, stream=number % 2 == 0, token_delay=0.002))
            assert not answer.cut
            if number % 2 == 0:
                assert answer.events[-1] == "data: [DONE]"
            statuses.append(answer.status)

        async def keep_asking(model: str, done: trio.Event) -> None:
            number = 0
            while not done.is_set():
                await ask(model, number)
                number += 1

        done = trio.Event()
        async with trio.open_nursery() as nursery:
            for model in ("a", "b", "a"):
                nursery.start_soon(keep_asking, model, done)
            for n in range(25):
                others = {f"{'0' if n % 2 else 'z'}{k}": () for k in range(n % 3)}
                models = {"a": ("--ctx-size", str(1000 + n // 2 % 3)), "b": ("--parallel", str(1 + n % 2)), **others}
                file.write(models, swap=n % 5 == 4)
                await reload(server)
                await trio.sleep(0.07)
                await until(lambda least=n // 2: len(statuses) >= least)  # a busy machine loads more slowly than this
            done.set()
