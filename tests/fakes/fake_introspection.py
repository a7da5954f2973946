"""The routes that tell about the server or change its settings."""

from __future__ import annotations

import json
import time

from fake_dialects import BUILD
from fake_http import Connection, Request
from fake_json import Json
from fake_state import ApiError, State, answer, parse_json, require, route

COUNTERS = (
    "prompt_tokens_total",
    "prompt_tokens_cached_total",
    "prompt_seconds_total",
    "tokens_predicted_total",
    "tokens_predicted_seconds_total",
    "n_decode_total",
    "n_tokens_max",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "spec_decode_num_drafts_total",
)
GAUGES = (
    "prompt_tokens_seconds",
    "predicted_tokens_seconds",
    "requests_processing",
    "requests_deferred",
    "n_busy_slots_per_decode",
)


@route("GET", "/lora-adapters")
def get_lora(state: State, connection: Connection, request: Request) -> None:
    answer(connection, [])


@route("POST", "/lora-adapters")
def set_lora(state: State, connection: Connection, request: Request) -> None:
    try:
        adapters: object = json.loads(request.body)
    except ValueError as cause:
        raise ApiError(400, f"[json.exception.parse_error.101] parse error: {cause}") from None
    if not isinstance(adapters, list):
        raise ApiError(400, "Request body must be an array")
    answer(connection, {"success": True})


def slot_action(state: State, connection: Connection, request: Request, slot: str) -> None:
    if not state.options.slot_save_path:
        raise ApiError(501, "This server does not support slots action. Start it with `--slot-save-path`")
    if not slot.isdigit() or int(slot) >= state.options.parallel:
        raise ApiError(400, "Invalid slot ID")
    action = request.query.get("action", "")
    if action == "erase":
        answer(connection, {"id_slot": int(slot), "n_erased": 1})
    elif action in ("save", "restore"):
        name = require(parse_json(request), "filename")
        counts = {"n_saved": 1, "n_written": 1} if action == "save" else {"n_restored": 1, "n_read": 1}
        timings = {"timings": {f"{action}_ms": 0.1}}
        answer(connection, {"id_slot": int(slot), "filename": name, **counts, **timings})
    else:
        raise ApiError(400, "Invalid action")


@route("GET", "/slots")
def slots(state: State, connection: Connection, request: Request) -> None:
    if not state.options.slots:
        raise ApiError(501, "This server does not support slots endpoint. Start it with `--slots`")
    now = state.slots
    if request.query.get("fail_on_no_slot") and all(now.busy):
        raise ApiError(503, "no slot available")
    entries: list[Json] = []
    for index, busy in enumerate(now.busy):
        entry: Json = {"id": index, "n_ctx": state.options.ctx_size, "speculative": False, "is_processing": busy}
        if now.tasks[index] >= 0:
            entry["id_task"] = now.tasks[index]
            entry["params"] = {"stream": True}
        if (told := now.answers[index]) is not None:
            entry["n_prompt_tokens"] = told.read + told.tokens - (0 if busy else 1)  # the last one is never read again
            entry["next_token"] = [{"n_decoded": told.tokens if busy else 0}]
        entries.append(entry)
    answer(connection, entries)


@route("GET", "/metrics")
def metrics(state: State, connection: Connection, request: Request) -> None:
    if not state.options.metrics:
        raise ApiError(501, "This server does not support metrics endpoint. Start it with `--metrics`")
    now = state.slots
    values = {
        "prompt_tokens_total": now.prompt_tokens,
        "tokens_predicted_total": now.predicted_tokens,
        "n_decode_total": now.predicted_tokens,
        "requests_processing": sum(now.busy),
        "requests_deferred": now.deferred,
    }
    lines: list[str] = []
    for kind, names in (("counter", COUNTERS), ("gauge", GAUGES)):
        for name in names:
            lines += [f"# HELP llamacpp:{name} {name}", f"# TYPE llamacpp:{name} {kind}"]
            lines.append(f"llamacpp:{name} {values.get(name, 0)}")
    started = ("Process-Start-Time-Unix", str(state.started))
    connection.respond(200, "text/plain; version=0.0.4", ("\n".join(lines) + "\n").encode(), started)


@route("GET", "/props")
def props(state: State, connection: Connection, request: Request) -> None:
    options = state.options
    settings: Json = {"params": {"n_predict": -1, "temperature": 0.8}, "n_ctx": options.ctx_size}
    head: Json = {
        "default_generation_settings": settings,
        "total_slots": options.parallel,
        "model_alias": state.name,
        "model_ftype": "Q8_0",
        "model_path": options.model,
        "modalities": {"vision": bool(options.mmproj), "video": False, "audio": bool(options.mmproj)},
        "media_marker": "<__media__>",
        "endpoint_slots": options.slots,
        "endpoint_props": options.props,
        "endpoint_metrics": options.metrics,
    }
    tail: Json = {
        "ui": False,
        "ui_settings": {},
        "chat_template": "{{ messages }}",
        "chat_template_caps": {},
        "bos_token": "<s>",
        "eos_token": "</s>",
        "build_info": BUILD,
        "is_sleeping": False,
        "cors_proxy_enabled": False,
    }
    answer(connection, head | tail)


@route("POST", "/props")
def change_props(state: State, connection: Connection, request: Request) -> None:
    if not state.options.props:
        raise ApiError(501, "This server does not support changing global properties. Start it with `--props`")
    answer(connection, {"success": True})


@route("GET", "/health", "/v1/health")
def health(state: State, connection: Connection, request: Request) -> None:
    while state.options.deaf and any(state.slots.busy):
        connection.wait(0.05)
    answer(connection, {"status": "ok"})


@route("GET", "/v1/models", "/models")
def models(state: State, connection: Connection, request: Request) -> None:
    time.sleep(state.options.list_delay)
    legacy = {"name": state.name, "model": state.name, "type": "model", "capabilities": ["completion"]}
    answer(connection, {"models": [legacy], "object": "list", "data": [state.info()]})
