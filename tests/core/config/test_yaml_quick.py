"""The quick reader against the library: where it answers, it gives the same events and tokens, places included."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.config import yaml_library
from appliance.core.config.env import substitute_env
from appliance.core.config.nodes import Event, NotYaml, Token
from appliance.core.config.yaml_quick import quick_events, quick_tokens

ROOT = Path(__file__).parents[3]
SEED = (ROOT / "tests" / "examples" / "llama-swap-seed.yaml").read_text("utf-8")
Read = list[tuple[str, int, int, str | None, str, bool]]


def told(events: Iterable[Event]) -> Read:
    """Without what nobody asks for: streams and documents, and where collections end."""
    return [
        ("end", 0, 0, None, "", True) if e.kind == "end" else (e.kind, e.line, e.column, e.anchor, e.text, e.plain)
        for e in events
        if e.kind not in ("document", "other")
    ]


def scalars(tokens: Iterable[Token], text: str) -> list[tuple[int, int, str, str, int]]:
    """Each with the number of brackets around it. What is blank at the end of a block is nobody's."""
    depth, found = 0, list[tuple[int, int, str, str, int]]()
    for token in tokens:
        if token.kind == "scalar":
            found.append((token.start, len(text[: token.end].rstrip()), token.text, token.style, depth))
        else:
            depth += 1 if token.kind == "open" else -1
    return found


def agrees(text: str) -> bool:
    """Whether the quick reader answers; fails if its answer is another one than the library's."""
    quick = quick_events(text)
    if quick is not None:
        tags = [event for event in yaml_library.events(text) if event.tag is not None]
        assert told(quick) == told(yaml_library.events(text)), text
        assert tags == []
    tokens = quick_tokens(text)
    if tokens is not None:
        assert scalars(tokens, text) == scalars(yaml_library.tokens(text), text), text
    return quick is not None


# ---- documents as people write them ----------------------------------------------------------------------------------

KEYS = st.sampled_from(["a", "models", "b c", "'q r'", '"d: e"', "<<", "x-1", "m:2", "gpt-4o.mini", "1", "${id}"])
WORDS = ["v", "1", "1e3", "0o17", "on", "~", "x y  z", "a#b", "a #b", "-1", "--flag -c 1", "${PORT}", "http://h:1/p"]
QUOTED = ["'a b'", "'it''s'", '"c: d"', '"a\\"b\\\\"', "'' # c", '"#"']
BRACKETS = ["[]", "{}", "[a, b]", "[ a , 'b' ]", "{a: 1, b: [c, {d: e}]}", '{"a": "b"}', "[*x, *y]", "[http://h:1, -1]"]
NAMED = ["*x", "*y # c", "&x v", "&y [a]", "&x", "&y {a: b}", "&x 'v'"]
ODD = [
    *("[a,b]", "{a:1}", "{a: }", "{a}", "[a, ]", "[a: b]", "!t x", "! x", "- y", "a: b", "a:", "? x", ": x", "[a", "]"),
    *(
        "'open",
        '"\\u00e9"',
        '"\\q"',
        "@x",
        "%x",
        "|x",
        "|2",
        "> y",
        "'a' b",
        "*x y",
        "&x &y z",
        "&x *y",
        "\tv",
        "v\t#c",
    ),
    *("a\u2028b", "\ufeffv", "\u00a0v", "[[[[", "---", "..."),
]
VALUES = st.sampled_from([*WORDS, *QUOTED, *BRACKETS, *NAMED, ""]) | st.sampled_from(ODD)
HEADERS = st.sampled_from(["|", "|-", "|+", ">", ">-", ">+", "| # c", "&x |"])
BLOCK_LINES = st.lists(
    st.tuples(st.sampled_from([0, 0, 0, 0, 2, -1, -9]), st.sampled_from(["run \\", "# no comment", "a: b", "", "- x"])),
    max_size=5,
)
STEPS = st.sampled_from([2, 2, 2, 4, 1, 0])
ENDS = st.sampled_from(["\n", "", "\n\n", "\n  ", "\n# end", "\r\n"])


@st.composite
def blocks(draw: st.DrawFn, indent: int = 0, depth: int = 0) -> str:
    """Lines of one mapping or list. Some are wrong, so that most documents are right."""
    bullet = draw(st.sampled_from(["", "", "", "- "]))
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        key = draw(KEYS) + ":" if not bullet or draw(st.booleans()) else ""
        lines.append(
            " " * indent + f"{bullet}{key} {draw(values(indent, depth))}".rstrip(" " * draw(st.integers(0, 1)))
        )
    if draw(st.integers(0, 5)) == 0:
        noise = draw(st.sampled_from(["# comment", "  # comment", "", "      # far", "  "]))
        lines.insert(draw(st.integers(0, len(lines))), noise)
    return "\n".join(lines)


@st.composite
def values(draw: st.DrawFn, indent: int, depth: int) -> str:
    kind = draw(st.sampled_from(["line", "line", "line", "below", "below", "block"])) if depth < 4 else "line"
    if kind == "line":
        return draw(VALUES)
    inner = indent + draw(STEPS)
    if kind == "block":
        lines = [" " * max(0, inner + more) + text for more, text in draw(BLOCK_LINES)]
        return "\n".join([draw(HEADERS), *lines])
    return draw(st.sampled_from(["", "", "&x", "# c"])) + "\n" + draw(blocks(inner, depth + 1))


@given(blocks(), ENDS)
def test_documents_as_people_write_them(text: str, end: str) -> None:
    agrees(text.replace("\n", end) + end if end == "\r\n" else text + end)


@given(st.text(" \n-:[]{}#&*!|>'\",?ab01~<\\.%@=_\t\r\x85\u2028é", max_size=30))
def test_any_text(text: str) -> None:
    agrees(text)


SPLINTERS = st.sampled_from(
    [
        *"{}[]:,#'\"|->&*!%@`?\\\t",
        "\n",
        "  ",
        "\n\n",
        ": ",
        " #",
        "- ",
        "'x'",
        "*a",
        "&a ",
        "<<: *a",
        "---\n",
        "|\n",
        ">\n",
    ]
)


@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from([0, 0, 1, 3, 10]), SPLINTERS), max_size=3))
def test_a_damaged_file(damage: list[tuple[float, int, str]]) -> None:
    text = SEED
    for where, length, splinter in damage:
        at = int(where * len(text))
        text = text[:at] + splinter + text[at + length :]
    agrees(text)


def texts_of_the_project() -> Iterator[str]:
    """All that the tests and the documentation have in quotes, and most of what is YAML among it."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        yield from re.findall(r"```\w*\n(.*?)```", path.read_text("utf-8"), re.DOTALL)
    yield SEED


def test_every_text_of_the_tests_and_the_documentation() -> None:
    answered = 0
    for text in set(texts_of_the_project()):
        try:
            answered += len(text) < 100_000 and text.count("\n") > 1 and agrees(text)
        except NotYaml as error:
            raise AssertionError(f"read, and is no YAML: {text!r}") from error
    assert answered > 100


# ---- what it is for --------------------------------------------------------------------------------------------------

PLAIN = """\
# what people have
macros: &all
  "server": llama-server --port ${PORT}   # theirs
models:
  'one':
    cmd: |
      ${server}
        --model a.gguf

      # kept
    aliases: [a, "b", {c: d}]
    ttl: 300
    env:
    - A=1
    - "B=2"
    empty:
    filters: {stripParams: 'temperature, top_p', setParams: {"x": [1, 2]}}
  two:
    <<: *all
    cmd: >-
      run
      this
groups:
  - members:
      - one
    swap: false
  -
    - deeper
"""


@pytest.mark.parametrize("text", [PLAIN, PLAIN.replace("\n", "\r\n"), SEED, ""])
def test_what_people_have_is_answered(text: str) -> None:
    assert agrees(text)


@pytest.mark.parametrize(
    "text", ["{\n  a: 1}", "a: b\n  c", "a:\tb", "a: !!str 1", "---\na: 1", "? a\n: b", "a: *", "a: '"]
)
def test_the_rest_is_left_to_the_library(text: str) -> None:
    assert quick_events(text) is None
    assert quick_tokens(text) is None


def test_twenty_thousand_models_are_answered_and_no_more_than_a_file_may_hold() -> None:
    """What the library would take nine seconds for takes two; it is left what it refuses anyway."""
    model = "  m{0}:\n    cmd: llama-server --port ${{PORT}} -m m{0}.gguf\n    aliases: [a{0}]\n"
    assert quick_events("models:\n" + "".join(model.format(number) for number in range(20_000))) is not None
    assert quick_events("k:\n" + "- a\n" * 300_000) is None


def test_it_is_five_times_as_fast() -> None:
    text = "models:\n" + "".join(
        f"  m{n}:\n    cmd: run ${{PORT}}\n    aliases: [a{n}, b{n}]\n    ttl: 60\n" for n in range(100)
    )

    def spent(read: object) -> float:
        assert callable(read)
        began = process_time()
        list(read(text))
        return process_time() - began

    assert min(spent(quick_events) for _ in range(3)) * 5 < min(spent(yaml_library.events) for _ in range(3))


MACROS = st.sampled_from(
    ["${env.A}", "x${env.A}y", "'${env.A}'", '"a ${env.B}"', "[${env.A}, b]", "{k: ${env.B}}", "|\n    ${env.A}"]
)
ENVIRON = st.sampled_from(["v", "a b", "", "x: y", "#", "'", '"', "[", "5", " s", "a\\b", "é", "\u2028"])


@given(st.lists(MACROS, min_size=1, max_size=4), ENVIRON, ENVIRON)
def test_the_environment_is_put_in_alike(macros: list[str], one: str, two: str) -> None:
    """A tag, which only the library reads, changes nothing but who reads."""
    text = "".join(f"k{n}:\n  v: {macro}\n" for n, macro in enumerate(macros))
    quick, problems = substitute_env(text, "c.yaml", {"A": one, "B": two})
    slow, same = substitute_env(text + "z: !t z\n", "c.yaml", {"A": one, "B": two})
    assert (quick + "z: !t z\n", problems) == (slow, same)
