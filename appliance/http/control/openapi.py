"""``GET /openapi.json``: what the program's own routes take and give, made from their registrations (OpenAPI 3.1).

Routes of models are listed without shapes: their bodies and answers are llama.cpp's, and pass byte for byte.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import structs
from quart_trio import QuartTrio

from appliance import __version__
from appliance.http.control.edge_routes import EdgeRoutes
from appliance.http.kernel import Get
from appliance.http.route_facts import PLAIN, DescribedRoute, RouteFacts
from appliance.http.way.routes import POSTED

VERSION = "3.1.0"
SHAPES = "#/components/schemas/{name}"
PART = re.compile(r"<(?:\w+:)?(\w+)>")
"""A part of a path, in the words of Werkzeug."""
JSON = "application/json"


def openapi_document(
    app: QuartTrio, facts: Mapping[str, RouteFacts], gets: Mapping[str, Get], described: Sequence[DescribedRoute]
) -> dict[str, object]:
    """Describe the routes of ``app``, those that need no Quart, and those of models.

    ``facts`` are by endpoint; ``gets`` and ``described`` are the routes of features without Quart.
    """
    late = {endpoint: each.gives_late() for endpoint, each in facts.items() if each.gives_late is not None}
    facts = {endpoint: structs.replace(each, gives=late.get(endpoint, each.gives)) for endpoint, each in facts.items()}
    every = (*facts.values(), *(route.facts for route in described))
    types = list({shape for each in every for shape in (each.takes, each.gives) if shape is not None})
    schemas, components = msgspec.json.schema_components(types, schema_hook=_any_json, ref_template=SHAPES)
    shapes = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, object]] = {}
    for path in sorted(POSTED):
        paths[path] = {"post": {"tags": ["models"], "responses": {"200": {"description": "the engine's answer"}}}}
    for path, answer in sorted({**EdgeRoutes.ROUTES, **gets}.items()):
        paths.setdefault(path, {})["get"] = _operation(inspect.getdoc(answer), PLAIN, (), {})
    for route in described:
        operation = _operation(route.says, route.facts, PART.findall(route.path), shapes)
        paths.setdefault(PART.sub(r"{\1}", route.path), {})[route.method.lower()] = operation
    for rule in app.url_map.iter_rules():
        operations = paths.setdefault(PART.sub(r"{\1}", rule.rule), {})
        answer, known = app.view_functions[rule.endpoint], facts[rule.endpoint]
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
            parts = PART.findall(rule.rule)
            operations[method.lower()] = _operation(inspect.getdoc(answer), known, parts, shapes)
    return {
        "openapi": VERSION,
        "info": {"title": "Llama Appliance", "version": __version__},
        "security": [{"key": []}],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _any_json(kind: type) -> dict[str, object]:
    """Return the schema of a member that may be anything. Raises NotImplementedError for another type."""
    if kind not in (msgspec.Raw, object):
        raise NotImplementedError(f"{kind} has no schema")
    return {"description": "anything"}


def _operation(
    says: str | None, facts: RouteFacts, parts: Sequence[str], shapes: Mapping[type, object]
) -> dict[str, object]:
    told: dict[str, object] = {}
    if says:
        told["description"] = says
    if parts:
        told["parameters"] = [
            {"name": part, "in": "path", "required": True, "schema": {"type": "string"}} for part in parts
        ]
    if facts.takes is not None:
        told["requestBody"] = {"required": True, "content": {JSON: {"schema": shapes[facts.takes]}}}
    good: dict[str, object] = {"description": "an answer without an end" if facts.follows else "the answer"}
    if facts.gives is not None:
        good["content"] = {JSON: {"schema": shapes[facts.gives]}}
    told["responses"] = {"200": good, "4XX": {"description": "an error in words, with its type and code"}}
    return told
