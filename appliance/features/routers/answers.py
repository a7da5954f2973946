"""The answers for routers in front of several servers: may requests come here, what is served, how busy is it.

The shapes are those of SGLang's server, which SMG 1.13 and other routers read. SMG asks ``/server_info`` to find out
which engine it talks to: an answer means SGLang, and then SMG sends what only SGLang understands. So that route is not
here. SMG reads the same facts from ``/get_server_info``, and keeps to the API of OpenAI.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from appliance import __version__
from appliance.catalog.catalog import Catalog
from appliance.core.models.model import Model
from appliance.core.models.swap_listing import Object
from appliance.fleet.chooser import EngineChoice
from appliance.fleet.owner import Fleet
from appliance.fleet.status import ChildStatus, state_of
from appliance.traffic.traffic import Lifetime

Why = Literal["draining", "stopping", "no_seat", "starting", ""]


class ReadyAnswer(Struct, frozen=True, omit_defaults=True):
    """``GET /ready``: may requests be sent here? ``/health`` says only whether the program lives."""

    status: Literal["ready", "not ready"]
    reason: Why = ""
    message: str = ""


def ready(fleet: Fleet, catalog: Catalog, engines: EngineChoice, lifetime: Lifetime, single: str | None) -> ReadyAnswer:
    """Return whether requests may come. ``single`` is the one model of llama-server's single-model mode."""
    if lifetime.stopping:
        return _no("stopping", "the server is stopping; ask another one")
    if lifetime.drained:
        return _no("draining", "this box is drained; 'llama-appliance pool drain BOX --undo' ends that")
    if single is not None and state_of(fleet.known(single)) not in ("loaded", "sleeping"):
        return _no("starting", f"model '{single}' is not loaded yet; ask again soon")
    models = catalog.snapshot.models
    if any(model.config is not None and not model.config.engine for model in models):
        return ReadyAnswer("ready")  # its own command serves it, without an engine of this program
    if models and fleet.launches.engine is None:
        return _no("no_seat", "no engine works here; 'llama-appliance doctor' says why")
    if engines.is_starting:
        return _no("starting", "no engine is proven yet, and one is being tried; ask again soon")
    return ReadyAnswer("ready")


def _no(reason: Why, message: str) -> ReadyAnswer:
    return ReadyAnswer("not ready", reason, message)


def server_info(model: Model, child: ChildStatus | None) -> Object:
    """``GET /get_server_info``. The figures of a model that is not loaded are left out."""
    known: Object = {"served_model_name": model.id, "model_path": model.id, "version": __version__}
    if child is not None and child.slots:
        known |= {"max_running_requests": child.slots, "context_length": child.slot_context}
    return known


def model_info(model: Model) -> Object:
    """``GET /model_info``."""
    return {
        "model_path": model.id,
        "is_generation": True,
        "has_image_understanding": "image" in model.input_modalities,
        "has_audio_understanding": "audio" in model.input_modalities,
        **({"model_type": model.info.architecture} if model.info is not None else {}),
    }


def loads(children: Sequence[ChildStatus], now: str) -> Object:
    """``GET /v1/loads``: these models together, as one worker. ``now`` is in ISO 8601."""
    running, waiting = sum(child.running for child in children), sum(child.queued for child in children)
    told = [child for child in children if child.kv_use is not None]
    context, slots = sum(child.context for child in told), sum(child.slots for child in children)
    held = sum(min(child.held or 0, child.context) for child in told)
    use, busy = held / max(context, 1), min(1.0, running / slots) if slots else 0.0
    row: Object = {
        "dp_rank": 0,
        "num_running_reqs": running,
        "num_waiting_reqs": waiting,
        "num_total_reqs": running + waiting,
        "num_used_tokens": held,
        "max_total_num_tokens": context,
        "token_usage": use,
        "utilization": busy,
        "max_running_requests": slots,
    }
    return {
        "timestamp": now,
        "version": __version__,
        "dp_rank_count": 1,
        "loads": [row],
        "aggregate": {
            "total_running_reqs": running,
            "total_waiting_reqs": waiting,
            "total_reqs": running + waiting,
            "avg_token_usage": use,
            "avg_utilization": busy,
        },
    }
