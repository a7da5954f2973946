"""The keys of traces in a configuration: their defaults, and every rule that can be broken."""

from __future__ import annotations

import pytest

from appliance.core.config.load import Loaded, SourceFile, load
from appliance.core.config.types import config_with
from appliance.features.traces.keys import TraceKeys, TracingConfig


def read(text: str) -> Loaded:
    return load([SourceFile("c.yaml", text)], {}, config_type=config_with((TraceKeys,)))


def tracing_of(text: str) -> TracingConfig | None:
    loaded = read(text)
    assert loaded.problems == ()
    return loaded.require().keys_of(TraceKeys).tracing


def test_traces_are_off_and_have_defaults() -> None:
    assert tracing_of("") is None
    assert tracing_of("tracing:") is None
    tracing = tracing_of("tracing: {sample: ~, headers: {authorization: 'Bearer k'}}")
    assert tracing == TracingConfig(
        endpoint="http://127.0.0.1:4318", service="llama-appliance", sample=1.0, headers={"authorization": "Bearer k"}
    )
    assert tracing_of("tracing: {sample: 0.25}") == TracingConfig(sample=0.25)


@pytest.mark.parametrize(
    ("text", "key", "fix"),
    [
        ("endpoint: 127.0.0.1:4318", "tracing.endpoint", "http://127.0.0.1:4318"),
        ("endpoint: 'http://me:secret@box:4318'", "tracing.endpoint", "tracing.headers"),
        ("endpoint: 'http://bóx:4318'", "tracing.endpoint", "ASCII"),
        ("service: ' '", "tracing.service", "llama-appliance"),
        ("sample: 1.5", "tracing.sample", "between 0 and 1"),
        ("sample: .nan", "tracing.sample", "must be a number"),
        ("sample: '0.5'", "tracing.sample", "drop the quotes"),
        ("sample: half", "tracing.sample", "must be a number"),
        ("headers: {'a b': Zq9}", "tracing.headers.a b", "Authorization"),
        ('headers: {authorization: "secret\\n"}', "tracing.headers.authorization", "remove it"),
    ],
)
def test_mistakes_in_tracing_name_the_key_and_the_fix(text: str, key: str, fix: str) -> None:
    [problem] = map(str, read(f"tracing: {{{text}}}").problems)
    assert key in problem
    assert fix in problem
    assert "secret" not in problem
