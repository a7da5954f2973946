"""``GET /openapi.json`` describes the routes that are there, with the shapes that they read."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import any_request
from http_harness import Appliance

from appliance.http.control.openapi import PART
from appliance.http.way.routes import POSTED

READ = re.compile(r"(?:read_as\(|parse_as\([^\n]*?, )(\w+)[,)]")
"""The shape that a view reads, in its source."""
BY_HELP = {"ControlRequest", "RunRequest", "ToolResults"}
"""Shapes that a function below the view reads."""


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from [each] if name == "$ref" else references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


async def test_every_route_is_described_and_every_shape_is_there(server: Appliance) -> None:
    told = (await server.good("GET", "/openapi.json")).json
    for rule in any_request.app_of(server).url_map.iter_rules():
        operations = told["paths"][PART.sub(r"{\1}", rule.rule)]
        assert {method.lower() for method in rule.methods or ()} - {"head", "options"} <= set(operations)
    assert any_request.edge_gets(server).keys() | POSTED <= set(told["paths"])
    assert {name.rpartition("/")[2] for name in references(told)} <= set(told["components"]["schemas"])
    message = told["paths"]["/api/conversations/{conversation}/messages/{message}"]["put"]
    assert message["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/MessageNode"
    }
    assert [each["name"] for each in message["parameters"]] == ["conversation", "message"]


async def test_a_route_says_the_shape_that_it_reads(server: Appliance) -> None:
    app, facts = any_request.app_and_facts(server)
    for endpoint, view in app.view_functions.items():
        takes = facts[endpoint].takes
        said = {takes.__name__} - BY_HELP if takes is not None else set()
        assert set(READ.findall(inspect.getsource(view))) == said, endpoint
