"""Macros and ports: ``${NAME}`` in the values of a configuration becomes what it stands for.

Every text value is expanded, keys only below ``filters.setParamsByID``. Each node keeps the place of its own text.

The macros at a place are an ordered list: MODEL_ID (inside a model), the global macros, the model's own; one that has
the name of a global one stands in its place. A macro can use those before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct

from appliance.core.command_words import strip_comments
from appliance.core.config.decode import schema_root
from appliance.core.config.nodes import (
    NO_PORTS,
    KeyValue,
    MappingNode,
    Node,
    Position,
    Problem,
    ScalarNode,
    SequenceNode,
    is_null,
)
from appliance.core.config.scalars import text_of
from appliance.core.config.types import Config, Scalars
from appliance.core.near_names import near

MAX_TEXT = 1 << 20
"""Characters of one value with its macros expanded: thirty macros that double each other would make a billion."""
REFERENCE = re.compile(r"\$\{([a-zA-Z0-9_-]+)\}")
_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_LONGEST_NAME = 63
_RESERVED = ("PID", "PORT", "MODEL_ID")
_LAST_PORT = 65535
_Path = tuple[str, ...]


class TooLong(Exception):
    """A text that outgrows `MAX_TEXT`."""


class Scope(Struct, frozen=True):
    """The macros that hold at one place. ``broken``: declared, but not usable, and already reported."""

    macros: dict[str, Scalars] = {}
    broken: frozenset[str] = frozenset()

    def of_model(self, model: str, own: Scope) -> Scope:
        """The list inside of a model; ``self`` is the global one."""
        macros = {"MODEL_ID": model, **self.macros, **own.macros}
        return Scope(macros, (self.broken - macros.keys()) | own.broken)

    # Text is walked once, from the last macro to the first, as in llama-swap. A macro can only use macros before it, so
    # the walk still meets those that it brings. Expanding until nothing changes would also find macros declared later,
    # and would not end for two macros that use each other. A macro that is left over is a mistake, which `why_left`
    # explains.
    def expanded(self, text: str) -> Scalars:
        """Return the expanded text; a text that is one macro and nothing else takes its type. Raises `TooLong`."""
        for name, value in reversed(self.macros.items()):
            reference = f"${{{name}}}"
            if text == reference:
                if not isinstance(value, str):
                    return value
                text = value
            elif reference in text:
                value = text_of(value)
                if len(text) + text.count(reference) * len(value) > MAX_TEXT:
                    raise TooLong
                text = text.replace(reference, value)
        return text

    def why_left(self, name: str, extra: Sequence[str]) -> str | None:
        """Return why ``${name}`` was not expanded; None if that was reported. ``extra``: names that are also known."""
        if name in self.broken:
            return None
        if name in self.macros:
            before = takewhile(lambda other: other != name, self.macros)
            users = [f"${{{other}}}" for other in before if f"${{{name}}}" in str(self.macros[other])]
            user = users[-1] if users else "the macro that uses it"
            return f"the macro '{name}' is declared later than {user}; move its declaration before that one"
        if meant := near(name, [*self.macros, *extra]):
            return f"there is no macro '{name}' here; did you mean ${{{meant}}}?"
        hint = f"declare it under macros, or write ${{env.{name}}} if it is an environment variable"
        return f"there is no macro '{name}' here; {hint}"


def expand(
    root: MappingNode, ports: dict[str, int] = NO_PORTS, config_type: type[Config] = Config
) -> tuple[MappingNode, list[Problem], dict[str, int]]:
    """The configuration without macros: every ``macros`` key is gone, and each model that uses ports has its ``proxy``.

    The last of the three is the port of every model that uses one.

    Models whose ``cmd`` contains ``${PORT}`` get ports from ``startPort`` on, in the order of their ids' bytes; those
    in ``ports`` keep theirs, so that a model that runs stays the same when others come and go. ``${PID}`` stays in
    ``cmdStop``, for the moment it runs.
    """
    expansion = _Expansion(root, ports, config_type)
    return expansion.done(), expansion.problems, expansion.ports


class _Expansion:
    def __init__(self, root: MappingNode, ports: dict[str, int], config_type: type[Config]) -> None:
        self.problems: list[Problem] = []
        self._root = root
        self.ports: dict[str, int] = {}
        self._kept = ports
        self._globals, wrong = _declared(root.get("macros"), "macros")
        self.problems += wrong
        self._owners: dict[str, str] = {}
        """Macro declared inside of a model, to that model."""
        self._keys = {field.encode_name for field in schema_root(config_type).fields}
        self._next_port = Config().start_port
        self._out_of_ports = False
        self._addresses: dict[tuple[str, int], str] = {}

    def done(self) -> MappingNode:
        entries: list[KeyValue] = []
        for entry in self._root.entries:
            name = entry.key.text
            if name not in ("macros", "models"):
                value = self._node(entry.value, self._globals, (name,))
                if name in self._keys:
                    self._leftovers(value, self._globals, (name,))
                entries.append(KeyValue(entry.key, value))
            elif name == "models":
                entries.append(entry)  # they need startPort: after the loop
        start = MappingNode(tuple(entries), self._root.at).get("startPort")
        if isinstance(start, ScalarNode) and isinstance(start.value, int) and start.value > 0:
            self._next_port = start.value
        self._kept = {model: port for model, port in self._kept.items() if port >= self._next_port}
        return MappingNode(tuple(self._models(entry) for entry in entries), self._root.at)

    # ---- models ------------------------------------------------------------------------------------------------------

    def _models(self, entry: KeyValue) -> KeyValue:
        if entry.key.text != "models" or not isinstance(entry.value, MappingNode):
            return entry
        scopes = {model.key.text: self._scope(model) for model in entry.value.entries}
        done: dict[str, Node] = {}
        for model in sorted(entry.value.entries, key=lambda each: each.key.text):  # code points sort as UTF-8 does
            done[model.key.text] = self._model(model, scopes[model.key.text])
        models = tuple(KeyValue(model.key, done[model.key.text]) for model in entry.value.entries)
        return KeyValue(entry.key, MappingNode(models, entry.value.at))

    def _scope(self, model: KeyValue) -> Scope:
        name = model.key.text
        own, wrong = _declared(
            model.value.get("macros") if isinstance(model.value, MappingNode) else None,
            _dotted(("models", name, "macros")),
        )
        self.problems += wrong
        for macro in own.macros:
            self._owners.setdefault(macro, name)
        return self._globals.of_model(name, own)

    def _model(self, entry: KeyValue, scope: Scope) -> Node:
        name = entry.key.text
        path = ("models", name)
        if REFERENCE.search(name):
            self._report(
                "macros are not expanded in the id of a model; write the id in full", path, entry.key.at, "warning"
            )
        if is_null(entry.value):
            why = "this model is empty and cannot start; give it a cmd, or remove the line"
            self._report(why, path, entry.key.at, "warning")
            return MappingNode((), entry.value.at)
        node = entry.value
        if isinstance(node, MappingNode):
            kept = (_without_comments(each) for each in node.entries if each.key.text != "macros")
            node = MappingNode(tuple(kept), node.at)
        node = self._node(node, scope, path)
        if not isinstance(node, MappingNode):
            return node
        command = node.get("cmd")
        uses_port = isinstance(command, ScalarNode) and "${PORT}" in command.text
        if isinstance(command, ScalarNode) and uses_port:
            port = self.ports[name] = self._kept.get(name) or self._port(path, command.at)
            node = _with_proxy(self._values(node, Scope({"PORT": port}), path), f"http://localhost:{port}", command.at)
        self._leftovers(node, scope, path)
        self._check_proxy(name, node)
        return node

    def _port(self, path: _Path, at: Position) -> int:
        taken = set(self._kept.values())
        while (port := self._next_port) in taken:
            self._next_port += 1
        self._next_port += 1
        if port > _LAST_PORT and not self._out_of_ports:
            self._out_of_ports = True
            self._report(f"no port is left for this model; {_LAST_PORT} is the last, so lower startPort", path, at)
        return port

    def _check_proxy(self, model: str, node: MappingNode) -> None:
        """Without a port of ours, the configuration must say where the server listens."""
        command, proxy = node.get("cmd"), node.get("proxy")
        if not isinstance(command, ScalarNode) or command.value is None or not command.text.strip():
            return
        if is_null(proxy):
            if not REFERENCE.search(command.text):  # else the port may be in what is missing
                why = (
                    "cmd does not use ${PORT}, so proxy must say where the server listens, as in http://localhost:8080"
                )
                self._report(why, ("models", model, "proxy"), command.at)
        elif isinstance(proxy, ScalarNode) and (address := _address(proxy.text)):
            first = self._addresses.setdefault(address, model)
            if first != model:
                why = f"this is also the address of model '{first}'; the two must never be loaded at the same time"
                self._report(why, ("models", model, "proxy"), proxy.at, "warning")

    # ---- values ------------------------------------------------------------------------------------------------------

    def _node(self, node: Node, scope: Scope, path: _Path) -> Node:
        match node:
            case ScalarNode(value=str(text)) if "${" in text:
                return self._scalar(node, text, scope, path)
            case ScalarNode():
                return node
            case SequenceNode():
                items = (self._node(item, scope, (*path, f"[{index}]")) for index, item in enumerate(node.items))
                return SequenceNode(tuple(items), node.at)
            case MappingNode():
                return self._values(node, scope, path)

    def _values(self, node: MappingNode, scope: Scope, path: _Path) -> MappingNode:
        entries: dict[str, KeyValue] = {}
        keys_expand = _keys_expand(path)
        for entry in node.entries:
            key = self._key(entry.key, scope, path) if keys_expand else entry.key
            if key.text in entries:
                self._report(f"two keys become '{key.text}' once macros are expanded; change one", path, key.at)
            elif key is entry.key and _is_settled(entry.value):
                entries[key.text] = entry  # most are
            else:
                entries[key.text] = KeyValue(key, self._node(entry.value, scope, (*path, entry.key.text)))
        return MappingNode(tuple(entries.values()), node.at)

    def _scalar(self, node: ScalarNode, text: str, scope: Scope, path: _Path) -> ScalarNode:
        value = self._expanded(text, scope, path, node.at)
        if value == text:
            return node
        return ScalarNode(value, text_of(value), node.at, quoted=isinstance(value, str))

    def _key(self, key: ScalarNode, scope: Scope, path: _Path) -> ScalarNode:
        text = text_of(self._expanded(key.text, scope, path, key.at))
        return ScalarNode(text, text, key.at, quoted=key.quoted)

    def _expanded(self, text: str, scope: Scope, path: _Path, at: Position) -> Scalars:
        try:
            return scope.expanded(text)
        except TooLong:
            self._report(f"this has more than {MAX_TEXT} characters with its macros expanded; use fewer", path, at)
            return ""

    # ---- what is left ------------------------------------------------------------------------------------------------

    def _leftovers(self, node: Node, scope: Scope, path: _Path) -> None:
        match node:
            case ScalarNode(value=str(text)):
                self._left_in(text, scope, path, node.at)
            case ScalarNode():
                pass
            case SequenceNode():
                for index, item in enumerate(node.items):
                    self._leftovers(item, scope, (*path, f"[{index}]"))
            case MappingNode():
                keys_expand = _keys_expand(path)
                for entry in node.entries:
                    if keys_expand:
                        self._left_in(entry.key.text, scope, path, entry.key.at)
                    if not _is_settled(entry.value):
                        self._leftovers(entry.value, scope, (*path, entry.key.text))

    def _left_in(self, text: str, scope: Scope, path: _Path, at: Position) -> None:
        """One problem for one text: the report drops further ones at the same place as consequences."""
        names = dict.fromkeys(REFERENCE.findall(text))
        if reasons := [why for name in names if (why := self._why(name, scope, path)) is not None]:
            self._report("; ".join(reasons), path, at)

    def _why(self, name: str, scope: Scope, path: _Path) -> str | None:
        in_model = path[0] == "models"
        stop = in_model and path[2:] == ("cmdStop",)
        match name:
            case "PID":
                return None if stop else "${PID} is known in cmdStop of a model only; remove it here"
            case "PORT" if in_model:
                return "${PORT} has no value because cmd does not use it; put ${PORT} into cmd, or write the port here"
            case "PORT" | "MODEL_ID" if not in_model:
                return f"${{{name}}} belongs to one model, so it has no value outside of models; write it out"
            case _:
                if (owner := self._owners.get(name)) and name not in scope.macros:
                    return (
                        f"the macro '{name}' is declared for model '{owner}' only; declare it under the global macros"
                    )
                return scope.why_left(name, ("PORT", "PID") if stop else ("PORT",) if in_model else ())

    def _report(self, message: str, path: _Path, at: Position, level: Literal["error", "warning"] = "error") -> None:
        self.problems.append(Problem(message=message, path=_dotted(path), at=at, level=level))


def _declared(node: Node | None, path: str) -> tuple[Scope, list[Problem]]:
    """The macros of a ``macros`` key, in order, with everything that is wrong with them."""
    problems: list[Problem] = []
    if node is None or is_null(node):
        return Scope(), problems
    if not isinstance(node, MappingNode):
        message = "macros must be a mapping of names to values, as in 'name: value'"
        return Scope(), [Problem(message=message, path=path, at=node.at)]
    macros: dict[str, Scalars] = {}
    broken: set[str] = set()
    for entry in node.entries:
        name = entry.key.text
        wrong = list(_wrong(name, entry.value))
        problems += [Problem(message=why, path=f"{path}.{name}", at=at or entry.key.at) for why, at in wrong]
        if wrong:
            broken.add(name)
        elif isinstance(entry.value, ScalarNode) and entry.value.value is not None:
            macros[name] = entry.value.value
    return Scope(macros, frozenset(broken)), problems


def _wrong(name: str, value: Node) -> Iterable[tuple[str, Position | None]]:
    """Sentences, with the place if it is not the key's."""
    if name in _RESERVED:
        yield f"the macro name {name} is reserved; choose another", None
    elif not _NAME.fullmatch(name):
        yield f"the macro name '{name}' must consist of the letters a to z, digits, _ and -", None
    elif len(name) > _LONGEST_NAME:
        yield f"a macro name can have {_LONGEST_NAME} characters, this one has {len(name)}", None
    if not isinstance(value, ScalarNode) or value.value is None:
        yield "a macro is text, a number, true or false; for an empty text write ''", value.at
    elif isinstance(value.value, str) and f"${{{name}}}" in value.value:
        yield f"the macro '{name}' uses itself; remove ${{{name}}} from its value", value.at


def _is_settled(node: Node) -> bool:
    """True if this is a single value without a macro in it."""
    return isinstance(node, ScalarNode) and not (isinstance(node.value, str) and "${" in node.value)


def _dotted(path: _Path) -> str:
    return ".".join(path).replace(".[", "[")


def _keys_expand(path: _Path) -> bool:
    return len(path) == 4 and path[0] in ("models", "peers") and path[2:] == ("filters", "setParamsByID")


def _without_comments(entry: KeyValue) -> KeyValue:
    """Before expansion, so that a macro in a comment need not exist."""
    value = entry.value
    if (
        entry.key.text not in ("cmd", "cmdStop")
        or not isinstance(value, ScalarNode)
        or not isinstance(value.value, str)
    ):
        return entry
    text = strip_comments(value.value)
    return KeyValue(entry.key, ScalarNode(text, text, value.at, quoted=True)) if text != value.value else entry


def _with_proxy(node: MappingNode, proxy: str, at: Position) -> MappingNode:
    """With the default proxy, if there is none; its place is that of the cmd which chose the port."""
    if not is_null(node.get("proxy")):
        return node
    others = tuple(entry for entry in node.entries if entry.key.text != "proxy")
    return MappingNode(
        (*others, KeyValue(ScalarNode("proxy", "proxy", at), ScalarNode(proxy, proxy, at, quoted=True))), node.at
    )


def _address(url: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None  # the check of proxy reports it
    if not host or port is None:
        return None
    return "127.0.0.1" if host == "localhost" else host, port
