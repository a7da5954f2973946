"""Another configuration while the program runs: which processes stay, what counts at once, and what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import h11
import pytest
import trio
from http_harness import CHAT, UPGRADE, Appliance, OpenServer, chat
from hypothesis import given, settings
from hypothesis import strategies as st
from reload_harness import RELOAD, File, load, pid, program_log, reload, wait_state
from waiting import until

from appliance.core.settings import HttpSettings
from appliance.upstream import websocket


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
            for n in range(15):
                others = {f"{'0' if n % 2 else 'z'}{k}": () for k in range(n % 3)}
                models = {"a": ("--ctx-size", str(1000 + n // 2 % 3)), "b": ("--parallel", str(1 + n % 2)), **others}
                file.write(models, swap=n % 5 == 4)
                await reload(server)
                await trio.sleep(0.07)
                await until(lambda least=n // 2: len(statuses) >= least)  # a busy machine loads more slowly than this
            done.set()


async def test_a_bad_file_changes_nothing_and_says_why_and_where(open_server: OpenServer, file: File) -> None:
    async with open_server(config=file.write({"m": ()})) as server:
        before = await load(server, "m")
        good = file.path.read_text()
        file.path.write_text("startPort: x\nmodels:\n  m: {ttl: -5}\n")
        refused = await server.refuses(400, None, "POST", RELOAD)
        for place in (f"{file.path}:1:12", f"{file.path}:3:12"):
            assert place in refused.error["message"]
            assert any(place in line and "\\n" not in line for line in program_log(server).splitlines())
        file.path.unlink()
        await server.refuses(400, None, "POST", RELOAD, words=f"there is no file {file.path}")
        assert await load(server, "m") == before
        file.path.write_text(good)
        assert (await reload(server))["changed"] == []


async def test_without_a_file_there_is_nothing_to_reload(server: Appliance) -> None:
    await server.refuses(400, None, "POST", RELOAD, words="--config")


async def test_keys_change_at_once(open_server: OpenServer, file: File) -> None:
    async with open_server(config=file.write({"m": ()}, apiKeys=["old"])) as server:
        old, new = [("Authorization", "Bearer old")], [("Authorization", "Bearer new")]
        assert (await server.ask("GET", "/running", headers=old)).status == 200
        file.write({"m": ()}, apiKeys=["new"])
        assert (await server.ask("POST", RELOAD)).status == 401
        assert (await server.ask("POST", RELOAD, headers=old)).status == 200
        assert (await server.ask("GET", "/running", headers=old)).status == 401
        assert (await server.ask("GET", "/running", headers=new)).status == 200
        file.write({"m": ()})
        assert (await server.ask("POST", RELOAD, headers=new)).status == 200
        assert (await server.ask("GET", "/running")).status == 200


async def test_what_a_key_has_begun_ends_when_it_is_revoked(
    open_server: OpenServer, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams, carried or not, kept ones, feeds and websockets; those of other keys go on."""
    monkeypatch.setattr(websocket, "CLOSE_TIME", 0.5)
    old, kept = ("Authorization", "Bearer old"), ("Authorization", "Bearer kept")
    endless = chat("m", stream=True, tokens=3, stall_after_tokens=2)
    asks = [("POST", CHAT, endless, ()), ("POST", CHAT, endless, (("X-Conversation-Id", "a"),))]
    asks += [("GET", "/api/events", None, ()), ("GET", "/logs/stream", None, ())]
    async with open_server(config=file.write({"m": ()}, apiKeys=["old", "kept"])) as server, AsyncExitStack() as stack:
        assert (await server.ask("POST", CHAT, chat("m"), [kept])).status == 200
        ended, going_on = [[await stack.enter_async_context(server.connect()) for _ in asks] for _ in range(2)]
        for clients, key in ((ended, old), (going_on, kept)):
            for client, (method, path, body, more) in zip(clients, asks, strict=True):
                await client.send(method, path, body, [key, *((name, value + key[1][-3:]) for name, value in more)])
                assert (await client.head()).status_code == 200
        socket = await stack.enter_async_context(server.connect())
        await socket.send("GET", "/v1/stream/ws", headers=[old, *UPGRADE])
        assert b" 101 " in await socket.stream.receive_some(1000)
        file.write({"m": ()}, apiKeys=["kept"])
        assert (await server.ask("POST", RELOAD, headers=[old])).status == 200
        for client, (method, *_) in zip(ended, asks, strict=True):
            if method == "POST":
                last = json.loads((await client.rest()).rstrip().rpartition(b"data: ")[2])
                assert last["error"]["reason"] == "invalid_api_key"
            else:
                with pytest.raises((h11.RemoteProtocolError, trio.BrokenResourceError)):
                    await client.rest()
        await socket.everything()
        ids = {"conversation_ids": ["aold", "aept"]}
        [stream] = (await server.ask("POST", "/v1/streams/lookup", ids, [kept])).json
        assert (stream["conversation_id"], stream["is_done"]) == ("aept", False)
        traffic = server.traffic
        left = await until(
            lambda: (traffic.lifetime.feeds.open, traffic.metrics.under_way), lambda left: left <= (2, len(going_on))
        )
        assert left == (2, len(going_on))


async def test_the_last_key_is_not_taken_away_from_a_server_that_others_can_reach(
    open_server: OpenServer, file: File
) -> None:
    http = HttpSettings(listen=(("0.0.0.0", 0),))
    async with open_server(config=file.write({"m": ()}, apiKeys=["old"]), http=http) as server:
        old = [("Authorization", "Bearer old")]
        file.write({"m": (), "n": ()})
        await server.refuses(400, None, "POST", RELOAD, headers=old, words="without a key")
        assert "refusing to listen" in program_log(server)
        assert (await server.ask("GET", "/running")).status == 401
        assert (await server.ask("POST", CHAT, chat("n"), headers=old)).status == 404


async def test_who_may_run_beside_whom_and_how_many_changes_at_once(open_server: OpenServer, file: File) -> None:
    async with open_server(config=file.write({"a": (), "b": (), "c": ()}, swap=True)) as server:
        await load(server, "a", "b")
        assert server.state("a") == "unloaded"
        file.write({"a": (), "b": (), "c": ()})
        assert (await reload(server))["changed"] == []
        await load(server, "a")
        assert (server.state("a"), server.state("b")) == ("loaded", "loaded")
        file.write({"a": (), "b": (), "c": ()}, modelsMax=2)
        await reload(server)
        await load(server, "c")
        assert (server.state("a"), server.state("b"), server.state("c")) == ("loaded", "unloaded", "loaded")
        file.write({"a": (), "b": (), "c": ()}, groups=None, matrix={"sets": {"s": "a & b", "t": "c"}})
        await reload(server)
        await load(server, "b", "a")
        assert (server.state("a"), server.state("b"), server.state("c")) == ("loaded", "loaded", "unloaded")


@pytest.mark.skipif(sys.platform == "win32", reason="its command that stops a model is one of a POSIX shell")
async def test_limits_and_times_of_a_process_that_runs_change_at_once(
    open_server: OpenServer, file: File, tmp_path: Path
) -> None:
    mark = tmp_path / "stopped"
    cmd = file.cmd("--token-delay", "0.05")
    async with open_server(config=file.write({"a": {"cmd": cmd}})) as server:
        (before,) = await load(server, "a")
        stop = f"sh -c 'echo $0 > {mark}; kill $0' ${{PID}}"
        file.write({"a": {"cmd": cmd, "concurrencyLimit": 1, "ttl": 1, "cmdStop": stop}})
        assert (await reload(server))["changed"] == []
        async with server.connect() as one:
            await one.send("POST", CHAT, chat("a", stream=True))
            await one.head()
            assert (await server.ask("POST", CHAT, chat("a"))).status == 429
            while await one.data():
                pass
        assert pid(server, "a") == before
        await wait_state(server, "a", "unloaded")
        assert mark.read_text().strip() == str(before)


async def test_peers_names_filters_and_profiles_change_at_once(open_server: OpenServer, file: File) -> None:
    peer = {"p": {"proxy": "http://127.0.0.1:9", "models": ["far"]}}
    async with open_server(config=file.write({"a": {"aliases": ["old"]}}, peers=peer)) as server:

        async def listed() -> set[str]:
            return {entry["id"] for entry in (await server.ask("GET", "/v1/models")).json["data"]}

        (before,) = await load(server, "a")
        assert (await server.ask("POST", CHAT, chat("old"))).status == 200
        assert await listed() == {"a", "p/far"}
        assert (await server.ask("POST", CHAT, chat("far"))).status == 502
        changed = {"aliases": ["new"], "filters": {"setParams": {"seed": 7}}, "name": "A"}
        file.write({"a": changed}, peers={"q": {"proxy": "http://127.0.0.1:9", "models": ["there"]}})
        assert (await reload(server))["changed"] == []
        assert await listed() == {"a", "q/there"}
        assert (await server.ask("POST", CHAT, chat("old"))).status == 404
        assert (await server.ask("POST", CHAT, chat("far"))).status == 404
        echo = await server.ask("POST", CHAT, chat("new", echo=True))
        assert json.loads(echo.json["body"])["seed"] == 7
        assert pid(server, "a") == before


async def test_log_and_capture_settings_change_at_once(open_server: OpenServer, file: File) -> None:
    async with open_server(config=file.write({"a": ()}, captureBuffer=0, logLevel="error")) as server:
        await load(server, "a")
        assert program_log(server) == ""
        file.write({"a": ()}, captureBuffer=1, logLevel="debug", logToStdout="upstream")
        await reload(server)
        assert "[INFO] the configuration was read again" in program_log(server)
        await load(server, "a")
        assert [row["has_capture"] for row in await server.rows()] == [True, False]
        await server.ask("POST", "/models/unload", {"model": "a", "wait": True})
        await load(server, "a")
        assert {line.split()[0] for line in (await server.ask("GET", "/logs")).body.decode().splitlines()} == {"[a]"}


async def test_what_cannot_change_while_the_program_runs_is_told(
    open_server: OpenServer, file: File, tmp_path: Path
) -> None:
    async with open_server(config=file.write({"a": ()})) as server:
        file.write({"a": ()}, store={"path": str(tmp_path / "x.db")}, metricsMaxInMemory=5, performance={"every": "9s"})
        for _ in range(2):  # it is as true the second time
            warnings = (await reload(server))["warnings"]
            assert isinstance(warnings, list)
            assert [warning.split(": ")[1] for warning in warnings] == ["store", "metricsMaxInMemory", "performance"]
            assert all("restart it" in warning for warning in warnings)
            assert all(warning in program_log(server) for warning in warnings)
        file.write({"a": ()})
        assert (await reload(server))["warnings"] == []
        assert not (tmp_path / "x.db").exists()


async def test_a_preload_is_for_the_start_alone(open_server: OpenServer, file: File) -> None:
    async with open_server(config=file.write({"a": ()})) as server:
        file.write({"a": (), "b": ()}, hooks={"on_startup": {"preload": ["a", "b"]}})
        await reload(server)
        await trio.sleep(0.1)
        assert server.fleet.status() == []
