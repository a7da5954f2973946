"""Digests of models: two boxes with the same model may differ only in settings that suit a machine."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from appliance.core.config.load import SourceFile, load
from appliance.core.models.identity import identity_of
from appliance.core.models.model import Model

FILES = {f"/{box}/{name}": content for box in "ab" for name, content in (("m.gguf", "weights"), ("x.gguf", "others"))}
FILES |= {"/a/serve.py": "script", "/b/serve.py": "script", "/a/else.py": "other script", "/a/t.jinja": "template"}
MACHINE = (
    "--threads 7", "-ngl 99", "--port 9", "--host 0.0.0.0", "-c 4096", "--parallel 3", "--api-key k", "-dev CUDA0",
    "-ts 3,1", "--flash-attn on", "--no-mmap", "-b 64", "--rpc h:1", "--metrics", "-md /a/x.gguf",
)  # fmt: skip
WORDS = (
    "--temp 0.2", "--lora /a/x.gguf", "--chat-template chatml", "--chat-template-file /a/t.jinja", "--jinja",
    "--override-kv a=int:1", "--rope-scale 2", "--mmproj /a/x.gguf", "--reasoning-budget 0", "--unheard-of 1",
)  # fmt: skip
OF_CONFIG: tuple[dict[str, Any], ...] = (
    {"env": ["MODE=2"]}, {"useModelName": "other"}, {"proxy": "http://10.0.0.9:1"},
)  # fmt: skip


def on_disk(box: str, machine: list[str], words: str = "", file: str = "m.gguf") -> Model:
    told = " ".join([*machine, words]).split()
    return Model(id="same", source="path", path=f"/{box}/{file}", args=tuple(told))


def configured(box: str, machine: list[str], words: str = "", file: str = "m.gguf", **more: object) -> Model:
    """The command of llama-server, behind as many models with a port of their own as the box has letters before it."""
    cmd = f"/{box}/llama-server --port ${{PORT}} -m /{box}/{file} {' '.join(machine)} {words}"
    return _configured(box, {"cmd": cmd, **more})


def foreign(box: str, machine: list[str], words: str = "", file: str = "serve.py", **more: object) -> Model:
    """Another program's command; no option of it is known, so ``machine`` is left out."""
    return _configured(box, {"cmd": f"python3 /{box}/{file} --model=/{box}/m.gguf -p ${{PORT}} {words}", **more})


def _configured(box: str, model: dict[str, object]) -> Model:
    models = {"0": {"cmd": "x ${PORT}"}} if box == "b" else {}
    config = load([SourceFile("c.yaml", json.dumps({"models": {**models, "same": model}}))], {}).require()
    return Model(id="same", source="config", config=config.models["same"])


def told(model: Model, *engine_args: str) -> str:
    return identity_of(model, engine_args, lambda path, is_program: None if is_program else FILES.get(path))


KINDS = st.sampled_from((on_disk, configured, foreign))
MACHINES = st.lists(st.sampled_from(MACHINE), max_size=4)


@given(kind=KINDS, here=MACHINES, there=MACHINES, words=st.sampled_from(("", *WORDS)))
def test_a_box_may_differ_in_paths_ports_and_what_suits_the_machine(kind: Any, here: Any, there: Any, words: str):
    assert told(kind("a", here, words)) == told(kind("b", there, words))


@given(kind=KINDS, machine=MACHINES)
def test_everything_else_makes_another_model(kind: Any, machine: Any):
    other_file = "else.py" if kind is foreign else "x.gguf"
    changes: list[dict[str, Any]] = [{"words": word} for word in WORDS]
    changes += [{"file": other_file}, *(OF_CONFIG if kind is not on_disk else ())]
    found = {told(kind("a", machine, **change)): change for change in ({}, *changes)}
    assert len(found) == 1 + len(changes), found


def test_a_variable_with_a_secret_makes_no_other_model():
    assert told(configured("a", [], env=["HF_TOKEN=abcdef"])) == told(configured("a", []))


def test_code_within_a_command_is_no_option_of_llama_server():
    one, other = (_configured("a", {"cmd": f"python3 -c '{code}' ${{PORT}}"}) for code in ("serve(1)", "serve(2)"))
    assert told(one) != told(other)


def test_the_flags_for_all_models_count_for_those_on_disk():
    assert told(on_disk("a", []), "--temp", "1") != told(on_disk("a", []))
    assert told(on_disk("a", []), "-t", "3") == told(on_disk("a", [])) == told(replace(on_disk("b", []), tags=("x",)))
