"""The trials of an update to a build: a proof on the devices of the build in use, a run of the user's own model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
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
from appliance.features.engines.proving import CompletionAnswer, alone_on_machine
from appliance.features.engines.shelf import StateFile
from appliance.features.engines.trial import TrialFailed, open_trial
from appliance.platform.children import Children, open_children
from appliance.platform.console import say

LOAD_TIME = 300.0  # seconds that a model may take to load
ROUNDS = 3  # requests to each build, of which the fastest counts: other programs slow some of them down
PROMPT = " ".join(f"{number} bottles of beer on the wall, take one down, pass it around." for number in range(10))
REQUEST = {"prompt": PROMPT, "n_predict": 32, "temperature": 0, "cache_prompt": False, "ignore_eos": True}


def devices_of(ranked: Sequence[Ranked], build: str) -> dict[str, str]:
    """The devices on which a build is proven: ids to names."""
    proven = [one.seat for one in ranked if one.seat.build == build and one.standing == "proven"]
    return {device.id: device.name for seat in proven for device in seat.devices}


class UpdateTrials(Struct, kw_only=True):
    """The trials of one update, told on standard error. The strings are why the build is not taken; empty: it is.

    ``needed`` are the devices of the build in use, ``models`` finds those to try it with, ``show`` gets each proof.
    """

    file: StateFile
    old: Engine
    needed: Mapping[str, str]
    models: Callable[[], Awaitable[Sequence[Model]]]
    show: Callable[[Proof], None]
    new: Engine | None = None  # as it was proven

    async def prove(self, folder: Path) -> str:
        """Prove the build on every device that it is needed on. What is learnt is remembered."""
        engine = find_engine(str(folder))
        async with open_engines(lambda: [engine], self.file, only=True) as engines:
            await engines.probe()
            proofs = await engines.prove(list(engines.seats), self.show)
            ranked = engines.ranked(word=engine.id)
            proven, found = devices_of(ranked, engine.id), best(ranked)
            failed = next((proof.why for proof in proofs if not proof.ok), "")
            if missing := ", ".join(name for device, name in self.needed.items() if device not in proven):
                why = failed or "it does not list it"
                return f"it does not work on {missing}, where the build in use does: {why}"
            if found is None or not proven:
                return f"it does not work here: {failed or 'it has no device that it could use'}"
            self.new = engines.engine_on(found.seat)
            return ""

    async def try_models(self, _: Path) -> str:
        """Try it with the first of the models that can be run at all, right after the build in use."""
        assert self.new is not None
        engines, models, told = (self.old, self.new), await self.models(), list[str]()
        async with alone_on_machine(), open_children() as children:
            for model in models:
                before, after = [await measure(engine, model, children) for engine in engines]
                if _slower(before, after):  # once more: other programs may have slowed it down
                    before, after = [await measure(engine, model, children) for engine in engines]
                if isinstance(after, ProvenSpeeds):
                    known = f", before {before.generation:.0f}" if isinstance(before, ProvenSpeeds) else ""
                    say(f"  {model.id}: {after.generation:.0f} tokens/s{known}")
                    return _slower(before, after)
                if isinstance(before, ProvenSpeeds):
                    return f"it does not run '{model.id}', which the build in use does: {after}"
                told.append(f"{model.id}: {after}")
        return f"no model could be run to try it with ({'; '.join(told) or 'there are none'})"


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
