"""What makes a running process out of date."""

from __future__ import annotations

import pytest
from msgspec import structs

from appliance.core.models.model import Model, started_with

MODEL = Model(id="m", source="preset", path="/m.gguf", size=5, created=6, args=("--ctx-size", "7"), mmproj="/p")


@pytest.mark.parametrize(
    "change",
    [
        {"path": "/n.gguf"},
        {"size": 6},
        {"created": 7},
        {"args": ("--ctx-size", "8")},
        {"mmproj": None},
        {"draft": "/d"},
    ],
)
def test_what_a_process_is_started_with(change: dict[str, object]) -> None:
    assert started_with(structs.replace(MODEL, **change)) != started_with(MODEL)


@pytest.mark.parametrize(
    "change",
    [
        {"aliases": ("a",)},
        {"tags": ("t",)},
        {"hidden": True},
        {"load_on_startup": True},
        {"stop_timeout": 3.0},
        {"preset": "[m]\n"},
        {"origins": (("--ctx-size", "p.ini:3"),)},
        {"source": "path"},
    ],
)
def test_what_is_merely_told(change: dict[str, object]) -> None:
    assert started_with(structs.replace(MODEL, **change)) == started_with(MODEL)
