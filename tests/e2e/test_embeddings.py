"""Embeddings of a model in the folder, and of a configured command."""

from __future__ import annotations

from pathlib import Path

import yaml
from hollow_models import dense
from program import StartServer, http
from random_models import write_random


def test_a_long_text_is_embedded_on_every_route_that_embeds(serve: StartServer, engine: str, tmp_path: Path) -> None:
    """llama-server computes a text for embeddings in one batch, and its own has 512 tokens."""
    folder = tmp_path / "models"
    folder.mkdir()
    sizes = {"layers": 1, "width": 64, "heads": 2, "kv_heads": 2, "head": 32, "forward": 128, "vocabulary": 2048}
    write_random(folder / "mean.gguf", dense(**sizes, weights="F32", keys={"pooling_type": 1}))
    write_random(tmp_path / "plain.gguf", dense(**sizes, weights="F32"))
    cmd = f"llama-server --embeddings --pooling mean -ub 4096 -b 4096 -m {tmp_path}/plain.gguf --port ${{PORT}} -t 1"
    config = tmp_path / "c.yaml"
    config.write_text(yaml.safe_dump({"models": {"configured": {"cmd": cmd, "engine": "auto"}}}))
    server = serve("--models-dir", str(folder), "--no-stores", "--config", str(config), engine=engine)
    listed = {entry["id"]: entry for entry in http(server, "GET", "/v1/models").json()["data"]}
    assert listed["mean"]["context_length"] == listed["mean"]["max_model_len"] == 8192
    text = "ab " * 700
    for model in ("mean", "configured"):
        answer = http(server, "POST", "/v1/embeddings", {"model": model, "input": text})
        assert answer.status == 200, answer.body
        assert answer.json()["usage"]["prompt_tokens"] > 3000
        assert len(http(server, "POST", "/api/embed", {"model": model, "input": text}).json()["embeddings"][0]) == 64
        assert http(server, "POST", "/api/show", {"model": model}).json()["capabilities"] == ["embedding"]
