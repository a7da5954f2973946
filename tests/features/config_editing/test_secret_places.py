"""Secrets in a configuration: none is shown, in whatever place and spelling, and each stays in its place."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from node_values import plain
from whole_config import WHOLE as CONFIG_TYPE

from appliance.core.command_words import split_command
from appliance.core.config.load import load
from appliance.core.config.nodes import SourceFile
from appliance.core.config.secret_places import scalars, secrets_of
from appliance.core.config.yaml import AS_WRITTEN, parse
from appliance.core.secrets import Secrets, shown_command
from appliance.errors import UsageError
from appliance.features.config_editing.core.masks import masked

CANARY = "Kq7Canary"
FORMS = st.sampled_from(
    (CANARY, f"${CANARY}", f"{CANARY}$x", f"-{CANARY}", f"{CANARY}#1", f"{CANARY}==", f"k,{CANARY}")
)
QUOTES = st.sampled_from(("{}", "'{}'", '"{}"', '"a {}"', "'a {} b'", "a\\ {}"))
"""How a word of a command is written."""
IN_COMMAND = st.sampled_from(
    (
        "x --api-key {}", "x --api-key={}", "x --api-key k1,{}", "x --api-key k1, {}", "x --hf-token {} -c 5",
        "x -hft {}",
        "x --api_key {}", "x -apiKey {}", "x --dbPassword {}", "x --no-auth --token {}", "env HF_TOKEN={} x",
        "HF_TOKEN={} x", "env -i a={} x", "sudo env A_B={} x", "docker run -e NAME={} x", "docker run -eNAME={} x",
        "docker run --env=NAME={} x",
        "docker run --env=name={} x", "docker run --env name={} x", "bwrap --setenv NAME {} x", "curl -H X-Any:{} x",
        "curl -H X-Any:\\ {} x", "curl --header Authorization:\\ Bearer\\ {}", "curl --header=X-Any:{} x",
        "curl -HX-Any:{} x", "curl -u me:{} x",
        "curl --user=me:{} x", "curl http://me:{}@h/x", "curl http://h/?api_key={}", "vault login token {}",
        "sh -c 'x --api-key {}'", "sh -c 'HF_TOKEN={} x'", 'sh -c "x --api\'-\'key {}"',
        "x --json '{{\"apiKey\": \"{}\"}}'",
        "x \\\n  --api-key \\\n  {}", "# --api-key {}\nx", "x\n  # HF_TOKEN={}\n  -c 5",
    )
)  # fmt: skip


def by_macro(command: str) -> list[tuple[str, dict[str, str]]]:
    """The command, and the same with parts of it in macros."""
    at = command.index(CANARY)
    before, behind = command[:at], command[at + len(CANARY) :]
    words = command.split(" ")
    return [
        (command, {}),
        (f"{before}${{m}}{behind}", {"m": CANARY}),
        (f"{before}${{m}}{CANARY[3:]}{behind}", {"m": CANARY[:3]}),
        (f"{before}${{m}}{behind}", {"i": CANARY[2:], "m": f"{CANARY[:2]}${{i}}"}),
        ("${m}", {"m": command}),
        (" ".join(["${m}", *words[1:]]), {"m": words[0]}),
        (" ".join([*words[:1], "${m}", *words[2:]]), {"m": words[1]} if len(words) > 1 else {}),
    ]


def escaped(text: str) -> str:
    return '"' + "".join(f"\\x{ord(c):02x}" if ord(c) < 256 else c for c in text) + '"'


def block(text: str) -> str:
    return "|-\n" + "\n".join(f"        {line}" for line in text.split("\n"))


STYLES: tuple[Callable[[str], str], ...] = (
    json.dumps,
    escaped,
    lambda text: "'" + text.replace("'", "''") + "'",
    block,
)
PLACES = (
    "apiKeys: [x, {}]", "apiKeys: {{a: {}}}", "apiKeys:\n  - {}", "peers: {{p: {{proxy: 'http://h', apiKey: {}}}}}",
    "tracing: {{headers: {{X-Any: {}}}}}", "mcp_servers: {{s: {{command: x, args: [{}]}}}}", "mcp_servers: {}",
    "mcp_servers: {{s: {{url: 'http://h', headers: {{A: {}}}}}}}", "plugins: {{p: {{settings: {{any: {}}}}}}}",
    "plugins: {{p: {{settings: {}}}}}", "plugins: {}", "peers: {{p: {}}}",
    "tracing: [{}]", "models: {{a: {{env: [{}]}}}}", "models: {{a: {{env: {{X: {}}}}}}}",
    "models: {{a: {{filters: {{setParams: {{api_key: {}}}}}}}}}",
    "models: {{a: {{metadata: {{deep: {{token: [{}]}}}}}}}}",
    "models: {{a: {{apiKey: {}}}}}", "macros: {{my_token: {}}}", "hf_token: {}",
    "models: {{a: {{args: [--api-key, {}]}}}}",
    "x: y # apiKey: {}", "# --api-key {}", "{{a: 1}}# --api-key {}", "#  - HF_TOKEN={}", "# see http://me:{}@h/",
)  # fmt: skip
"""Where a value stands that is a secret as a whole; the last ones are comments."""


def shows(text: str) -> bool:
    root = parse(text, "", AS_WRITTEN)[0]
    return CANARY in text or (root is not None and any(CANARY in node.text for node in scalars(root, keys=True)))


def assert_hidden(texts: list[str]) -> None:
    """Shown, edited and in the words of every mistake: the canary is nowhere."""
    for number, text in enumerate(texts):
        try:
            found = masked(text, [*texts[:number], *texts[number + 1 :]], CONFIG_TYPE)
        except UsageError:
            assert parse(text, "", AS_WRITTEN)[1], text
            continue
        assert not shows(found.text), found.text
        assert found.revealed(found.text) == text
    loaded = load(
        [SourceFile(f"{number}.yaml", text) for number, text in enumerate(texts)], {}, config_type=CONFIG_TYPE
    )
    assert not any(CANARY in f"{one.message} {one.path}" for one in loaded.problems), loaded.problems
    if loaded.config is not None:
        secrets = Secrets(secrets_of(loaded.config))
        for model in loaded.config.models.values():
            assert not any(CANARY in secrets.hidden(word) for word in shown_command(tuple(model.argv))), model.argv


@given(st.sampled_from(PLACES), FORMS, st.sampled_from(STYLES[:3]), st.booleans())
def test_no_value_is_shown_that_is_a_secret_by_its_place_or_name(
    place: str, form: str, style: Callable[[str], str], twice: bool
) -> None:
    text = place.format(form if "#" in place else style(form)) + "\n"
    assert_hidden([text + (f"# {form} again\n" if twice and "#" not in place else "")])


@example("vault login token {}", f"-{CANARY}", "{}", json.dumps, 0, "cmd", False)
@given(
    IN_COMMAND,
    FORMS,
    QUOTES,
    st.sampled_from(STYLES),
    st.integers(0, 6),
    st.sampled_from(("cmd", "cmdStop")),
    st.booleans(),
)
def test_no_secret_of_a_command_is_shown_however_it_is_put_together(
    command: str, form: str, quotes: str, style: Callable[[str], str], way: int, key: str, apart: bool
) -> None:
    nested = command.count("'") or command.count('"')
    told = command.format(form if nested else quotes.format(form))
    assume(any(CANARY in word for word in split_command(told, windows=False)) or "#" in told)
    text, macros = by_macro(told)[way]
    given_macros = (
        "macros:\n" + "".join(f"      {name}: {style(value)}\n" for name, value in macros.items()) if macros else ""
    )
    model = f"models:\n    a:\n      proxy: http://127.0.0.1:1\n      {key}: {style(text)}\n"
    assert_hidden([model, given_macros] if apart and macros else [given_macros + model])


EDITS = st.lists(
    st.one_of(
        st.tuples(
            st.just("comment"), st.integers(1, 9), st.sampled_from(("# {}", "#x{}y", "# --api-key X,{}", "# '{}'"))
        ),
        st.tuples(st.just("swap"), st.integers(1, 9), st.integers(1, 9).map(str)),
        st.tuples(
            st.just("into"), st.integers(1, 9), st.sampled_from(('"{}"', "[{}]", "'X {}'", '"\\x28secret 1) {}"'))
        ),
        st.tuples(st.just("drop"), st.integers(0, 40), st.just("")),
        st.tuples(st.just("copy"), st.integers(0, 40), st.integers(0, 40).map(str)),
        st.tuples(st.just("ttl"), st.integers(0, 99), st.just("")),
    ),
    min_size=1,
    max_size=4,
)
WHOLE = f"""\
apiKeys: [one, {CANARY}1]  # of {CANARY}1 only
macros: {{mine: {CANARY}2, plain: text}}
peers: {{p: {{proxy: 'http://h', apiKey: {CANARY}3}}}}
models:
  a:
    cmd: x --api-key ${{mine}},{CANARY}4
    env: [ANY={CANARY}5]
    description: words
    ttl: 5
    filters: {{setParams: {{api_key: {CANARY}6, other: 5}}}}
"""


@given(EDITS)
def test_no_edit_whatever_shows_a_secret(edits: list[tuple[str, int, str]]) -> None:
    found = masked(WHOLE, config_type=CONFIG_TYPE)
    text = found.text
    for kind, number, how in edits:
        mark, lines = f"(secret {number})", text.split("\n")
        match kind:
            case "comment":
                text += how.format(mark) + "\n"
            case "swap":
                other = f"(secret {how})"
                text = other.join(piece.replace(other, mark) for piece in text.split(mark))
            case "into":
                text = text.replace("words", how.format(mark))
            case "drop":
                text = "\n".join(lines[: number % len(lines)] + lines[number % len(lines) + 1 :])
            case "copy":
                lines.insert(int(how) % len(lines), lines[number % len(lines)])
                text = "\n".join(lines)
            case _:
                text = text.replace("ttl: 5", f"ttl: {number}")
    try:
        after = masked(found.revealed(text)).text
    except UsageError as error:
        after = str(error)
    assert not shows(after), after


TEXT = """\
apiKeys: [sk-one, "sk-two", "${KEY}", "${env.KEY}"]
macros:
  INNER: sk-inner
  KEY: "sk-${INNER}"  # used above
  plain: text
peers:
  box: {proxy: http://192.0.2.1, apiKey: 'sk-''peer'}
models:
  a:
    cmd: llama-server --api-key sk-command --port ${PORT}
  b:
    cmd: llama-server --api-key ${env.KEY}
    env: ["TOKEN=sk-env"]
mcp_servers: {files: {command: run, args: [sk-arg], env: {TOKEN: sk-mcp}}}
plugins: {p: {settings: {token: sk-plugin, "\\x73k-one": a key}}}
tracing: {headers: {Authorization: Bearer sk-trace}}
"""


def test_no_secret_is_shown_and_all_of_them_come_back() -> None:
    found = masked(TEXT, config_type=CONFIG_TYPE)
    assert "sk-" not in found.text
    assert '"${env.KEY}"' in found.text
    assert "--api-key ${env.KEY}" in found.text
    assert "plain: text" in found.text
    assert re.search(r"cmd: llama-server --api-key \(secret \d+\) --port \$", found.text)
    assert "x73k" not in found.text
    assert len(found.hidden) == 14
    assert found.revealed(found.text) == TEXT


keys = st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S", "Zs")), min_size=3)


def texts(tree: Any) -> list[str]:
    """Every text in a value, keys of mappings included."""
    if isinstance(tree, dict):
        return [text for pair in cast("dict[str, Any]", tree).items() for one in pair for text in texts(one)]
    if isinstance(tree, list):
        return [text for one in cast("list[Any]", tree) for text in texts(one)]
    return [str(tree or "")]


@given(st.lists(keys, min_size=1), st.booleans())
def test_whatever_a_key_looks_like(secrets: list[str], quoted: bool) -> None:
    told = ["'" + one.replace("'", "''") + "'" if quoted else one for one in secrets]
    text = "# comment\napiKeys:\n" + "".join(f"  - {one}\n" for one in told) + "globalTTL: 5\n"
    try:
        found = masked(text, config_type=CONFIG_TYPE)
    except UsageError:
        return  # not YAML, or not certain
    shown: Any = plain(parse(found.text, "c.yaml")[0])
    for key in (text for one in shown["apiKeys"] for text in texts(one)):
        assert re.fullmatch(r"\(secret \d+\)|(\$\{[\w.-]+\})*[\s'\"]*", key or ""), key  # quotes alone are no key
    assert found.text.startswith("# comment\napiKeys:\n")
    assert found.text.endswith("globalTTL: 5\n")
    if quoted:
        assert all(one not in found.text for one in told if "${" not in one and one.strip("' "))
    assert found.revealed(found.text) == text


@pytest.mark.parametrize(
    "text",
    ["apiKeys: [&k sk-1]\nmodels: {a: {description: *k}}", "apiKeys: [", "# (secret 1)\napiKeys: [sk-1]"],
)
def test_a_text_that_might_show_one_is_not_shown(text: str) -> None:
    with pytest.raises(UsageError, match="config edit"):
        masked(text, config_type=CONFIG_TYPE)


def test_a_mark_cannot_go_where_its_secret_would_be_shown() -> None:
    found = masked(TEXT, config_type=CONFIG_TYPE)
    for text in (
        found.text + "# (secret 1)\n",
        found.text.replace("(secret 1)", "(secret 2)").replace("plain: text", "plain: (secret 1)"),
        found.text.replace("(secret 1), (secret 2)", "(secret 2), (secret 1)"),
        found.text.replace("(secret 4)", "x").replace("plain: text", "plain: (secret 4)"),
    ):
        with pytest.raises(UsageError, match="can only stay in its own value"):
            found.revealed(text)
