"""The box that all tools are in, and what the built-in ones are asked with: clear where something is wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress

import jsonschema
import msgspec
import pytest
from memory import peak
from msgspec import Raw

from appliance.core.tools.box import ToolContext, ToolOutcome, ToolSpec
from appliance.core.tools.choice import NAMES, SHELL, chosen_tools
from appliance.errors import BadRequest, NotFound, UsageError
from appliance.features.tools.box import OpenToolbox
from appliance.features.tools.core.specs import ARGUMENTS, SPECS, ReadFile, read_arguments

CONTEXT = ToolContext()


class Shelf:
    """A few tools that say who they are."""

    def __init__(self, label: str, *specs: ToolSpec) -> None:
        self._label = label
        self._specs = specs

    def specs(self) -> Sequence[ToolSpec]:
        return self._specs

    async def call(self, name: str, arguments: bytes, context: ToolContext) -> ToolOutcome:
        return ToolOutcome(body=arguments, text=f"{self._label}:{name}")


def spec(name: str, server: str = "") -> ToolSpec:
    kind = "mcp" if server else "builtin"
    return ToolSpec(name=name, display_name=name, description="", parameters=Raw(b"{}"), kind=kind, server=server)


@pytest.fixture
def box() -> OpenToolbox:
    return OpenToolbox(
        [
            Shelf("first", spec("read_file"), spec("a_b")),
            Shelf("second", spec("a_b", "a"), spec("a_c", "a"), spec("z_y", "z")),
        ]
    )


async def test_the_first_source_with_a_name_counts(box: OpenToolbox, caplog: pytest.LogCaptureFixture) -> None:
    assert [each.name for each in box.specs()] == ["read_file", "a_b", "a_c", "z_y"]
    assert (await box.call("a_b", b"{}", CONTEXT)).text == "first:a_b"
    assert (await box.call("a_c", b'{"x":1}', CONTEXT)).body == b'{"x":1}'
    assert box.find("a_b") == spec("a_b")
    assert box.find("nope") is None


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["*"], ["read_file", "a_b", "a_c", "z_y"]),
        (["z_y", "read_file", "z_y"], ["z_y", "read_file"]),
        (["mcp:*"], ["a_c", "z_y"]),
        (["mcp:a", "*"], ["a_c", "read_file", "a_b", "z_y"]),
        ([], []),
    ],
)
def test_what_words_mean(box: OpenToolbox, words: list[str], names: list[str]) -> None:
    assert [each.name for each in box.select(words)] == names


def test_what_words_do_not_mean_and_what_does_not_stream(box: OpenToolbox) -> None:
    with pytest.raises(BadRequest, match="no tool 'read_fil'; did you mean 'read_file'"):
        box.select(["a_c", "read_fil"])
    with pytest.raises(BadRequest, match=r"no tool 'mcp:nowhere'; there are a_b, a_c, mcp:a, mcp:z, read_file, z_y"):
        box.select(["mcp:nowhere"])
    with pytest.raises(NotFound, match="does not stream"):
        box.stream("read_file", b"{}", CONTEXT)


async def test_an_empty_box() -> None:
    box = OpenToolbox()
    assert not box.enabled
    assert list(box.specs()) == []
    assert box.select(["*", "mcp:*"]) == []
    with pytest.raises(NotFound, match="none are switched on"):
        await box.call("read_file", b"{}", CONTEXT)
    assert OpenToolbox([Shelf("empty")]).enabled


@pytest.mark.parametrize("spec", SPECS, ids=NAMES)
def test_the_schema_names_the_arguments(spec) -> None:
    schema = json.loads(bytes(spec.parameters))
    jsonschema.Draft202012Validator.check_schema(schema)
    fields = msgspec.structs.fields(ARGUMENTS[spec.name])
    assert list(schema["properties"]) == [field.name for field in fields]
    assert schema.get("required", []) == [field.name for field in fields if field.required]


def test_numbers_as_text_and_null_are_understood() -> None:
    asked = read_arguments("read_file", b'{"path":"a","start_line":"2","end_line":null,"other":1}', ReadFile)
    assert asked == ReadFile(path="a", start_line=2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (b"{}", "missing required field `path`"),
        (b'{"path":5}', "Expected `str`, got `int`"),
        (b'{"path":"a","start_line":"x"}', "start_line"),
        (b"[]", "cannot be used"),
        (b"{", "not valid JSON"),
        (b'{"path":"\xff"}', "not valid JSON"),
        (b'{"path":' + b"[" * 500_000 + b"]" * 500_000 + b"}", "nested too deeply"),
    ],
)
def test_what_cannot_be_used_is_told(arguments: bytes, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        read_arguments("read_file", arguments, ReadFile)


def test_tools_are_chosen_by_name() -> None:
    assert chosen_tools(["write_file ", "read_file"], runtime="", root="").builtin == ("read_file", "write_file")
    assert chosen_tools(["all"], runtime="", root="").builtin == NAMES
    assert not chosen_tools([""], runtime="", root="").enabled
    assert SHELL not in chosen_tools(["all"], runtime="", root="/srv").builtin, "below a root no command is run"


@pytest.mark.parametrize(
    ("words", "runtime", "root", "told"),
    [
        (["read_files"], "", "", r'unknown tool "read_files"; there are read_file, .*get_info, and all'),
        (["all"], "docker:x", "/srv", "leave out one of the two"),
        ([SHELL], "", "/srv", "cannot be confined"),
        (["all"], "lxc:x", "", "unknown tool runtime"),
        (["all"], "ssh:-x", "", "invalid ssh target"),
    ],
)
def test_what_cannot_be_chosen_is_told(words: list[str], runtime: str, root: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        chosen_tools(words, runtime=runtime, root=root)


def test_arguments_that_the_tool_does_not_have_take_no_memory() -> None:
    """A list of nothing takes three bytes of JSON, and thirty times that if it is made."""
    lists = b"[%b0]" % (b"[]," * 2_000_000)
    for arguments in (b'{"path":"a","x":%b}' % lists, b'{"path":%b}' % lists):
        before = peak(anew=True)
        with suppress(BadRequest):
            assert read_arguments("read_file", arguments, ReadFile).path == "a"
        assert peak() - before < 6 * len(arguments)
