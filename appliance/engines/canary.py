"""A new build against the one in use, on a model of the user's: whether it runs it, and how fast.

Both are measured in the same way, the old one right before. Where neither runs a model, the next one is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from appliance.core.engines.speeds import Speeds, Timings, speeds_of
from appliance.core.engines.update import canary_failure
from appliance.engines.found import Engine
from appliance.engines.trial import TrialFailed, open_trial
from appliance.platform.children import Children

LOAD_TIME = 300.0
"""Seconds that a model may take to load."""
ROUNDS = 3
"""Requests to each build, of which the fastest counts: other programs slow some of them down."""
PROMPT = " ".join(f"{number} bottles of beer on the wall, take one down, pass it around." for number in range(10))
REQUEST = {"prompt": PROMPT, "n_predict": 32, "temperature": 0, "cache_prompt": False, "ignore_eos": True}


class Candidate(Struct, frozen=True):
    """A model to try with."""

    id: str
    path: Path


class Verdict(Struct, frozen=True, kw_only=True):
    """What came out. ``why``: the new build is not taken; empty: it is."""

    model: str = ""
    why: str = ""
    old: Speeds | None = None
    new: Speeds | None = None


class _Answer(Struct, frozen=True):
    timings: Timings


async def canary(old: Engine | None, new: Engine, models: Sequence[Candidate], children: Children) -> Verdict:
    """Try the new build with the first of the models that can be run at all."""
    told: list[str] = []
    for model in models:
        before = await measure(old, model.path, children) if old is not None else None
        after = await measure(new, model.path, children)
        if isinstance(after, Speeds):
            slow = canary_failure(before if isinstance(before, Speeds) else None, after)
            if slow and old is not None:  # once more: other programs may have slowed it down
                before, after = await measure(old, model.path, children), await measure(new, model.path, children)
        if isinstance(after, Speeds):
            old_speed = before if isinstance(before, Speeds) else None
            return Verdict(model=model.id, why=canary_failure(old_speed, after), old=old_speed, new=after)
        if isinstance(before, Speeds):
            return Verdict(model=model.id, why=f"it does not run '{model.id}', which the build in use does: {after}")
        told.append(f"{model.id}: {after}")
    return Verdict(why=f"no model could be run to try it with ({'; '.join(told) or 'there are none'})")


async def measure(engine: Engine, model: Path, children: Children) -> Speeds | str:
    """Its speed with this model, or why it has none."""
    answers: list[bytes] = []
    try:
        async with open_trial(engine, (), model, children, seconds=LOAD_TIME) as trial:
            for _ in range(ROUNDS):
                answers.append(await trial.ask("/completion", REQUEST, seconds=LOAD_TIME))
    except TrialFailed as cause:
        return cause.why
    try:
        timings = [msgspec.json.decode(answer, type=_Answer).timings for answer in answers]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "its answer is not that of llama-server"
    speeds = [found for one in timings if (found := speeds_of([one])) is not None]
    if len(speeds) < len(timings):
        return "it tells a speed of nothing"
    return min(speeds, key=lambda speed: speed.nominal_seconds)
