"""Finds model processes that hang at work: twice a second it is looked at what has come from each.

A process that has work and sends nothing may well be busy: a prompt is read, a client does not take its answer. So it
is asked a cheap question first, which llama-server answers while it computes. Only a process that is known to answer it
at work is judged by it. Of llama-server that is known. Of other servers it has to be seen once, because some answer one
request after the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import trio

from appliance.core.config.types import HangsConfig
from appliance.core.scheduling.judging import Silence, patience
from appliance.fleet.readiness import unanswered
from appliance.fleet.run import ModelRun
from appliance.trio_parts import persist

LOOK_EVERY = 0.5
FIRST_QUESTION = 1.0
"""Seconds of work after which a server is asked of which nobody knows whether it answers meanwhile."""


class Hangs:
    """Owned by the fleet, which runs `watch`. ``working`` tells the processes with work, with the bytes that have come
    from each; ``awaited`` whether a model waits for room; ``condemn`` ends a process.
    """

    def __init__(
        self,
        settings: Callable[[], HangsConfig],
        working: Callable[[], Mapping[ModelRun, int]],
        awaited: Callable[[], bool],
        condemn: Callable[[ModelRun, str], object],
    ) -> None:
        self._settings = settings
        self._working = working
        self._awaited = awaited
        self._condemn = condemn
        self._silences: dict[ModelRun, Silence] = {}
        self._asked: set[ModelRun] = set()

    async def watch(self, wait_changed: Callable[[], Awaitable[None]]) -> None:
        """Look until cancelled; while nothing has work, only ``wait_changed`` wakes this."""
        async with trio.open_nursery() as nursery:
            while True:
                while not self._look(nursery):
                    await wait_changed()
                await trio.sleep(LOOK_EVERY)

    def _look(self, nursery: trio.Nursery) -> bool:
        """False where nothing has work."""
        hangs, working, now = self._settings(), self._working(), trio.current_time()
        self._silences = {run: self._silences.get(run) or Silence(passed, now) for run, passed in working.items()}
        limit = patience(hangs, awaited=self._awaited())
        for run, passed in working.items():
            silent = self._silences[run].look(passed, now, hangs.floor)
            known = run.answers_at_work
            is_due = silent >= limit if known else now >= self._silences[run].began + FIRST_QUESTION
            if is_due and hangs.after and run.question and run not in self._asked:
                self._asked.add(run)
                nursery.start_soon(persist, f"asking model '{run.model.id}'", partial(self._ask, run, hangs))
        return bool(working)

    async def _ask(self, run: ModelRun, hangs: HangsConfig) -> None:
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
            if not why:
                run.answered_at_work = run.answered_at_work or run.leases_ended == ended
                silence.heard(passed, now)
            elif run.answers_at_work and passed < before + hangs.floor:
                self._condemn(run, f"it hangs: next to nothing has come from it for {silent:.0f} s, and {why}")
            else:
                silence.heard(passed, now)
                silence.began = now
        finally:
            self._asked.discard(run)
