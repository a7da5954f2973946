"""What holds for every plugin that ships: what it imports, and that its documents tell of all settings."""

from __future__ import annotations

import ast
import json
import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from bundled import NAMES, PLUGINS, module

SETTINGS = {"json": "fitting", "parallel": "settings", "rag": "settings", "summarize": "agent"}
PER_FILE = [pytest.param(path, id=str(path.relative_to(PLUGINS))) for path in sorted(PLUGINS.glob("*/*.py"))]


def test_all_are_known() -> None:
    assert sorted(path.parent.name for path in PLUGINS.glob("*/agent.py")) == sorted(NAMES)


@pytest.mark.parametrize("path", PER_FILE)
def test_a_plugin_imports_its_interface_and_the_standard_library(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        for name in names:
            allowed = name.startswith(("appliance.plugins", "appliance.wire"))
            assert allowed or name.partition(".")[0] in sys.stdlib_module_names, name


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_has_every_setting_and_its_default(name: str) -> None:
    kind = module(name, SETTINGS[name]).Settings
    defaults = {field.name: getattr(kind(), field.name) for field in fields(kind)}
    readme = (PLUGINS / name / "README.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^|]*)` \|", readme, re.MULTILINE))
    told = {key: json.loads(value) for key, value in rows.items()}
    assert told == json.loads(json.dumps(defaults))


@pytest.mark.parametrize("name", NAMES)
def test_the_configuration_has_settings_that_exist(name: str) -> None:
    config = json.loads((PLUGINS / name / "config.json").read_text("utf-8"))
    known = {field.name for field in fields(module(name, SETTINGS[name]).Settings)}
    assert config["settings"].keys() <= known
    assert config["description"]
