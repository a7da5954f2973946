"""The check of imports finds what it is there for."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

CHECK = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / ".ci" / "imports.py")))
BRINGS = {"yaml": ["PyYAML"], "quart_trio": ["quart-trio"], "trio": ["trio"]}


def test_a_detour_is_named_and_a_tree_is_not() -> None:
    assert CHECK.cycle({"a": ["b", "c"], "b": ["c"], "c": []}) == []
    around = CHECK.cycle({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]})
    assert around[0] == around[-1]
    assert set(around) == {"a", "b", "c"}


def test_what_a_file_imports() -> None:
    source = (
        "import os, yaml.nodes\nfrom trio import run\nfrom . import x\nfrom appliance import y\ndef f():\n import rich"
    )
    assert list(CHECK.imported(source)) == ["yaml", "trio", "rich"]


@pytest.mark.parametrize(
    ("names", "required", "told"),
    [
        (["yaml", "quart_trio"], ["pyyaml>=6", "Quart-Trio[x]>=1"], []),
        (["trio", "yaml"], ["trio"], ["yaml is imported and not among the dependencies; name pyyaml"]),
        (["trio"], ["trio", "h11>=0.16"], ["h11 is among the dependencies and not imported; remove it"]),
        (["unknown"], [], ["unknown is imported and not among the dependencies; name unknown"]),
    ],
)
def test_dependencies_are_what_is_imported(names: list[str], required: list[str], told: list[str]) -> None:
    assert list(CHECK.difference(names, required, BRINGS)) == told


def test_a_requirement_begins_with_a_name() -> None:
    assert [CHECK.distribution(text) for text in ("ruamel.yaml>=0.18", "a_B[c] ; x", "d==1")] == [
        "ruamel-yaml",
        "a-b",
        "d",
    ]
