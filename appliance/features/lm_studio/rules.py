"""Paths, models and errors as LM Studio's documentation of its REST API has them (LM Studio 0.4)."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec
from msgspec import Struct

from appliance.core.bodies.head import check_json
from appliance.core.bodies.json_text import JSON, JsonObject
from appliance.core.lenient_json import decoded
from appliance.core.models.embedding import served_kind
from appliance.core.models.gguf import GgufInfo
from appliance.core.models.model import Model
from appliance.core.openai import NULL, ChatCompletion, error_text
from appliance.errors import BadRequest

T = TypeVar("T")
V0_MODELS, V1_MODELS, V1_CHAT = "/api/v0/models", "/api/v1/models", "/api/v1/chat"
LOAD, UNLOAD, DOWNLOAD = f"{V1_MODELS}/load", f"{V1_MODELS}/unload", f"{V1_MODELS}/download"
V0_MODEL, JOB = f"{V0_MODELS}/", f"{DOWNLOAD}/status/"
ANSWERED = {
    "/api/v0/chat/completions": "/v1/chat/completions",
    "/api/v0/completions": "/v1/completions",
    "/api/v0/embeddings": "/v1/embeddings",
    V1_CHAT: "/v1/chat/completions",
}
"""The routes that a model answers, each with the one of llama-server by which it is asked."""
PATHS = frozenset((V0_MODELS, V1_MODELS, LOAD, UNLOAD, DOWNLOAD, *ANSWERED))


def is_lm_studios(path: str) -> bool:
    """True for a path of LM Studio's API."""
    return path in PATHS or path.startswith((V0_MODEL, JOB))


def read_as(body: bytes, kind: type[T]) -> T:
    """Read the body of a request. Raises BadRequest, with the member that holds the mistake."""
    check_json(body)
    try:
        return msgspec.json.decode(body.removeprefix(b"\xef\xbb\xbf"), type=kind)
    except msgspec.ValidationError as error:
        found = re.search(r"`\$\.(\w+)|field `(\w+)`", str(error))
        raise BadRequest(f"the request body cannot be used: {error}", param=found and (found[1] or found[2])) from None


class Described(Struct, frozen=True, kw_only=True):
    """A model as both versions of the API list it. ``context`` is that of a request, or the longest; 0: unknown."""

    id: str
    context: int
    v0: JsonObject
    v1: JsonObject


def described(name: str, model: Model | None, info: GgufInfo | None, *, loaded: bool, context: int = 0) -> Described:
    """Describe a model at a peer by its ``name``, any other by all that is known. Lengths that nobody knows are left
    out. ``context``: tokens of one request in the running engine; 0: unknown.
    """
    config = model.config if model is not None else None
    template, kind = (info.chat_template if info else None) or "", info.kind if info else "generation"
    if model is not None:
        kind = served_kind(*((config.argv, config.env) if config else (model.args,))) or kind
    embeds = kind in ("embedding", "rerank") or (config is not None and config.capabilities.reranker)
    sees = model is not None and "image" in model.input_modalities
    calls = "tool" in template or (config is not None and config.capabilities.tools)
    repo = (model.hf_repo if model is not None else None) or name
    quantisation, architecture = info.quantisation if info else None, info.architecture if info else None
    most = (config.capabilities.context if config else 0) or (info.context_length if info else 0) or context
    lengths: JsonObject = {"max_context_length": most} if most else {}
    publisher = repo.partition("/")[0] if "/" in repo else "local"
    v0: JsonObject = {
        "id": name,
        "object": "model",
        "type": "embeddings" if embeds else "vlm" if sees else "llm",
        "publisher": publisher,
        "arch": architecture or "unknown",
        "compatibility_type": "gguf",
        "quantization": quantisation or "unknown",
        "state": "loaded" if loaded else "not-loaded",
        "capabilities": ["tool_use"] if calls else [],
        **lengths,
        **({"loaded_context_length": context} if context else {}),
    }
    bits, parameters = re.search(r"\d+", quantisation or ""), info.parameters if info else 0
    size, unit = (1e9, "B") if parameters >= 1e9 else (1e6, "M")
    instances: list[JSON] = [{"id": name, "config": {"context_length": context or most}}] if loaded else []
    v1: JsonObject = {
        "type": "embedding" if embeds else "llm",
        "publisher": publisher,
        "key": name,
        "display_name": (config.name if config else "") or (info.name if info else "") or name,
        "quantization": {"name": quantisation, "bits_per_weight": int(bits[0])} if bits else None,
        "size_bytes": model.size if model is not None else 0,
        "params_string": f"{round(parameters / size, 1):g}{unit}" if parameters else None,
        "loaded_instances": instances,
        "format": "gguf",
        **lengths,
    }
    if not embeds:
        capabilities: JsonObject = {"vision": sees, "trained_for_tool_use": calls}
        if "<think>" in template or "enable_thinking" in template:
            capabilities["reasoning"] = {"allowed_options": ["off", "on"], "default": "on"}
        about = (config.description if config else "") or None
        v1 |= {"architecture": architecture, "capabilities": capabilities, "description": about}
    return Described(id=name, context=context or most, v0=v0, v1=v1)


class _Fault(Struct):
    type: str = ""
    code: int | str | None = None
    param: str | None = None
    reason: str = ""


def told_error(path: str, status: int, content: bytes) -> JsonObject:
    """Return the ``error`` of an answer, from llama-server's or this program's body of it. No input makes it raise.

    Where a stream has failed behind its head, the error itself has the status.
    """
    found = decoded(ChatCompletion, content)
    raw = found.error if found is not None and found.error != NULL else content
    fault = decoded(_Fault, raw) or _Fault()
    status = fault.code if status < 400 and isinstance(fault.code, int) else status
    code, kind = fault.reason or fault.type or None, fault.type or "server_error"
    if path.startswith("/api/v1/"):
        kind = "invalid_request" if 400 <= status < 500 else "internal_error"
        if status == 404 and code != "route_not_found":
            kind = "job_not_found" if path.startswith(JOB) else "model_not_found"
        elif status == 501:
            kind = "not_implemented"
    told: JsonObject = {"type": kind, "message": error_text(raw) or "the engine gave no reason"}
    return told | {name: value for name, value in (("code", code), ("param", fault.param)) if value}
