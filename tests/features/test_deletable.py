"""Each feature can be taken out: its folder and its line in the list, and the program does all the rest."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf_files import write_model
from http_harness import UPGRADE, chat
from program import ANY_PORT, Server, http, run_command
from whole_config import WHOLE

from appliance import features
from appliance.core.config.types import Config
from appliance.feature import Feature
from appliance.features import FEATURES

ROOT = Path(__file__).resolve().parents[2]
LAYERS = """
import sys
from importlinter.cli import lint_imports
sys.exit(lint_imports(config_filename=sys.argv[1], no_cache=True))
"""
ROUTE = re.compile(r"\.(get|post|put|delete)\(\"(/[^\"]+)\"(?!, facts=FOLLOWS)")
"""A route whose answer has an end."""


def leave_out(feature: Feature, folder: Path) -> dict[str, str]:
    """Make a copy of the program without the feature. Return the environment in which that is the program."""
    ignored = shutil.ignore_patterns("__pycache__", "node_modules", "src")
    package = Path(shutil.copytree(ROOT / "appliance", folder / "appliance", ignore=ignored))
    shutil.rmtree(package / "features" / feature.name)
    for beside in ("plugins", "llama-builds"):
        (folder / beside).symlink_to(ROOT / beside)
    listed = package / "features" / "__init__.py"
    constant = next(name for name, found in vars(features).items() if found is feature)
    own = re.compile(rf"^(from appliance\.features\.{feature.name}\..*|    {constant},)\n", re.MULTILINE)
    left, lines = own.subn("", listed.read_text("utf-8"))
    assert lines == 2
    listed.write_text(left, "utf-8")
    return {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}


@pytest.mark.slow
@pytest.mark.parametrize("feature", FEATURES, ids=[feature.name for feature in FEATURES])
def test_the_program_does_all_the_rest(
    feature: Feature, start_server: Callable[..., Server], fake_engine: Path, tmp_path: Path
) -> None:
    sources = (ROOT / "appliance" / "features" / feature.name).rglob("*.py")
    routes = [found for source in sources for found in ROUTE.findall(source.read_text("utf-8"))]
    assert routes or feature.routes is None
    readme = (ROOT / "appliance" / "features" / feature.name / "README.md").read_text("utf-8")
    edges = re.findall(r"edge\s+route\s+`(/[^`]+)`", readme)
    assert len(edges) >= len(feature.edges) + len(feature.gets)
    sockets = re.findall(r"websocket route `(/[^`]+)`", readme)
    assert len(sockets) >= len(feature.sockets)
    routes += [("get", path) for path in (*edges, *sockets)]
    keys = feature.keys().__struct_encode_fields__ if feature.keys is not None else ()
    config = tmp_path / "config.yaml"
    config.write_text("".join(f"{key}:\n" for key in keys), "utf-8")
    argv = ("serve", *ANY_PORT, "--no-starter", "--model", str(write_model(tmp_path / "small.gguf")))
    rest = leave_out(feature, tmp_path / "rest")
    shown = run_command("-c", "import appliance; print(appliance)", cwd=tmp_path, env=rest, program=[sys.executable])
    assert str(tmp_path) in shown.stdout
    for env, is_there in ({}, True), (rest, False):
        server = start_server(*argv, env={**env, "LLAMA_APPLIANCE_ENGINE": str(fake_engine)})
        assert http(server, "POST", "/v1/chat/completions", chat("small")).status == 200, server.told()
        for method, path in routes:
            headers = dict(UPGRADE) if path in sockets else {}
            answer = http(server, method.upper(), re.sub(r"<.*?>", "x", path), **headers)
            assert (b"route_not_found" in answer.body) is not is_there
        if keys:
            told = run_command("config", "check", "--config", str(config), cwd=tmp_path, env=env)
            for key in keys:
                assert (f"warning: {key}: unknown key, ignored" in told.stderr) is not is_there
        for verb in feature.verbs:
            told = run_command(verb.name, "--help", cwd=tmp_path, env=env)
            assert (f"there is no command '{verb.name}'" in told.stderr) is not is_there
    checked = run_command("-c", LAYERS, str(ROOT / "pyproject.toml"), cwd=tmp_path, env=rest, program=[sys.executable])
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("feature", FEATURES, ids=[feature.name for feature in FEATURES])
def test_its_readme_is_short_and_says_what_it_refuses(feature: Feature) -> None:
    told = (ROOT / "appliance" / "features" / feature.name / "README.md").read_text("utf-8")
    assert len(told.splitlines()) <= 20
    for word in ("Seams", "Refuses", "Try it"):
        assert f"**{word}**" in told
    for verb in feature.verbs:
        assert f"`{verb.name}`" in told


def test_a_key_of_the_configuration_is_of_one_feature_or_the_kernels() -> None:
    keys = [key for each in FEATURES if each.keys is not None for key in each.keys().__struct_fields__]
    assert keys
    assert sorted(WHOLE.__struct_fields__) == sorted([*Config.__struct_fields__, *keys])


def test_the_list_is_the_folders() -> None:
    folders = {path.parent.name for path in (ROOT / "appliance" / "features").glob("*/feature.py")}
    assert {feature.name for feature in FEATURES} == folders
