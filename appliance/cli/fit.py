"""``ls`` and ``load --dry-run``: how models fit into this machine's memory; no server is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import click

from appliance.catalog.sources import STARTER
from appliance.cli.show import human_size, print_table
from appliance.core.fit.estimate import RAM
from appliance.core.fit.plan import Plan, room_of
from appliance.core.models.model import Model
from appliance.core.settings import FleetSettings
from appliance.core.words import did_you_mean
from appliance.engines.found import finder, installed_folder
from appliance.engines.owner import open_engines
from appliance.errors import EngineNotFound, UsageError
from appliance.fleet.terms import plan_of
from appliance.platform.children import open_children
from appliance.platform.drivers import look
from appliance.platform.machine import free_memory
from appliance.store.engine_state import StateFile


async def machine_room() -> Mapping[str, int]:
    """Return the bytes that are free now: in main memory, within the container's limit, and on the GPUs to be used."""
    room = {RAM: free_memory()}
    with suppress(EngineNotFound):
        found = finder(None)
        file = StateFile(installed_folder())
        async with open_engines(found.find, file, starter=STARTER, only=found.only) as engines:
            engine = engines.choose()
        if engine is not None and engine.gpus:
            async with open_children() as children:
                free = room_of(await look(children))
            room |= {device: free[device] for device in engine.gpus.values() if device in free}
    return room


def planned(models: Sequence[Model], name: str, room: Mapping[str, int]) -> tuple[Model, Plan]:
    """Return the plan for the model with this id or alias. Raises UsageError if there is none."""
    model = next((m for m in models if name in (m.id, *m.aliases)), None)
    if model is None:
        meant = did_you_mean(name, [model.id for model in models]) or "; 'llama-appliance ls' lists them"
        raise UsageError(f"there is no model '{name}'{meant}")
    if model.error:
        raise UsageError(f"{model.id} cannot be used: {model.error} ({model.path})")
    plan = plan_of(model, FleetSettings(), room)
    if plan is None:
        why = "its own command starts it" if model.config else "its file does not say enough, or is not here yet"
        raise UsageError(f"what {model.id} takes cannot be predicted: {why}")
    return model, plan


def print_plan(model: Model, plan: Plan) -> None:
    """Print the plan for people."""
    found = plan.estimate
    click.echo(f"{model.id}: {plan.word}: {plan.why}")
    rows = [
        (device, *(human_size(size) for size in (use.model, use.cache, use.compute + use.output, use.total)), free)
        for device, use in found.devices.items()
        if use.total
        for free in (human_size(plan.room[device]) if device in plan.room else "-",)
    ]
    columns = ("DEVICE", "WEIGHTS", "CONTEXT", "COMPUTE", "TOTAL", "FREE")
    print_table(columns, rows, right=columns[1:])
    slots = "1 slot" if found.parallel == 1 else f"{found.parallel} slots"
    click.echo(f"context {found.context} tokens, {slots}; {human_size(plan.reserve)} stay free on each device")
    click.echo(f"flags: {' '.join(plan.flags) or 'none are needed'}")
