#!/usr/bin/env -S python3 -S -E
"""An engine build's `llama-server` that tells lies: it lists devices, and then does what `lies.json` beside it says.

Its first argument is its own path; the rest is llama-server's command line. Serving is `llama_server.py`'s work. The
lies are read at the start and again at every request, so that they can be changed while it runs. Absent keys are
honest. Where ``devices`` are on the command line, the lies about loading and working hold only for those in ``on``.

    devices   [{"name", "description", "total", "free", "pci"}], sizes in MiB
    list      well, hang, crash (SIGSEGV), absurd (memory), flood (megabytes), garbage, fail
    load      well, hang, crash (SIGSEGV), abort, fail, memory, missing (a library)
    work      well, crash (SIGABRT), hang, garbage, refuse
    heavy     well, crash, hang: what ``work`` is with a model of more than 100 MB
    after_tokens      streamed tokens after which it crashes or hangs; without it before the answer's head
    after_requests    requests that are answered well before ``work`` begins
    on                device names; empty: every device, and the processor
    help      what it prints for ``--help``
    list_delay, load_delay    seconds
    answers   {prompt: {"content", "tokens"}}: what it says to these prompts
    prompt_speed, generation_speed    tokens per second that it claims
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import fake_inference
import llama_server
from fake_dialects import Native
from fake_generation import FOREVER
from fake_http import Connection, Request
from fake_json import Json, as_array, as_object
from fake_script import die
from fake_state import ROUTES, State, answer, parse_json

LIES = "lies.json"
ABORTED = -6
ABSURD = 1 << 44
"""MiB of memory that no card has: 16 EiB, the largest number of bytes that 64 bits hold."""
FLOOD = 4 << 20
HEAVY = 100_000_000
NONSENSE = "\x1b[2J{{{{ ï¿½ï¿½ 0x7f"


class Lies:
    """What is to be told at this moment."""

    def __init__(self, folder: Path, used: str, model: str) -> None:
        self._path = folder / LIES
        self._heavy = os.path.isfile(model) and os.path.getsize(model) > HEAVY  # noqa: PTH113, PTH202
        self._used = [] if used in ("", "none") else used.split(",")
        self.served = 0

    def now(self) -> Json:
        """The file as it is, without what does not concern the devices in use."""
        with contextlib.suppress(OSError):
            lies = as_object(json.loads(self._path.read_text(encoding="utf-8")))
            on = as_array(lies.get("on"))
            if on and not any(name in on for name in self._used):
                return lies | {"load": "well", "work": "well"}
            return lies
        return {}

    def work(self) -> str:
        """What to do with the request that has just come, which is counted."""
        lies = self.now()
        self.served += 1
        if self._heavy and lies.get("heavy", "well") != "well":
            return str(lies["heavy"])
        return str(lies.get("work", "well")) if self.served > int(str(lies.get("after_requests", 0))) else "well"


def list_devices(lies: Json) -> None:
    """``--list-devices``, which ends the process."""
    time.sleep(float(str(lies.get("list_delay", 0))))
    match lies.get("list", "well"):
        case "hang":
            time.sleep(FOREVER)  # it hangs
        case "crash":
            die(-signal.SIGSEGV)
        case "flood":
            for _ in range(FLOOD // 64):
                sys.stderr.write("ggml: a line of no interest, one of very many, on and on and on\n")
        case "garbage":
            print(NONSENSE * 100)
            return
        case "fail":
            sys.stderr.write("ggml_cuda_init: failed to initialize CUDA: unknown error\n")
            sys.exit(1)
        case _:
            pass
    print("Available devices:")
    devices = [as_object(device) for device in as_array(lies.get("devices"))]
    for device in devices:
        size, free = (ABSURD if lies.get("list") == "absurd" else device[key] for key in ("total", "free"))
        print(f"  {device['name']}: {device['description']} ({size} MiB, {free} MiB free)")
    if not devices:
        print("  (none)")


def begin_load(lies: Json, used: str) -> None:
    """What happens before the server listens; returns where it gets as far as that."""
    listed = {str(as_object(each)["name"]): as_object(each) for each in as_array(lies.get("devices"))}
    for name in [] if used in ("", "none") else used.split(","):
        if name not in listed:
            sys.stderr.write(f'error while handling argument "--device": error: invalid device: {name}\n')
            sys.exit(1)
        device = listed[name]
        place = device.get("pci") or "unknown id"
        llama_server.log("I", f"using device {name} ({device['description']}) ({place}) - {device['free']} MiB free")
    os.environ["FAKE_LOAD_DELAY"] = str(lies.get("load_delay", 0))
    match lies.get("load", "well"):
        case "hang":
            os.environ["FAKE_NEVER_READY"] = "1"
        case "crash":
            die(-signal.SIGSEGV)
        case "abort":
            sys.stderr.write("ggml-cuda.cu:103: CUDA error: no kernel image is available for execution on the device\n")
            sys.stderr.flush()
            die(ABORTED)
        case "fail":
            os.environ["FAKE_FAIL_TO_LOAD"] = "1"
        case "memory":
            llama_server.log("E", "alloc_tensor_range: failed to allocate CUDA0 buffer of size 8589934592")
            llama_server.log("E", "error loading model: unable to allocate CUDA0 buffer")
            sys.exit(1)
        case "missing":
            sys.stderr.write(
                "llama-server: error while loading shared libraries: libcudart.so.13: "
                "cannot open shared object file: No such file or directory\n"
            )
            sys.exit(127)
        case _:
            pass


def lying(
    lies: Lies, kind: type[fake_inference.Dialect], state: State, connection: Connection, request: Request
) -> None:
    """A completion route: the lie of the moment, then what an honest engine says."""
    body = parse_json(request)
    bad = state.options.misbehaviour
    bad.exit_code, bad.die_before_head, bad.die_after_tokens, bad.stall_after_tokens = ABORTED, False, -1, -1
    after = lies.now().get("after_tokens")
    streamed = int(str(after)) if after is not None and body.get("stream") is True else -1
    work = lies.work()
    match work:
        case "crash":
            bad.die_before_head, bad.die_after_tokens = streamed < 0, streamed
        case "hang" if streamed < 0:
            connection.wait(FOREVER)
        case "hang":
            bad.stall_after_tokens = streamed
        case "refuse":
            raise fake_inference.ApiError(500, "Compute error.")
        case _:
            pass
    if kind is Native and not bad.die_before_head and body.get("stream") is not True:
        say(lies.now(), connection, body, garbage=work == "garbage")
    else:
        fake_inference.complete(kind, state, connection, request)


def say(lies: Json, connection: Connection, body: Json, *, garbage: bool) -> None:
    """The answer to a native completion, with the speeds that it claims."""
    prompt = body.get("prompt")
    known = as_object(as_object(lies.get("answers")).get(str(prompt)))
    limit = int(str(body.get("n_predict", 16)))
    tokens = as_array(known.get("tokens"))[:limit] or [7] * limit
    content = str(known.get("content", " word" * limit))
    if garbage:
        tokens, content = [int(str(token)) ^ 1 for token in tokens], "GGGGGGGG"
    read = len(as_array(prompt)) or len(str(prompt).encode())
    speeds = float(str(lies.get("prompt_speed", 1000))), float(str(lies.get("generation_speed", 100)))
    timings: Json = {"cache_n": 0, "prompt_n": read, "prompt_ms": read / speeds[0] * 1000}
    timings |= {"predicted_n": len(tokens), "predicted_ms": len(tokens) / speeds[1] * 1000}
    timings |= {"prompt_per_second": speeds[0], "predicted_per_second": speeds[1]}
    answer(
        connection,
        {
            "index": 0,
            "content": content,
            "tokens": tokens if body.get("return_tokens") else [],
            "stop": True,
            "stop_type": "limit",
            "tokens_predicted": len(tokens),
            "tokens_evaluated": read,
            "timings": timings,
        },
    )


def value_of(argv: list[str], *flags: str) -> str:
    """What was given last for an option; empty without it."""
    return next((value for flag, value in reversed(list(pairwise(argv))) if flag in flags), "")


def main() -> None:
    folder, argv = Path(sys.argv[1]).parent, sys.argv[2:]
    if os.name == "posix":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # crashes on purpose leave no file behind
    used = value_of(argv, "--device", "-dev")
    lies = Lies(folder, used, value_of(argv, "--model", "-m"))
    if "--list-devices" in argv:
        list_devices(lies.now())
        return
    if "--help" in argv:
        print(lies.now().get("help", llama_server.HELP))
        return
    if "--version" not in argv:
        begin_load(lies.now(), used)
        for kind in {handler.args[0] for handler in ROUTES.values() if isinstance(handler, partial)}:
            for path in kind.paths:
                ROUTES["POST", path] = partial(lying, lies, kind)
    sys.argv[1:] = argv
    llama_server.main()


if __name__ == "__main__":
    main()
