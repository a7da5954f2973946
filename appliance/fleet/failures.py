"""Model processes that fail at work: those that hang are found, and it is settled who is to blame for a crash.

Twice a second it is looked at what has come from each.

A process that has work and sends nothing may well be busy: a prompt is read, a client does not take its answer. So it
is asked a cheap question first, which llama-server answers while it computes. Only a process that is known to answer it
at work is judged by it. Of llama-server that is known. Of other servers it has to be seen once, because some answer one
request after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import trio

from appliance.core.config.additions import HangsConfig
from appliance.core.scheduling.judging import Silence, Suspects, patience
from appliance.errors import KillsEngines, UpstreamFailed
from appliance.fleet.child import unanswered
from appliance.fleet.launches import Launches
from appliance.fleet.lease import GivenUp, Lease
from appliance.fleet.run import END_NOTICED, ModelRun, RunEnd
from appliance.trio_parts import persist

NOTICE_TIME = 1.1
"""llama-server's second between two looks, and a little."""
LOOK_EVERY = 0.5
FIRST_QUESTION = 1.0
"""Seconds of work after which a server is asked of which nobody knows whether it answers meanwhile."""


log = logging.getLogger(__name__)


class Failures:
    """Owned by the fleet, whose processes and leases these are."""

    def __init__(self, runs: Mapping[str, ModelRun], leases: Mapping[int, Lease], launches: Launches) -> None:
        self.suspects = Suspects()
        self.quiet_at: dict[str, float] = {}
        """When each model's process has noticed that its last client to leave is gone."""
        self._runs = runs
        self._leases = leases
        self._launches = launches

    def check(self, lease: Lease, now: float) -> None:
        """Raises KillsEngines for a request that has ended two processes."""
        if self.suspects and self.suspects.refuses(lease.request, now):
            raise KillsEngines(lease.model.id, "it has come again")

    def over(self, lease: Lease, error: BaseException | None, now: float) -> None:
        """A lease has ended, with this error."""
        if error is not None and isinstance(error, (trio.Cancelled, GivenUp)):
            self.quiet_at[lease.model.id] = now + NOTICE_TIME
        if lease.address is None or (run := self._runs.get(lease.model.id)) is None:
            return
        run.passed += lease.passed
        run.leases_ended += 1
        if isinstance(error, UpstreamFailed):
            run.broken.append((lease, now))
        elif error is None and self.suspects:
            self.suspects.answered(lease.request)

    def working(self) -> Mapping[ModelRun, int]:
        """Processes with requests under way, and the bytes that have come from each."""
        passed: dict[ModelRun, int] = {}
        for lease in self._leases.values():
            if lease.address is not None and (run := self._runs.get(lease.model.id)) is not None:
                passed[run] = passed.get(run, run.passed) + lease.passed
        return passed

    def judge(self, run: ModelRun, ended: RunEnd, now: float) -> None:
        """Blame the seat on which a process crashed, unless it was the fault of a request that it answered."""
        model_id, address = run.model.id, run.address
        seat = ended.engine.seat if ended.engine is not None else ""
        # The exit and the broken connections are noticed in any order. So the suspects are the leases that are still
        # under way, and those that broke a moment ago.
        live = [lease for lease in self._leases.values() if address is not None and lease.address is address]
        broken = [lease for lease, at in run.broken if now < at + END_NOTICED]
        requests = {lease.request for lease in (*live, *broken) if lease.asks is not None}
        cleared = self.suspects.died(requests, seat, now) if not ended.lost_worker else {}
        for seats in cleared.values():
            log.warning("model '%s': a request has ended two processes; no engine is to blame for that", model_id)
            for one in dict.fromkeys(seats):
                self._launches.pardon(model_id, one)
        if not cleared:
            self._launches.blame(model_id, ended)


class WatchedFleet(Protocol):
    """The part of the fleet that `Hangs` uses."""

    @property
    def queued(self) -> int: ...

    async def wait_changed(self) -> None: ...

    def condemn(self, model_id: str, why: str, *, crashed: bool = False) -> bool: ...


class Hangs:
    """Owned by the fleet, which runs `watch`. ``settings`` are those in force."""

    def __init__(self, failures: Failures, settings: Callable[[], HangsConfig]) -> None:
        self._working = failures.working
        self._settings = settings
        self._silences: dict[ModelRun, Silence] = {}
        self._asked: set[ModelRun] = set()

    async def watch(self, fleet: WatchedFleet) -> None:
        """Look until cancelled; while nothing has work, only a change of the fleet wakes this."""
        async with trio.open_nursery() as nursery:
            while True:
                while not self._look(fleet, nursery):
                    await fleet.wait_changed()
                await trio.sleep(LOOK_EVERY)

    def _look(self, fleet: WatchedFleet, nursery: trio.Nursery) -> bool:
        """False where nothing has work."""
        hangs, working, now = self._settings(), self._working(), trio.current_time()
        # Built anew with each look. A process without work drops out, so its next work begins with a new silence; the
        # time in which nobody asked it for anything never counts.
        self._silences = {run: self._silences.get(run) or Silence(passed, now) for run, passed in working.items()}
        limit = patience(hangs, awaited=fleet.queued > 0)
        for run, passed in working.items():
            silent = self._silences[run].look(passed, now, hangs.floor)
            known = run.answers_at_work
            # A process that is known to answer while it computes is asked once it has been silent for too long. Any
            # other one is asked early, while it surely lives: only if it answers then may its silence count against it
            # later.
            is_due = silent >= limit if known else now >= self._silences[run].began + FIRST_QUESTION
            if is_due and hangs.after and run.question and run not in self._asked:
                self._asked.add(run)
                nursery.start_soon(persist, f"asking model '{run.model.id}'", partial(self._ask, fleet, run, hangs))
        return bool(working)

    async def _ask(self, fleet: WatchedFleet, run: ModelRun, hangs: HangsConfig) -> None:
        """Ask one process whether it lives, and condemn it if it does not answer and nothing else comes from it."""
        silence, before, ended = self._silences.get(run), self._working().get(run), run.leases_ended
        address, path = run.address, run.question
        try:
            if silence is None or before is None or address is None or path is None:
                return
            why = await unanswered(address, path, hangs.answer)
            passed, now = self._working().get(run), trio.current_time()
            if passed is None or self._silences.get(run) is not silence:
                return  # its work is done
            silent = silence.look(passed, now, hangs.floor)
            # The answer is a proof only if no lease has ended since the question. A server that takes one request after
            # the other answers when the request before is over, which says nothing about its answers at work.
            if not why:
                run.answered_at_work = run.answered_at_work or run.leases_ended == ended
                silence.on_progress(passed, now)
            elif run.answers_at_work and passed < before + hangs.floor:
                told = f"it hangs: next to nothing has come from it for {silent:.0f} s, and {why}"
                fleet.condemn(run.model.id, told, crashed=True)
            else:
                silence.on_progress(passed, now)
                silence.began = now
        finally:
            self._asked.discard(run)
