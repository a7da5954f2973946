"""Markdown, tables and code of models in the page: `tests/web/scenarios/output.mjs`."""

from __future__ import annotations

import json
import os

import pytest
from page_fixtures import Play, ServeFake, in_both

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


@in_both
def test_no_word_of_a_table_is_broken(play: Play, serve_fake: ServeFake) -> None:
    play("output.tables", serve_fake(FAKE_SCRIPT=json.dumps([{"text": TABLE}])))


def test_details_fold_while_they_come_and_afterwards(play: Play, serve_fake: ServeFake) -> None:
    steps = "".join(f"- Step {n}\n" for n in range(10))
    text = f"Before it.\n\n<details>\n<summary>How **it** works</summary>\n\n{steps}\n</details>\n\nAfter it.\n"
    play("output.folds", serve_fake(FAKE_SCRIPT=json.dumps([{"text": text, "pace": 0.05}])))


@pytest.mark.parametrize("name", GROWING)
def test_a_frame_costs_little_more_late_in_an_answer(play: Play, serve_fake: ServeFake, name: str) -> None:
    """``-s`` shows the figures. On a quiet machine ``PACE=0.005 PARTS=310`` streams 200 pieces a second for 60 s."""
    turn = {"text": GROWING[name], "pace": float(os.environ.get("PACE", "0.001"))}
    play("output.growing", serve_fake(FAKE_SCRIPT=json.dumps([turn])), str(STEEPEST[name]))
