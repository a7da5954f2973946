"""A request that names a slot in use spoils no answer, however it names the slot and by whichever way it comes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kept_conversations import KINDS
from program import ANY_PORT, StartServer, answer, http
from random_models import EXACT, write_random

from appliance.engines.named import ENGINE_VARIABLE

LONG = {"prompt": "t1t2t3", "n_predict": 400, "temperature": 0, "ignore_eos": True}
NAMES = [
    *(f'"id_slot":{value}' for value in ("0", "1", "0.0", "1.0", "0.5", "1e0", "-0", "true", "false", "-2", "-3", "3")),
    *(f'"id_slot":{value}' for value in ("4294967297", "1e30", '"1"', "[1]", "null")),
    '"id_slot":-1,"id_slot":1', '"id_slot":1,"id_slot":0.0', '"\\u0069d_slot":1', '"id\\u005Fslot" : 0.9',
]  # fmt: skip
WAYS = [f"{prefix}/completion" for prefix in ("", "/worker/words", "/upstream/words")]
WAYS += ["/v1/completions", "/upstream/words/v1/completions"]


def bodies() -> list[bytes]:
    """With a byte order mark, and with what only one of two readers may bear."""
    plain = [f'{{"model":"words","prompt":"{at}","n_predict":1,{name}}}' for at, name in enumerate(NAMES)]
    odd = [f'{mark}{{"prompt":"x","n_predict":1,"id_slot":{at}{more}}}' for at in (0, 1) for mark, more in ODD]
    return [each.encode() for each in (*plain, *odd)]


ODD = [("\ufeff", ""), ("", ',"model":[]'), ("", ',"x":' + "[" * 2000 + "]" * 2000), ("", ',"stream":0')]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["serve", "llama-server"])
def test_an_answer_keeps_its_own_words(start_server: StartServer, engine: str, tmp_path: Path, mode: str) -> None:
    model = write_random(tmp_path / "words.gguf", *KINDS["dense"])
    options = ("--parallel", "2", "--ctx-size", "2048", *EXACT)
    if mode == "serve":
        words = (*ANY_PORT, "--engine", engine, "--model", f"words={model}", "--preload", "words", "--no-starter", "--")
    else:
        words = ("-m", str(model), "--port", "0")
    server = start_server(mode, *words, "--threads", "1", *options, env={ENGINE_VARIABLE: engine})
    server.wait_healthy()
    alone = answer(server, "/completion", **LONG)["content"]
    with ThreadPoolExecutor(9) as clients:  # where a slot is named that is in use, the engine lets its request wait
        for way in WAYS if mode == "serve" else ("/completion", "/v1/completions"):
            first = clients.submit(answer, server, "/completion", **LONG)
            statuses = clients.map(lambda body, way=way: http(server, "POST", way, body).status, bodies())
            assert {*statuses} <= {200, 400}
            assert first.result()["content"] == alone, way
