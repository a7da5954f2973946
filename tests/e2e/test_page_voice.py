"""Speech in the page: `tests/web/scenarios/voice.mjs`. The browser's microphone and permission are Chromium's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from config_files import ConfigFile
from gguf_files import write_model
from page_fixtures import Play
from program import ANY_PORT, StartServer

DEVICE = "BROWSER_ARGS=--use-fake-device-for-media-stream"
GIVEN = f"{DEVICE} --use-fake-ui-for-media-stream --autoplay-policy=no-user-gesture-required"
LONG = " ".join(f"This is sentence {n} of a long answer." for n in range(12))
TEXT = f"Hello **bold** world.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nprint(1)\n```\n\n{LONG}"


@pytest.mark.parametrize(
    ("scenario", "within"),
    [
        ("spoken", ("env", GIVEN)),
        ("gestures", ("env", GIVEN)),
        ("aloud", ("env", GIVEN)),
        ("refused", ("env", f"{DEVICE} --deny-permission-prompts")),
    ],
)
def test_speech_becomes_text_and_text_becomes_speech(
    play: Play,
    start_server: StartServer,
    fake_llama_server: tuple[str, ...],
    tmp_path: Path,
    scenario: str,
    within: tuple[str, ...],
) -> None:
    model = tmp_path / "small.gguf"
    write_model(model)
    file = ConfigFile(tmp_path / "config.yaml", *fake_llama_server, "--model", model)
    models: dict[str, dict[str, object]] = {
        "ears": {"cmd": file.cmd("--mmproj", str(model)), "capabilities": {"in": ["audio"], "out": ["text"]}},
        "mouth": {"capabilities": {"in": ["text"], "out": ["audio"]}},
        "talker": {},
    }
    words = ("serve", *ANY_PORT, "--config", file.write(models), "--no-stores", "--no-starter")
    script = json.dumps([{"text": TEXT}])
    play(f"voice.{scenario}", start_server(*words, env={"FAKE_SCRIPT": script}), within=within)
