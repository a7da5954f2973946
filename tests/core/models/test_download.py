"""Which files are meant, and what an answer means."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.models.download import ModelReference, RemoteFile, choose, parse_reference
from appliance.core.models.transfer import (
    MAX_RETRY_AFTER,
    Continue,
    StartOver,
    Throttle,
    asked_to_wait,
    judge,
    retry_after,
    retry_delay,
)
from appliance.errors import BadRequest, NotFound


def files(*paths: str) -> list[RemoteFile]:
    return [RemoteFile(path, "a" * 64, 1) for path in paths]


def chosen(tag: str | None, *paths: str) -> tuple[str, list[str]]:
    choice = choose(ModelReference("o/r", tag), files(*paths))
    return choice.tag, [file.path for file in choice.files]


@pytest.mark.parametrize(
    ("text", "repo", "tag"),
    [
        ("ggml-org/gemma-3-4b-it-GGUF", "ggml-org/gemma-3-4b-it-GGUF", None),
        (" o/r:q4_k_m ", "o/r", "Q4_K_M"),
        ("o/r:UD-Q4_K_XL", "o/r", "UD-Q4_K_XL"),
        ("o/r:latest", "o/r", None),
        ("hf.co/o/r:Q8_0", "o/r", "Q8_0"),
        ("https://huggingface.co/o/r", "o/r", None),
        ("https://huggingface.co/o/r/tree/main", "o/r", None),
    ],
)
def test_references(text: str, repo: str, tag: str | None) -> None:
    assert parse_reference(text) == ModelReference(repo, tag)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "r",
        "o/r/x",
        "../r",
        "o/r:",
        "o/r:a b",
        "o--x/r",
        "https://example.com/o/r",
        "o\n/r",
    ],
)
def test_what_names_no_repository_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadRequest, match=r"org/repo|Q4_K_M") as raised:
        parse_reference(text)
    assert raised.value.param == "model"


@given(st.text(max_size=40))
def test_no_text_gets_out_of_the_cache(text: str) -> None:
    try:
        repo = parse_reference(text).repo
    except BadRequest:
        return
    organisation, name = repo.split("/")
    for part in (organisation, name):
        assert part not in ("", ".", "..")
        assert part.replace("-", "").replace("_", "").replace(".", "").isascii()
    assert "--" not in repo


@pytest.mark.parametrize(
    ("tag", "paths", "expected"),
    [
        (None, ["m-F16.gguf", "m-Q8_0.gguf", "m-Q4_K_M.gguf"], ("Q4_K_M", ["m-Q4_K_M.gguf"])),
        (None, ["m-F16.gguf", "m-Q8_0.gguf"], ("Q8_0", ["m-Q8_0.gguf"])),
        (None, ["README.md", "m-Q2_K.gguf", "m-F16.gguf"], ("F16", ["m-F16.gguf"])),
        ("Q8_0", ["m-Q4_K_M.gguf", "m.Q8_0.gguf"], ("Q8_0", ["m.Q8_0.gguf"])),
        ("UD-Q4_K_XL", ["m-Q4_K_XL.gguf", "m-UD-Q4_K_XL.gguf"], ("UD-Q4_K_XL", ["m-UD-Q4_K_XL.gguf"])),
        ("Q4_K_XL", ["m-Q4_K_XL.gguf", "m-UD-Q4_K_XL.gguf"], ("Q4_K_XL", ["m-Q4_K_XL.gguf"])),
        (
            None,
            ["q/m-Q8_0-00002-of-00002.gguf", "q/m-Q8_0-00001-of-00002.gguf", "other-F16.gguf"],
            ("Q8_0", ["q/m-Q8_0-00001-of-00002.gguf", "q/m-Q8_0-00002-of-00002.gguf"]),
        ),
        (
            "Q8_0",
            ["m-Q8_0.gguf", "mmproj-m-Q8_0.gguf", "mmproj-m-F16.gguf", "mtp-m-Q8_0.gguf"],
            ("Q8_0", ["m-Q8_0.gguf", "mmproj-m-F16.gguf"]),
        ),
        (
            "Q8_0",
            ["a/m-Q8_0.gguf", "a/mmproj-BF16.gguf", "mmproj-F16.gguf"],
            ("Q8_0", ["a/m-Q8_0.gguf", "a/mmproj-BF16.gguf"]),
        ),
        ("Q8_0", ["a/m-Q8_0.gguf", "b/mmproj-F16.gguf"], ("Q8_0", ["a/m-Q8_0.gguf"])),
        ("Q8_0", ["a/b/m-Q8_0.gguf", "mmproj-F16.gguf"], ("Q8_0", ["a/b/m-Q8_0.gguf", "mmproj-F16.gguf"])),
    ],
)
def test_the_choice(tag: str | None, paths: list[str], expected: tuple[str, list[str]]) -> None:
    assert chosen(tag, *paths) == expected


@pytest.mark.parametrize(
    ("tag", "paths", "why"),
    [
        ("Q5_K_M", ["m-Q4_K_M.gguf", "m-Q8_0.gguf"], "no Q5_K_M; it has Q4_K_M, Q8_0"),
        (None, ["model.safetensors", "README.md"], "no GGUF model"),
        (None, ["mmproj-F16.gguf"], "no GGUF model"),
        (None, ["m-Q8_0-00002-of-00002.gguf"], "lacks m-Q8_0-00001-of-00002.gguf"),
    ],
)
def test_what_is_not_there_is_named(tag: str | None, paths: list[str], why: str) -> None:
    with pytest.raises(NotFound, match=why):
        chosen(tag, *paths)


@pytest.mark.parametrize(
    ("status", "headers", "have", "expected"),
    [
        (200, {}, 0, Continue(stop=100)),
        (200, {b"content-length": b"100"}, 0, Continue(stop=100)),
        (200, {b"content-length": b"100"}, 40, Continue(stop=100, skip=40)),
        (206, {b"content-range": b"bytes 40-99/100"}, 40, Continue(stop=100)),
        (206, {b"content-range": b"bytes 40-99/*"}, 40, Continue(stop=100)),
        (206, {b"content-range": b"bytes 40-59/100"}, 40, Continue(stop=60)),
        (206, {b"content-range": b"bytes 40-39/100"}, 40, None),
        (206, {b"content-range": b"bytes 40-100/100"}, 40, None),
        (200, {b"content-length": b"99"}, 0, None),
        (200, {b"content-encoding": b"gzip"}, 0, None),
        (206, {b"content-range": b"bytes 39-99/100"}, 40, None),
        (206, {b"content-range": b"bytes 40-98/99"}, 40, None),
        (206, {b"content-range": b"lines 1-2/3"}, 40, None),
        (206, {}, 40, None),
        (416, {b"content-range": b"bytes */30"}, 40, None),
    ],
)
def test_an_answer_goes_on_or_belongs_to_something_else(
    status: int, headers: dict[bytes, bytes], have: int, expected: Continue | None
) -> None:
    found = judge(status, headers, have, 100)
    assert found == expected or (expected is None and isinstance(found, StartOver))


def test_attempts_come_slower_and_when_the_server_wants_them() -> None:
    assert [retry_delay(number, None) for number in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]
    assert retry_delay(1, 12.0) == 12
    assert Throttle(None).take(10**12, 0.0) == 0


@given(st.integers(0, 10**30), st.integers(0, 4 * 10**9), st.sampled_from(range(4)))
def test_a_wait_is_asked_for_in_seconds_or_as_a_date(wait: int, now: int, form: int) -> None:
    if form == 0:
        assert retry_after(b" %d " % wait, now) == min(wait, MAX_RETRY_AFTER)
        return
    wait %= 10**8
    date = datetime.fromtimestamp(now + wait, UTC)
    forms = ("%a, %d %b %Y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y", "%a, %d %b %Y %H:%M:%S +0000")
    found = retry_after(date.strftime(forms[form - 1]).encode(), now)
    assert found == wait
    assert retry_after(date.strftime(forms[0]).encode(), now + wait + 5) == 0
    assert f"until {date:%Y-%m-%d %H:%M:%S} UTC" in asked_to_wait(found, now)


@given(st.none() | st.binary(max_size=40) | st.sampled_from([b"-1", b"1.5", b"soon", b"Wed, 99 Oct 2026 07:28:00 GMT"]))
def test_any_other_wait_is_none_or_bounded(value: bytes | None) -> None:
    found = retry_after(value, 0.0)
    assert found is None or 0 <= found <= MAX_RETRY_AFTER


@given(
    rate=st.integers(1, 10**9),
    steps=st.lists(st.tuples(st.integers(1, 10**7), st.floats(0, 5)), min_size=1, max_size=30),
)
def test_the_rate_is_never_exceeded_over_the_whole(rate: int, steps: list[tuple[int, float]]) -> None:
    throttle, now, taken = Throttle(rate), 100.0, 0
    for count, idle in steps:
        now += idle
        now += throttle.take(count, now)
        taken += count
    assert taken <= rate * (now - 100.0) * 1.000001 + 1
