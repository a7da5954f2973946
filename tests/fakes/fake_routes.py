"""The routes of the fake. A handler gets the server's state, the connection and the request, and writes one answer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from fake_dialects import BUILD, Chat, Completion, Dialect, Json, Messages, Native, Responses, encode
from fake_generation import JSON, Slots, generate
from fake_http import Connection, Request
from fake_options import Misbehaviour, Options

ERROR_TYPES = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}
ERROR_TYPES |= {500: "server_error", 501: "not_supported_error", 503: "unavailable_error"}

METRICS = """counter prompt_tokens_total prompt_tokens_cached_total prompt_seconds_total tokens_predicted_total
tokens_predicted_seconds_total n_decode_total n_tokens_max spec_decode_num_draft_tokens_total
spec_decode_num_accepted_tokens_total spec_decode_num_drafts_total
gauge prompt_tokens_seconds predicted_tokens_seconds requests_processing requests_deferred n_busy_slots_per_decode"""


class ApiError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class State:
    """What all connections share."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.name = sorted(options.alias.split(","))[0] or options.model.replace("\\", "/").rpartition("/")[2]
        self.slots = Slots(options.parallel)
        self.ready = False
        self.started = int(time.time())

    def info(self) -> Json:
        """The entry of /v1/models, which is also the payload of the ready line."""
        inputs = ["text", "image", "audio"] if self.options.mmproj else ["text"]
        meta: Json = {"vocab_type": 2, "n_vocab": 256, "n_ctx": self.options.ctx_size, "n_ctx_train": 8192}
        return {
            "id": self.name,
            "aliases": sorted(self.options.alias.split(",")) if self.options.alias else [self.name],
            "tags": [],
            "object": "model",
            "architecture": {"input_modalities": inputs, "output_modalities": ["text"]},
            "created": int(time.time()),
            "owned_by": "llamacpp",
            "meta": meta | {"n_embd": 8, "n_params": 1000, "size": 1000, "ftype": "Q8_0"},
        }


Handler = Callable[[State, Connection, Request], None]
ROUTES: dict[tuple[str, str], Handler] = {}


def route(method: str, *paths: str) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        ROUTES.update({(method, path): handler for path in paths})
        return handler

    return register


def parse_json(request: Request) -> Json:
    try:
        body: object = json.loads(request.body)
    except ValueError as cause:
        raise ApiError(400, f"[json.exception.parse_error.101] parse error: {cause}") from None
    return {str(k): v for k, v in body.items()} if isinstance(body, dict) else {}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType, reportUnknownMemberType]


def answer(connection: Connection, value: object) -> None:
    connection.respond(200, JSON, encode(value))


def text_of(value: object) -> str:
    """All text within a prompt or a list of messages, in order."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(text_of(part) for part in value)  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, dict):
        return text_of(value.get("content", value.get("text", "")))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    return ""


def require(body: Json, field: str, status: int = 400) -> object:
    if field not in body:
        raise ApiError(status, f"'{field}' is required")
    return body[field]


def misbehaviour(state: State, body: Json, limit: object) -> Misbehaviour:
    """What holds for this request: its ``fake`` field, and its token limit where that is not given there."""
    try:
        bad = state.options.misbehaviour.with_request(body.get("fake"))
    except ValueError as cause:
        raise ApiError(400, str(cause)) from None
    if isinstance(limit, int) and 0 < limit < bad.tokens:
        bad.tokens = limit
    return bad


def complete(
    state: State,
    connection: Connection,
    request: Request,
    kind: type[Dialect],
    field: str,
    limit: str,
    missing: int = 400,
) -> None:
    body = parse_json(request)
    prompt = text_of(require(body, field, missing))
    bad = misbehaviour(state, body, body.get(limit, body.get("max_tokens")))
    if bad.echo:
        answer(connection, {"head": request.head.decode("latin-1"), "body": request.body.decode("latin-1")})
    elif bad.status:
        error = {
            "code": bad.status,
            "message": "the fake was told to refuse",
            "type": ERROR_TYPES.get(bad.status, "fake"),
        }
        connection.respond(bad.status, JSON, encode({"error": error | {"fake": True}}))
    else:
        dialect = kind(state.name, prompt, len(prompt.encode()) + 1, body)
        generate(connection, state.slots, dialect, bad, stream=body.get("stream") is True)


@route("POST", "/completion", "/completions")
def native(state: State, connection: Connection, request: Request) -> None:
    complete(state, connection, request, Native, "prompt", "n_predict")


@route("POST", "/infill")
def infill(state: State, connection: Connection, request: Request) -> None:
    complete(state, connection, request, Native, "input_prefix", "n_predict")


@route("POST", "/v1/completions")
def completions(state: State, connection: Connection, request: Request) -> None:
    complete(state, connection, request, Completion, "prompt", "max_tokens")


@route("POST", "/v1/chat/completions", "/chat/completions")
def chat(state: State, connection: Connection, request: Request) -> None:
    complete(state, connection, request, Chat, "messages", "max_completion_tokens")


@route("POST", "/v1/messages")
def messages(state: State, connection: Connection, request: Request) -> None:
    complete(state, connection, request, Messages, "messages", "max_tokens", missing=500)


@route("POST", "/v1/responses", "/responses")
def responses(state: State, connection: Connection, request: Request) -> None:
    complete(state, connection, request, Responses, "input", "max_output_tokens")


@route("POST", "/v1/messages/count_tokens")
def count_tokens(state: State, connection: Connection, request: Request) -> None:
    answer(connection, {"input_tokens": len(template(parse_json(request)).encode())})


@route("POST", "/v1/chat/completions/input_tokens", "/chat/completions/input_tokens")
@route("POST", "/v1/responses/input_tokens", "/responses/input_tokens")
def input_tokens(state: State, connection: Connection, request: Request) -> None:
    count = len(template(parse_json(request)).encode())
    answer(connection, {"input_tokens": count, "object": "response.input_tokens"})


def template(body: Json) -> str:
    turns = body.get("messages", body.get("input"))
    if not isinstance(turns, list):
        turns = [{"role": "user", "content": text_of(turns)}]
    parts: list[str] = []
    for turn in turns:  # pyright: ignore[reportUnknownVariableType]
        role = turn.get("role") if isinstance(turn, dict) else "user"  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        parts.append(f"<|im_start|>{role}\n{text_of(turn)}<|im_end|>\n")  # pyright: ignore[reportUnknownArgumentType]
    return "".join(parts) + "<|im_start|>assistant\n"


@route("POST", "/apply-template")
def apply_template(state: State, connection: Connection, request: Request) -> None:
    body = parse_json(request)
    require(body, "messages")
    answer(connection, {"prompt": template(body)})


@route("POST", "/tokenize")
def tokenize(state: State, connection: Connection, request: Request) -> None:
    """A token is a byte."""
    body = parse_json(request)
    content = text_of(body.get("content")).encode()
    if body.get("with_pieces"):
        answer(connection, {"tokens": [{"id": byte, "piece": chr(byte) if byte < 128 else [byte]} for byte in content]})
    else:
        answer(connection, {"tokens": list(content)})


@route("POST", "/detokenize")
def detokenize(state: State, connection: Connection, request: Request) -> None:
    tokens = parse_json(request).get("tokens")
    numbers = [n for n in tokens if isinstance(n, int) and 0 <= n < 256] if isinstance(tokens, list) else []  # pyright: ignore[reportUnknownVariableType]
    answer(connection, {"content": bytes(numbers).decode(errors="replace")})


@route("POST", "/v1/embeddings")
def embeddings(state: State, connection: Connection, request: Request) -> None:
    if not state.options.embeddings:
        raise ApiError(501, "This server does not support embeddings. Start it with `--embeddings`")
    body = parse_json(request)
    given = require(body, "input")
    texts = [text_of(part) for part in given] if isinstance(given, list) else [text_of(given)]  # pyright: ignore[reportUnknownVariableType]
    entries: list[Json] = []
    for index, text in enumerate(texts):
        vector = [((sum(text.encode()) + k) % 17) / 17 for k in range(8)]
        entries.append({"embedding": vector, "index": index, "object": "embedding"})
    tokens = sum(len(text.encode()) for text in texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    answer(connection, {"model": state.name, "object": "list", "usage": usage, "data": entries})


@route("POST", "/v1/rerank", "/v1/reranking", "/rerank", "/reranking")
def rerank(state: State, connection: Connection, request: Request) -> None:
    if not state.options.reranking:
        raise ApiError(501, "This server does not support reranking. Start it with `--reranking`")
    body = parse_json(request)
    query = set(text_of(require(body, "query")).split())
    documents = require(body, "documents")
    texts = [text_of(part) for part in documents] if isinstance(documents, list) else []  # pyright: ignore[reportUnknownVariableType]
    scores = [(len(query & set(text.split())), index) for index, text in enumerate(texts)]
    results = [{"index": index, "relevance_score": float(score)} for score, index in sorted(scores, reverse=True)]
    tokens = sum(len(text.encode()) for text in texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    answer(connection, {"model": state.name, "object": "list", "usage": usage, "results": results})


@route("POST", "/v1/audio/transcriptions", "/audio/transcriptions")
def transcribe(state: State, connection: Connection, request: Request) -> None:
    """Multipart only; says how many bytes each part had, so that a test sees what arrived."""
    if not state.options.mmproj:
        raise ApiError(501, "The current model does not support audio input.")
    _, _, boundary = request.headers.get("content-type", "").partition("boundary=")
    if not boundary:
        raise ApiError(400, "multipart/form-data is required")
    parts: list[str] = []
    for part in request.body.split(b"--" + boundary.strip('"').encode())[1:-1]:
        head, _, content = part[2:-2].partition(b"\r\n\r\n")
        name = head.partition(b'name="')[2].partition(b'"')[0].decode()
        parts.append(f"{name}={len(content)}")
    answer(connection, {"text": " ".join(parts), "usage": {"type": "tokens", "input_tokens": 1, "output_tokens": 1}})


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
        entries.append(entry if now.tasks[index] < 0 else entry | {"id_task": now.tasks[index], "params": {}})
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
    for group in ("counter", "gauge"):
        names = METRICS.partition(group)[2].partition("gauge" if group == "counter" else "\0")[0].split()
        for name in names:
            lines += [f"# HELP llamacpp:{name} {name}", f"# TYPE llamacpp:{name} {group}"]
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
    answer(connection, {"status": "ok"})


@route("GET", "/v1/models", "/models")
def models(state: State, connection: Connection, request: Request) -> None:
    legacy = {"name": state.name, "model": state.name, "type": "model", "capabilities": ["completion"]}
    answer(connection, {"models": [legacy], "object": "list", "data": [state.info()]})
