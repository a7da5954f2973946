"""Markdown, tables and code of models in the page: `tests/web/answers.txt`, `tests/web/scenarios/output.mjs`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from page_fixtures import Play, ServeFake, in_both

WEB = Path(__file__).resolve().parents[1] / "web"
TABLE = """### Prices

| Component | Temperature | Price | Manufacturer | Remarks about the delivery |
|---|--:|--:|---|---|
| Compressor | 1,250.50 °C | 1500 € | Donaudampfschifffahrt | `overflow-wrap` and <br>two lines, as models write them |
| Verdichter | 99.95 % | 12,499.99 € | Elektrizitätswerk | see https://example.org/a/very/long/path/that/goes/on |

#### Details

| Component | Price |
|---|---|
| Compressor | 500 € |
"""
LANGUAGES = {
    "c": "int", "c++": "class", "c#": "class", "php": "function", "ruby": "def f; end", "swift": "func",
    "kotlin": "fun", "powershell": "function f { 1 }", "dockerfile": "FROM", "lua": "function", "r": "function",
    "scala": "class", "perl": "sub", "haskell": "module", "elixir": "def", "dart": "class", "julia": "function",
    "groovy": "class", "objectivec": "int", "clojure": "(def x 1)", "erlang": "-module(x).", "ocaml": "let",
    "toml": "a = 1", "makefile": "all: x", "html": "<p>", "tsx": "const", "graphql": "query", "proto": "message X { }",
    "latex": "\\\\x", "nginx": "server {}",
}  # fmt: skip
"""A word of each that has a colour."""
PARTS = """## Part {n}

Some **bold** words, `code` and $x_{n}^2$, as in [a link](https://example.org/{n}).

- one
  - two with *emphasis*
- three

| a | b | c |
|---|--:|---|
| {n} | 12.5 | `x` |
| {n} | 13.5 | y |

$$
x = {n}
- y
$$

```python
def f{n}(x: int) -> str:
    return f"{{x}}"  # {n}
```

"""
GROWING = {
    "parts": "".join(PARTS.replace("{n}", str(n)) for n in range(int(os.environ.get("PARTS", "150")))),
    "list": "".join(f"- item **{n}** with `words`\n" for n in range(1000)),
    "table": "| a | b |\n|---|---|\n" + "".join(f"| {n} | words of {n} |\n" for n in range(1000)),
    "code": "```python\n" + "".join(f"def f{n}(x: int) -> int:\n    return x + {n}\n" for n in range(1100)) + "```\n",
}
"""Long answers, and what is long in them."""
STEEPEST = {"parts": 2, "code": 2, "list": 2, "table": 2.5}
"""How much more a frame may cost late in each: a table is laid out as a whole, because its columns fit all rows."""


@pytest.mark.needs("node", "page-packages")
@pytest.mark.parametrize("seed", ["1", "2"])
def test_answers_become_what_is_expected_whole_and_in_pieces(seed: str) -> None:
    command = ["node", str(WEB / "answers.mjs")]
    environment = os.environ | {"SEED": seed}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


@in_both
def test_no_word_of_a_table_is_broken(play: Play, serve_fake: ServeFake) -> None:
    play("output.tables", serve_fake(FAKE_SCRIPT=json.dumps([{"text": TABLE}])))


def test_details_fold_while_they_come_and_afterwards(play: Play, serve_fake: ServeFake) -> None:
    steps = "".join(f"- Step {n}\n" for n in range(10))
    text = f"Before it.\n\n<details>\n<summary>How **it** works</summary>\n\n{steps}\n</details>\n\nAfter it.\n"
    play("output.folds", serve_fake(FAKE_SCRIPT=json.dumps([{"text": text, "pace": 0.05}])))


def test_code_of_many_languages_has_colours(play: Play, serve_fake: ServeFake) -> None:
    text = "".join(f"```{name}\n{code}\n```\n\n" for name, code in LANGUAGES.items())
    play("output.languages", serve_fake(FAKE_SCRIPT=json.dumps([{"text": text}])), str(len(LANGUAGES)))


@pytest.mark.parametrize("name", GROWING)
def test_a_frame_costs_little_more_late_in_an_answer(play: Play, serve_fake: ServeFake, name: str) -> None:
    """``-s`` shows the figures. On a quiet machine ``PACE=0.005 PARTS=310`` streams 200 pieces a second for 60 s."""
    turn = {"text": GROWING[name], "pace": float(os.environ.get("PACE", "0.001"))}
    play("output.growing", serve_fake(FAKE_SCRIPT=json.dumps([turn])), str(STEEPEST[name]))
