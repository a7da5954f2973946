"""A secret never gets through, in whatever syntax it stands; what is no secret stays readable."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.redact import REMOVED, Private, Redactor, learn

LETTERS = "abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ"
PLAIN = st.text(LETTERS + "0123456789", min_size=10, max_size=30).map(lambda text: f"q{text}7Z")
ROUGH = st.text(LETTERS + "0123456789-._~+/=:!@$%*()", min_size=10, max_size=30).map(lambda text: f"q{text}7Z")
NAMES = st.sampled_from(
    ["api_key", "apiKey", "api-key", "API_KEY", "OPENAI_API_KEY", "token", "hf_token", "HF_TOKEN", "client_secret",
     "password", "DB_PASSWORD", "x-api-key", "access_token", "AWS_SECRET_ACCESS_KEY", "Authorization", "apiKeys"]
)  # fmt: skip
LINE = (
    "the model loads and listens on 127.0.0.1:8080 ctx-size 4096 n_gpu_layers = 33 tokens: 512 max_tokens=20 "
    "--threads 4 layers key value cpu: AMD error: cannot open file 'x.gguf' [starter] {} () \"a\": 1, #"
)
WORDS = st.lists(st.sampled_from(LINE.split()), max_size=12).map(" ".join)
FORMS: dict[str, Callable[[str, str], str]] = {
    "environment": lambda name, secret: f"{name}={secret}",
    "export": lambda name, secret: f"export {name}='{secret}'",
    "ini": lambda name, secret: f"{name} = {secret}",
    "yaml": lambda name, secret: f"  {name}: {secret}",
    "yaml quoted": lambda name, secret: f'  {name}: "{secret}"   # a comment',
    "yaml list": lambda name, secret: f"{name}:\n  - {secret}\n  - '{secret}'\nother: 1",
    "yaml flat list": lambda name, secret: f"{name}:\n- {secret}\nother: 1",
    "yaml block": lambda name, secret: f"  {name}: |-\n    {secret}\n  other: 1",
    "yaml anchor": lambda name, secret: f"  {name}: &anchor {secret}",
    "yaml command": lambda name, secret: f"cmd:\n  - llama-server\n  - --{name}\n  - {secret}\n  - --port",
    "json": lambda name, secret: json.dumps({"a": 1, name: secret, "b": 2}),
    "json pretty": lambda name, secret: json.dumps({"a": [1], name: [secret, secret]}, indent=2),
    "json in json": lambda name, secret: json.dumps(json.dumps({name: secret})),
    "command line": lambda name, secret: f"llama-server --{name} {secret} --port 1",
    "command line =": lambda name, secret: f"llama-server --{name}={secret} --port 1",
    "words as json": lambda name, secret: json.dumps(["llama-server", f"--{name}", secret, "--port", "1"]),
    "words as python": lambda name, secret: repr(["llama-server", f"--{name}", secret, "--port"]),
    "query": lambda name, secret: f"GET /v1/models?a=1&{name}={quote(secret, safe='')}&b=2 HTTP/1.1",
    "header": lambda name, secret: f'curl -H "{name}: {secret}" http://127.0.0.1:8080/',
}
ALWAYS: dict[str, Callable[[str], str]] = {
    "hugging face": lambda secret: f"as hf_{secret} here",
    "openai": lambda secret: f"(sk-proj-{secret})",
    "bearer": lambda secret: f"sent Bearer {secret}",
    "basic": lambda secret: f"proxy said Basic {secret}=",
    "address": lambda secret: f"pulled from https://anna:{secret}@example.com/x",
    "address token": lambda secret: f"pulled from https://{secret}@example.com/x",
    "private key": lambda secret: f"-----BEGIN PRIVATE KEY-----\n{secret}\n-----END PRIVATE KEY-----",
}


@given(form=st.sampled_from(list(FORMS)), name=NAMES, secret=PLAIN, before=WORDS, after=WORDS)
def test_the_value_of_a_name_is_removed_in_every_syntax(
    form: str, name: str, secret: str, before: str, after: str
) -> None:
    text = f"{before}\n{FORMS[form](name, secret)}\n{after}"
    cleaned, removed = Redactor(Private()).clean(text)
    assert secret not in cleaned, (form, cleaned)
    assert removed.secrets >= 1
    assert cleaned.count("\n") == text.count("\n")


@given(form=st.sampled_from(list(ALWAYS)), secret=PLAIN, before=WORDS, after=WORDS)
def test_what_looks_like_a_secret_is_removed_within_any_line(form: str, secret: str, before: str, after: str) -> None:
    cleaned, _ = Redactor(Private()).clean(f"{before} {ALWAYS[form](secret)} {after}")
    assert secret not in cleaned, (form, cleaned)


@given(secret=ROUGH, before=WORDS, after=WORDS)
def test_a_known_secret_is_removed_wherever_it_is_planted(secret: str, before: str, after: str) -> None:
    forms = (secret, json.dumps(secret), quote(secret, safe=""), f"x{secret}y", repr(secret))
    redactor = Redactor(Private(secrets=(secret,)))
    for form in forms:
        cleaned, _ = redactor.clean(f"{before} {form} {after}\n{form}{after}", log=True)
        assert secret not in cleaned
        assert quote(secret, safe="") not in cleaned


@given(form=st.sampled_from(list(FORMS)), name=NAMES, secret=PLAIN, words=WORDS)
def test_a_secret_of_one_text_is_removed_from_the_others(form: str, name: str, secret: str, words: str) -> None:
    other = f"{words} {secret} {words}"
    redactor = Redactor(learn(Private(), [FORMS[form](name, secret), other]))
    assert secret not in redactor.clean(other)[0]


PIECES = ("/home/anna/models", "anna's tabby", '{"messages": [{"content": "hi', "apiKeys: [", "token: |", REMOVED)


def named_secret(form: str, name: str, secret: str) -> str:
    return FORMS[form](name, secret)


def obvious_secret(form: str, secret: str) -> str:
    return ALWAYS[form](secret)


ANYTHING = st.lists(
    st.one_of(
        WORDS,
        st.text(max_size=30),
        st.builds(named_secret, st.sampled_from(list(FORMS)), NAMES, ROUGH),
        st.builds(obvious_secret, st.sampled_from(list(ALWAYS)), ROUGH),
        st.sampled_from(PIECES),
    ),
    max_size=8,
).map("\n".join)


@given(text=ANYTHING, log=st.booleans(), known=st.lists(ROUGH, max_size=2))
def test_doing_it_again_changes_nothing(text: str, log: bool, known: list[str]) -> None:
    private = Private(secrets=tuple(known), home="/home/anna", users=("anna",), hosts=("tabby",))
    redactor = Redactor(private)
    once, _ = redactor.clean(text, log=log)
    again, removed = redactor.clean(once, log=log)
    assert again == once
    assert (removed.secrets, removed.prompts, removed.names) == (0, 0, 0)
    assert once.count("\n") == text.count("\n")


@given(words=st.lists(WORDS, max_size=5))
def test_ordinary_text_stays_as_it_is(words: list[str]) -> None:
    text = "\n".join(words)
    assert Redactor(Private(secrets=("qSecret77Z",), home="/home/anna", users=("anna",))).clean(text)[0] == text


@pytest.mark.parametrize(
    "line",
    [
        "print_info: BOS token        = 1 '<s>'",
        "0.00.123.456 I srv  llama_server: listening on http://127.0.0.1:18411",
        "W srv  llama_server: security: no API key is set and CORS allows all origins",
        "llama-server --api-key-file /etc/keys --max-tokens 512",
        'apiKeys: ["${env.MY_KEY}"]',
        "api_key: null",
        "hf_token: false",
        "0.00.100.200 I load_tensors: offloaded 20/33 layers to GPU",
        "ggml-cuda.cu:97: CUDA error: out of memory",
    ],
)
def test_lines_that_tell_no_secret(line: str) -> None:
    assert Redactor(Private()).clean(line, log=True)[0] == line


PROMPT = "Why does Zebedee whistle"
ANSWER = "Because the kettle sings"


@pytest.mark.parametrize(
    "text",
    [
        f'0.01.000.000 I srv  log_server_r: request: {{"messages":[{{"role":"user","content":"{PROMPT}"}}]}}',
        f'[starter] 0.01.000.000 I srv: {{"prompt":"{PROMPT}","stream":true}}',
        f'0.01.000.000 D slot process: next token: 372 "{PROMPT}"',
        f"0.01.000.000 D srv  format: prompt:\n{PROMPT}\nand more\n{ANSWER}\n",
        f'{{"type":"log","level":"debug","msg":"{PROMPT}"}}',
        f"0.01.000.000 I srv: input: '{PROMPT}",
        f"Parsing input with format Content-only: {PROMPT}",
        f'plugin: {{\\"content\\": \\"{PROMPT}\\"',
    ],
)
def test_prompts_and_answers_are_removed_from_logs(text: str) -> None:
    cleaned, removed = Redactor(Private()).clean(f"{text}\n0.02.000.000 I srv  llama_server: model loaded", log=True)
    assert "Zebedee" not in cleaned
    assert "kettle" not in cleaned
    assert removed.prompts >= 1
    assert cleaned.endswith("\n0.02.000.000 I srv  llama_server: model loaded")


def test_a_crash_after_debug_lines_is_still_told() -> None:
    text = f"0.01.000.000 D srv: {PROMPT}\n{PROMPT}\nggml_abort: /src/ggml-cuda.cu:97: CUDA error\n{PROMPT}"
    cleaned, _ = Redactor(Private()).clean(text, log=True)
    assert cleaned.split("\n") == [
        "0.01.000.000 D <removed>",
        REMOVED,
        "ggml_abort: /src/ggml-cuda.cu:97: CUDA error",
        PROMPT,
    ]


def test_names_of_user_machine_and_home_are_replaced() -> None:
    private = Private(home="/home/anna", users=("anna",), hosts=("tabby",))
    cleaned, removed = Redactor(private).clean(
        "/home/anna/models on TABBY, by anna; banana; /home/bert/x; C:\\Users\\Carl\\m"
    )
    assert cleaned == "<home>/models on <host>, by <user>; banana; /home/<user>/x; C:\\Users\\<user>\\m"
    assert removed.names == 5
    windows = Private(home="C:\\Users\\anna")
    assert Redactor(windows).clean(r'"C:\\Users\\anna\\models" C:/Users/anna/x')[0] == r'"<home>\\models" <home>/x'


def test_names_that_tell_nothing_stay() -> None:
    private = Private(home="/", users=("root", "al"), hosts=("localhost",))
    assert Redactor(private).clean("root at localhost, all of it /")[0] == "root at localhost, all of it /"


YAML = """\
# our models
apiKeys:          # who may come in
  - "first-Key-1234"
  - >-
    second-Key-5678
healthCheckTimeout: 90
macros:
    deep: &k third-Key-9012

models:
  "a":   {cmd: "llama-server --api-key fourth-Key-3456 -m a.gguf", env: ["HF_TOKEN=fifth-Key-7890"]}
  b:
    cmd: |
      llama-server
        --api-key sixth-Key-1111
        --ctx-size 4096
"""


def test_a_configuration_keeps_its_layout() -> None:
    cleaned, _ = Redactor(Private(secrets=("third-Key-9012",))).clean(YAML)
    expected = re.sub(r"(?:first|second|third|fourth|fifth|sixth)-Key-[0-9]{4}", REMOVED, YAML)
    expected = expected.replace("  - >-\n", f"  - {REMOVED}\n")
    assert cleaned == expected


@pytest.mark.parametrize(
    "text",
    [
        "NVIDIA_NGC_PASS=hunter22x9", "HF_HUB_PAT=hunter22x9", "      - AUTH=hunter22x9", "proxy_auth: hunter22x9",
        "url https://h/x?X-Amz-Date=1&X-Amz-Signature=hunter22x9 b", "https://h/x?X-Goog-Signature=hunter22x9",
        "api.key: hunter22x9", "API KEY = hunter22x9", "jwt=hunter22x9", "passcode: hunter22x9",
        "session_id=hunter22x9",
        "curl -u me:hunter22x9 https://h", "https://hooks.slack.com/services/T0/B0/hunter22x9", "npm_hunter22x9",
    ],
)  # fmt: skip
def test_secrets_under_other_names(text: str) -> None:
    cleaned, counts = Redactor(Private()).clean(text)
    assert "hunter22x9" not in cleaned
    assert counts.secrets == 1


@pytest.mark.parametrize("piece", ["\\", "a", "-", '"', "api_", "http://", "export ", "api_key=["])
def test_no_line_however_long_takes_long(piece: str) -> None:
    line = piece * (100_000 // len(piece))
    began = time.process_time()
    Redactor(Private()).clean(line, log=True)
    assert time.process_time() - began < 5.0
