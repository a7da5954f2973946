"""What is summarized and how it is cut; texts of any length, summarized through the program."""

from __future__ import annotations

import pytest
from bundled import module
from hypothesis import given
from hypothesis import strategies as st
from plugged import OpenPlugged, script, text
from slow import one_of

from appliance.plugins import Refused

texts = module("summarize", "text")
SYSTEM = {"role": "system", "content": "Be kind."}


def user(content: object) -> dict:
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("messages", "instruction", "subject", "kept"),
    [
        ([user("a text")], "Do:", "a text", 1),
        ([SYSTEM, user("in three words:\n\na text\nof two lines")], "in three words:", "a text\nof two lines", 2),
        ([user("x" * 400 + ":\na text")], "Do:", "x" * 400 + ":\na text", 1),
        ([user("a title:")], "Do:", "a title:", 1),
        (
            [SYSTEM, user("hi"), {"role": "assistant", "content": "ho"}, user(" ")],
            "Do:",
            "user: hi\n\nassistant: ho",
            2,
        ),
        ([user([{"type": "text", "text": "part"}])], "Do:", "part", 1),
    ],
)
def test_subject(messages: list[dict], instruction: str, subject: str, kept: int) -> None:
    about = texts.subject({"messages": messages}, "Do:")
    assert (about.instruction, about.text) == (instruction, subject)
    put = about.put("SUMMARY")
    assert len(put) == kept
    assert "SUMMARY" in str(put[-1]["content"])
    assert instruction in str(put[-1]["content"])
    assert messages[-1]["content"] != put[-1]["content"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"messages": [SYSTEM, user("")]}, "no text to summarize"),
        ({"messages": [SYSTEM]}, "'user'"),
        ({"prompt": "x"}, "'messages'"),
    ],
)
def test_nothing_to_summarize(body: dict, message: str) -> None:
    with pytest.raises(Refused, match=message):
        texts.subject(body, "Do:")


def test_images_stay_beside_the_text() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    about = texts.subject({"messages": [user([image, {"type": "text", "text": "this"}])]}, "Do:")
    [message] = about.put("short")
    assert message["content"][1] == image


@given(st.text(st.sampled_from("ab. \n日"), max_size=2000), st.integers(1, 300))
def test_cutting_loses_nothing(content: str, size: int) -> None:
    parts = texts.cut(content, size)
    assert "".join(parts) == content
    assert all(0 < len(part) <= size for part in parts[:-1])
    assert len(parts[-1]) <= size


@pytest.mark.parametrize(
    ("content", "size", "parts"),
    [
        ("one two\n\nthree four", 12, ["one two\n\n", "three four"]),
        ("One is. Two is. Three is.", 17, ["One is. Two is. ", "Three is."]),
        ("abcdef", 4, ["abcd", "ef"]),
    ],
)
def test_cuts_are_where_it_reads_best(content: str, size: int, parts: list[str]) -> None:
    assert texts.cut(content, size) == parts


@pytest.mark.parametrize(
    ("refusal", "tokens"),
    [
        ({"error": {"code": 400, "type": "exceed_context_size_error", "n_prompt_tokens": 9, "n_ctx": 8192}}, 8192),
        ({"error": {"message": "no"}}, None),
        ({"error": "no"}, None),
        (None, None),
    ],
)
def test_context_told(refusal: dict | None, tokens: int | None) -> None:
    assert texts.context_told(refusal) == tokens


def test_a_text_cannot_close_its_marks() -> None:
    assert texts.marked("Do.", "x</text>y<TEXT>").lower().count("text>") == 2 + 2
    assert texts.marked("Do.", "x</text>y").count("</text>") == 1


PARAGRAPH = "The llama walked over mountain number {n} and met {n} friends, who told it a story about rain and stone. "
LONG = "\n\n".join(PARAGRAPH.format(n=n) for n in range(120))
SMALL = ["--ctx-size", "1024", "--parallel", "1"]


@pytest.mark.parametrize("stream", one_of([False, True]))
async def test_a_text_longer_than_the_context_is_summarized_by_its_parts(plugged: OpenPlugged, stream: bool) -> None:
    async with plugged({}, real={"starter": SMALL}, settings={"summarize": {"part_tokens": 48}}) as program:
        refusal = await program.refused("starter", LONG)
        assert "exceeds the available context size" in refusal
        said, told = await program.told("summarize", "starter", f"/summarize {LONG}", stream=stream, max_tokens=40)
    assert said
    assert told["parts"][0] > 3


async def test_a_text_far_longer_is_reduced_more_than_once_as_long_as_it_gets_shorter(plugged: OpenPlugged) -> None:
    """The fake's token is a byte, and its context is what the settings say."""
    settings = {"summarize": {"context_tokens": 2000, "part_tokens": 400, "answer_tokens": 200}}
    models = {"alpha": script("word " * 60), "wordy": script("word " * 600)}
    async with plugged(models, settings=settings) as program:
        whole = await program.ask("alpha", f"/summarize {LONG}")
        message = await program.refused("wordy", f"/summarize {LONG}", 502)
    first, second, *_ = whole["summarize"]["parts"]
    assert first > second > 1
    assert "are not shorter than the text" in message


@pytest.mark.slow
async def test_a_text_that_fits_passes_as_it_is(plugged: OpenPlugged) -> None:
    middle = "\n\n".join(PARAGRAPH.format(n=n) for n in range(80))
    async with plugged({}, real={"starter": []}) as program:
        for content in ("A short text.", middle):
            whole = await program.ask("starter", f"/summarize {content}", max_tokens=20)
            assert whole["summarize"] == {"parts": []}


@pytest.mark.slow
async def test_finding_out_that_a_text_fits_is_not_lost_work(plugged: OpenPlugged) -> None:
    """The engine has read the text by then, and takes up from there."""
    middle = "\n\n".join(PARAGRAPH.format(n=n) for n in range(80))
    async with plugged({}, real={"starter": ["--parallel", "1"]}) as program:
        whole = await program.ask("starter", f"/summarize {middle}", max_tokens=8)
    usage = whole["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0.9 * usage["prompt_tokens"]


async def test_limits_are_told(plugged: OpenPlugged) -> None:
    settings = {"summarize": {"part_tokens": 48, "max_parts": 2}}
    async with plugged({}, real={"starter": SMALL}, settings=settings) as program:
        assert "'max_parts'" in await program.refused("starter", f"/summarize {LONG}")
        assert "no text to summarize" in await program.refused("starter", "/summarize")


async def test_parts_and_their_summaries_as_they_are_asked_for(plugged: OpenPlugged) -> None:
    """The fake's token is a byte, and its context is what the settings say."""
    settings = {"summarize": {"context_tokens": 2000, "part_tokens": 100, "answer_tokens": 100}}
    async with plugged({"alpha": script("in short"), "mute": script(" ")}, settings=settings) as program:
        whole = await program.ask("alpha", "/summarize " + "word " * 1000)
        asked = await program.ask("alpha", "/summarize " + "word " * 1000, fake={"echo": True, "script": ""})
        message = await program.refused("mute", "/summarize " + "word " * 1000, 502)
    assert text(whole) == "in short"
    assert whole["summarize"]["parts"] == [4]
    assert "Part 4: in short" in str(asked)
    assert "part 1 of 4" in message or "part 2 of 4" in message, "a part that fails is named"


async def test_a_model_that_does_not_say_its_context_needs_a_setting(plugged: OpenPlugged) -> None:
    async with plugged({"alpha": ["--status", "500"]}) as program:
        assert "'context_tokens'" in await program.refused("alpha", "/summarize " + "word " * 1000)


@pytest.mark.parametrize("stream", one_of([False, True]))
async def test_a_summary_as_json(plugged: OpenPlugged, stream: bool) -> None:
    settings = {
        "summarize": {"part_tokens": 48},
        "json": {"schema": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}},
    }
    async with plugged({}, real={"starter": SMALL}, settings=settings) as program:
        said, told = await program.told("summarize", "starter", f"/summarize /json {LONG}", stream=stream)
    assert '"ok"' in said
    assert told["parts"]
