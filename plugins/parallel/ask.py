"""The other candidates of one request: requested beside it, waited for, and judged."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import assert_never

from appliance.plugins import AskFailed, Context, JsonObject, Pending
from appliance.plugins.chat import answer_message, answer_text, text_of

from .choose import MERGE, PICK, Candidate, Verdict, judge_messages, normal, pick_format, picked, vote
from .settings import Settings

CHAT = "/v1/chat/completions"
MEMBER = "parallel"
"""A member of the answer: the winner, and how it won."""


@dataclass(frozen=True, kw_only=True)
class Other:
    """One requested candidate."""

    number: int
    model: str
    pending: Pending[Candidate]


@dataclass(kw_only=True)
class Round:
    """One request's candidates. ``done`` has the others that have answered, in the order of their answers."""

    settings: Settings
    question: str
    context: Context
    others: list[Other] = field(default_factory=list[Other])
    done: list[Candidate] = field(default_factory=list[Candidate])

    def begin(self, body: JsonObject) -> None:
        """Ask the others the request ``body``, all at once."""
        for number, model in enumerate(self.settings.others(self.context.model), 2):
            asked = deepcopy(body) | {"model": model, "stream": False}
            asked.pop("stream_options", None)
            if self.settings.temperature is not None:
                asked["temperature"] = self.settings.temperature
            seed = asked.get("seed")
            if isinstance(seed, int) and seed >= 0:
                asked["seed"] = seed + number - 1  # the same seed would give the same answer
            pending = self.context.begin(partial(self._ask, number, model, asked), within=self.settings.seconds)
            self.others.append(Other(number=number, model=model, pending=pending))

    async def _ask(self, number: int, model: str, body: JsonObject) -> Candidate:
        answer = await self.context.appliance.post(CHAT, body)
        candidate = candidate_of(number, model, answer_message(answer))
        self.done.append(candidate)
        return candidate

    async def all(self, own: Candidate) -> list[Candidate]:
        """Return every candidate in the order of asking, when the last of them has ended."""
        candidates = [own]
        for other in self.others:
            try:
                candidates.append(await other.pending.wait())
            except AskFailed as error:
                self.context.logger.warning("candidate %d (%s) has no answer: %s", other.number, other.model, error)
                candidates.append(Candidate(number=other.number, model=other.model, failure=str(error)))
        return candidates

    def cancel(self) -> None:
        for other in self.others:
            other.pending.cancel()

    async def settle(self, own: Candidate) -> tuple[list[Candidate], Verdict | None]:
        """The candidates and the winner; None if nobody has an answer."""
        if self.settings.choose == "first" and (quick := self.first([*self.done, own])) is not None:
            self.cancel()
            return [own, *sorted(self.done, key=lambda candidate: candidate.number)], quick
        candidates = await self.all(own)
        return candidates, self.clear(candidates) or await self._judge([each for each in candidates if each.usable])

    def first(self, ended: Sequence[Candidate]) -> Verdict | None:
        """Return the first candidate that has ended, in the order of their ends."""
        usable = [candidate for candidate in ended if candidate.usable]
        return Verdict(winner=usable[0], how="the first to be ready") if usable else None

    def clear(self, candidates: Sequence[Candidate]) -> Verdict | None:
        """Return the winner, if that needs no judge."""
        usable = [candidate for candidate in candidates if candidate.usable]
        if not usable:
            return None
        if len(usable) == 1:
            return Verdict(winner=usable[0], how="the only answer")
        if len({normal(candidate.text, "whole") for candidate in usable}) == 1:
            return Verdict(winner=usable[0], how="all agree")
        match self.settings.choose:
            case "vote":
                return vote(usable, self.settings.vote_on)
            case "first":
                return self.first(usable)
            case "judge" | "merge":
                return None
            case _:
                assert_never(self.settings.choose)

    async def _judge(self, usable: Sequence[Candidate]) -> Verdict | None:
        if not usable:
            return None
        merge = self.settings.choose == "merge"
        body = self.merge_body(usable) if merge else self.pick_body(usable)
        post = self.context.begin(partial(self.context.appliance.post, CHAT, body), within=self.settings.seconds)
        try:
            answer = await post.wait()
        except AskFailed as error:
            return self.unjudged(usable, f"did not answer: {error}")
        if merge:
            merged = candidate_of(0, self.judge, answer_message(answer))
            return self.merged(merged, usable) if merged.usable else self.unjudged(usable, "wrote nothing")
        best = picked(answer_text(answer), len(usable))
        if best is None:
            return self.unjudged(usable, f"named none of the answers: {answer_text(answer)[:80]!r}")
        return Verdict(winner=usable[best - 1], how=f"picked by {self.judge}")

    def merged(self, merged: Candidate, usable: Sequence[Candidate]) -> Verdict:
        return Verdict(winner=merged, how=f"merged from {len(usable)} answers by {self.judge}")

    def unjudged(self, usable: Sequence[Candidate], why: str) -> Verdict:
        """The first answer wins if the judge is of no use."""
        self.context.logger.warning("the judge %s %s; the first answer is taken", self.judge, why)
        return Verdict(winner=usable[0], how=f"the first answer: the judge {self.judge} {why}")

    @property
    def judge(self) -> str:
        return self.settings.judge_model or self.context.model

    def pick_body(self, usable: Sequence[Candidate]) -> JsonObject:
        return self._judge_body(PICK, usable) | {"response_format": pick_format(len(usable))}

    def merge_body(self, usable: Sequence[Candidate]) -> JsonObject:
        return self._judge_body(MERGE, usable)

    def _judge_body(self, instruction: str, usable: Sequence[Candidate]) -> JsonObject:
        messages = judge_messages(instruction, self.question, [candidate.text for candidate in usable])
        return {"model": self.judge, "messages": [*messages], "temperature": 0}

    def told(self, verdict: Verdict, candidates: Sequence[Candidate]) -> JsonObject:
        """Return the ``parallel`` member of an answer. Number 0 is the judge's own text, merged from all."""
        told: list[JsonObject] = [
            {"number": candidate.number, "model": candidate.model, "failure": candidate.failure}
            for candidate in candidates
        ]
        winner = verdict.winner
        return {
            "choose": self.settings.choose,
            "won": winner.number,
            "model": winner.model,
            "how": verdict.how,
            "candidates": [*told],
        }


def candidate_of(number: int, model: str, message: JsonObject) -> Candidate:
    text = text_of(message)
    empty = None if text.strip() else "an answer without text"
    return Candidate(number=number, model=model, text=text, failure=empty)
