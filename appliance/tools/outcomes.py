"""What the built-in tools answer, in llama-server's shapes (b11434)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from appliance.core.tooling import ToolOutcome


def said(text: str) -> ToolOutcome:
    return answer({"plain_text_response": text}, text)


def failed(why: str) -> ToolOutcome:
    """It could not be done; the model may try something else."""
    return ToolOutcome(body=msgspec.json.encode({"error": why}), text=f"error: {why}", error=why)


def answer(result: Mapping[str, object], text: str) -> ToolOutcome:
    """``text`` is what a model is told of it."""
    return ToolOutcome(body=msgspec.json.encode(result), text=text)
