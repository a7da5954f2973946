"""What the starter is known to say is what it says, by far: measured with a real engine.

When the starter is trained anew, this fails and shows the exchanges as they are now, for
`appliance/features/engines/core/trials.py`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio
from engine_runs import PROCESSOR
from msgspec import Struct

from appliance.core.engine import EMBEDDED
from appliance.features import embedded
from appliance.features.engines.core.trials import KNOWN, KnownCompletion
from appliance.features.engines.found import find_engine
from appliance.features.engines.proving import device_args
from appliance.features.engines.trial import TrialServer, open_trial
from appliance.platform.children import open_children

LEAST_MARGIN = 5.0
"""Nats by which the best token leads at every step, at least; rounding and kernels differ by a hundredth."""

pytestmark = pytest.mark.skipif(not embedded.available(), reason="the embedded engine is not installed here")
BATCH = 64
"""Prompts of more tokens than this go through the kernels for batches on every backend."""


class Candidate(Struct):
    id: int
    logprob: float


class Step(Struct):
    id: int
    top_logprobs: list[Candidate]


class Answer(Struct):
    content: str
    tokens: list[int]
    tokens_evaluated: int
    stop_type: str
    completion_probabilities: list[Step]


async def ask(trial: TrialServer, known: KnownCompletion) -> Answer:
    question = {
        "prompt": known.prompt, "n_predict": 64, "temperature": 0, "cache_prompt": False, "return_tokens": True,
        "n_probs": 2,
    }  # fmt: skip
    return msgspec.json.decode(await trial.ask("/completion", question, seconds=30), type=Answer)


def lead(step: Step) -> float:
    best, second = step.top_logprobs
    return best.logprob - second.logprob if step.id == best.id else -1.0


async def test_the_constants_are_what_the_starter_says_and_nothing_else_comes_near(starter_model: Path) -> None:
    engine = find_engine(EMBEDDED)
    answers: list[Answer] = []
    with trio.fail_after(60):
        async with (
            open_children() as children,
            open_trial(engine, device_args(PROCESSOR), starter_model, children, seconds=30) as trial,
        ):
            for known in KNOWN:
                answers.append(await ask(trial, known))
    for known, answer in zip(KNOWN, answers, strict=True):
        now = f"it now says {answer.content!r}, {tuple(answer.tokens)}"
        assert (answer.content, tuple(answer.tokens)) == (known.content, known.tokens), now
        assert answer.stop_type == "eos", now
        assert min(map(lead, answer.completion_probabilities)) >= LEAST_MARGIN, now
    lengths = [answer.tokens_evaluated for answer in answers]
    assert lengths == sorted(lengths)
    assert lengths[0] < BATCH < lengths[-2]
