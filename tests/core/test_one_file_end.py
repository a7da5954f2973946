"""Where a one-file program ends is read in its first bytes, and no other file is taken for one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.core.one_file import MAGIC, RECORD, RECORD_NAME, end_of_program

NUMBER = st.integers(0, (1 << 64) - 1)
BYTES = st.binary(max_size=40).filter(lambda data: RECORD_NAME[:1] not in data)


@given(BYTES, BYTES, NUMBER, NUMBER)
def test_the_end_is_what_the_record_says(between: bytes, behind: bytes, offset: int, size: int) -> None:
    record = RECORD.pack(RECORD_NAME, b"0.2.0", b"a" * 64, offset, size)
    whole = b"\x7fELF...." + MAGIC + between + record + behind
    assert end_of_program(whole) == offset + size
    cut = len(whole) - len(behind) - 1
    for other in (whole[:cut], whole[1:], whole.replace(RECORD_NAME, b"x" * len(RECORD_NAME))):
        assert end_of_program(other) == 0


@given(st.binary(max_size=300))
def test_any_bytes_have_an_answer(beginning: bytes) -> None:
    assert end_of_program(beginning) >= 0
