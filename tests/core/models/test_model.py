"""What makes a running process out of date."""

from __future__ import annotations

from msgspec import structs

from appliance.core.models.model import Model, started_with

MODEL = Model(id="m", source="preset", path="/m.gguf", size=5, created=6, args=("--ctx-size", "7"), mmproj="/p")


def changed_by(change: dict[str, object]) -> bool:
    return started_with(structs.replace(MODEL, **change)) != started_with(MODEL)


def test_what_a_process_is_started_with_and_what_is_merely_told() -> None:
    started = {"path": "/n.gguf", "size": 6, "created": 7, "args": ("--ctx-size", "8"), "mmproj": None, "draft": "/d"}
    assert all(changed_by({name: value}) for name, value in started.items())
    told = {"aliases": ("a",), "tags": ("t",), "hidden": True, "load_on_startup": True, "stop_timeout": 3.0}
    assert not changed_by({**told, "preset": "[m]", "origins": (("--ctx-size", "p.ini:3"),), "source": "path"})
