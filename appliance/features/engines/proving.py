"""Proof that a build works on a device: it says what the starter model is known to say, and so fast.

One program at a time tries engines on a machine (`alone_on_machine`): two at once would measure each other.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import trio
from msgspec import Struct

from appliance.catalog.sources import STARTER
from appliance.core.engine import Engine
from appliance.core.engine_output import printable
from appliance.core.lenient_json import decoded
from appliance.features.engines.core import trials
from appliance.features.engines.core.listing import CPU, Device
from appliance.features.engines.core.standing import Proof, ProofKey, ProvenSpeeds
from appliance.features.engines.core.trials import EngineTimings, next_request, speeds_of
from appliance.features.engines.trial import TrialFailed, TrialServer, open_trial
from appliance.platform.children import Children
from appliance.platform.home import users_cache
from appliance.platform.machine import free_memory
from appliance.store.model_files import write_sparse
from appliance.store.partial_file import FileTaken, claim
from appliance.trio_parts import lacking

if TYPE_CHECKING:
    from filelock import FileLock

PROOF_TIME = 240.0  # seconds for everything; the first start on a card may compile its kernels for a minute or two
MEASURING_TIME = 60.0  # seconds that the measuring model may take from its start; normal are ten at most
DEADLY = ("crash", "garbage")
"""Faults with the measuring model that count. That a build cannot load it says more of the file than of the build,
which has loaded the starter."""
ROOM = 4  # the measuring model takes at most this part of the free memory, else the starter's speed counts
ALL_LAYERS = "99"
LOCK = "proving.lock"
LOOK_EVERY = 0.25  # seconds between two looks whether the other program is done
LONGEST_WAIT = 600.0
"""Seconds that a trial waits for those of other programs. More than two proofs take, so only somebody who stands still
lets it run out."""
STRIDE = 37  # tokens of the measuring prompt are this far apart, so that it does not repeat itself

log = logging.getLogger(__name__)


class CompletionAnswer(Struct, frozen=True):
    """An answer of ``/completion``, as far as it matters here."""

    content: str
    tokens: list[int] = []
    timings: EngineTimings = EngineTimings()


_SAID = msgspec.json.Decoder(CompletionAnswer)


def device_args(device: Device) -> tuple[str, ...]:
    """The flags that make an engine compute on just this device."""
    if device.name == CPU:
        return ("--device", "none")
    return ("--device", device.name, "-ngl", ALL_LAYERS)


async def prove(
    engine: Engine,
    device: Device,
    children: Children,
    *,
    key: ProofKey,
    build: str,
    now: float,
    seconds: float = PROOF_TIME,
    measuring: Path | None = None,
) -> Proof:
    """Try ``engine`` on ``device``; ``now`` is the Unix time. Never raises for what it does.

    ``measuring`` is the folder of the measuring model, else the one in the user's cache. Software renderers are
    measured with the starter alone: the other one would take minutes.
    """
    began = trio.current_time()
    until = began + seconds
    pci, fault, why = device.pci, None, ""
    speeds: ProvenSpeeds | None = None
    try:
        speeds, told = await _known_answers(engine, device, children, until)
        pci = told or pci
        if not device.software:
            speeds = await _measured(engine, device, children, until, measuring) or speeds
    except TrialFailed as failed:
        fault, why, speeds = failed.fault, failed.why, None
    return Proof(
        key=key,
        build=build,
        device=f"{device.name}: {device.description}" + (f" ({pci})" if pci else ""),
        fault=fault,
        why=why,
        pci=pci,
        prompt_speed=speeds.prompt if speeds else None,
        generation_speed=speeds.generation if speeds else None,
        seconds=trio.current_time() - began,
        at=now,
    )


@asynccontextmanager
async def alone_on_machine(folder: Path | None = None, *, longest: float = LONGEST_WAIT) -> AsyncGenerator[bool]:
    """Let no other program of this user try engines meanwhile; yields whether that had to be waited for.

    The system frees the lock of a program that dies. After ``longest`` seconds, and where no lock can be had (a folder
    that cannot be written), the block runs beside others: a proof that is too slow is better than none.
    """
    path = (folder or measuring_folder()) / LOCK
    until = trio.current_time() + longest
    lock: FileLock | None = None
    waited = False
    while lock is None:
        try:
            lock = await trio.to_thread.run_sync(claim, path)
        except FileTaken:
            if trio.current_time() >= until:
                log.warning("another program has tried engines for %g s; this one goes on beside it", longest)
                break
            if not waited:
                log.warning("another program tries engines on this machine; this one waits, %g s at most", longest)
            waited = True
            await trio.sleep(LOOK_EVERY)
        except OSError as cause:
            if lacking(cause):
                raise
            log.info("engines are tried beside other programs: %s cannot be used (%s)", path, cause.strerror or cause)
            break
    try:
        yield waited
    finally:
        if lock is not None:
            lock.release()


async def _known_answers(
    engine: Engine, device: Device, children: Children, until: float
) -> tuple[ProvenSpeeds | None, str | None]:
    """Ask what is known; the speed that the starter lets one expect, and the card's place. Raises TrialFailed."""
    done: list[EngineTimings] = []
    async with open_trial(engine, device_args(device), STARTER, children, seconds=_left(until)) as trial:
        for known in trials.KNOWN:
            said = await _complete(trial, until, known.prompt, len(known.tokens))
            right = tuple(said.tokens) == known.tokens if said.tokens else said.content == known.content
            if not right:
                told = f"it said '{printable(said.content, 60)}' instead of '{known.content[:60]}'"
                raise TrialFailed("garbage", f"it computes wrongly: {told}")
            done.append(said.timings)
        lines = trial.lines()
    if device.name != CPU and trials.only_on_processor(lines):
        raise TrialFailed("load", f"it computed on the processor instead of {device.name}")
    # The starter is a part of the whole measuring model; both are Q8_0, so that bytes tell how much of it.
    weight = STARTER.stat().st_size / trials.weights_size()
    return speeds_of(done, weight), trials.pci_of(device.name, lines)


async def _measured(
    engine: Engine, device: Device, children: Children, until: float, folder: Path | None
) -> ProvenSpeeds | None:
    """Its speeds with the measuring model; None without room or time. Raises TrialFailed when it dies at work."""
    room = free_memory() if device.name == CPU else min(free_memory(), device.free)
    if room < ROOM * trials.weights_size():
        log.info("%s on %s is measured with the starter alone: memory is short", engine.name, device.name)
        return None
    limit = min(until, trio.current_time() + MEASURING_TIME)
    try:
        ballast = await trio.to_thread.run_sync(write_ballast, folder or measuring_folder())
        async with open_trial(engine, device_args(device), ballast, children, seconds=_left(limit)) as trial:
            return speeds_of(await _measure(trial, limit))
    except OSError as cause:
        log.warning("The speed of %s was not measured: %s", engine.name, cause)
        return None
    except TrialFailed as failure:
        if failure.fault in DEADLY:
            raise
        log.warning("The speed of %s on %s was not measured: %s", engine.name, device.name, failure.why)
        return None


async def _measure(trial: TrialServer, until: float) -> list[EngineTimings]:
    """Return the engine's timings of the requests that count."""
    done: list[EngineTimings] = []
    began = 0.0
    while (size := next_request(done, trio.current_time() - began)) is not None:
        prompt = [at * STRIDE % trials.LETTERS for at in range(size[0])]
        done.append((await _complete(trial, until, prompt, size[1], ignore_eos=True)).timings)
        if len(done) == 1:
            began = trio.current_time()
    return done[1:]


async def _complete(
    trial: TrialServer, until: float, prompt: str | list[int], tokens: int, *, ignore_eos: bool = False
) -> CompletionAnswer:
    """Ask for so many tokens; the answer is the same whenever it is asked. Raises TrialFailed."""
    question: dict[str, object] = {
        "prompt": prompt, "n_predict": tokens, "temperature": 0.0, "cache_prompt": False, "return_tokens": True,
        "ignore_eos": ignore_eos,
    }  # fmt: skip
    said = decoded(_SAID, await trial.ask("/completion", question, seconds=_left(until)))
    if said is None:
        raise TrialFailed("garbage", "its answer is not what llama-server answers")
    return said


def _left(until: float) -> float:
    return max(0.0, until - trio.current_time())


def measuring_folder() -> Path:
    """The folder of the measuring model."""
    return users_cache() / "measuring"


def write_ballast(folder: Path) -> Path:
    """Have the measuring model in the folder, and those of other versions deleted. It takes milliseconds.

    Raises OSError.
    """
    path, head, size = folder / trials.FILE_NAME, trials.header(), trials.weights_size()
    if not path.is_file() or path.stat().st_size != len(head) + size:
        write_sparse(path, head, size)
    for other in folder.glob("ballast-*.gguf"):
        if other != path:
            with contextlib.suppress(OSError):  # somebody measures with it; the next time will do
                other.unlink()
    return path
