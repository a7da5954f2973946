"""The request that asks another engine to continue the text of a broken stream.

llama-server (b11434) continues an assistant's message that stands last. If the request says so explicitly
(``continue_final_message``), it answers with the rest alone. If it finds out by itself, b11434 repeats the beginning in
its first delta, and b11549 does not: see `splicing`.
"""

from __future__ import annotations

import msgspec

from appliance.core.json_edit import Edit, apply_edits
from appliance.core.json_path import Path, Step
from appliance.core.json_values import JSON, OBJECT, JsonObject
from appliance.core.partial_answer import Partial, Refusal, object_of
from appliance.core.slash import Family

_UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")
_COUNTS = ("n", "n_cmpl", "best_of")
_PROBABILITIES = ("logprobs", "top_logprobs", "n_probs")
_FORCED = ("continue_final_message", "add_generation_prompt", "generation_prompt")
_THOUGHT_MARKS = ("<think", "[THINK]", "<|channel|>", "<seed:think>", "<|START_THINKING|>")
_APPENDED = Step(b"-1", -1)


def continued_body(body: bytes, partial: Partial) -> bytes | Refusal:
    """Return the same request, now asking for the rest; unchanged members keep their bytes."""
    try:
        asked = OBJECT.decode(body)
    except _UNREADABLE:
        return Refusal("the request is not a JSON object")
    if why := _obstacle(asked, partial):
        return Refusal(why)
    if not partial.tokens:
        return body
    edits = _prefill(asked, partial)
    if isinstance(edits, Refusal):
        return edits
    for name in _LIMITS:
        limit = asked.get(name)
        if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
            edits.append(_edit(max(limit - partial.tokens, 1), name))
    return apply_edits(body, edits)


def _obstacle(asked: JsonObject, partial: Partial) -> str:
    """Return what in the request forbids a continuation; "" if nothing does."""
    for name in _COUNTS:
        count = asked.get(name)
        if isinstance(count, int) and count > 1:
            return f"several answers were requested ('{name}')"
    for name in _PROBABILITIES:
        if asked.get(name):
            return f"'{name}' was requested"
    formats = {
        "response_format": asked.get("response_format"),
        "text.format": object_of(asked.get("text")).get("format"),
        "output_config.format": object_of(asked.get("output_config")).get("format"),
    }
    for name, wanted in formats.items():
        if wanted is not None and object_of(wanted).get("type") not in (None, "text"):
            return f"its form is prescribed ('{name}')"
    for name in ("grammar", "json_schema"):
        if asked.get(name):
            return f"its form is prescribed ('{name}')"
    choice = asked.get("tool_choice")
    word = choice.get("type") if isinstance(choice, dict) else choice
    if word not in (None, "auto", "none"):
        return "a tool call was required ('tool_choice')"
    for name in _FORCED:
        if asked.get(name) is not None:
            return f"the request itself continues a text ('{name}')"
    if asked.get("echo"):
        return "'echo' was requested"
    if partial.family is Family.CHAT and partial.text.lstrip().startswith(_THOUGHT_MARKS):
        return "its text includes the reasoning"
    return ""


def _prefill(asked: JsonObject, partial: Partial) -> list[Edit] | Refusal:
    text, reasoning = partial.text, partial.reasoning
    match partial.family:
        case Family.COMPLETION:
            return _longer_prompt(asked.get("prompt"), text)
        case Family.CHAT:
            message: JsonObject = {"role": "assistant", "content": text}
            if reasoning:
                message["reasoning_content"] = reasoning
            return _appended("messages", asked, [message], asks=True)
        case Family.MESSAGES:
            content: list[JSON] = []
            if reasoning:
                content.append({"type": "thinking", "thinking": reasoning, "signature": ""})
            if text:
                content.append({"type": "text", "text": text})
            return _appended("messages", asked, [{"role": "assistant", "content": content}], asks=False)
        case Family.RESPONSES:
            items: list[JsonObject] = []
            if reasoning:
                thought: JsonObject = {"type": "reasoning_text", "text": reasoning}
                items.append({"type": "reasoning", "summary": [], "content": [thought]})
            if text:
                said: JsonObject = {"type": "output_text", "text": text}
                items.append({"type": "message", "role": "assistant", "content": [said]})
            return _appended("input", asked, items, asks=True)


def _appended(name: str, asked: JsonObject, added: list[JsonObject], *, asks: bool) -> list[Edit] | Refusal:
    """``asks``: the route knows the members that ask to continue the last message (Anthropic's always does so)."""
    edits: list[Edit] = []
    given = asked.get(name)
    if isinstance(given, str):
        edits.append(_edit([{"role": "user", "content": given}], name))
    elif not isinstance(given, list) or not given:
        return Refusal(f"the request has no '{name}' to continue")
    else:
        last = object_of(given[-1])
        if last.get("role") == "assistant" or last.get("type") in ("reasoning", "function_call"):
            return Refusal("the request itself continues a text of the assistant")
    edits += [Edit(Path((Step(name.encode()), _APPENDED)), msgspec.json.encode(one)) for one in added]
    if asks:
        edits += [_edit(True, "continue_final_message"), _edit(False, "add_generation_prompt")]
    return edits


def _longer_prompt(prompt: JSON, text: str) -> list[Edit] | Refusal:
    """llama-server takes a text, tokens, texts and tokens mixed, a text with media, and a list of all of these."""
    if isinstance(prompt, str):
        return [_edit(prompt + text, "prompt")]
    if isinstance(prompt, dict) and isinstance(inner := prompt.get("prompt_string"), str):
        return [_edit(inner + text, "prompt", "prompt_string")]
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(only := prompt[0], str):
        return [_edit([only + text], "prompt")]
    if isinstance(prompt, list) and any(isinstance(part, int) for part in prompt):
        return [Edit(Path((Step(b"prompt"), _APPENDED)), msgspec.json.encode(text))]
    return Refusal("its prompt is not a single text")


def _edit(value: object, *names: str) -> Edit:
    return Edit(Path(tuple(Step(name.encode()) for name in names)), msgspec.json.encode(value))
