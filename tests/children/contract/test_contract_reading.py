"""What the program reads of a body, the engine reads as well: both act on the same bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator

import pytest
from contract_harness import Answer, Engine, Json, Running, started
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from appliance.core.bodies.head import NO_SLOT, RequestHead, read_json, read_passed
from appliance.errors import BadRequest

SLOTS = 3
PROMPT = "one two three four five six"
NUMBERS = st.builds(
    lambda number, spelling: spelling.format(number),
    st.integers(-3, 4),
    st.sampled_from(["{}", "{}.0", "{}e0", "{}E+0", "{}.9", "{}0e-1", "{}.5e0", '"{}"', "[{}]"]),
)
ODD = ["-0", "-0.0", "0.5", "true", "false", "null", "{}"]
LARGE = ["1e30", "4294967297", "18446744073709551617", "-2147483649", "1e400"]
PROMPTS = [
    PROMPT,
    [PROMPT],
    ["a", "b"],
    ["a", 1, "b"],
    [1, 2],
    [1, "a"],
    [[1], [2]],
    [[1]],
    [{"prompt_string": "a"}] * 2,
]
VALUES = {
    **dict.fromkeys(("n", "n_cmpl", "stream", "cache_prompt"), NUMBERS | st.sampled_from(ODD)),
    "id_slot": NUMBERS | st.sampled_from(ODD + LARGE),
    "prompt": st.sampled_from(PROMPTS).map(json.dumps),
    "x": st.sampled_from(['{"id_slot":1}', "[" * 900 + "]" * 900, '"\\u007b"', '"\\",\\"id_slot\\":1"']),
}


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """An object with some members twice, keys with escapes, blanks, and a byte order mark."""
    blank = st.sampled_from(["", " ", "\n\t"])
    members = [f'"prompt":{json.dumps(PROMPT)}', '"n_predict":1']
    for name in draw(st.lists(st.sampled_from([*VALUES, "id_slot", "id_slot"]), max_size=4)):
        at = draw(st.integers(0, len(name)))
        key = f"{name[:at]}\\u{ord(name[at]):04x}{name[at + 1 :]}" if at < len(name) else name
        members.append(f'{draw(blank)}"{key}"{draw(blank)}:{draw(blank)}{draw(VALUES[name])}{draw(blank)}')
    return f"{draw(st.sampled_from(['', chr(0xFEFF)]))}{draw(blank)}{{{','.join(members)}}}".encode()


@pytest.fixture(scope="module")
def reader(
    engine: Engine, free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory
) -> Generator[Running]:
    if engine.is_fake:
        pytest.skip("it reads as its author did")
    port = free_port()
    argv = engine.argv(port, "--parallel", str(SLOTS), "--slot-prompt-similarity", "0", "--ctx-size", "768")
    with started(argv, port, tmp_path_factory.mktemp("reader")) as running:
        running.wait_ready()
        yield running


def results(answer: Answer) -> list[Json]:
    """The last word on each prompt and choice."""
    if answer.header("Content-Type") == "text/event-stream":
        return [each for each in answer.objects() if each and each["stop"]]  # one engine begins with null
    found = answer.json()
    return found if isinstance(found, list) else [found]


def strictly(body: bytes) -> RequestHead | None:
    try:
        return read_json(body)
    except BadRequest:
        return None


@settings(max_examples=60)
@given(body=bodies())
def test_the_engine_reads_what_the_program_reads(reader: Running, body: bytes) -> None:
    """A slot that is named is used although another has rested longer; else the one that has rested longest is."""
    head, slot = strictly(body), read_passed(body).slot
    assert head is None or head.slot == slot
    plain = {"prompt": PROMPT, "n_predict": 1, "id_slot": slot % SLOTS if slot >= 0 else 0}
    before = reader.ask("POST", "/completion", plain).json()["id_slot"]
    answer = reader.ask("POST", "/completion", body)
    assume(answer.status == 200)  # what it refuses it does not act on
    found = results(answer)
    if head is not None:
        assert (answer.header("Content-Type") == "text/event-stream") == head.stream
        assert (len(found) > 1) == head.several
        if slot >= 0 and len(found) == 1 and found[0]["prompt"].endswith(PROMPT):
            assert (found[0]["timings"]["cache_n"] == 0) == head.uncached
    used = {each["id_slot"] for each in found}
    if slot >= 0:
        assert used == {before} or len(found) > 1
    elif slot == NO_SLOT and len(found) == 1:
        assert used != {before}
