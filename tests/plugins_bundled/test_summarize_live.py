"""Texts of any length, summarized by a real engine through the program."""

from __future__ import annotations

import pytest
from plugged import OpenPlugged, script, text
from slow import one_of

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
