"""``engine`` and ``rpc`` of a model: they are for a ``cmd`` that begins with the name of llama-server alone."""

from __future__ import annotations

from msgspec import structs

from appliance.core.config.places import Report
from appliance.core.config.types import ModelConfig
from appliance.core.engines.stands_for import AUTO, NAMES, stands_for_engine, workers_named
from appliance.core.engines.workers import MAX_WORKERS, endpoint_of
from appliance.errors import UsageError


def normal_engine(path: str, model: ModelConfig, report: Report) -> ModelConfig:
    """The model with both keys as the program uses them. ``argv`` is known; its workers are then also in ``rpc``."""
    engine = model.engine.strip()
    if not engine and not model.rpc:
        return model
    if model.argv and not stands_for_engine(model.argv):
        key = "engine" if engine else "rpc"
        report.error(
            f"{path}.{key}",
            f"is for a cmd that begins with {NAMES[0]}, which the program's own engine takes the place of; this one "
            f"begins with '{model.argv[0]}'. Write {NAMES[0]} there, or remove {key}",
        )
    return structs.replace(model, engine=engine or AUTO, rpc=_workers(path, model, report))


def _workers(path: str, model: ModelConfig, report: Report) -> list[str]:
    workers: dict[str, None] = {}
    for n, text in enumerate(model.rpc):
        try:
            workers[endpoint_of(text)] = None
        except UsageError as error:
            report.error(f"{path}.rpc[{n}]", str(error))
    if len(workers) > MAX_WORKERS:
        report.error(f"{path}.rpc", f"names {len(workers)} workers; llama.cpp takes {MAX_WORKERS} at most")
    try:
        named = list(workers_named(model.argv[1:]))
    except UsageError as error:
        report.error(f"{path}.cmd", str(error))
        return list(workers)
    if named and model.rpc and named != list(workers):
        report.error(f"{path}.rpc", f"differs from the workers in cmd ({', '.join(named)}); name them in one place")
    return list(workers) or named
