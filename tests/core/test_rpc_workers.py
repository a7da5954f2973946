"""Workers of models: addresses, what they say of themselves, who works with whom, and commands that name them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.rpc_workers import (
    KNOWN,
    LONGEST_HELLO,
    MAX_DEVICES,
    MAX_MEMORY,
    BadWorkerAnswer,
    Crew,
    ProtocolVersion,
    Questions,
    RpcWorker,
    State,
    WorkerDevice,
    agree,
    choose_workers,
    command_on,
    endpoint_of,
    endpoints_of,
    lost_worker,
    request,
    room_of,
    split_endpoint,
    stands_for_engine,
    workers_named,
)
from appliance.errors import ModelFailedToStart, UsageError

GIB = 1 << 30


def worker(endpoint: str = "far:50052", *devices: tuple[int, int], version: str = "7.0.0") -> RpcWorker:
    """One that is ready; of each device total and free memory in GiB."""
    sizes = tuple(WorkerDevice(total=total * GIB, free=free * GIB) for total, free in devices or ((24, 20),))
    return RpcWorker(endpoint=endpoint, state="ready", version=version, devices=sizes)


def gone(endpoint: str, state: State = "unreachable") -> RpcWorker:
    return RpcWorker(endpoint=endpoint, state=state, why=f"worker {endpoint} is away")


def always(workers: Sequence[RpcWorker]) -> bool:
    return True


def never(workers: Sequence[RpcWorker]) -> bool:
    return False


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
        ("[::1]:50052", "only IPv4"),
        ("::1", "only IPv4"),
        ("", "is not the address of a worker"),
        (":50052", "is not the address of a worker"),
        ("http://a", "has no port from 1 to 65535"),
        ("-x:1", "is not the address of a worker"),
        ("a:", "has no port from 1 to 65535"),
        ("a:0", "has no port from 1 to 65535"),
        ("a:65536", "has no port from 1 to 65535"),
        ("a:+5", "has no port from 1 to 65535"),
        ("a:٣", "has no port from 1 to 65535"),
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


def test_builds_that_differ_are_refused_by_both_names() -> None:
    assert agree("7.0.0", worker()) == ""
    for version in ("6.0.0", "7.0.1", "7.1.0", "8.0.0"):
        why = agree("7.0.0", worker(version=version))
        assert f"far:50052 has RPC {version}, but the engine here has 7.0.0; install the same build" in why
    assert "has no RPC; install a build that has it" in agree(None, worker())
    assert agree("7.0.0", gone("far:1")) == "worker far:1 is away"


def test_a_model_that_fits_goes_without_those_that_are_away() -> None:
    here, away = worker("here:1"), gone("away:1")
    asked: list[tuple[str, ...]] = []

    def fits(workers: Sequence[RpcWorker]) -> bool:
        asked.append(tuple(each.endpoint for each in workers))
        return True

    crew = choose_workers("m", [away, here], "7.0.0", fits)
    assert crew == Crew(workers=(here,), notes=("worker away:1 is away; the model goes without it",))
    assert asked == [("here:1",)]
    assert choose_workers("m", [here], "7.0.0", never) == Crew(workers=(here,))  # nobody is missing: the engine decides


def test_one_that_does_not_fit_is_not_started_and_says_whom_it_misses() -> None:
    with pytest.raises(ModelFailedToStart, match=r"model 'm' .*worker away:1 is away; .*does not fit without away:1"):
        choose_workers("m", [gone("away:1"), worker()], "7.0.0", never)
    with pytest.raises(ModelFailedToStart, match="install the same build on both machines"):
        choose_workers("m", [worker(version="6.0.0")], "7.0.0", never)


def test_a_build_without_rpc_is_told_once() -> None:
    crew = choose_workers("m", [worker("a:1"), worker("b:1")], None, always)
    assert crew.workers == ()
    assert len(crew.notes) == 1


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


def answer(body: bytes) -> bytes:
    return struct.pack("<Q", len(body)) + body


def hello(major: int = KNOWN, minor: int = 0, patch: int = 0, rest: bytes = bytes(25)) -> bytes:
    return answer(bytes((major, minor, patch)) + rest)


def a_device(total: int, free: int) -> bytes:
    return answer(struct.pack("<QQ", free, total))


def test_the_bytes_are_those_of_the_real_server() -> None:
    """Recorded from ggml-rpc-server b11434 with one device of 24105 MiB."""
    questions = Questions()
    assert questions.begin() == bytes.fromhex("0e" + "1800000000000000" + "00" * 24)
    assert questions.receive(bytes.fromhex("1c00000000000000" + "07000000" + "00" * 24)) == bytes.fromhex(
        "0f" + "00" * 8
    )
    assert questions.receive(bytes.fromhex("0400000000000000" + "01000000")) == bytes.fromhex(
        "0b" + "0400000000000000" + "00000000"
    )
    size = struct.pack("<Q", 24105 << 20).hex()
    assert questions.receive(bytes.fromhex("1000000000000000" + size + size)) == b""
    assert questions.done
    assert (questions.version, questions.devices) == (
        ProtocolVersion(7, 0, 0),
        [WorkerDevice(total=24105 << 20, free=24105 << 20)],
    )


MEMORY = st.integers(0, MAX_MEMORY)


@given(st.data(), st.lists(st.tuples(MEMORY, MEMORY), min_size=1, max_size=MAX_DEVICES), st.binary(max_size=61))
def test_in_whatever_pieces_the_answers_come(data: st.DataObject, sizes: list[tuple[int, int]], rest: bytes) -> None:
    questions = Questions()
    asked = questions.begin()
    answers = [hello(rest=rest), answer(struct.pack("<I", len(sizes))), *(a_device(*size) for size in sizes)]
    wanted = [request(15), *(request(11, struct.pack("<I", n)) for n in range(len(sizes)))]
    for each, following in zip(answers, [*wanted, b""], strict=True):
        assert asked
        assert not questions.done
        cut = data.draw(st.integers(1, len(each)))
        asked = questions.receive(each[:cut]) if cut < len(each) else b""
        assert asked == b""
        asked = questions.receive(each[cut:] if cut < len(each) else each)
        assert asked == following
    assert questions.done
    assert questions.devices == [WorkerDevice(total=total, free=min(free, total)) for total, free in sizes]


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_garbage_ends_in_its_own_error_and_nothing_is_hoarded(pieces: list[bytes]) -> None:
    questions = Questions()
    with suppress(BadWorkerAnswer):
        for piece in pieces:
            questions.receive(piece)
        assert questions.done or sum(map(len, pieces)) <= 8 + LONGEST_HELLO + 12 + 24 * MAX_DEVICES


@given(st.integers(0, 255).filter(lambda major: major != KNOWN), st.binary(max_size=61))
def test_another_version_is_told_and_asked_for_no_more(major: int, rest: bytes) -> None:
    questions = Questions()
    assert questions.receive(hello(major, 3, 9, rest)) == b""
    assert questions.done
    assert str(questions.version) == f"{major}.3.9"
    assert questions.devices == []


COUNT = answer(struct.pack("<I", 1))


@pytest.mark.parametrize(
    ("before", "said", "why"),
    [
        ([], struct.pack("<Q", 1 << 62), f"answered with {1 << 62} bytes where 3 to 64 belong"),
        ([], struct.pack("<Q", 0), "answered with 0 bytes"),
        ([], b"HTTP/1.1 400 Bad Request\r\n\r\n", r"answered with \d+ bytes"),
        ([], hello() + b"x", "says more than it was asked"),
        ([], hello(8) + b"x", "says more than it was asked"),
        ([hello()], answer(struct.pack("<I", 0)), "says that it has 0 devices"),
        ([hello()], answer(struct.pack("<I", 1 << 31)), "says that it has 2147483648 devices"),
        ([hello()], answer(bytes(5)), "answered with 5 bytes where 4 belong"),
        ([hello(), COUNT], a_device(MAX_MEMORY + 1, 0), "says that a device has 4503599627370497 bytes of memory"),
        ([hello(), COUNT], struct.pack("<Q", (1 << 64) - 1), "where 16 belong"),
        ([hello(), COUNT], a_device(5, 5) + a_device(5, 5), "says more than it was asked"),
    ],
)
def test_what_is_no_answer(before: list[bytes], said: bytes, why: str) -> None:
    questions = Questions()
    for each in before:
        questions.receive(each)
    with pytest.raises(BadWorkerAnswer, match=why):
        questions.receive(said)


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
