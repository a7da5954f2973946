"""The answers of the built-in tools, in llama-server's forms (b11434)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from appliance.core.tools.tool import ToolOutcome


def said(text: str) -> ToolOutcome:
    return answer({"plain_text_response": text}, text)


def failed(why: str) -> ToolOutcome:
    """It could not be done; the model may try something else."""
    return ToolOutcome(body=msgspec.json.encode({"error": why}), text=f"error: {why}", error=why)


def answer(result: Mapping[str, object], text: str) -> ToolOutcome:
    """``text`` is the model's part."""
    return ToolOutcome(body=msgspec.json.encode(result), text=text)
