"""``launch`` with clients as their makers publish them: a real answer comes back through each."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from clever_models import CALL, clever
from program import fresh_environment, run_command
from serving import Serve

KEY = "k-of-the-server"
ANSWER = "The llama has nothing to add."
PACKAGES = {
    "claude": ("@anthropic-ai/claude-code", ("-p", "Hello!")),
    "codex": ("@openai/codex", ("exec", "--skip-git-repo-check", "Hello!")),
    "opencode": ("opencode-ai", ("run", "Hello!")),
    "qwen": ("@qwen-code/qwen-code", ("-p", "Hello!")),
    "continue": ("@continuedev/cli", ("-p", "Hello!")),
}
PATIENCE = 300.0


@pytest.mark.slow(only_all=True)
@pytest.mark.needs("npm")
@pytest.mark.parametrize("client", PACKAGES)
def test_an_answer_comes_through(
    client: str, serve: Serve, fake_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, words = PACKAGES[client]
    home = tmp_path / "home"
    home.mkdir()
    env = {name: value for name, value in fresh_environment(home).items() if not name.startswith("XDG_CONFIG")}
    (tmp_path / "package.json").write_text("{}")
    install = ("npm", "install", "--no-audit", "--no-fund", "--prefix", str(tmp_path), package)
    installed = subprocess.run(install, env=env, capture_output=True, text=True, timeout=PATIENCE)
    if installed.returncode:
        pytest.skip(f"npm cannot install {package} here: {installed.stderr[-300:]}")
    env["PATH"] = f"{tmp_path / 'node_modules' / '.bin'}{os.pathsep}{os.environ['PATH']}"
    url = serve(models=[clever(fake_model, "alpha", [*CALL, {"text": ANSWER}])], api_keys=(KEY,)).url
    asked = ("launch", client, "--url", url, "--api-key", KEY, "--", *words)
    ran = run_command(*asked, cwd=home, env=env, timeout=PATIENCE)
    assert ANSWER in ran.stdout, (ran.stdout[-2000:], ran.stderr[-2000:])
    settings = [path for path in home.rglob("*") if path.suffix in (".toml", ".json", ".jsonc", ".yaml")]
    assert not [path for path in settings if path.is_file() and KEY.encode() in path.read_bytes()]
