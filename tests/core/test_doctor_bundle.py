"""The bundle as a whole: a secret of one file is in none, and no file says who and where this is."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from test_redact import FORMS, NAMES, PLAIN, WORDS

from appliance.core.doctor.bundle import MOST, Part, clean_said, known_environment, pack, secret_values
from appliance.core.redact import Private, Redactor

FILES = ("doctor.txt", "engines.json", "configuration/0-c.yaml", "logs/program.log", "logs/model-0-a.log")


@given(
    form=st.sampled_from(list(FORMS)),
    name=NAMES,
    secret=PLAIN,
    texts=st.lists(WORDS, min_size=len(FILES), max_size=len(FILES)),
    planted=st.integers(0, len(FILES) - 1),
    bare=st.integers(0, len(FILES) - 1),
)
def test_a_secret_planted_anywhere_is_in_no_file(
    form: str, name: str, secret: str, texts: list[str], planted: int, bare: int
) -> None:
    texts = list(texts)
    texts[planted] += f"\n{FORMS[form](name, secret)}\n"
    texts[bare] += f"\nnot called anything: {secret}, {secret}x\n"
    parts = [Part(name=file, text=text, log="logs/" in file) for file, text in zip(FILES, texts, strict=True)]
    packed = pack([*parts, Part(name=f"logs/{secret}.log", text="")], Private())
    for file in packed:
        assert secret not in file.name
        assert secret not in file.data.decode(), file.name
    assert sum(file.removed.secrets for file in packed) >= 1


def test_a_secret_on_the_cut_is_gone_before_the_text_is_cut() -> None:
    secret = "qSecretOfTheTest7Z"
    log = f"first {secret} line\n" + f"{secret} and more words\n" * (MOST // 20)
    (packed,) = pack([Part(name="logs/a.log", text=log, log=True)], Private(secrets=(secret,)))
    text = packed.data.decode()
    assert len(text) < MOST + 100
    assert text.startswith("... ")
    assert not any(secret[-length:] in text for length in (6, 10, len(secret)))


def test_what_engines_print_within_the_facts_is_cleaned_as_a_log() -> None:
    tree = {"id": "a", "why": ["0.01.000.000 D x: hello", "input: 'hello'"], "text": "hello", "n": [1, None, True]}
    cleaned = clean_said(json.loads(json.dumps(tree)), Redactor(Private()))
    assert cleaned == {**tree, "why": ["0.01.000.000 D <removed>", "input: <removed>"]}


def test_only_known_variables_are_taken_along() -> None:
    environ = {
        "CUDA_VISIBLE_DEVICES": "0",
        "LLAMA_ARG_CTX_SIZE": "1",
        "DIARY": "x",
        "container": "lxc",
        "PATHS": "y",
    }
    assert known_environment(environ) == "CUDA_VISIBLE_DEVICES=0\nLLAMA_ARG_CTX_SIZE=1\ncontainer=lxc\n"


def test_values_of_variables_that_are_called_secrets() -> None:
    environ = {"A_KEY": "one, two", "B_TOKENS": "three", "PASSWORD": "four", "KEYBOARD": "us", "MAX_TOKENS_N": "5"}
    assert set(secret_values(environ)) == {"one, two", "one", "two", "three", "four"}
