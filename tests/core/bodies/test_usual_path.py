"""Base addresses as people type them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.core.bodies.usual_path import PASSED, usual_path

NAMES = st.text("av1pi-.%2F", min_size=1, max_size=6)
RESTS = st.lists(NAMES, max_size=3).map("/".join)
SLASHES = st.integers(1, 3).map("/".__mul__)


@given(
    st.sampled_from(["/v1", "/api"]), RESTS.filter(lambda rest: rest.split("/")[0] not in ("", "v1", "api")), st.data()
)
def test_slashes_and_one_version_too_many_change_nothing(base: str, rest: str, data: st.DataObject):
    plain = f"{base}/{rest}"
    before, between, after = (data.draw(SLASHES) for _ in range(3))
    end = data.draw(SLASHES | st.just(""))
    version = data.draw(st.sampled_from(["", f"{before}v1"]))
    assert usual_path(f"{version}{before}{base[1:]}{between}{rest}{end}") == plain == usual_path(f"{plain}{after}")


@given(st.sampled_from(PASSED), RESTS)
def test_what_another_server_reads_stays(place: str, rest: str):
    assert usual_path(place + rest) == place + rest


def test_other_paths_stay():
    for path in ("", "*", "/", "/v1", "/v1api", "/v1/models/v1/x", "/v1/stream//x", "/slots/0", "/v1/v1api"):
        assert usual_path(path) == path
