"""Prepares the launch of a model: on which engine, with which workers, by which command."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from msgspec import structs

from appliance.catalog.identities import made_of
from appliance.core.config.types import ModelConfig
from appliance.core.engine import Engine
from appliance.core.engine_output import explanation
from appliance.core.llama.flags import split
from appliance.core.machine_look import MachineLook
from appliance.core.memory import FitPlan
from appliance.core.models.model import Model
from appliance.core.rpc_workers import Crew, RpcWorker, WantedCrew, room_of
from appliance.core.scheduling.policy import NO_MEMORY
from appliance.core.settings import FleetSettings
from appliance.errors import ModelFailedToStart, UsageError, WillNotFit
from appliance.fleet.chooser import Chooser
from appliance.fleet.launch import (
    NOBODY,
    Launch,
    configured_launch,
    engine_argv,
    engine_launch,
    neighbour_at,
    will_listen,
    worker_endpoints,
)
from appliance.fleet.logs import Logs
from appliance.fleet.run import RunEnd
from appliance.platform.inside import engine_not_found
from appliance.platform.machine import engine_environment, engine_threads
from appliance.upstream.client import Address

log = logging.getLogger(__name__)


class Launches:
    """Owned by the fleet. ``staying`` gives the addresses of the running models that are not asked to stop."""

    def __init__(
        self,
        chooser: Chooser | None,
        settings: FleetSettings,
        logs: Logs,
        staying: Callable[[], Mapping[str, Address]],
        plan: Callable[[Model, Engine, Mapping[str, int]], FitPlan | None],
        check: Callable[[Model, Engine | None, FitPlan | None], None],
    ) -> None:
        self._chooser = chooser
        self._settings = settings
        self._logs = logs
        self._staying = staying
        self._plan = plan
        self._check = check
        self._lent: dict[str, str] = {}
        """Endpoints of workers to the models that use them: one at a time."""

    @property
    def _threads(self) -> int:
        return self._settings.threads or engine_threads()

    def _environment(self) -> Mapping[str, str]:
        return {"LLAMA_ARG_THREADS": str(self._settings.threads)} if self._settings.threads else engine_environment()

    @property
    def look(self) -> MachineLook | None:
        """The machine; None before the first look."""
        return self._chooser.look if self._chooser is not None else None

    @property
    def engine(self) -> Engine | None:
        """The engine for a model on disk of which nothing is known."""
        return self._chooser.choose() if self._chooser is not None else None

    def engine_for(self, model: Model, tried: Collection[str] = ()) -> Engine | None:
        """The engine that a model on disk would start on, on none of these seats; None for a configured one."""
        return self.choose(model, tried) if model.config is None else None

    async def check_alone(self, model: Model) -> None:
        """Raise WillNotFit for a model that does not fit even alone, before others are stopped for it."""
        is_ours = (model.config is None or model.config.engine) and not worker_endpoints(model, self._settings)
        engine = self.choose(model) if is_ours else None
        try:
            self._check(model, engine, None)
        except WillNotFit:
            if engine is None or _is_known(engine):
                raise
            if self._chooser is not None:
                await self._chooser.look_again()
            if (engine := self.choose(model)) is not None and _is_known(engine):
                self._check(model, engine, None)

    def argv_of(self, model: Model) -> tuple[str, ...]:
        """The command that would start it; of a model on disk with port 0, as the port is not chosen yet."""
        if model.config is not None:
            return tuple(model.config.argv)
        engine = self.choose(model)
        return engine_argv(model, engine, self._settings, self._threads) if engine is not None else ()

    def blame(self, model_id: str, ended: RunEnd) -> None:
        """Its engine failed, not the model; unless it was a worker on another machine."""
        if self._chooser is not None and ended.engine is not None and not ended.lost_worker:
            self._chooser.failed(ended.engine, model_id, _in_a_line(ended))

    def pardon(self, model_id: str, seat: str) -> None:
        """A request was to blame for what this seat failed at."""
        if self._chooser is not None:
            self._chooser.pardoned(seat, model_id)

    def choose(self, model: Model, tried: Collection[str] = (), *, rpc: bool = False) -> Engine | None:
        """``rpc``: one that speaks RPC, where there is any."""
        if self._chooser is None:
            return None
        # ``best`` is the answer where every engine lacks something: its own error then names the option that it does
        # not know, which helps more than "there is no engine".
        best = engine = self._chooser.choose(model.id, tried, model.engine, model.cards)
        while engine is not None and ((rpc and engine.rpc is None) or self._refuses(engine, model)):
            tried = (*tried, engine.seat)
            engine = self._chooser.choose(model.id, tried, model.engine, model.cards)
        return engine or best

    def _refuses(self, engine: Engine, model: Model) -> bool:
        """True if the model has options that this engine cannot honour, and another one may."""
        words = model.config.argv[1:] if model.config is not None else (*self._settings.engine_args, *model.args)
        try:
            return bool(engine.lacks) and any(option.canonical in engine.lacks for option in split(words))
        except UsageError:  # the engine says what is wrong with them
            return False

    async def prepare(self, model: Model, tried: Collection[str]) -> Launch | None:
        """See `Prepare`. Raises EngineNotFound, WillNotFit, and ModelFailedToStart for all else that is wrong before
        there is a process."""
        launch = await self._prepare(model, tried)
        return structs.replace(launch, made_of=made_of(model)) if launch is not None else None

    async def _prepare(self, model: Model, tried: Collection[str]) -> Launch | None:
        if model.config is not None and not model.config.engine:
            return self._configured(model, model.config)
        if model.cards and self._chooser is not None and (why := await self._chooser.lacks(model.cards)):
            raise ModelFailedToStart(model.id, why)
        endpoints = worker_endpoints(model, self._settings)
        engine, damaged, seen = self.choose(model, tried, rpc=bool(endpoints)), list[str](), list[str]()
        if engine is None and not tried and self._chooser is not None:
            seen = await self._chooser.look_again()
            engine = self.choose(model, tried, rpc=bool(endpoints))
        while engine is not None and self._chooser is not None and (damage := await self._chooser.check(engine)):
            damaged.append(f"engine {engine.id or engine.name} is not started: {damage}")
            tried = (*tried, engine.seat)
            engine = self.choose(model, tried, rpc=bool(endpoints))
        if engine is not None:
            crew = await self._gather(model, engine, endpoints)
            if model.config is not None:
                return self._configured(model, model.config, engine, crew)
            return engine_launch(model, engine, self._settings, self._threads, crew, self._fitting(model, engine, crew))
        if not tried:
            raise engine_not_found(seen or ("--engine", "PATH"))
        # Only damaged builds were tried, so nothing was started, and no earlier failure can say why. Otherwise None:
        # the first failed start is the answer.
        if len(damaged) == len(tried):
            raise ModelFailedToStart(model.id, "; ".join(damaged))
        return None

    async def _gather(self, model: Model, engine: Engine, endpoints: Sequence[str]) -> Crew:
        """The workers that the model gets. They are its own, also while they are looked at, until its process ends."""
        if not endpoints:
            return Crew()
        self.release_workers(model.id)
        in_use = {endpoint: self._lent[endpoint] for endpoint in endpoints if endpoint in self._lent}
        # They are reserved before the look, which waits: another model that starts meanwhile would find the same
        # workers idle, and a worker serves one client. Those that the model does not use are released afterwards.
        self._lent |= {endpoint: model.id for endpoint in endpoints if endpoint not in in_use}
        try:
            fits = partial(self._fits, model, engine)
            wanted = WantedCrew(model=model.id, endpoints=endpoints, fits=fits, in_use=in_use)
            assert self._chooser is not None  # it has chosen the engine
            crew = await self._chooser.crew(wanted, engine)
        except BaseException:
            self.release_workers(model.id)
            raise
        self.release_workers(model.id)
        self._lent |= {worker.endpoint: model.id for worker in crew.workers}
        for note in crew.notes:
            log.warning("model '%s': %s", model.id, note)
            self._logs.append(model.id, note)
        return crew

    def _fits(self, model: Model, engine: Engine, workers: Sequence[RpcWorker]) -> bool:
        """True if the model can be started with these workers alone, or if its file says too little to tell."""
        plan = self._plan(model, engine, room_of(workers))
        return plan is None or plan.verdict != "no"

    def _fitting(self, model: Model, engine: Engine, crew: Crew) -> FitPlan | None:
        """The plan that fits the model into free memory. llama-server itself shares out the memory of workers."""
        plan = self._plan(model, engine, NO_MEMORY) if self._settings.fit and not crew.workers else None
        if plan is not None and _is_known(engine):
            self._check(model, engine, plan)
        if plan is not None and plan.flags:
            self._logs.append(model.id, f"the memory plan sets {' '.join(plan.flags)}: {plan.why}")
        return plan

    def release_workers(self, model_id: str) -> None:
        self._lent = {endpoint: owner for endpoint, owner in self._lent.items() if owner != model_id}

    def _configured(
        self, model: Model, config: ModelConfig, engine: Engine | None = None, crew: Crew = NOBODY
    ) -> Launch:
        launch = configured_launch(model.id, config, engine, crew, self._environment())
        if will_listen(config, launch.address):
            # With two models on one port the second server could not bind, and the first one would answer the check for
            # both. The second model would count as ready, and get the answers of the first.
            others = {m: address for m, address in self._staying().items() if m != model.id}
            if other := neighbour_at(launch.address, others):
                why = f"model '{other}' runs at its port {launch.address.port}; give one of them another"
                raise ModelFailedToStart(model.id, why)
        return launch


def _is_known(engine: Engine) -> bool:
    """True if it has said which devices it has, or has none but the processor."""
    return engine.manual is not None or engine.backend == "cpu"


def _in_a_line(ended: RunEnd) -> str:
    """The reason of its end; of the engine's last log lines only the one that explains it."""
    if isinstance(ended.error, ModelFailedToStart) and ended.error.log_tail:
        return f"{ended.error.why}: {explanation(ended.error.log_tail)}"
    return (ended.why or str(ended.error)).splitlines()[0]
