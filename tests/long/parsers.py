"""The parsers of this program that read what strangers send, or what lies in files that users fetch."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import struct
import tarfile
import tempfile
import zipfile
from functools import lru_cache
from pathlib import Path

import fake_dialects as fake
import msgspec
from damage import Parser
from request_oracle import Message, disagreement, ours
from whole_config import WHOLE

from appliance.core.answers.families import Family
from appliance.core.answers.forms import Begun
from appliance.core.archives import BadArchive
from appliance.core.bodies.filters import rewrite_field, rewrite_urlencoded
from appliance.core.bodies.head import check_json, read_form, read_json, read_multipart
from appliance.core.bodies.json_text import OBJECT, JsonEdit, apply_edits, parse_path
from appliance.core.bodies.sse import Decoder, ErrorInfo, WholeRecords
from appliance.core.config.load import load
from appliance.core.config.matrix import Matrix, MatrixError, check_matrix
from appliance.core.config.nodes import SourceFile
from appliance.core.config.types import MatrixConfig
from appliance.core.lenient_json import decoded
from appliance.core.models.gguf import read_gguf
from appliance.core.models.gguf_bytes import GgufError
from appliance.core.payload import PayloadFile
from appliance.core.records.accounting import TokenCounter
from appliance.errors import BadRequest, UsageError
from appliance.features.bundles.container import Bundle
from appliance.features.bundles.core.manifest import FORMAT, Blob, BundleItem, BundleManifest, digest_of
from appliance.features.continuation.core.beginning import SoFar
from appliance.features.conversations.core.files import each_arrived, for_page, for_store
from appliance.features.conversations.shapes import Carton
from appliance.features.engines.core.rpc_protocol import KNOWN, BadWorkerAnswer, talk
from appliance.features.tools.core.mcp_messages import LineCutter, RpcAnswer, outcome, read_message, read_tools
from appliance.features.tools.core.mcp_serving import ToolsCall, ToolsListing, read_request
from appliance.store.unpacking import unpack

ROOT = Path(__file__).resolve().parents[2]
SEED = (ROOT / "tests" / "examples" / "llama-swap-seed.yaml").read_bytes()
ENVIRONMENT = dict.fromkeys([*re.findall(r"\$\{env\.(\w+)\}", SEED.decode()), "A"], "1")
ERROR = ErrorInfo(message="x", type="server_error", code=502, reason="x")
NUMBERS = [b"1e999", b"-0", b"9" * 40, b"9" * 5000, b"1e-999", b"0x1", b"NaN", b"-", b"18446744073709551616", b"1.5"]
JSON_WORDS = [
    *NUMBERS,
    *(b'"', b"\\", b"\\u0000", b"\\ud800", b"{", b"}", b"[" * 200, b"[" * 3000, b'{"a":' * 200, b"null", b"true"),
    *(b'"model"', b'"stream"', b'"messages"', b"\xef\xbb\xbf", b"\xff", b",", b":", b"  ", b"\n"),
]

# ---- requests --------------------------------------------------------------------------------------------------------

HTTP = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v1/models?a=b&c=%20 HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nConnection: keep-alive\r\nAccept: */*\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nhost: [::1]:80\r\nOrigin: http://a\r\nConnection: close\r\n\r\n",
    b"GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n",
    b"GET / HTTP/1.0\r\nConnection: keep-alive\r\nAccept:\t a , b \t\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello",
    b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhelloGET /b HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;a=b\r\n world\r\n0\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: x\r\ntransfer-encoding: Chunked\r\n\r\nA\r\n0123456789\r\n0\r\nB: c\r\nD: e\r\n\r\n"
    b"GET /b HTTP/1.1\r\nHost: x\r\n\r\n\r\nPOST /c HTTP/1.1\r\nHost: y\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /a HTTP/1.0\r\nContent-Length: 3\r\nConnection: Keep-Alive\r\n\r\nabcGET /b HTTP/1.0\r\n\r\n",
    b"PUT /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nPUT /b HTTP/1.1\r\nHost: x\r\n\r\n",
]
LINES = [
    *(b"Content-Length: 5", b"Content-Length: 0", b"Transfer-Encoding: chunked", b"Host: y", b"Host:", b" folded"),
    *(b"Transfer-Encoding: gzip", b"Connection: close", b"Connection: keep-alive", b"Expect: 100-continue", b""),
    *(b"Upgrade: h2c", b"a" * 5000, b"\r\n".join([b"A: b"] * 130)),
]
HTTP_WORDS = [
    *(line + b"\r\n" for line in LINES),
    *(b"\r\n\r\n", b"\n\n", b"\r\n ", b"0x", b"chunked", b", chunked", b"identity", b"GET ", b"CONNECT ", b"PRI "),
    *(b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"http://x/", b"0\r\n\r\n", b"5\r\n", b"f" * 8, b"9" * 16),
    *(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"),
]
MESSAGES = 5


def _requests(stream: bytes) -> list[bytes]:
    """Where each request of a connection begins, as far as they are accepted."""
    found: list[bytes] = []
    while stream and len(found) < MESSAGES:
        for _ in range(2):
            stream = stream.removeprefix(b"\r\n")
        found.append(stream)
        read = ours(stream)
        if not isinstance(read, Message) or not read.keep_alive:
            break
        stream = read.rest
    return found


def _http(stream: bytes) -> bool:
    return any(isinstance(ours(each), Message) for each in _requests(stream)[:1])


def _http_agrees(stream: bytes) -> None:
    for each in _requests(stream):
        assert (wrong := disagreement(each)) is None, wrong


CHAT = json.dumps(
    {
        "model": "a",
        "messages": [{"role": "user", "content": [{"type": "text", "text": 'é😀\\"x"'}]}, {"role": "user"}],
        "stream": True,
        "temperature": 0.5,
        "tools": [{"a": {"b": [1, 2, {"c": None}]}}],
    }
).encode()
EDITS = [
    JsonEdit(parse_path(path), value)
    for path, value in (("model", b'"other"'), ("tools.0.a.b.-1", b"[]"), ("x.y", b"1"))
]  # type: ignore[arg-type]
DELETES = [JsonEdit(parse_path(path), None) for path in ("temperature", "messages.0.content", "tools.0.a")]  # type: ignore[arg-type]


def _json(body: bytes) -> bool:
    apply_edits(body, EDITS + DELETES)
    try:
        read_json(body)
        check_json(body)
    except BadRequest:
        return False
    return True


def _json_agrees(body: bytes) -> None:
    """What is an object stays one, says what was set, and is else as it was; anything else stays as it is."""
    before = decoded(OBJECT, body)
    edited = apply_edits(body, EDITS[:1])
    if before is None:
        return
    after = OBJECT.decode(edited)
    assert after.get("model") == "other" or before.get("model") is not None, "a key in other letters, or twice"
    names = {name for name in before if name != "model"}
    assert {name: after[name] for name in names} == {name: before[name] for name in names}


FORM = (
    b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\na\r\n'
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: a/b\r\n\r\n\0\1\xff\r\n'
    b'--x\r\nContent-Disposition: form-data; name="stream"\r\n\r\ntrue\r\n--x--\r\n'
)
FORM_WORDS = [
    b"--x", b"--x--", b"\r\n", b"name=", b'"', b"Content-Disposition: form-data", b"filename*=utf-8''", b"\r\n\r\n",
]  # fmt: skip


def _form(body: bytes) -> bool:
    rewrite_field(body, b"x", "model", "other")
    rewrite_urlencoded(body, "model", "other")
    try:
        return bool(read_form(body).model or read_multipart(body, b"x").model)
    except BadRequest:
        return False


# ---- answers ---------------------------------------------------------------------------------------------------------

DIALECTS = {fake.Chat: Family.CHAT, fake.Messages: Family.MESSAGES, fake.Responses: Family.RESPONSES}


def _streams() -> list[bytes]:
    made = [kind("m", "prompt", 3, {"stream_options": {"include_usage": True}}) for kind in (*DIALECTS, fake.Native)]
    return [b"".join((*each.begin(), *each.add("é "), *each.add("b"), *each.end())) for each in made]


SSE_WORDS = [
    *NUMBERS, b"data: ", b"data:", b"event: error\n", b"error: ", b"id: \0", b"\n\n", b"\r\n\r\n", b"\r", b": ping\n\n",
    b"\xef\xbb\xbf", b"[DONE]", b'"usage":{', b'"timings":{', b'"choices":[', b"\xf0\x9f", b"data: {}\n\n",
]  # fmt: skip


def _sse(stream: bytes) -> bool:
    for family in DIALECTS.values():
        reader = SoFar(family)
        reader.feed(stream)
        reader.partial()
    counter = TokenCounter("/v1/chat/completions", streaming=True)
    counter.feed(stream)
    counter.end()
    begun = Begun()
    begun.feed(stream)
    begun.failed(ERROR)
    return len(Decoder().feed(stream)) > 2


def _sse_agrees(stream: bytes) -> None:
    """In whatever pieces it comes."""
    size = 1 + len(stream) % 97
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    one, whole = Decoder(), WholeRecords()
    assert [event for piece in pieces for event in one.feed(piece)] == Decoder().feed(stream)
    assert b"".join(whole.feed(piece) for piece in pieces) + whole.rest() == stream


# ---- files -----------------------------------------------------------------------------------------------------------


def _gguf_text(value: bytes) -> bytes:
    return len(value).to_bytes(8, "little") + value


def _small_gguf() -> bytes:
    """Two keys, an array and a tensor."""
    keys = (
        _gguf_text(b"general.architecture") + struct.pack("<I", 8) + _gguf_text(b"llama"),
        _gguf_text(b"llama.context_length") + struct.pack("<II", 4, 8192),
        _gguf_text(b"tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 3) + _gguf_text(b"a") * 3,
    )
    tensor = _gguf_text(b"blk.0.attn_q.weight") + struct.pack("<IQQIQ", 2, 4, 4, 0, 0)
    head = struct.pack("<4sIQQ", b"GGUF", 3, 1, len(keys)) + b"".join(keys) + tensor
    return head.ljust(-(-len(head) // 32) * 32, b"\0") + bytes(64)


GGUF_WORDS = [struct.pack("<Q", 2**n) for n in (0, 8, 31, 32, 40, 62, 63)] + [
    *(struct.pack("<I", n) for n in range(14)),
    *(b"GGUF", b"\xff" * 8, _gguf_text(b"general.alignment"), _gguf_text(b"split.count"), b"FUGG"),
]


def _gguf(data: bytes) -> bool:
    try:
        read_gguf(lambda at, count: data[at : at + count], len(data))
    except GgufError:
        return False
    return True


YAML_WORDS = [
    *NUMBERS, b"\n", b"  ", b"null", b"'x'", b"${x}", b"${PORT}", b"${env.NO}", b"*a", b"&a ", b"<<: *a", b"- ", b"? ",
    b"|\n", b">-\n", b"!!int ", b"!!binary ", b"---\n", b"%YAML 1.2\n", b"\t", b"[" * 60, b"{a: " * 60, b"models:\n",
    b"matrix:\n  sets: {a: b & (c | +d)}\n", b"\xc2\x85", b"\xe2\x80\xa8", b'"\\ud800"', b"k: &x [*x]\n",
    b"globalTTL: ", b"macros: {a: ${a}}\n",
]  # fmt: skip
YAML = [
    b"models:\n  a:\n    cmd: run --port ${PORT} -m a.gguf\n    aliases: [x, 'y']\n    ttl: 60\n",
    b"startPort: 9000\nmacros: {ctx: 512}\nmodels:\n  b: {cmd: 'r ${PORT} ${ctx}', env: [A=1], memory: {gpu0: 2G}}\n",
    b"groups:\n  g: {swap: false, members: [a]}\nmodels: &m\n  a:\n    cmd: |\n      run\n      --port ${PORT}\n",
]


def _yaml(text: bytes) -> bool:
    loaded = load([SourceFile("c.yaml", text.decode("utf-8", "replace"))], ENVIRONMENT, config_type=WHOLE)
    assert (loaded.config is None) == bool(loaded.errors)
    assert all(problem.message and len(str(problem)) < 3000 for problem in loaded.problems)
    return loaded.config is not None


MODELS = {name: f"model-{name}" for name in "abcdefgh"}


def _matrix(text: bytes) -> bool:
    lines = text.decode("utf-8", "replace").splitlines()
    config = MatrixConfig(vars=MODELS, sets={f"s{at}": line for at, line in enumerate(lines)})
    models = [*MODELS.values()]
    problems = check_matrix(config, models)
    try:
        matrix = Matrix(config, models)
    except MatrixError:
        assert problems
        return False
    decision = matrix.solve("model-a", ["model-b", "model-c"])
    assert set(decision.evict) <= {"model-b", "model-c"}
    return True


def _archives() -> list[bytes]:
    packed, zipped = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar, zipfile.ZipFile(zipped, "w") as file:
        for name in ("build/llama-server", "build/libggml.so.1", "build/engine.json"):
            head = tarfile.TarInfo(name)
            head.size = 3
            tar.addfile(head, io.BytesIO(b"abc"))
            file.writestr(zipfile.ZipInfo(name), b"abc")
        head = tarfile.TarInfo("build/libggml.so")
        head.type, head.linkname = tarfile.SYMTYPE, "libggml.so.1"
        tar.addfile(head)
    return [packed.getvalue()[:5120], zipped.getvalue()]


ARCHIVE_WORDS = [
    b"../", b"/etc/passwd", b"..\\", b"C:", b"ustar", b"\0" * 512, b"PK\x01\x02", b"PK\x05\x06", b"77777777777",
    b"x" * 300, b"2", b"L", b"x",
]  # fmt: skip


@lru_cache
def _place() -> Path:
    """A folder in memory, where there is one; what is beside the unpacked files must stay as it is."""
    shared = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(prefix="llama-appliance-fuzz-", dir=shared if os.access(shared, os.W_OK) else None))
    (place / "beside").mkdir()
    return place


def _archive(data: bytes) -> bool:
    place = _place()
    into = place / "beside" / "into"
    archive = place / ("a.zip" if data[:2] == b"PK" else "a.tar.gz")
    archive.write_bytes(data if data[:2] == b"PK" else gzip.compress(data, compresslevel=0))
    try:
        unpack(archive, into)
    except BadArchive:
        return False
    finally:
        shutil.rmtree(into, ignore_errors=True)
        archive.unlink()
        assert [path.name for path in place.rglob("*")] == ["beside"], "something came out"
    return True


def _exports() -> list[bytes]:
    head = {"harness": "llama.app", "type": "session", "id": "abc", "name": "n", "lastModified": 9, "currNode": "b"}
    image = {"type": "IMAGE", "name": "p", "base64Url": "data:image/png;base64,AAAA"}
    extra = [image, {"type": "TEXT", "content": "t"}]
    sent = [
        {"id": "a", "role": "user", "content": "hi", "timestamp": 1, "parent": "root", "extra": extra},
        {"id": "b", "role": "assistant", "content": "yo", "timestamp": 2, "parent": "a", "toolCalls": [{"id": "1"}]},
    ]
    lines = b"\n".join(json.dumps(each).encode() for each in (head, *({"type": "message", "message": m} for m in sent)))
    messages = {each["id"]: {"id": each["id"], "role": "user", "parentId": None, "content": "hi"} for each in sent}
    theirs = [{"id": "x", "title": "t", "chat": {"title": "t", "history": {"messages": messages, "currentId": "b"}}}]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for name in ("a.jsonl", "b.jsonl"):
            file.writestr(zipfile.ZipInfo(name), lines, zipfile.ZIP_STORED if name < "b" else zipfile.ZIP_DEFLATED)
    conversation = json.dumps({"conv": head, "messages": sent}).encode()
    return [lines, conversation, json.dumps(theirs).encode(), packed.getvalue()]


def _export(data: bytes) -> bool:
    try:
        arrived = list(each_arrived(io.BytesIO(b"".join(for_store(data))).read))
    except BadRequest:
        return False
    carton = msgspec.json.decode(b"".join(for_page(data)), type=Carton)
    assert [each.conversation for each in carton.conversations] == [each.conversation for each in arrived]
    return True


def _bundles() -> list[bytes]:
    content = b"abc" * 200
    sha256 = hashlib.sha256(content).hexdigest()
    file = PayloadFile(path="llama-server", size=len(content), sha256=sha256)
    item = BundleItem(kind="engine", name="linux-x64-cpu/b100", digest=digest_of([file]), files=(file,))
    blob = Blob(sha256=sha256, size=len(content), chunks=(sha256,))
    manifest = BundleManifest(
        format=FORMAT, version="1", target="linux-x64", made="", part=1 << 20, items=(item,), blobs=(blob,)
    )
    found = b""
    for name, each in (("bundle.json", msgspec.json.encode(manifest)), ("bundle.json.sig", bytes(64)), ("x", content)):
        head = tarfile.TarInfo(name)
        head.size = len(each)
        found += head.tobuf(tarfile.GNU_FORMAT) + each + bytes(-len(each) % 512)
    return [found]


def _bundle(data: bytes) -> bool:
    path = _place() / "b"
    path.write_bytes(data)
    try:
        with Bundle(path) as bundle:
            bundle.verify(lambda: None, lambda _: None)
    except UsageError:
        return False
    finally:
        path.unlink()
    return True


# ---- messages --------------------------------------------------------------------------------------------------------

MCP = [
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"b":[1]},"_meta":{"progressToken":1}}}',
    b'{"jsonrpc":"2.0","id":"x","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{}}}',
    b'{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"a","description":"b","inputSchema":{"type":"object"}}],"nextCursor":"x"}}',
    b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"x"},{"type":"image","data":"aa"}],"isError":false}}',
    b'{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"no","data":{"a":1}}}',
]


def _mcp(data: bytes) -> bool:
    understood = False
    for line in LineCutter().feed(data + b"\n"):
        found = read_message(line)
        understood = understood or found is not None
        if isinstance(found, RpcAnswer):
            outcome(found)
            if found.result is not None:
                read_tools("s", found.result)
    given = read_request(data, [(b"mcp-protocol-version", b"2025-06-18")])
    return understood or isinstance(given, ToolsCall | ToolsListing)


def _rpc_answer(body: bytes) -> bytes:
    return struct.pack("<Q", len(body)) + body


RPC = [
    _rpc_answer(bytes((KNOWN, 0, 0)) + bytes(25))
    + _rpc_answer(struct.pack("<I", devices))
    + _rpc_answer(struct.pack("<QQ", 1 << 30, 1 << 33)) * devices
    for devices in (1, 2, 4)
]


def _rpc(data: bytes) -> bool:
    asking = talk()
    next(asking)
    try:
        while data:
            end = 8 + min(int.from_bytes(data[:8], "little"), len(data))
            asking.send(data[:5])
            asking.send(data[5:end])
            data = data[end:]
    except BadWorkerAnswer:
        return False
    except StopIteration:
        return True
    return False


YAML_PACE = 25e-6
"""A third of it is what the search takes for what unknown keys may mean."""

PARSERS = {
    "http": Parser(seeds=HTTP, words=HTTP_WORDS, read=_http, agrees=_http_agrees, joined=True, least=0.25),
    "json": Parser(seeds=[CHAT, b'{"model":"a"}'], words=JSON_WORDS, read=_json, agrees=_json_agrees),
    "form": Parser(seeds=[FORM, b"model=a&stream=true&x=%20"], words=FORM_WORDS, read=_form),
    "sse": Parser(seeds=_streams(), words=SSE_WORDS, read=_sse, agrees=_sse_agrees, joined=True, share=0.5),
    "gguf": Parser(seeds=[_small_gguf()], words=GGUF_WORDS, read=_gguf, least=0.01),
    "yaml": Parser(seeds=YAML, words=YAML_WORDS, read=_yaml, pace=YAML_PACE, share=0.1),
    "yaml-large": Parser(seeds=[SEED], words=YAML_WORDS, read=_yaml, least=0.0, pace=YAML_PACE, share=0.01),
    "matrix": Parser(
        seeds=[b"a & (b | c)\n", b"(a|b)&(c|d)&(e|f)\n+s0 & d\n", b"a\nb | c & d\n"],
        words=[b"+s0", b"+s1", b"(" * 40, b")" * 40, b" & ", b" | ", b"a" * 60, b"(a|b)&" * 30, b"\n"],
        read=_matrix,
        joined=True,
        share=0.5,
    ),
    "archive": Parser(seeds=_archives(), words=ARCHIVE_WORDS, read=_archive, share=0.02),
    "bundle": Parser(seeds=_bundles(), words=[*JSON_WORDS, *ARCHIVE_WORDS], read=_bundle, least=0.01, share=0.1),
    "conversations": Parser(seeds=_exports(), words=[*JSON_WORDS, *ARCHIVE_WORDS], read=_export, share=0.1),
    "mcp": Parser(seeds=MCP, words=JSON_WORDS, read=_mcp),
    "rpc": Parser(seeds=RPC, words=GGUF_WORDS, read=_rpc),
}
