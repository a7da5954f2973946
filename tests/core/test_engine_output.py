"""What llama.cpp's programs print: the options of a build, and the line of a log that says why."""

from __future__ import annotations

import pytest
from engine_logs import KERNEL, LOST, NO_LIBRARY, NO_MODEL, NO_ROOM
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.engine import Manual
from appliance.core.engine_output import LONGEST, explanation, parse_manual
from appliance.core.llama.flags import FLAGS


def printed(spelled: list[str], value: str, words: str) -> str:
    """One option as llama.cpp prints it: short spellings in a column, long explanations on lines of their own."""
    column = (
        ", ".join(spelled) + value if len(spelled[0]) > 4 else f"{spelled[0] + ',':<7}{', '.join(spelled[1:])}{value}"
    )
    return f"{column:<40}{words}" if len(column) < 40 else f"{column}\n{'':40}{words}"


EXPLAINED = st.sampled_from(["use --port or --never instead", "(default: 7)", "(env: LLAMA_ARG_X)", "--port wins", ""])


@given(
    st.lists(st.sampled_from(FLAGS), unique=True),
    st.none() | st.sampled_from([1, 65535]) | st.integers(1, 65535),
    st.data(),
)
def test_the_options_and_the_port_of_a_build_are_read_from_its_help(
    chosen: list, port: int | None, data: st.DataObject
):
    others = [flag for flag in chosen if flag.name != "--port"]
    lines = [
        printed([*flag.spellings, *flag.negatives], " N" if flag.arity else "", data.draw(EXPLAINED)) for flag in others
    ]
    if port is not None:
        lines.append(f"--port PORT                             port to listen (default: {port})")
    found = parse_manual("----- common params -----\n\n" + "\n".join(data.draw(st.permutations(lines))))
    said = {word for flag in others for word in (*flag.spellings, *flag.negatives) if word.startswith("--")}
    assert found.port == port
    assert set(found.options.split()) == said | ({"--port"} if port is not None else set())
    assert not found.names("--never")
    assert all(found.names(word) for word in said)


@given(
    st.text()
    | st.lists(st.sampled_from(["-", "--", "--port ", "(default: 99999999)", " ", "\n", "\0", ","])).map("".join)
)
def test_any_text_has_a_reading(text: str):
    found = parse_manual(text)
    assert found.port is None or 0 < found.port <= 65535
    assert all(found.names(word) for word in found.options.split())
    assert Manual() == parse_manual("")


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (NO_MODEL, "llama_model_load: error loading model: invalid magic characters: 'abcd', expected 'GGUF'"),
        (NO_LIBRARY, NO_LIBRARY),
        (NO_ROOM, "alloc_tensor_range: failed to allocate CUDA0 buffer of size 8589934592"),
        (KERNEL, "ggml-cuda.cu:103: CUDA error"),
        (LOST, "what():  vk::Queue::submit: ErrorDeviceLost"),
        ("0.00.001.000 E srv: no slot is left\n0.00.001.001 I srv: cleaning up", "srv: no slot is left"),
        ("0.00.001.000 I srv: an error of the last run\nand ended", "and ended"),
        ("all is well\nand ended\n\n", "and ended"),
        ("", ""),
    ],
)
def test_the_line_that_says_why(log: str, line: str) -> None:
    assert explanation(log.splitlines()) == line


@given(st.lists(st.text(max_size=400), max_size=6))
def test_whatever_it_prints_becomes_one_short_printable_line(lines: list[str]) -> None:
    told = explanation(lines)
    assert len(told) <= LONGEST
    assert all(letter.isprintable() for letter in told)
    assert bool(told) >= any(line.strip() for line in lines) or not told
