"""The routes that compute something: completions, tokens, vectors, ranks, transcriptions."""

from __future__ import annotations

import io
import wave
from functools import partial

from fake_dialects import Chat, Completion, Dialect, Infill, Messages, Native, Responses
from fake_generation import JSON, generate
from fake_http import Connection, Request
from fake_json import Json, as_array, as_object, encode, text_of
from fake_options import Misbehaviour
from fake_state import ERROR_TYPES, ApiError, State, answer, parse_json, require, route

DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNoAAAAggCB2kUIOwAAAABJRU5ErkJggg=="
"""A PNG of one grey point, in base64."""


def misbehaviour(state: State, body: Json, limit: object) -> Misbehaviour:
    """What holds for this request: its ``fake`` field, and its token limit where that is not given there."""
    try:
        bad = state.options.misbehaviour.with_request(body.get("fake"))
    except ValueError as cause:
        raise ApiError(400, str(cause)) from None
    if isinstance(limit, int) and 0 < limit < bad.tokens:
        bad.tokens = limit
    return bad


def complete(kind: type[Dialect], state: State, connection: Connection, request: Request) -> None:
    """Every completion route: one prompt in, one answer out, in the format of ``kind``."""
    body = parse_json(request)
    prompt = text_of(require(body, kind.prompt_field, kind.missing_status))
    bad = misbehaviour(state, body, body.get(kind.limit_field, body.get("max_tokens")))
    if bad.echo:
        answer(connection, {"head": request.head.decode("latin-1"), "body": request.body.decode("latin-1")})
    elif bad.status:
        error: Json = {"code": bad.status, "message": "the fake was told to refuse"}
        error |= {"type": ERROR_TYPES.get(bad.status, "fake_error"), "fake": True}
        connection.respond(bad.status, JSON, encode({"error": error}))
    else:
        dialect = kind(state.name, prompt, len(prompt.encode()) + 1, body)
        generate(connection, state.slots, dialect, bad, stream=body.get("stream") is True)


for dialect in (Native, Infill, Completion, Chat, Messages, Responses):
    route("POST", *dialect.paths)(partial(complete, dialect))


@route("POST", "/v1/messages/count_tokens")
def count_tokens(state: State, connection: Connection, request: Request) -> None:
    answer(connection, {"input_tokens": len(template(parse_json(request)).encode())})


@route("POST", "/v1/chat/completions/input_tokens", "/chat/completions/input_tokens")
@route("POST", "/v1/responses/input_tokens", "/responses/input_tokens")
def input_tokens(state: State, connection: Connection, request: Request) -> None:
    count = len(template(parse_json(request)).encode())
    answer(connection, {"input_tokens": count, "object": "response.input_tokens"})


def template(body: Json) -> str:
    """A chat as ChatML, llama-server's fallback for a model without a template."""
    given = body.get("messages", body.get("input"))
    turns = as_array(given) or [{"role": "user", "content": text_of(given)}]
    parts = [f"<|im_start|>{as_object(turn).get('role', 'user')}\n{text_of(turn)}<|im_end|>\n" for turn in turns]
    return "".join(parts) + "<|im_start|>assistant\n"


@route("POST", "/apply-template")
def apply_template(state: State, connection: Connection, request: Request) -> None:
    body = parse_json(request)
    require(body, "messages")
    answer(connection, {"prompt": template(body)})


@route("POST", "/tokenize")
def tokenize(state: State, connection: Connection, request: Request) -> None:
    """A token is a byte; a prompt begins with one more (`complete`)."""
    body = parse_json(request)
    content = text_of(body.get("content")).encode()
    if body.get("with_pieces"):
        answer(connection, {"tokens": [{"id": byte, "piece": chr(byte) if byte < 128 else [byte]} for byte in content]})
    else:
        answer(connection, {"tokens": [*([256] if body.get("add_special") else []), *content]})


@route("POST", "/detokenize")
def detokenize(state: State, connection: Connection, request: Request) -> None:
    tokens = as_array(parse_json(request).get("tokens"))
    numbers = [n for n in tokens if isinstance(n, int) and 0 <= n < 256]
    answer(connection, {"content": bytes(numbers).decode(errors="replace")})


@route("POST", "/v1/embeddings")
def embeddings(state: State, connection: Connection, request: Request) -> None:
    if not state.options.embeddings:
        raise ApiError(501, "This server does not support embeddings. Start it with `--embeddings`")
    body = parse_json(request)
    given = require(body, "input")
    texts = [text_of(part) for part in as_array(given) or [given]]
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
    texts = [text_of(document) for document in as_array(require(body, "documents"))]
    scores = [(len(query & set(text.split())), index) for index, text in enumerate(texts)]
    results = [{"index": index, "relevance_score": float(score)} for score, index in sorted(scores, reverse=True)]
    tokens = sum(len(text.encode()) for text in texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    answer(connection, {"model": state.name, "object": "list", "usage": usage, "results": results})


@route("POST", "/v1/audio/speech")
def speak(_state: State, connection: Connection, request: Request) -> None:
    """A hundredth of a second of silence for each letter."""
    letters = len(text_of(require(parse_json(request), "input")))
    written = io.BytesIO()
    with wave.open(written, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(160 * letters))
    connection.respond(200, "audio/wav", written.getvalue())


@route("POST", "/v1/images/generations")
def draw(_state: State, connection: Connection, request: Request) -> None:
    """As servers of images answer where base64 is wished for."""
    require(parse_json(request), "prompt")
    answer(connection, {"created": 1, "data": [{"b64_json": DOT}]})


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
