"""What the starter model is known to say: an engine that computes correctly says exactly this, whatever it runs on.

At every step the best token leads the next one by several nats (`LEAST_MARGIN`; rounding and kernels differ by a
hundredth), so that every correct backend gives these tokens. The short questions go through kernels for a few tokens,
the long conversations through those for batches; answers are generated token by token.

The constants belong to the starter model's weights. When it is trained anew, ``tests/engines/test_known.py`` fails and
prints the exchanges as they are now; the same test measures the margins with a real engine.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

LEAST_MARGIN = 5.0
"""Nats by which the best token leads at every step of every answer, at least."""


class Exchange(Struct, frozen=True):
    """A question and the starter's whole answer; ``tokens`` end with the one that ends the turn."""

    question: str
    answer: str
    tokens: tuple[int, ...]


class Known(Struct, frozen=True):
    """A prompt for ``/completion``, in the starter's chat template, and what follows it at temperature 0."""

    prompt: str
    content: str
    tokens: tuple[int, ...]


FORMAT = Exchange(
    "What does GGUF mean?",
    "GGUF is a file format for language models. One file holds the weights, the vocabulary and the settings.",
    (1174, 306, 259, 406, 877, 371, 582, 354, 16, 744, 406, 1179, 276, 654, 14, 276, 1186, 325, 276, 1059, 16, 2),
)
JOKE = Exchange(
    "Tell me a joke.",
    "Why did the llama run so well on a small computer? It carried only light weights.",
    (1102, 551, 276, 341, 365, 313, 918, 285, 259, 294, 505, 33, 433, 861, 305, 1221, 654, 16, 2),
)
SAFETENSORS = Exchange(
    "i have safetensors files, do they work",
    "Models must be GGUF files. Other formats have to be converted to GGUF first.",
    (985, 1247, 627, 609, 1024, 16, 923, 1354, 621, 334, 627, 1429, 334, 609, 614, 16, 2),
)
OFFLINE = Exchange(
    "Does it work without the internet?",
    "Llama Appliance works without the internet. Only fetching a new model file needs a connection.",
    (561, 335, 753, 1058, 276, 804, 16, 1196, 1197, 259, 540, 271, 406, 855, 259, 1104, 16, 2),
)
EMBEDDING = Exchange(
    "What do I need embeddings for?",
    "An embedding is a list of numbers that stands for the meaning of a text. Texts with close meaning get close "
    "numbers.",
    (
        1352, 1218, 306, 259, 481, 350, 834, 288, 1448, 371, 276, 957, 350, 259, 460, 16, 1451, 382, 1019, 957, 549,
        1019, 834, 16, 2,
    ),
)  # fmt: skip
GOODBYE = Exchange(
    "See you soon, bye!",
    "Goodbye! Come back whenever you like.",
    (1143, 3, 1142, 795, 754, 315, 639, 16, 2),
)


def prompt_of(before: Sequence[Exchange], question: str) -> str:
    """A question after a conversation, as the starter's chat template writes it."""
    turns = "".join(_turn("user", one.question) + _turn("assistant", one.answer) for one in before)
    return f"{turns}{_turn('user', question)}<|im_start|>assistant\n"


def _turn(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def _known(asked: Exchange, *before: Exchange) -> Known:
    return Known(prompt_of(before, asked.question), asked.answer, asked.tokens)


KNOWN: tuple[Known, ...] = (
    _known(FORMAT),
    _known(JOKE),
    _known(EMBEDDING, FORMAT, JOKE, SAFETENSORS, OFFLINE),
    _known(GOODBYE, SAFETENSORS, OFFLINE, EMBEDDING, FORMAT, JOKE),
)
"""Two of about 20 tokens, one of about 150 and one of about 200, the shortest first."""
