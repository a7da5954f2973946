"""Ollama's client for JavaScript, LangChain and LiteLLM against the installed program, where they are installed.

They are no dependencies of this project. Name a folder that has them in ``OLLAMA_LIBRARIES``:

    python3 -m venv FOLDER/venv && FOLDER/venv/bin/pip install langchain-ollama litellm
    npm install --prefix FOLDER ollama
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from program import STARTER_QUESTION, Server, http

FOLDER = os.environ.get("OLLAMA_LIBRARIES", "")
QUESTION = [{"role": "user", "content": STARTER_QUESTION}]

LANGCHAIN = """
import json, sys
from langchain_ollama import ChatOllama, OllamaLLM
url, question = sys.argv[1:]
chat = ChatOllama(model="starter", base_url=url, temperature=0, seed=1, validate_model_on_init=True, keep_alive="5m")
whole = chat.invoke(question)
llm = OllamaLLM(model="starter", base_url=url, temperature=0, seed=1)
print(json.dumps({
    "whole": whole.content,
    "streamed": "".join(part.content for part in chat.stream(question)),
    "generated": llm.invoke(question),
    "usage": whole.usage_metadata,
    "reason": whole.response_metadata["done_reason"],
}))
"""

LITELLM = """
import json, sys, litellm
url, question = sys.argv[1:]
ask = dict(messages=[{"role": "user", "content": question}], api_base=url, temperature=0, seed=1)
whole = litellm.completion(model="ollama_chat/starter", **ask)
parts = litellm.completion(model="ollama_chat/starter", stream=True, **ask)
print(json.dumps({
    "whole": whole.choices[0].message.content,
    "streamed": "".join(part.choices[0].delta.content or "" for part in parts),
    "generated": litellm.completion(model="ollama/starter", **ask).choices[0].message.content,
    "usage": {"input_tokens": whole.usage.prompt_tokens, "output_tokens": whole.usage.completion_tokens},
    "reason": whole.choices[0].finish_reason,
}))
"""

JAVASCRIPT = """
import { Ollama } from "ollama";
const [url, question] = process.argv.slice(2);
const ollama = new Ollama({ host: url });
const ask = { model: "starter", messages: [{ role: "user", content: question }], options: { temperature: 0, seed: 1 } };
const whole = await ollama.chat(ask);
let streamed = "";
for await (const part of await ollama.chat({ ...ask, stream: true })) streamed += part.message.content;
const refused = await ollama.chat({ ...ask, model: "nobody" }).catch((error) => error.message);
const pulled = [];
for await (const part of await ollama.pull({ model: "starter", stream: true })) pulled.push(part.status);
const generated = await ollama.generate({ model: "starter", prompt: question, options: ask.options });
console.log(JSON.stringify({
  whole: whole.message.content, streamed, generated: generated.response, reason: whole.done_reason, refused,
  usage: { input_tokens: whole.prompt_eval_count, output_tokens: whole.eval_count },
  models: (await ollama.list()).models.map((model) => model.name), version: (await ollama.version?.())?.version,
  capabilities: (await ollama.show({ model: "starter" })).capabilities, pulled: pulled.at(-1),
  loaded: (await ollama.ps()).models.length,
}));
"""


@pytest.fixture
def libraries() -> Path:
    if not FOLDER:
        pytest.skip("needs OLLAMA_LIBRARIES: a folder with the libraries")
    return Path(FOLDER)


def told(command: list[str], server: Server) -> dict[str, Any]:
    done = subprocess.run(
        [*command, server.url, STARTER_QUESTION], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def expected(server: Server) -> str:
    body = {"model": "starter", "messages": QUESTION, "stream": False, "options": {"temperature": 0, "seed": 1}}
    return http(server, "POST", "/api/chat", body).json()["message"]["content"]


@pytest.mark.parametrize("script", [LANGCHAIN, LITELLM], ids=["langchain-ollama", "litellm"])
def test_a_library_for_python(libraries: Path, server: Server, script: str) -> None:
    found = told([str(libraries / "venv" / "bin" / "python"), "-c", script], server)
    text = expected(server)
    assert (found["whole"], found["streamed"], found["reason"]) == (text, text, "stop")
    assert found["generated"]
    assert found["usage"]["input_tokens"] > 0
    assert found["usage"]["output_tokens"] > 0


def test_the_client_for_javascript(libraries: Path, server: Server, tmp_path: Path) -> None:
    node = shutil.which("node")
    assert node is not None
    (tmp_path / "node_modules").symlink_to(libraries / "node_modules")
    (tmp_path / "client.mjs").write_text(JAVASCRIPT)
    found = told([node, str(tmp_path / "client.mjs")], server)
    text = expected(server)
    assert (found["whole"], found["streamed"], found["generated"], found["reason"]) == (text, text, text, "stop")
    assert found["refused"] == "model 'nobody' not found"
    assert (found["models"], found["pulled"], found["loaded"]) == (["starter:latest"], "success", 1)
    assert found["capabilities"] == ["completion"]
    assert found["usage"]["output_tokens"] > 0
