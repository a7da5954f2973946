"""A flood of lines: the newest are taken, the others counted, and nothing that matters is among the others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.core.records.flood import HELD, LINES, MAX_LINE, WINDOW, FloodGate

URGENT = b"state:"
LINE = st.one_of(
    st.integers(0, 80).map(lambda size: b"x" * size),
    st.sampled_from([b"state:ready", b"words state:loading", b"stat", b"e:"]),
)


@st.composite
def outputs(draw: st.DrawFn) -> list[tuple[bytes, float]]:
    """Pieces of an output with the seconds since the one before; calm and floods take turns."""
    runs = draw(st.lists(st.tuples(LINE, st.sampled_from([1, 3, 400, 900, 2500])), min_size=1, max_size=8))
    text = b"".join(b"%d %s\n" % (number, line) for line, times in runs for number in range(times))
    text += draw(LINE)
    pieces, at = list[tuple[bytes, float]](), 0
    while at < len(text):
        size = draw(st.sampled_from([1, 7, 100, 5000, 1 << 16]))
        size = max(size, len(text) // 300)
        pieces.append((text[at : at + size], draw(st.sampled_from([0.0, 0.001, 0.1, 0.3]))))
        at += size
    return pieces


@given(outputs())
def test_every_line_is_taken_once_in_order_or_counted(pieces: list[tuple[bytes, float]]) -> None:
    gate, taken, now, fed = FloodGate(URGENT), list[bytes](), 1.0, b""
    for piece, pause in pieces:
        now += pause
        fed += piece
        taken += gate.feed(piece, now)
        whole = fed.split(b"\n")[:-1]
        urgent = [line for line in whole if URGENT in line]
        assert [line for line in taken if URGENT in line] == urgent
        if not gate.is_holding:
            assert len(taken) + gate.lost == len(whole)
    taken += gate.feed(b"", now)
    whole = fed.split(b"\n") if not fed.endswith(b"\n") else fed.split(b"\n")[:-1]
    assert len(taken) + gate.lost == len(whole)
    order = iter(whole)
    assert all(line in order for line in taken), "in order"
    assert taken[-LINES:] == whole[-min(len(taken), LINES) :], "the last ones"
    if len(whole) <= LINES:
        assert taken == whole


@given(st.integers(1, 40), st.integers(1, 200))
def test_a_flood_costs_no_more_than_its_limit(windows: int, size: int) -> None:
    """As many lines as that in each window, but for the piece in which the first window's number is reached."""
    gate, piece = FloodGate(URGENT), (b"x" * size + b"\n") * ((1 << 16) // size)
    taken = 0
    for number in range(windows * 10):
        taken += len(gate.feed(piece, 1.0 + number * WINDOW / 10))
    assert taken <= LINES * (windows + 1) + piece.count(b"\n")


def test_a_line_without_an_end_takes_no_more_memory_than_in_calm() -> None:
    gate = FloodGate(URGENT)
    gate.feed(b"\n" * 2 * LINES, 1.0)
    lines = [line for _ in range(40) for line in gate.feed(b"y" * (1 << 16), 1.0)]
    assert sum(map(len, lines)) > MAX_LINE
    assert all(len(line) <= MAX_LINE + 3 * HELD for line in lines)
