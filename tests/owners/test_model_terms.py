"""What a configuration says of its models reaches the schedule and their commands, whose own tests have the rest."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.cli.serve import OWNED
from appliance.core.config.load import SourceFile, load
from appliance.core.config.types import ModelConfig
from appliance.core.engine import Engine
from appliance.core.llama import flags
from appliance.core.machine_look import MachineLook
from appliance.core.models.model import Model
from appliance.core.scheduling.effects import Terms
from appliance.core.scheduling.policy import FleetLimits
from appliance.core.settings import FleetSettings
from appliance.fleet.budgets import Budgets, corrected, limits_of, terms_of
from appliance.fleet.estimate import PlainEstimate
from appliance.fleet.launch import model_command

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


def command(*overrides: str, on_cpu: bool = True, defaults: Sequence[str] = ()) -> tuple[str, ...]:
    return model_command(
        ("engine",),
        on_cpu=on_cpu,
        model_id="m",
        path="/m.gguf",
        port=4000,
        threads=3,
        metrics=True,
        options=(*defaults, *overrides),
    )


def effective(argv: Sequence[str], name: str) -> str | None:
    """The value llama-server ends up with: the last one given, under any spelling."""
    option = flags.last(flags.split(argv[1:]), name)
    return option.values[0] if option else None


def test_what_the_user_asked_for_wins_over_the_model_and_the_program() -> None:
    argv = command("-t", "8", "-c", "100", defaults=("--ctx-size", "8192", "--temp", "0"))
    assert effective(argv, "--threads") == "8"
    assert effective(argv, "--ctx-size") == "100"
    assert effective(argv, "--temp") == "0"
    assert effective(argv, "--host") == "127.0.0.1"
    assert effective(argv, "--port") == "4000"


def test_cpu_batches_are_small_unless_somebody_chose() -> None:
    assert effective(command(), "--batch-size") == "512"
    assert effective(command("-b", "2048"), "--batch-size") == "2048"
    assert effective(command("-ub", "1024"), "--batch-size") is None
    assert effective(command(on_cpu=False), "--batch-size") is None


def test_owned_flags_exist() -> None:
    assert [flag for flag in OWNED if flags.lookup(flag) is None] == []
