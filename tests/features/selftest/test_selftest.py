"""``selftest`` with real engines: each step, and a model that cannot be used."""

from __future__ import annotations

from pathlib import Path

from command_line import Command


def test_selftest_proves_the_engine_or_says_what_is_wrong(command: Command, engine: str, tmp_path: Path) -> None:
    report = command.json("selftest", "--engine", engine)
    assert report["ok"]
    steps = ["load", "health", "chat", "repeat", "stream", "speed", "stop"]
    assert [step["name"] for step in report["steps"]] == steps
    assert report["tokens_per_second"] > 1
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    failed = command("selftest", "--engine", engine, "--model", broken)
    assert failed.status == 1
    assert "FAILED" in failed.out or "not a usable GGUF" in failed.err
