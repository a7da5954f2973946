"""The command that is started for a model: engine, devices, workers."""

from __future__ import annotations

import pytest

from appliance.core.rpc_workers import RpcWorker, WorkerDevice, command_on, stands_for_engine, workers_named
from appliance.errors import UsageError

EMBEDDED = ("/venv/python", "-P", "/venv/appliance/features/embedded/__main__.py")
DEVICE = WorkerDevice(total=8, free=8)


def worker(endpoint: str, devices: int = 1) -> RpcWorker:
    return RpcWorker(endpoint=endpoint, state="ready", version="7.0.0", devices=(DEVICE,) * devices)


A, B, PAIR = worker("a:1"), worker("b:2"), worker("p:3", 2)


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
        ("--device Vulkan0", "-m x", [A, worker("n:1", 0)], "--rpc a:1,n:1 -m x"),
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
