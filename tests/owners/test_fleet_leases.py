"""A configuration's words reach the schedule and commands; a lease that is cancelled at any step leaves no trace."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import trio
from configured_harness import Fleets
from fleet_harness import fake_engine, fake_model

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
from appliance.errors import UpstreamFailed
from appliance.fleet.budgets import Budgets, corrected, limits_of, terms_of
from appliance.fleet.estimate import PlainEstimate
from appliance.fleet.launch import model_command
from appliance.fleet.owner import Fleet, open_fleet
from appliance.fleet.performer import Performer
from appliance.upstream.client import HttpCall

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
    engine = Engine(name="e", backend="cpu", version=None, command=("e",), source="s")
    assert budgets.plan(model, engine, budgets.room(engine), 0, 0) is None


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


STREAM = b'{"prompt":"x","stream":true,"fake":{"tokens":12,"token_delay":0.003}}'
STEPS, ENOUGH = 12, 3
"""Steps at which to cancel at least, and then requests in a row that end before theirs: on a busy machine some take few
steps."""
OWNER_TASK = f"{Performer.__module__}.Performer._own"


class CancelAtStep(trio.abc.Instrument):
    """Cancels a scope just before the ``step``-th step of the task that is named so."""

    def __init__(self, name: str, step: int) -> None:
        self._name = name
        self._left = step
        self.scope = trio.CancelScope()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task.name == self._name:
            self._left -= 1
            if self._left == 0:
                self.scope.cancel()


async def use(fleet: Fleet, model: Model, path: str, scope: trio.CancelScope) -> None:
    with scope:
        async with fleet.lease(model) as address:
            try:
                async with HttpCall(address, "POST", path, (), STREAM) as response:
                    await response.read(1 << 20)
            except UpstreamFailed:
                raise AssertionError("the model went away under a lease") from None


@asynccontextmanager
async def engines(folder: Path) -> AsyncGenerator[tuple[Fleet, list[Model], str]]:
    models = [fake_model(folder, name) for name in ("a", "b")]
    async with open_fleet(FleetSettings(models_max=1, threads=1), fake_engine()) as fleet:
        yield fleet, models, "/completion"


@asynccontextmanager
async def configured(folder: Path) -> AsyncGenerator[tuple[Fleet, list[Model], str]]:
    fleets = Fleets(folder)
    stopped = {} if sys.platform == "win32" else {"cmdStop": "sh -c 'kill ${PID}'"}  # Windows has a way of its own
    servers = {name: fleets.server(name, stopped, before="closed") for name in ("a", "b")}
    async with fleets.open(servers) as world:
        yield world.fleet, list(world.models.values()), "/drip"


@pytest.mark.parametrize("kind", [engines, configured])
async def test_cancelled_at_every_step(kind, tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with kind(tmp_path) as (fleet, models, path):
            cancelled = in_a_row = 0
            for step in range(1, 200):
                model = models[step % 2]  # each one evicts the other: queue, stop, start, grant
                instrument = CancelAtStep("cancelled-user", step)
                trio.lowlevel.add_instrument(instrument)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(use, fleet, model, path, instrument.scope, name="cancelled-user")
                trio.lowlevel.remove_instrument(instrument)
                assert all(status.leases == 0 and status.waiting == 0 for status in fleet.status()), f"step {step}"
                cancelled += instrument.scope.cancelled_caught
                in_a_row = 0 if instrument.scope.cancelled_caught else in_a_row + 1
                if step >= STEPS and in_a_row >= ENOUGH:
                    break
            assert cancelled >= 5, "the instrument reached too few steps to prove anything"
            async with fleet.lease(models[0]):
                assert sum(status.pid is not None for status in fleet.status()) == 1


@pytest.mark.slow
async def test_a_fleet_cancelled_at_every_step_of_a_models_owner_leaves_no_process(tmp_path: Path) -> None:
    cancelled = 0
    for step in range(1, 200):
        instrument = CancelAtStep(OWNER_TASK, step)
        trio.lowlevel.add_instrument(instrument)
        with trio.fail_after(20), instrument.scope:
            async with configured(tmp_path) as (fleet, models, _):
                for model in models:
                    await fleet.load(model)
        trio.lowlevel.remove_instrument(instrument)
        assert running_servers(tmp_path) == [], f"step {step}"
        if not instrument.scope.cancelled_caught:
            break
        cancelled += 1
    assert cancelled >= 5, "the instrument reached too few steps to prove anything"


def running_servers(folder: Path) -> list[int]:
    told = [line.split() for path in folder.glob("*.events") for line in path.read_text("utf-8").splitlines()]
    pids = {int(pid) for what, pid, _ in told if what == "begun" and int(pid) != os.getpid()}
    return [pid for pid in pids if psutil.pid_exists(pid)]
