"""The trials of an update to a build: a proof on the devices of the build in use, a run of the user's own model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from appliance.core.engine import Engine
from appliance.core.lenient_json import UNREADABLE
from appliance.core.models.model import Model
from appliance.features.engines.core.choice import Ranked, best
from appliance.features.engines.core.standing import Proof, ProvenSpeeds
from appliance.features.engines.core.trials import canary_failure, speeds_of
from appliance.features.engines.found import find_engine
from appliance.features.engines.owner import open_engines
from appliance.features.engines.proving import CompletionAnswer
from appliance.features.engines.shelf import StateFile
from appliance.features.engines.trial import TrialFailed, open_trial
from appliance.platform.children import Children

LOAD_TIME = 300.0  # seconds that a model may take to load
ROUNDS = 3  # requests to each build, of which the fastest counts: other programs slow some of them down
PROMPT = " ".join(f"{number} bottles of beer on the wall, take one down, pass it around." for number in range(10))
REQUEST = {"prompt": PROMPT, "n_predict": 32, "temperature": 0, "cache_prompt": False, "ignore_eos": True}


def devices_of(ranked: Sequence[Ranked], build: str) -> dict[str, str]:
    """The devices on which a build is proven: ids to names."""
    proven = [one.seat for one in ranked if one.seat.build == build and one.standing == "proven"]
    return {device.id: device.name for seat in proven for device in seat.devices}


async def prove_staged(
    folder: Path, file: StateFile, starter: Path, needed: Mapping[str, str], apply: Callable[[Proof], None]
) -> tuple[str, Engine | None]:
    """Why the build will not do, or empty; and its engine on its best seat's devices. What is learnt is remembered."""
    engine = find_engine(str(folder))
    async with open_engines(lambda: [engine], file, starter=starter, only=True) as engines:
        await engines.probe()
        proofs = await engines.prove(list(engines.seats), apply)
        ranked = engines.ranked(word=engine.id)
        proven = devices_of(ranked, engine.id)
        if missing := [name for device, name in needed.items() if device not in proven]:
            why = next((proof.why for proof in proofs if not proof.ok), "it does not list it")
            return f"it does not work on {', '.join(missing)}, where the build in use does: {why}", None
        found = best(ranked)
        if found is None or not proven:
            why = next((proof.why for proof in proofs if not proof.ok), "it has no device that it could use")
            return f"it does not work here: {why}", None
        return "", engines.engine_on(found.seat)


class UpdateVerdict(Struct, frozen=True, kw_only=True):
    """The outcome. ``why`` says why the new build is not taken; empty: it is."""

    model: str = ""
    why: str = ""
    old: ProvenSpeeds | None = None
    new: ProvenSpeeds | None = None


async def canary(old: Engine, new: Engine, models: Sequence[Model], children: Children) -> UpdateVerdict:
    """Try the new build with the first of the models that can be run at all."""
    told: list[str] = []
    for model in models:
        before, after = await measure(old, model, children), await measure(new, model, children)
        if _slower(before, after):  # once more: other programs may have slowed it down
            before, after = await measure(old, model, children), await measure(new, model, children)
        if isinstance(after, ProvenSpeeds):
            known = before if isinstance(before, ProvenSpeeds) else None
            return UpdateVerdict(model=model.id, why=_slower(before, after), old=known, new=after)
        if isinstance(before, ProvenSpeeds):
            why = f"it does not run '{model.id}', which the build in use does: {after}"
            return UpdateVerdict(model=model.id, why=why)
        told.append(f"{model.id}: {after}")
    return UpdateVerdict(why=f"no model could be run to try it with ({'; '.join(told) or 'there are none'})")


def _slower(before: ProvenSpeeds | str, after: ProvenSpeeds | str) -> str:
    """Return why the new build is too slow; empty: it is not, or one of the two did not run the model."""
    return "" if isinstance(before, str) or isinstance(after, str) else canary_failure(before, after)


async def measure(engine: Engine, model: Model, children: Children) -> ProvenSpeeds | str:
    """Its speed with this model, or why it has none."""
    speeds: list[ProvenSpeeds] = []
    try:
        async with open_trial(engine, (), Path(model.path), children, seconds=LOAD_TIME) as trial:
            for _ in range(ROUNDS):
                answer = await trial.ask("/completion", REQUEST, seconds=LOAD_TIME)
                speed = speeds_of([msgspec.json.decode(answer, type=CompletionAnswer).timings])
                if speed is None:
                    return "it tells a speed of nothing"
                speeds.append(speed)
    except TrialFailed as cause:
        return cause.why
    except UNREADABLE:
        return "its answer is not that of llama-server"
    return min(speeds, key=lambda speed: speed.nominal_seconds)
