"""Secrets in a configuration's text: none is shown, and each stays in its place."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_values import plain

from appliance.core.config.yaml import parse
from appliance.errors import UsageError
from appliance.features.config_editing.core.masks import masked

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
    found = masked(TEXT)
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
        found = masked(text)
    except UsageError:
        return  # not YAML, or not certain
    shown: Any = plain(parse(found.text, "c.yaml")[0])
    for key in (text for one in shown["apiKeys"] for text in texts(one)):
        assert re.fullmatch(r"\(secret \d+\)|(\$\{[\w.-]+\})*\s*", key or ""), key
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
        masked(text)


def test_a_mark_cannot_go_where_its_secret_would_be_shown() -> None:
    found = masked(TEXT)
    for text in (
        found.text + "# (secret 1)\n",
        found.text.replace("(secret 1)", "(secret 2)").replace("plain: text", "plain: (secret 1)"),
        found.text.replace("(secret 1), (secret 2)", "(secret 2), (secret 1)"),
        found.text.replace("(secret 4)", "x").replace("plain: text", "plain: (secret 4)"),
    ):
        with pytest.raises(UsageError, match="can only stay in its own value"):
            found.revealed(text)
