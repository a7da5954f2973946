"""Addresses of workers, who works with whom, and what they have together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.rpc_workers import (
    Crew,
    RpcWorker,
    State,
    WorkerDevice,
    agree,
    choose_workers,
    endpoint_of,
    endpoints_of,
    lost_worker,
    room_of,
    split_endpoint,
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
