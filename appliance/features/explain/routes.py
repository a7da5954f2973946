"""``GET /api/explain/ID`` and ``/api/explain/last``. Engines are asked only about models that are loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec
import trio
from msgspec import Raw, Struct
from quart import Response

from appliance.core.bodies.head import read_json
from appliance.core.lenient_json import decoded
from appliance.core.openai import error_text
from appliance.core.parameters import read_whole
from appliance.core.records.activity import MAX_LIMIT, Query, Row
from appliance.errors import ApplianceError, NotFound
from appliance.features.explain.rules import SHOWN, Explained, compared, outline
from appliance.http.control.answers import json_answer
from appliance.http.control.routes import Routes
from appliance.http.kernel import Kernel
from appliance.http.route_facts import RouteFacts
from appliance.http.way.context import ModelRequest
from appliance.http.way.dialect import DialectTurn
from appliance.http.way.handover import Handover
from appliance.http.way.routes import model_route
from appliance.traffic.record import Record
from appliance.traffic.recorder import Recorder
from appliance.traffic.request import Request

OFF = "captures are off; 'captureBuffer: 5' in the file of 'serve --config' keeps the latest 5 MiB of requests"
LOOK_BACK = 8  # captured requests that are looked at: clients ask for titles between the turns of a conversation
PATIENCE = 10.0  # seconds for each question to a busy engine
MAX_ANSWER = 64 << 20
_PLAIN = ("/completion", "/completions", "/v1/completions", "/v/completions")
_MEDIA = re.compile(rb'"(image_url|input_audio|input_video)"')


class _Answer(Struct):  # to one of the questions to an engine
    prompt: str = ""
    tokens: list[int] = []
    content: str = ""


def explain_routes(kernel: Kernel) -> Routes:
    routes = Routes("explain")

    @routes.get("/api/explain/<request_id>", facts=RouteFacts(gives=Explained))
    async def explain(request_id: str) -> Response:
        return json_answer(await _explain(kernel, None if request_id == "last" else read_whole(request_id, "id")))

    return routes


async def _explain(kernel: Kernel, id: int | None) -> Explained:
    """Raises NotFound, with the words that help, and Busy."""
    recorder = kernel.traffic.recorder
    row, earlier = await _find(recorder, id)
    capture = await recorder.capture(row.id)
    if capture is None or (body := capture.req_body) is None:
        raise NotFound(f"the body of request {row.id} is not kept: it was larger than captureBuffer, or not text")
    unknown, path, asked, prompt, cached, read = list[str](), capture.req_path, body, None, "", ""
    took = capture.sent_body or b""
    try:
        path, asked = await _translated(kernel, row, path, body)
    except ApplianceError as error:
        unknown.append(f"translation: {error}")
    try:
        prompt = await _prompt(kernel, row, path, took or asked)
        cached, read = await _cache_end(kernel, row, prompt)
    except ApplianceError as error:
        unknown.append(f"{'prompt' if prompt is None else 'end of the cached part'}: {error}")
    found = [(each.id, await recorder.capture(each.id)) for each in earlier]
    bodies = [(id, each.req_body) for id, each in found if each is not None and each.req_body is not None]
    previous, differs = await trio.to_thread.run_sync(compared, bodies, body)
    bodies_now = (capture.req_path, body), (path, asked), (path, took)
    came, made, sent = [await trio.to_thread.run_sync(outline, *each) for each in bodies_now]
    text = asked.decode("utf-8", "replace") if (made.path, asked) != (came.path, body) else ""
    ignored = (capture.resp_headers or {}).get("X-Appliance-Ignored", "")
    return Explained(
        row, came, made if text else None, text, sent if took else None, took.decode("utf-8", "replace"), ignored,
        prompt, cached, read, previous, differs, unknown,
    )  # fmt: skip


async def _find(recorder: Recorder, id: int | None) -> tuple[Row, Sequence[Row]]:
    """Return the row of a captured request, and those before it that are to be compared with it."""
    if not recorder.captures.limit:
        raise NotFound(OFF)
    captured = [row for row in await recorder.rows(Query(max_id=id, limit=MAX_LIMIT)) if row.has_capture]
    if not captured or id not in (None, captured[0].id):
        raise NotFound(f"there is no capture of {'any request' if id is None else f'request {id}'}; it may be too old")
    row, *earlier = captured
    alike = [each for each in earlier if (each.model, each.req_path) == (row.model, row.req_path)]
    return row, [each for each in alike if "" != row.conversation == each.conversation][:1] or alike[:LOOK_BACK]


async def _translated(kernel: Kernel, row: Row, path: str, body: bytes) -> tuple[str, bytes]:
    """Return path and body of what a dialect makes of a request, or as it came. Raises ApplianceError."""
    asked, hooks = [(path, body)], kernel.hooks()
    request = Request(method="POST", path=path, target=path, query={}, headers=(), http_version="1.1")
    for each in hooks.translates:
        if each.route(request) is not None:
            return await each.translated(path, body)

    async def keep(job: ModelRequest) -> None:
        asked.append((job.path, job.body))

    if (route := model_route(request)) is not None and decoded(dict[str, object], body) is not None:
        job = ModelRequest(
            request=request, route=route, name=row.model, body=body, streams=read_json(body).stream and route.streams,
            path=path, sink=Handover(), record=Record(request, path),
        )  # fmt: skip
        for turn in hooks.turns:
            if isinstance(turn, DialectTurn) and (use := turn.take(job, row.model)[1]) is not None:
                await use(job, keep)
    return asked[-1]


async def _prompt(kernel: Kernel, row: Row, path: str, body: bytes) -> str:
    """Return the prompt as the engine has it. Raises ApplianceError."""
    members = decoded(dict[str, Raw], body) or {}
    if path.endswith("/chat/completions") and members and not _MEDIA.search(body):
        return (await _ask(kernel, row.model, "/apply-template", {**members, "model": row.model})).prompt
    if path not in _PLAIN or (plain := decoded(str, members.get("prompt", b""))) is None:
        raise NotFound("it is made again only of a chat of texts alone")  # an engine would fetch pictures again
    return plain


async def _cache_end(kernel: Kernel, row: Row, prompt: str) -> tuple[str, str]:
    """Return the text before and behind the place where the cached part of the prompt ends. Raises ApplianceError."""
    end, known = row.tokens.cache_tokens, row.tokens.input_tokens
    if end <= 0:
        return "", ""
    question = {"model": row.model, "content": prompt, "add_special": True, "parse_special": True}
    tokens = (await _ask(kernel, row.model, "/tokenize", question)).tokens
    if len(tokens) not in (known, end + known):
        raise NotFound(f"the prompt has {len(tokens)} tokens now, which is another number than then")
    sides = [{"model": row.model, "tokens": each[-SHOWN:]} for each in (tokens[:end], tokens[end : end + SHOWN])]
    cached, read = [(await _ask(kernel, row.model, "/detokenize", side)).content for side in sides]
    return cached[-SHOWN:], read[:SHOWN]


async def _ask(kernel: Kernel, model: str, path: str, question: Mapping[str, object]) -> _Answer:
    """Ask a loaded model's engine. Raises ApplianceError."""
    if not kernel.owners.fleet.is_ready(model):
        raise NotFound("the model is not loaded here now, and is not loaded for this")
    with trio.move_on_after(PATIENCE):
        # The query keeps a model that has just been unloaded from being loaded again.
        async with kernel.inward.ask(f"{path}?autoload=0", msgspec.json.encode(question), origin="explain") as reply:
            content = await reply.read(MAX_ANSWER)
        if reply.status == 200 and (answer := decoded(_Answer, content)) is not None:
            return answer
        raise NotFound(f"the engine answered {path} with {reply.status}: {error_text(content)}")
    raise NotFound(f"the engine did not answer within {PATIENCE:g} s")
