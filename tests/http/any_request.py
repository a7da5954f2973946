"""Requests for every route of the program, each with one odd thing in it.

Nothing here lists routes or parameters. Paths come from Quart's map, from the tables and constants of the modules that
answer without Quart, and from the documents. Names and bodies come from the code that a route can reach: every word
that it hands to a call or compares with, and every Struct that it may read.
"""

from __future__ import annotations

import ast
import base64
import importlib
import inspect
import json
import pkgutil
import re
import textwrap
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from urllib.parse import quote_from_bytes, unquote

import msgspec
import msgspec.inspect as mi
from http_harness import Appliance
from msgspec import Struct, structs
from quart import Quart

import appliance.features.lm_studio
import appliance.features.ollama
import appliance.http
import appliance.http.sockets
from appliance.core.bodies import http_request
from appliance.core.settings import HttpSettings
from appliance.features.conversations.core import files as conversation_files
from appliance.features.conversations.core import formats as conversation_formats
from appliance.features.conversations.file_routes import FileRoutes
from appliance.features.cors_proxy import proxy
from appliance.features.lm_studio import rules as lm_studio
from appliance.features.ollama import sink as ollama
from appliance.features.page.edge import PageEdge
from appliance.features.plugins import turn
from appliance.features.pool import link
from appliance.features.predict import route as predict
from appliance.features.tools import chat_tools, mcp_offered, mcp_server, tool_routes
from appliance.features.tools.core import mcp_serving
from appliance.http.bytes.body import Bodies
from appliance.http.control.app import create_app
from appliance.http.control.edge_routes import ONE_MODEL, EdgeRoutes
from appliance.http.route_facts import RouteFacts
from appliance.http.way import routes
from appliance.http.way.edge import Edge
from appliance.http.way.guard import Guard
from appliance.traffic.request import CONVERSATIONS, PAGE_PATHS, PAGE_PREFIX

DOCS = Path(__file__).resolve().parents[2] / "docs"
HTTP_PAGE = (DOCS / "http.md").read_text("utf-8")
ROOMS = (
    *("appliance.http", "appliance.core", "appliance.features.page", "appliance.features.pool"),
    *("appliance.features.routers"),
)
WORD = re.compile(r"[A-Za-z][\w-]{0,40}")

# ---- odd things ------------------------------------------------------------------------------------------------------

TEXTS = [
    *("", "²", "٣", "1" * 23, "9" * 5000, "-1", "-0", "+1", "1_0", " 1", "0x1", "1e300", "1e999", "NaN", "Infinity"),
    *("9223372036854775808", "18446744073709551616", "-9223372036854775809", "0.5", "true", "null", "[]", "{}", "*"),
    *("\0", "a\0b", "\n", "\r\n", "a\r\nX-Own: b", "\x7f", "\x85", "\u2028", "\ufeff", "\ud800", "\udcff", "💩", "é"),
    *("a" * 5000, " ", ";", ",", ",,;;", ";=", "a;b=c", 'a;b="', "audio/x,text/html", "audio/x\r\nX-Own: b", "audio/ሴ"),
    *("image/png;charset=\udcff", "'", '"', "\\", "%", "%zz", "%00", "../..", "/", "//", ".", "..", "~", "<b>"),
    *("2026-11-20T08:30:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "Basic ====", "Bearer \udcff"),
    *("bytes=0-", "W/", "*/*;q=²", "gzip;q=1e300", "multipart/form-data", "multipart/form-data; boundary=²", "a=b; c"),
]  # fmt: skip
NUMBERS = [
    *("1e300", "-1e300", "1e999", "NaN", "Infinity", "-Infinity", "-1", "-0", "0.5", "1e18", "1" * 23, "9" * 5000),
    *(str(sign * 2**bits + more) for bits in (31, 53, 63, 64) for sign in (1, -1) for more in (-1, 0, 1)),
]
OTHERS = [
    *("null", "true", "{}", "[]", "[null]", '{"a":1}', "[[]]", "0", "[" * 200 + "]" * 200, "[" * 5000, "", '""'),
    *(r'"\ud800"', r'"\u0000"', '"\udcff"', '"\n"', "undefined", "'a'", '"a', "1 2"),
]
JSONS = [*NUMBERS, *OTHERS, *(json.dumps(text) for text in TEXTS)]
_HOLE = "\ue000"
GOOD: dict[str, Any] = {
    "model": "alpha", "messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "input": "hi", "content": "hi",
    "conversation": "c", "message": "q", "id": "q", "parent": None, "leaf": None, "role": "user", "type": "text",
    "server": "none", "name": "n", "max_tokens": 3, "parameters": {}, "tools": [], "exit_tools": [], "jsonrpc": "2.0",
    "method": "tools/call", "params": {"name": "chat", "arguments": {"prompt": "hi"}}, "tool": "get_info", "bios": True,
    "stream": False, "url": "http://127.0.0.1:1/", "repo": "acme/tiny-GGUF", "system_prompt": None, "user_prompt": None,
    "instances": [{"@requestFormat": "chatCompletions", "model": "alpha", "messages": []}], "state": "done",
    "base64Data": base64.b64encode(b"a").decode(), "base64Url": "", "results": [{"tool_call_id": "a", "content": "b"}],
}  # fmt: skip
"""Values that are fine wherever something has this name, so that a request comes as far as its odd part."""


def raw(text: str) -> bytes:
    """UTF-8; half a surrogate pair as its three bytes, and U+DC80 to U+DCFF as one byte that is not UTF-8."""
    return b"".join(
        bytes([ord(c) - 0xDC00]) if "\udc80" <= c <= "\udcff" else c.encode("utf-8", "surrogatepass") for c in text
    )


# ---- what the code reads ---------------------------------------------------------------------------------------------


class Reads:
    """Names and kinds of bodies that functions of the program may read, with all that they can reach."""

    def __init__(self, begin: Iterable[object]) -> None:
        self.names: set[str] = set()
        self.kinds: dict[str, Any] = {}
        self._seen: set[FunctionType] = set()
        self._next: deque[tuple[type | None, FunctionType]] = deque()
        for each in begin:
            self._look(each)
        while self._next:
            self._read(*self._next.popleft())

    def _read(self, owner: type | None, function: FunctionType) -> None:
        if function in self._seen or not function.__module__.startswith(ROOMS):
            return
        self._seen.add(function)
        if function.__name__ != "<lambda>" and function.__code__.co_filename.endswith(".py"):
            self.names |= _names(function.__code__)
        codes = [function.__code__]
        for code in codes:
            codes += [inner for inner in code.co_consts if inspect.iscode(inner)]
            for name in code.co_names:
                if owner is not None and isinstance(method := vars(owner).get(name), FunctionType):
                    self._next.append((owner, method))
                self._look(function.__globals__.get(name))
        for cell in function.__closure__ or ():
            self._look(cell.cell_contents)

    def _look(self, found: object) -> None:
        if type(found).__module__.startswith("werkzeug."):
            return  # Quart's ``request`` is whatever is asked for in a request
        match found:
            case msgspec.json.Decoder(type=kind):
                self.kinds[str(kind)] = kind
            case FunctionType():
                self._next.append((None, found))
            case MethodType():
                self._next.append((type(found.__self__), found.__func__))
            case type() if issubclass(found, Struct):
                self.kinds[str(found)] = found
            case type() if found.__module__.startswith(ROOMS):
                self._next.extend((found, each) for each in vars(found).values() if isinstance(each, FunctionType))
            case _ if isinstance(getattr(found, "__self__", None), msgspec.json.Decoder):
                self._look(found.__self__)


@cache
def _names(code: CodeType) -> set[str]:
    """Every word that a function hands to a call, or looks for in something."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(code)))):
        match node:
            case ast.Call(args=given):
                pass
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()]):
                given = [left]
            case _:
                continue
        values = [each.value for each in given if isinstance(each, ast.Constant)]
        found |= {value for value in values if isinstance(value, str) and WORD.fullmatch(value)}
    return found


def modules(*packages: ModuleType) -> Iterator[ModuleType]:
    for package in packages:
        yield package
        for info in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{package.__name__}."):
            yield importlib.import_module(info.name)


@cache
def header_names() -> list[str]:
    """All that the HTTP edge compares with or looks for, wherever that is."""
    found: set[str] = set()
    for module in modules(appliance.http, mcp_server, mcp_serving, tool_routes, http_request):
        source = inspect.getsource(module)
        found |= set(re.findall(r'b"([a-z]+(?:-[a-z]+)+|accept|host|origin|referer|cookie|authorization)"', source))
        found |= set(re.findall(r'headers\.get\("([\w-]+)"', source))
    return sorted({name.lower() for name in found} - {"content-length", "transfer-encoding", "connection", "expect"})


# ---- routes ----------------------------------------------------------------------------------------------------------


class Route(Struct, frozen=True):
    """``path`` has ``<name>`` where something of the client's goes. ``kinds`` are those of JSON bodies."""

    path: str
    methods: tuple[str, ...]
    names: tuple[str, ...]
    kinds: tuple[Any, ...]


PART = re.compile(r"<(?:\w+:)?(\w+)>")
PREDICT = "/predict"
METHODS = ("GET", "POST", "DELETE", "HEAD")


def app_of(server: Appliance) -> Quart:
    """The routes that are answered with Quart."""
    return app_and_facts(server)[0]


def app_and_facts(server: Appliance) -> tuple[Quart, dict[str, RouteFacts]]:
    """The same, and the facts about each route by endpoint."""
    http = HttpSettings(admin=True)
    edge = Edge(http, (), Guard(http, ()), server.traffic, Bodies(http))
    kernel = structs.replace(server.opened.kernel, edge=edge)
    return create_app(kernel, [each.routes for each in server.opened.parts if each.routes is not None])


def edge_gets(server: Appliance) -> dict[str, object]:
    """The paths that are answered without Quart, for GET and HEAD, and the functions that answer."""
    return {**EdgeRoutes.ROUTES, **{path: make() for path, make in server.opened.kernel.gets().items()}}


def all_routes(server: Appliance) -> list[Route]:
    """Those of Quart and of the edge with what each can reach; the others with all that is read without Quart."""
    found: dict[tuple[str, tuple[str, ...]], Route] = {}
    app = app_of(server)
    for rule in app.url_map.iter_rules():
        methods = tuple(sorted((rule.methods or set()) - {"OPTIONS"}))
        found[rule.rule, methods] = _route(rule.rule, methods, Reads([app.view_functions[rule.endpoint]]))
    asked = ("GET", "HEAD")
    page = dict.fromkeys((*PAGE_PATHS, PAGE_PREFIX, f"{PAGE_PREFIX}assets/<name>"), PageEdge.answer)
    for path, answer in (edge_gets(server) | page | {f"{ONE_MODEL}<path:model>": EdgeRoutes._model}).items():
        found[path, asked] = _route(path, asked, Reads([answer]))
    known = {re.sub(r"<[^>]*>", "<>", path) for path, _ in found}
    told = {path for path in _documented() if re.sub(r"<[^>]*>", "<>", path) not in known}
    of_files = {f"{CONVERSATIONS}/{name}": method for method, name in FileRoutes.ROUTES if method != "HEAD"}
    for path, method in of_files.items():
        found[path, (method,)] = _route(path, (method,), reads(conversation_files, conversation_formats))
    for path in sorted((_constants(routes, link, ollama) | told) - of_files.keys()):
        found[path, METHODS] = _route(path, METHODS, _read_by(path))
    return list(found.values())


def _route(path: str, methods: tuple[str, ...], read: Reads) -> Route:
    return Route(path, methods, tuple(sorted(read.names)), tuple(read.kinds.values()))


@cache
def reads(*found: ModuleType) -> Reads:
    values = [each for module in modules(*found) for each in vars(module).values() if inspect.getmodule(each) is module]
    return Reads(each for each in values if isinstance(each, type | FunctionType))


def _read_by(path: str) -> Reads:
    """By the modules that answer a path without Quart; those of a model's routes, unless it is known better."""
    if path in _constants(ollama):
        return reads(appliance.features.ollama)
    if lm_studio.is_lm_studios(path):
        return reads(appliance.features.lm_studio)
    if path == routes.MCP:
        return reads(mcp_server, mcp_offered)
    of = {routes.TOOLS: tool_routes, routes.CORS_PROXY: proxy, PREDICT: predict}
    way = (appliance.http.way, turn, chat_tools, appliance.http.sockets)
    return reads(of[path]) if path in of else reads(*way)


def _constants(*found: ModuleType) -> set[str]:
    texts: set[str] = set()
    for value in (value for module in found for value in vars(module).values()):
        match value:
            case str():
                texts.add(value)
            case dict() | tuple() | frozenset():
                texts |= {each for each in value if isinstance(each, str)}
            case _:
                pass
    found = {each for each in texts if re.fullmatch(r"/[\w./-]+", each) and not each.endswith((".py", ".pyc"))}
    return {f"{each}<rest>" if each.endswith("/") else each for each in found}


def _documented() -> set[str]:
    """``ID``, ``MODEL``, ``:id`` and the like in a path are the client's."""
    text = HTTP_PAGE + (DOCS / "ollama.md").read_text("utf-8")
    paths = re.findall(r"[ `](/[a-z][\w./:-]*)", " ".join(re.findall(r"`[^`]+`", text)))
    return {re.sub(r"/(?::(\w+)|([A-Z]{2,}))(?=/|$)", r"/<\1\2>", path).rstrip("/.") for path in paths}


# ---- requests --------------------------------------------------------------------------------------------------------

FORMS = ("json", "list", "form", "multipart", "websocket")
HANDSHAKE = {
    b"connection": b"Upgrade",
    b"upgrade": b"websocket",
    b"sec-websocket-version": b"13",
    b"sec-websocket-key": base64.b64encode(bytes(16)),
}
_BOUNDARY = "xxBOUNDARYxx"
_TYPES = {"form": "application/x-www-form-urlencoded", "multipart": f"multipart/form-data; boundary={_BOUNDARY}"}


class Case(Struct, frozen=True):
    """One request as it is sent. ``odd`` names what is odd in it; empty: nothing is."""

    method: str
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""
    odd: str = ""

    @property
    def path(self) -> str:
        return unquote(self.target.decode().partition("?")[0])

    def wire(self) -> bytes:
        host = () if any(name == b"host" for name, _ in self.headers) else ((b"host", b"localhost"),)
        lines = [b"%b %b HTTP/1.1" % (self.method.encode(), self.target)]
        lines += [b"%b: %b" % header for header in (*host, *self.headers)]
        if self.body or self.method in ("POST", "PUT"):
            lines.append(b"content-length: %d" % len(self.body))
        return b"\r\n".join(lines) + b"\r\n\r\n" + self.body

    def told(self) -> str:
        return f"{self.method} {self.target[:200]!r} {dict(self.headers)} {self.body[:500]!r}"


class Place(Struct, frozen=True):
    """Where something odd goes: into the path, query, a header, or a member of a body of this kind."""

    route: Route
    where: str
    name: str = ""
    kind: Any = None
    steps: tuple[str | int, ...] = ()

    def case(self, method: str, form: str, value: str | None) -> Case:
        """The request with this there, and nothing else that is odd; None: not even that."""
        odd = None if value is None else raw(value)

        def part(found: re.Match[str]) -> str:
            mine = self.where == "path" and self.name == found[1] and odd is not None
            return quote_from_bytes(odd if mine else str(GOOD.get(found[1], "alpha")).encode(), safe="/")

        target, body = re.sub(PART, part, self.route.path).encode(), b""
        headers: list[tuple[bytes, bytes]] = []
        if odd is not None and self.where == "query":
            target += f"?{self.name}={quote_from_bytes(odd)}".encode()
        if odd is not None and self.where == "header":
            headers.append((self.name.encode(), odd))
        if form == "websocket" and method == "GET":
            headers += [(name, each) for name, each in HANDSHAKE.items() if name not in dict(headers)]
        if method in ("POST", "PUT"):
            value_there = None if odd is None or self.where != "body" else value
            content_type, body = written(sample(self.kind), form, self.steps, value_there)
            if self.name != "content-type":
                headers.append((b"content-type", content_type))
        return Case(method, target, tuple(headers), body, "" if odd is None else self.name.rpartition(".")[2])


def written(told: Any, form: str, steps: tuple[str | int, ...], odd: str | None) -> tuple[bytes, bytes]:
    """The type and the bytes of a body; None: with nothing odd in it. What is no object is always JSON."""
    if form == "list":
        told, steps = [told], (0, *steps)
    if form not in _TYPES or not isinstance(told, dict) or not steps:
        return b"application/json", in_place(told, steps, odd)
    told = told if odd is None else put(told, steps, _HOLE)
    pairs = [(name, each if isinstance(each, str) else json.dumps(each)) for name, each in told.items()]
    if form == "form":
        text = "&".join(f"{name}={each}" for name, each in pairs)
    else:
        parts = (f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{n}"\r\n\r\n{v}\r\n' for n, v in pairs)
        text = f"{''.join(parts)}--{_BOUNDARY}--\r\n"
    return _TYPES[form].encode(), raw(text.replace(_HOLE, odd or ""))


def in_place(told: Any, steps: tuple[str | int, ...], odd: str | None) -> bytes:
    """JSON, with something that may be none at a place."""
    if odd is None:
        return json.dumps(told).encode()
    return json.dumps(put(told, steps, _HOLE)).encode().replace(json.dumps(_HOLE).encode(), raw(odd))


def member(place: Place) -> Any:
    """What is there usually."""
    found = sample(place.kind)
    for step in place.steps:
        found = found[step] if isinstance(found, list) else found.get(step)
    return found


def places(found: Iterable[Route]) -> Iterator[Place]:
    """All of these routes, but what is in headers."""
    for route in found:
        yield from (Place(route, "path", name) for name in re.findall(PART, route.path))
        yield from (Place(route, "query", name) for name in route.names)
        if {"POST", "PUT"} & set(route.methods):
            yield from (Place(route, "body", name, None, (name,)) for name in route.names)
            for kind in route.kinds:
                for way in ways(sample(kind)):
                    yield Place(route, "body", ".".join(map(str, way)), kind, way)


@cache
def sample(kind: Any) -> Any:
    """JSON of this kind with all of its members; of none: with all that `GOOD` knows."""
    if kind is None:
        return GOOD
    try:
        return _sample(mi.type_info(kind), 0)
    except (TypeError, NameError):  # nothing that a client sends
        return None


def _sample(kind: mi.Type, depth: int) -> Any:
    match kind:
        case mi.StructType(fields=fields) if depth < 6:
            return {field.encode_name: _member(field, depth + 1) for field in fields}
        case mi.ListType(item_type=item) | mi.VarTupleType(item_type=item) if depth < 6:
            return [_sample(item, depth + 1)]
        case mi.DictType(value_type=value) if depth < 6:
            return {"a": _sample(value, depth + 1)}
        case mi.UnionType(types=types):
            return next((_sample(one, depth) for one in types if not isinstance(one, mi.NoneType)), None)
        case mi.LiteralType(values=values):
            return values[0]
        case mi.IntType() | mi.FloatType():
            return 1
        case mi.BoolType():
            return False
        case mi.StrType(pattern=pattern) if pattern and "64" in pattern:
            return "0" * 64
        case mi.StrType() | mi.BytesType():
            return "YQ=="
        case mi.DateTimeType():
            return "2026-11-20T08:30:00Z"
        case mi.RawType():
            return {}
        case _:
            return None


def _member(field: mi.Field, depth: int) -> Any:
    found = _sample(field.type, depth)
    nested = isinstance(found, dict | list) and found not in ({}, [{}])
    return found if nested else GOOD.get(field.encode_name, found)


def ways(value: Any, begin: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The ways to all members of a value, itself included."""
    yield begin
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from ways(inner, (*begin, name))
    elif isinstance(value, list) and value:
        yield from ways(value[0], (*begin, 0))


def put(value: Any, steps: tuple[str | int, ...], what: Any) -> Any:
    """A copy of a value with something else at a place."""
    if not steps:
        return what
    if isinstance(value, list):
        return [put(value[0], steps[1:], what)]
    return {**value, steps[0]: put(value.get(steps[0]), steps[1:], what)}
