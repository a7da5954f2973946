"""What the built-in tools are asked with: forgiving where nothing is lost, clear where something is wrong."""

from __future__ import annotations

import json
from contextlib import suppress

import jsonschema
import msgspec
import pytest
from memory import peak

from appliance.core.tools.choice import NAMES, SHELL, chosen_tools
from appliance.errors import BadRequest, UsageError
from appliance.features.tools.core.specs import ARGUMENTS, SPECS, ReadFile, read_arguments


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
