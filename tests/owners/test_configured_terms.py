"""What a configuration says of its models and its queue reaches the schedule, whose own tests have the rest."""

from __future__ import annotations

from appliance.core.config.load import SourceFile, load
from appliance.core.models.model import Model
from appliance.core.scheduling.effects import Terms
from appliance.core.scheduling.policy import FleetLimits
from appliance.core.settings import FleetSettings
from appliance.fleet.budgets import limits_of, terms_of

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
