"""Sentences of llama-server's: which of them are about a mistake of the client's, and which are not."""

from __future__ import annotations

import pytest

from appliance.core.answers.faults import fault_in


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("image input is not supported - hint: if this is unexpected, you may need to provide the mmproj", "pictures"),
        ("Failed to load image or audio file", "media"),
        ("Failed to parse tool call arguments as JSON: [json.exception.parse_error.101] ...", "arguments"),
        ("Failed to parse messages: [json.exception.type_error.302] type must be string, but is null", "messages"),
        ("Missing tool function", "tools"),
        ("unsupported content[].type", "part"),
        ("[json.exception.type_error.302] type must be array, but is string", "member"),
        ("'messages' is required", "member"),
        ("Jinja Exception: A system message is required", None),
        ("request (9 tokens) exceeds the available context size", None),
        ("The model produced output that does not match the expected peg-native format", None),
        ("out of memory", None),
    ],
)
def test_the_fault_of_a_message(said: str, fault: str | None) -> None:
    assert fault_in(said) == fault
