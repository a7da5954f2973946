"""Why tests of llama.cpp's suites are not passed, and whether that still holds.

`NEITHER` are those that the real program does not pass either: the models are generated, and the internet is out of
reach. `ONLY_REAL` are those that it passes and this one, on purpose, does not; any other such test is a mistake.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from columns import Outcome

TRAINED = "needs what a trained model knows"
RERANKER = "needs a reranker, which is not generated"
DECISIONS = "needs a model that decides, which is not generated"
TOKENS = "counts the tokens of the trained vocabulary"

Reasons = Mapping[str, str]
"""A suite, a test, or a test with one of its parameters, and the reason."""

NEITHER: Reasons = {
    "ctx_shift.py::test_ctx_shift_enabled": TOKENS,
    "ctx_shift.py::test_ctx_shift_disabled_short_prompt[-1-248-True]": TOKENS,
    "embedding.py::test_embedding_error_prompt_too_long": "needs an encoder; the generated model decodes",
    "proxy.py::test_mcp_proxy": "asks example.com",
    "rerank.py": RERANKER,
    "systemone.py": DECISIONS,
    "vision_api.py::test_vision_chat_completion": TRAINED,
    "vision_api.py::test_vision_chat_completion_token_count": TRAINED,
    "vision_api.py::test_vision_completion": TRAINED,
}
ONLY_REAL: dict[str, str] = {}
ONLY_REAL_EMBEDDED: dict[str, str] = {}
"""The same where this program runs on its embedded engine."""


def reason_for(test: str, known: Reasons) -> str | None:
    """Why this test is not passed, if that is known."""
    return next((reason for entry, reason in known.items() if _covers(entry, test)), None)


def stale(known: Reasons, missed: Sequence[Outcome], suites: Container[str]) -> list[str]:
    """The entries for suites that were run, none of whose tests is among those that were missed."""
    mine = [entry for entry in known if entry.partition(".py")[0] in suites]
    return [entry for entry in mine if not any(_covers(entry, one.test) for one in missed)]


def _covers(entry: str, test: str) -> bool:
    return test == entry or test.startswith((f"{entry}::", f"{entry}["))
