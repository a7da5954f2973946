"""What a configuration says of its models and its queue reaches the schedule, whose own tests have the rest."""

from __future__ import annotations

from appliance.core.config.load import SourceFile, load
from appliance.core.config.types import ModelConfig
from appliance.core.engine import Engine
from appliance.core.machine_look import MachineLook
from appliance.core.models.model import Model
from appliance.core.scheduling.effects import Terms
from appliance.core.scheduling.policy import FleetLimits
from appliance.core.settings import FleetSettings
from appliance.fleet.budgets import Budgets, corrected, limits_of, terms_of
from appliance.fleet.estimate import PlainEstimate

TEXT = """
modelsMax: 3
queueLimit: 7
patience: 4
memory: {ram: 2MiB}
routing: {scheduler: {settings: {fifo: {priority: {m: 5}}}}}
models:
  m: {cmd: "run ${PORT}", pinned: true, ttl: 9, minLoadedTime: 6, concurrencyLimit: 2, memory: {gpu0: 1MiB}}
"""


def test_every_word_arrives() -> None:
    config = load([SourceFile("c.yaml", TEXT)], {}).require()
    model = Model(id="m", source="config", config=config.models["m"])
    terms = Terms(memory={"gpu0": 1 << 20}, priority=5, limit=2, pinned=True, ttl=9, patience=4, min_loaded=6)
    assert terms_of(model, config, FleetSettings()) == terms
    assert limits_of(config, FleetSettings()) == FleetLimits(capacity=3, memory={"ram": 2 << 20}, queue=7)


def test_buffers_count_in_place_of_an_estimate_and_what_the_configuration_says_is_the_least() -> None:
    assert corrected({"ram": 9, "gpu0": 9}, None, {}) == {"ram": 9, "gpu0": 9}
    assert corrected({"ram": 9, "gpu0": 9}, None, {"ram": 4}) == {"ram": 9, "gpu0": 9}
    assert corrected({"ram": 9, "gpu0": 9}, None, {"ram": 12}) == {"ram": 12, "gpu0": 9}
    assert corrected({"ram": 9}, None, {"ram": 4}, {"ram": 5, "gpu1": 7}) == {"ram": 5, "gpu1": 7}
    assert corrected({"ram": 9, "gpu0": 9}, None, {"ram": 6}, {"ram": 5}) == {"ram": 6}
    told = ModelConfig(memory={"ram": 8, "gpu0": 3})
    assert corrected({"ram": 8, "gpu0": 3}, told, {"ram": 4}, {"gpu0": 5}) == {"ram": 8, "gpu0": 5}


def test_where_nobody_knows_more_the_size_of_a_file_says_it_all() -> None:
    budgets, model = Budgets(FleetSettings(), PlainEstimate()), Model(id="x", source="path", size=100)
    budgets.look = MachineLook(
        platform="p", system="s", environment="native", cpu="c", memory_total=8 << 30, memory_available=4 << 30
    )
    assert budgets.limits(None).memory == {}
    assert budgets.terms(model, None).memory == {"ram": 110}
    assert budgets.plan(model, Engine(name="e", backend="cpu", version=None, command=("e",), source="s")) is None
