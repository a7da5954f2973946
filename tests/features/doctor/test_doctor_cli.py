"""How the page of ``doctor`` looks, and where its bundle may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.core.examination import Known
from appliance.core.findings import Finding
from appliance.errors import UsageError
from appliance.features.doctor.core.facts import Facts
from appliance.features.doctor.verb import ALL_WELL, free_path, page

FACTS = Facts(Known(version="1.0", now=0.0))


def test_the_page_has_evidence_and_commands_or_fits_a_screen() -> None:
    finding = Finding(
        id="x", severity="warning", title="It is slow", evidence=("2 \x1b[31mthreads",), advice="Do this.",
        commands=("llama-appliance ls",),
    )  # fmt: skip
    text = page(FACTS, [finding], colours=False)
    assert "WARNING It is slow  [x]\n" in text
    assert "\n        $ llama-appliance ls" in text
    assert "\x1b" not in text
    assert ALL_WELL not in text
    text = page(FACTS, [], colours=False)
    assert text.endswith(ALL_WELL)
    assert len(text.splitlines()) <= 24


def test_a_folder_that_is_not_there_is_no_place_for_a_bundle(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        free_path(str(tmp_path / "none" / "x.zip"))
    (tmp_path / "x.zip").touch()
    with pytest.raises(UsageError, match="exists already"):
        free_path(str(tmp_path / "x.zip"))
