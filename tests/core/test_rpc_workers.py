"""Workers of models: addresses, the room that they have, and commands that name them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.rpc_workers import (
    RpcWorker,
    WorkerDevice,
    command_on,
    endpoint_of,
    endpoints_of,
    lost_worker,
    room_of,
    split_endpoint,
    stands_for_engine,
    workers_named,
)
from appliance.errors import UsageError

GIB = 1 << 30


def worker(endpoint: str = "far:50052", *devices: tuple[int, int], version: str = "7.0.0") -> RpcWorker:
    """One that is ready; of each device total and free memory in GiB."""
    sizes = tuple(WorkerDevice(total=total * GIB, free=free * GIB) for total, free in devices or ((24, 20),))
    return RpcWorker(endpoint=endpoint, state="ready", version=version, devices=sizes)


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("192.168.1.5", "192.168.1.5:50052"),
        (" Big-Box.local:1 ", "big-box.local:1"),
        ("localhost:65535", "localhost:65535"),
        ("x:00050", "x:50"),
    ],
)
def test_addresses(text: str, endpoint: str) -> None:
    assert endpoint_of(text) == endpoint
    assert endpoint_of(endpoint) == endpoint


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *[(text, "only IPv4") for text in ("[::1]:50052", "::1")],
        *[(text, "is not the address of a worker") for text in ("", ":50052", "-x:1")],
        *[(text, "has no port from 1 to 65535") for text in ("http://a", "a:", "a:0", "a:65536", "a:+5", "a:٣")],
    ],
)
def test_what_is_no_address(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        endpoint_of(text)


@given(st.text(max_size=40))
def test_whatever_is_taken_can_be_handed_to_the_engine(text: str) -> None:
    try:
        host, port = split_endpoint(text)
    except UsageError:
        return
    told = f"{host}:{port}"
    assert told.isascii()
    assert told.count(":") == 1
    assert not set(told) & set(" ,\t\n\0")
    assert split_endpoint(told) == (host, port)


def test_lists_of_addresses() -> None:
    assert endpoints_of("a:1, b,a:1,") == ("a:1", "b:50052")
    assert len(endpoints_of(",".join(f"h{n}" for n in range(16)))) == 16
    with pytest.raises(UsageError, match="17 workers are named"):
        endpoints_of(",".join(f"h{n}" for n in range(17)))
    with pytest.raises(UsageError, match="does not name a worker"):
        endpoints_of(" , ")


def test_an_engine_that_lost_a_worker_says_so() -> None:
    """Lines of llama-server b11434."""
    path = "/build/ggml/src/ggml-rpc/ggml-rpc.cpp"
    assert lost_worker(["x", f"{path}:566: Remote RPC server crashed or returned malformed response", "y"])
    assert lost_worker([f"{path}:547: Failed to connect to 127.0.0.1:50199"])
    assert lost_worker([f"{path}:550: RPC handshake failed for 10.0.0.2:50052"])
    assert not lost_worker([])
    assert not lost_worker(["srv: Failed to connect to the hub", "ggml-vulkan.cpp:1: device lost"])


@pytest.mark.parametrize(
    ("crew", "gib"),
    [
        ([worker("a:1", (24, 20), (8, 7)), worker("b:1", (24, 22))], [20, 7, 22]),
        # workers of one machine have its memory once
        ([worker("127.0.0.1:1", (24, 20)), worker("localhost:2", (24, 18)), worker("b:1", (24, 24))], [9, 9, 24]),
        ([worker("a:1", (24, 20), (24, 20))], [20, 20]),  # cards alike that one worker has are two
    ],
)
def test_the_room_of_workers(crew: list[RpcWorker], gib: list[int]) -> None:
    assert list(room_of(crew).items()) == [(f"rpc{n}", size * GIB) for n, size in enumerate(gib)]


SIZES = st.tuples(st.sampled_from([8, 24]), st.integers(0, 8))


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.lists(SIZES, max_size=3)), max_size=5))
def test_no_machine_is_counted_for_more_than_it_has(told: list[tuple[str, list[tuple[int, int]]]]) -> None:
    crew = [
        RpcWorker(endpoint=f"{host}:{n + 1}", state="ready", devices=worker("x:1", *sizes).devices if sizes else ())
        for n, (host, sizes) in enumerate(told)
    ]
    room = room_of(crew)
    assert list(room) == [f"rpc{n}" for n in range(sum(len(each.devices) for each in crew))]
    most = sum(
        max(
            (sum(d.free for d in each.devices if d.total == size * GIB) for each in crew if each.endpoint[0] == host),
            default=0,
        )
        for host in "ab"
        for size in (8, 24)
    )
    assert sum(room.values()) <= most


EMBEDDED = ("/venv/python", "-P", "/venv/appliance/features/embedded/__main__.py")
CARD = WorkerDevice(total=8, free=8)


def worker_at(endpoint: str, devices: int = 1) -> RpcWorker:
    return RpcWorker(endpoint=endpoint, state="ready", version="7.0.0", devices=(CARD,) * devices)


A, B, PAIR = worker_at("a:1"), worker_at("b:2"), worker_at("p:3", 2)


def words(args: str, options: str, *workers: RpcWorker, command: tuple[str, ...] = ("/e/llama-server",)) -> str:
    argv = command_on(command, args.split(), options.split(), workers)
    assert argv[: len(command)] == command
    return " ".join(argv[len(command) :])


@pytest.mark.parametrize(
    ("argv", "stands"),
    [
        (["llama-server", "-m", "x"], True),
        (["llama-server.exe"], True),
        (["/usr/bin/llama-server"], False),
        (["docker", "run", "llama-server"], False),
        ([], False),
    ],
)
def test_which_commands_stand_for_an_engine(argv: list[str], stands: bool) -> None:
    assert stands_for_engine(argv) is stands


@pytest.mark.parametrize(
    ("devices", "options", "workers", "command"),
    [
        # without workers only the devices are chosen
        ("--device Vulkan0", "-m x --port 1", [], "--device Vulkan0 -m x --port 1"),
        ("", "-m x", [], "-m x"),
        ("--device Vulkan0", "-m x --device CUDA0", [], "-m x --device CUDA0"),
        # workers go in front, and the devices name them
        ("", "-m x", [A, B], "--rpc a:1,b:2 -m x"),
        ("--device Vulkan0", "-m x", [A, B], "--rpc a:1,b:2 --device RPC0,RPC1,Vulkan0 -m x"),
        ("--device none", "-m x", [A, PAIR], "--rpc a:1,p:3 --device RPC0,RPC1,RPC2 -m x"),
        # those that options name give way to those that are there
        ("--device none", "-m x --rpc a:1,b:2 -c 9", [B], "--rpc b:2 --device RPC0 -m x -c 9"),
        ("--device none", "-m x --rpc a:1,b:2 -c 9", [], "--device none -m x -c 9"),
        ("", "--list-devices --rpc a:1", [A], "--rpc a:1 --list-devices"),
        # devices that the user chose stay, but for those that are away
        ("--device none", "--device RPC1,Vulkan0", [A, B], "--rpc a:1,b:2 --device RPC1,Vulkan0"),
        ("--device none", "--device RPC1,Vulkan0", [A], "--rpc a:1 --device Vulkan0"),
        ("--device Vulkan0", "-dev RPC0 -c 1", [], "-dev none -c 1"),
        ("", "--device RPCX,RPC", [A], "--rpc a:1 --device RPCX,RPC"),
        # workers that do not tell their devices are used all the same
        ("--device Vulkan0", "-m x", [A, worker_at("n:1", 0)], "--rpc a:1,n:1 -m x"),
        # a flag without its value is left to the engine
        ("--device none", "-m x --device", [], "--device none -m x --device"),
        ("", "-m x --rpc", [A], "--rpc a:1 -m x"),
    ],
)
def test_the_words_of_a_command(devices: str, options: str, workers: list[RpcWorker], command: str) -> None:
    assert words(devices, options, *workers) == command


def test_the_embedded_engine_gets_the_same_words_behind_its_own() -> None:
    assert words("--device Vulkan0", "-m x -dev none", command=EMBEDDED) == "-m x -dev none"
    assert words("--device V0,V1", "-m x", A, command=EMBEDDED) == "--rpc a:1 --device RPC0,V0,V1 -m x"


def test_which_workers_are_named() -> None:
    assert workers_named([]) == workers_named(["--rpc"]) == ()
    assert workers_named(["-m", "x", "--rpc", "a:1", "--rpc", "b, c:3"]) == ("b:50052", "c:3")
    with pytest.raises(UsageError, match="only IPv4"):
        workers_named(["--rpc", "[::1]:5"])
