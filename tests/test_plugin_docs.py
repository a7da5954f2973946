"""docs/plugins.md says what is so: keys, hooks, what the context has, and the modules of the frozen program."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest

from appliance import plugins
from appliance.core.config.types import PluginConfig
from appliance.core.slash import FAMILIES
from appliance.http.control.agent_routes import Agents
from appliance.plugins import testing
from appliance.plugins.loading import HOOKS, SETTINGS
from appliance.plugins.manifest import DEFAULT_TIMEOUT, KEYS
from appliance.plugins.registry import Listed

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "plugins.md").read_text("utf-8")


def test_every_key_hook_and_route_is_on_the_page():
    for key in KEYS:
        assert f"| `{key}` |" in PAGE, key
    assert f"| `timeout` | `{DEFAULT_TIMEOUT:g}` |" in PAGE
    for hook in HOOKS:
        assert f"def {hook}(" in PAGE, hook
    for path in FAMILIES:
        assert path in PAGE, path


def test_what_the_configuration_says_and_lists_show_is_on_the_page():
    section = PAGE[PAGE.index("## Settings in the configuration") : PAGE.index("## Slash commands")]
    for key in PluginConfig.__struct_fields__:
        assert f"| `{key}` |" in section, key
    listing = PAGE[PAGE.index("`GET /api/agents` lists") : PAGE.index("## config.json")]
    for key in (*Agents.__struct_fields__, *Listed.__struct_fields__):
        assert f'"{key}": ' in listing or f"`{key}`" in listing, key
    assert f"dataclass `{SETTINGS}`" in PAGE
    for flag in ("--plugins DIR", "--no-plugins"):
        assert f"`{flag}`" in PAGE


def test_everything_a_hook_is_given_is_on_the_page():
    for kind, name in ((plugins.Context, "context"), (plugins.Request, "request"), (plugins.Response, "response")):
        fields = getattr(kind, "__struct_fields__", ()) or [m for m, _ in inspect.getmembers(kind) if m[0] != "_"]
        assert fields
        for field in fields:
            assert f"`{name}.{field}`" in PAGE, field
    for method, _ in inspect.getmembers(plugins.Appliance, inspect.isfunction):
        assert method.startswith("_") or f"`{method}`" in PAGE, method
    for name in ("question", "reply", "streamed", "take_turn", "Asked"):
        assert hasattr(testing, name)
        assert name in PAGE


def test_the_modules_of_the_frozen_program_are_the_ones_on_the_page(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "packaging"))
    import plugin_modules

    told = PAGE[PAGE.index("of the standard library\n") : PAGE.index("## Testing one")].split("\n", 1)[1].split()
    assert tuple(told) == plugin_modules.STANDARD
    assert {name.partition(".")[0] for name in told} <= sys.stdlib_module_names
    files = {source for source, _ in plugin_modules.bundled_files(ROOT / "plugins")}
    shipped = [path for path in (ROOT / "plugins").iterdir() if path.is_dir() and (path / "agent.py").is_file()]
    assert shipped
    for folder in shipped:
        assert {str(folder / "agent.py"), str(folder / "config.json")} <= files
    assert not [file for file in files if "__pycache__" in file or "/test_" in file]
    assert "appliance.plugins" in plugin_modules.hidden_imports(ROOT / "plugins")
    source = "import a.b\nfrom . import c\nfrom email import parser, nothing\nfrom __future__ import annotations"
    assert list(plugin_modules.imports(source)) == ["a.b", "email", "email.parser"]
