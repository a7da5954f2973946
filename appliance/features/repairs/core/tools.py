"""Repairs of the tools that a chat offers, of the choice among them, and of the form that its answer is to have.

Each takes the members of a body that `MEMBERS` names, and returns those that change; None deletes one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from msgspec import Raw

from appliance.core.bodies.json_text import OBJECT, JsonObject
from appliance.core.lenient_json import decoded
from appliance.features.repairs.core.messages import ABSENT, Message, members, parts, raw, text
from appliance.features.repairs.core.schemas import NoGrammar, any_object, grammar_of, weakened

MEMBERS = ("tools", "tool_choice", "response_format", "json_schema", "grammar")
Given = Mapping[str, Raw]
Changes = dict[str, Raw | None]
Repair = Callable[[Given], Changes]

_OF_FUNCTIONS = ("name", "description", "parameters", "strict")


def wrapped(given: Given) -> Changes:
    """Give tools of other dialects the form of chats."""
    tools = parts(given.get("tools"))
    found = [_wrapped(tool) for tool in tools or ()]
    return {"tools": raw(found)} if tools is not None and found != tools else {}


def _wrapped(given: Raw) -> Raw:
    tool = members(given) or {}
    kind = text(tool.get("type"))
    if "function" in tool:
        return given if "type" in tool else raw({"type": "function", **tool})
    if text(tool.get("name")) is None or kind not in (None, "function", "custom") or "format" in tool:
        return given
    function = {name: tool[name] for name in _OF_FUNCTIONS if tool.get(name, ABSENT) != ABSENT}
    if (schema := tool.get("input_schema")) is not None:
        function["parameters"] = schema
    rest = {name: value for name, value in tool.items() if name not in (*_OF_FUNCTIONS, "input_schema", "type")}
    return raw({"type": "function", "function": function, **rest})


def choice(given: Given) -> Changes:
    """Say the choice of a tool in the words of chats."""
    found = given.get("tool_choice")
    if found is None:
        return {}
    if found == ABSENT:
        return {"tool_choice": None}
    one = members(found) or {}
    kind, name = text(found) or text(one.get("type")), text(one.get("name"))
    if kind == "any":
        return {"tool_choice": raw("required")}
    if kind in ("tool", "function") and name is not None:
        return {"tool_choice": raw({"type": "function", "function": {"name": name}})}
    return {"tool_choice": raw(kind)} if one and kind in ("auto", "none", "required") else {}


def weaker(given: Given) -> Changes:
    """Leave out of the parameters of tools what no grammar can hold, but for tools that are strict."""
    tools = parts(given.get("tools"))
    found: list[Raw] = []
    for tool in tools or ():
        schema, problems = _problems(tool)
        if not problems or is_strict(tool):
            found.append(tool)
            continue
        one = members(tool) or {}
        function = {**(members(one.get("function")) or {}), "parameters": raw(schema)}
        found.append(raw({**one, "function": function}))
    return {"tools": raw(found)} if tools is not None and found != tools else {}


def strict_problem(given: Given) -> str | None:
    """Return in words what of a strict tool no grammar can hold."""
    for tool in parts(given.get("tools")) or ():
        _, problems = _problems(tool)
        if problems and is_strict(tool):
            function = members((members(tool) or {}).get("function")) or {}
            return f"the tool {text(function.get('name')) or ''!r} is strict, and {problems[0]}"
    return None


def _problems(tool: Raw) -> tuple[object, list[str]]:
    function = members((members(tool) or {}).get("function")) or {}
    if (schema := function.get("parameters")) is None or schema == ABSENT:
        return None, []
    found = decoded(OBJECT, schema)
    return weakened(found if found is not None else [])


def is_strict(tool: Raw) -> bool:
    """Return whether the client says that calls have to keep to the schema."""
    one = members(tool) or {}
    return Raw(b"true") in (one.get("strict"), (members(one.get("function")) or {}).get("strict"))


def grammar(given: Given) -> Changes:
    """Ask for the form of an answer by a grammar. Nothing changes where that would not hold all of the form."""
    form, schema = _form(given)
    if not form or "grammar" in given or parts(given.get("tools")):
        return {}
    try:
        text = any_object() if schema is None else grammar_of(schema)
    except (NoGrammar, RecursionError):
        return {}
    gone: Changes = {name: None for name in ("response_format", "json_schema") if name in given}
    return {**gone, "grammar": raw(text)}


def _form(given: Given) -> tuple[Message, JsonObject | None]:
    form = members(given.get("response_format")) or {}
    kind = text(form.get("type"))
    inner = members(form.get("json_schema")) or form
    if kind not in ("json_object", "json_schema"):
        return {}, None
    schema = inner.get("schema")
    return form, None if schema is None or schema == ABSENT else json.loads(bytes(schema))
