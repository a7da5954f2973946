"""What a waiting client reads."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.core.answers.loading_text import JOKE_PAUSE, JOKES, LoadingText


def test_the_header_names_the_model_and_stands_on_lines_of_its_own():
    assert LoadingText("llama").header() == "━━━━━\nllama-appliance loading model: llama\n"


def test_dots_while_there_is_no_news_and_lines_where_there_is():
    text = LoadingText("llama")
    said = [
        text.tick(0.75, 2, None),
        text.tick(1.5, 2, None),
        text.tick(2.25, 2, None),
        text.tick(3.0, 1, None),
        text.tick(3.75, None, 0.0),
        text.tick(4.5, None, 0.004),
        text.tick(5.25, None, 0.417),
        text.tick(6.0, None, 0.419),
        text.end(6.3333),
    ]
    assert said == [
        "Queue position: #2\n",
        ".",
        ".",
        "\nQueue position: #1\n",
        "Loading: 0 %\n",
        ".",
        "\nLoading: 42 %\n",
        ".",
        "\nDone! (6.33s)\n━━━━━\n ",
    ]


def test_a_position_that_comes_back_is_told_again():
    text = LoadingText("llama")
    assert [text.tick(1, n, None) for n in (1, None, 1)] == ["Queue position: #1\n", ".", "\nQueue position: #1\n"]


def test_the_expected_wait_is_told_with_each_place_and_once_without_one():
    text = LoadingText("llama")
    said = [
        text.tick(1, place, None, expected=wait) for place, wait in ((2, 20), (2, 12), (1, 9.6), (None, 5), (None, 4))
    ]
    assert said == [
        "Queue position: #2, expected wait: 20 s\n",
        ".",
        "\nQueue position: #1, expected wait: 10 s\n",
        ".",
        ".",
    ]
    text = LoadingText("llama")
    assert [text.tick(1, None, None, expected=wait) for wait in (20, 12)] == ["Expected wait: 20 s\n", "."]


def test_jokes_come_at_the_first_tick_and_then_now_and_again_until_there_are_none():
    text = LoadingText("llama", ("one", "two"))
    assert text.tick(0.75, None, None) == "one\n"
    assert text.tick(1.5, None, None) == "."
    assert text.tick(0.75 + JOKE_PAUSE, None, None) == "\ntwo\n"
    assert text.tick(100, None, None) == "."
    assert len(set(JOKES)) == len(JOKES) >= 5


@given(
    st.lists(
        st.tuples(st.none() | st.integers(1, 5), st.none() | st.floats(allow_nan=False, min_value=-1, max_value=2)),
        max_size=20,
    )
)
def test_every_tick_says_something_and_lines_are_whole(ticks: list[tuple[int | None, float | None]]):
    text = LoadingText("llama", JOKES)
    whole = text.header()
    for number, (position, progress) in enumerate(ticks):
        said = text.tick(number * 0.75, position, progress)
        assert said
        whole += said
    whole += text.end(1)
    for line in whole.splitlines():
        assert line in (*JOKES, "━━━━━", " ", "Done! (1.00s)", "llama-appliance loading model: llama") or (
            set(line) == {"."} or line.startswith(("Queue position: #", "Loading: "))
        )
