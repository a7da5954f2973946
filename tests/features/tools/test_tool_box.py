"""The box that all tools are in: whose tool it is, what words mean, what is said of words that mean nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import Raw

from appliance.core.tools.box import ToolContext, ToolOutcome, ToolSpec
from appliance.errors import BadRequest, NotFound
from appliance.features.tools.box import OpenToolbox

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
