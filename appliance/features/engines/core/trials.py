"""An engine's test run, asked and answered: the starter model's known answers, the measuring model's file, the log.

The starter model is so small that starting a kernel costs more than computing: it would put every graphics card behind
the processor. So speed is measured with a file that weighs as much as a small real model. Its weights are zeros, which
a file system need not store, and matrix products of zeros take the time of any others. Its answers are worthless.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from appliance.features.engines.core.proofs import Fault

# The starter model's answers: an engine that computes correctly says exactly this, whatever it runs on. The short
# questions go through kernels for a few tokens, the long conversations through those for batches. The constants belong
# to the starter's weights: when it is trained anew, tests/features/engines/test_known.py fails and prints the new ones.

LOST_LIBRARY = re.compile(
    r"error while loading shared libraries|library not loaded|symbol lookup error|a DLL it needs", re.IGNORECASE
)
NO_MEMORY = re.compile(
    r"out of memory|OutOfDeviceMemory|OutOfHostMemory|failed to allocate|unable to allocate|failed to fit params",
    re.IGNORECASE,
)
PORT_TAKEN = re.compile(r"couldn't bind|address already in use", re.IGNORECASE)
USING = re.compile(
    r"using device (?P<name>\S+) \(.*\) \((?P<pci>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])\)", re.IGNORECASE
)
BUFFER = re.compile(r": +(?P<place>\S+) +model buffer size = ")
FILE_NAME = "ballast-1-5x2048.gguf"
"""The measuring model's file. Its first number is the version of everything that is written into it."""
WIDTH = 2048
FEED_FORWARD = 5632
HEADS = 16
KV_HEADS = 4
CONTEXT = 4096
LAYERS = 5
"""Together 240 MB."""
ALIGNMENT = 32
F32, Q8_0 = 0, 8
BLOCK, BLOCK_BYTES = 32, 34
"""Q8_0: this many weights take this many bytes."""
U32, FLOAT, STRING, ARRAY, I32 = 4, 6, 8, 9, 5
LETTERS = 256
"""Number of tokens that are letters, the first ones."""
NORMAL, CONTROL = 1, 3
FORMAT_VERSION = 3
MAGIC = b"GGUF"


class ExpectedAnswer(Struct, frozen=True):
    """A question and the starter's whole answer; ``tokens`` end with the one that ends the turn."""

    question: str
    answer: str
    tokens: tuple[int, ...]


class KnownCompletion(Struct, frozen=True):
    """A prompt for ``/completion``, in the starter's chat template, and what follows it at temperature 0."""

    prompt: str
    content: str
    tokens: tuple[int, ...]


FORMAT = ExpectedAnswer(
    "What does GGUF mean?",
    "GGUF is a file format for language models. One file holds the weights, the vocabulary and the settings.",
    (1174, 306, 259, 406, 877, 371, 582, 354, 16, 744, 406, 1179, 276, 654, 14, 276, 1186, 325, 276, 1059, 16, 2),
)
JOKE = ExpectedAnswer(
    "Tell me a joke.",
    "Why did the llama run so well on a small computer? It carried only light weights.",
    (1102, 551, 276, 341, 365, 313, 918, 285, 259, 294, 505, 33, 433, 861, 305, 1221, 654, 16, 2),
)
SAFETENSORS = ExpectedAnswer(
    "i have safetensors files, do they work",
    "Models must be GGUF files. Other formats have to be converted to GGUF first.",
    (985, 1247, 627, 609, 1024, 16, 923, 1354, 621, 334, 627, 1429, 334, 609, 614, 16, 2),
)
OFFLINE = ExpectedAnswer(
    "Does it work without the internet?",
    "Llama Appliance works without the internet. Only fetching a new model file needs a connection.",
    (561, 335, 753, 1058, 276, 804, 16, 1196, 1197, 259, 540, 271, 406, 855, 259, 1104, 16, 2),
)
EMBEDDING = ExpectedAnswer(
    "What do I need embeddings for?",
    "An embedding is a list of numbers that stands for the meaning of a text. Texts with close meaning get close "
    "numbers.",
    (
        1352, 1218, 306, 259, 481, 350, 834, 288, 1448, 371, 276, 957, 350, 259, 460, 16, 1451, 382, 1019, 957, 549,
        1019, 834, 16, 2,
    ),
)  # fmt: skip
GOODBYE = ExpectedAnswer(
    "See you soon, bye!",
    "Goodbye! Come back whenever you like.",
    (1143, 3, 1142, 795, 754, 315, 639, 16, 2),
)


def _turn(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def _known(asked: ExpectedAnswer, *before: ExpectedAnswer) -> KnownCompletion:
    turns = "".join(_turn("user", one.question) + _turn("assistant", one.answer) for one in before)
    prompt = f"{turns}{_turn('user', asked.question)}<|im_start|>assistant\n"
    return KnownCompletion(prompt, asked.answer, asked.tokens)


KNOWN: tuple[KnownCompletion, ...] = (
    _known(FORMAT),
    _known(JOKE),
    _known(EMBEDDING, FORMAT, JOKE, SAFETENSORS, OFFLINE),
    _known(GOODBYE, SAFETENSORS, OFFLINE, EMBEDDING, FORMAT, JOKE),
)
"""Two of about 20 tokens, one of about 150 and one of about 200, the shortest first."""


def fault_of_start(status: str, executed: bool, lines: Sequence[str]) -> Fault:
    """Return the kind of failure of an engine that ended before it was ready; ``status`` in words."""
    text = "\n".join((*lines, status))
    if LOST_LIBRARY.search(text):
        return "missing"
    if not executed:
        return "damaged"
    return "memory" if NO_MEMORY.search(text) else "load"


def fault_of_death(lines: Sequence[str]) -> Fault:
    """Return the kind of failure of an engine that ended at work."""
    return "memory" if NO_MEMORY.search("\n".join(lines)) else "crash"


def lost_its_port(lines: Iterable[str]) -> bool:
    """True if another program took its port first: start it again on another port."""
    return any(PORT_TAKEN.search(line) for line in lines)


def pci_of(name: str, lines: Iterable[str]) -> str | None:
    """Return the place of the card that it uses as ``name``, lower case; None if it does not report it."""
    found = (USING.search(line) for line in lines)
    return next((match["pci"].lower() for match in found if match is not None and match["name"] == name), None)


def only_on_processor(lines: Iterable[str]) -> bool:
    """True if the log says that every weight is in main memory, although a device was requested."""
    places = [match["place"] for line in lines if (match := BUFFER.search(line)) is not None]
    return bool(places) and all(place.startswith("CPU") for place in places)


class Tensor(Struct, frozen=True):
    """``rows`` of ``width`` numbers; a norm is one row."""

    name: str
    width: int
    rows: int = 1

    @property
    def kind(self) -> int:
        return F32 if self.rows == 1 else Q8_0

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions in GGUF's order."""
        return (self.width,) if self.rows == 1 else (self.width, self.rows)

    @property
    def weights(self) -> int:
        return self.width * self.rows

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.weights * 4 if self.kind == F32 else self.weights // BLOCK * BLOCK_BYTES


def tensors() -> list[Tensor]:
    """Return all tensors, in the order of the file."""
    repeating = [tensor for at in range(LAYERS) for tensor in _layer(at)]
    return [Tensor("token_embd.weight", WIDTH, _vocabulary()), _norm("output_norm"), *repeating]


def header() -> bytes:
    """Return everything in front of the weights, padded so that the weights begin at its end."""
    keys = list(_keys())
    described: list[bytes] = []
    at = 0
    for tensor in tensors():
        dims = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        described.append(_string(tensor.name) + dims + struct.pack("<IQ", tensor.kind, at))
        at += _aligned(tensor.size)
    head = struct.pack("<4sIQQ", MAGIC, FORMAT_VERSION, len(described), len(keys))
    text = head + b"".join(keys) + b"".join(described)
    return text.ljust(_aligned(len(text)), b"\0")


def weights_size() -> int:
    """Return the number of bytes behind the header."""
    return sum(_aligned(tensor.size) for tensor in tensors())


def _layer(at: int) -> list[Tensor]:
    kv = WIDTH // HEADS * KV_HEADS
    shapes = {
        "attn_q": (WIDTH, WIDTH),
        "attn_k": (WIDTH, kv),
        "attn_v": (WIDTH, kv),
        "attn_output": (WIDTH, WIDTH),
        "ffn_gate": (WIDTH, FEED_FORWARD),
        "ffn_up": (WIDTH, FEED_FORWARD),
        "ffn_down": (FEED_FORWARD, WIDTH),
    }
    norms = [_norm(f"blk.{at}.attn_norm"), _norm(f"blk.{at}.ffn_norm")]
    return [*norms, *(Tensor(f"blk.{at}.{name}.weight", *shape) for name, shape in shapes.items())]


def _norm(name: str) -> Tensor:
    return Tensor(f"{name}.weight", WIDTH)


def _keys() -> Iterator[bytes]:
    yield _text("general.architecture", "llama")
    yield _text("general.name", "measuring model")
    for name, number in {
        "context_length": CONTEXT,
        "embedding_length": WIDTH,
        "block_count": LAYERS,
        "feed_forward_length": FEED_FORWARD,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "rope.dimension_count": WIDTH // HEADS,
        "vocab_size": _vocabulary(),
    }.items():
        yield _number(f"llama.{name}", number)
    yield _key("llama.attention.layer_norm_rms_epsilon", FLOAT, struct.pack("<f", 1e-5))
    yield _text("tokenizer.ggml.model", "gpt2")
    yield _text("tokenizer.ggml.pre", "gpt-2")
    letters = _letters()
    yield _array("tokenizer.ggml.tokens", STRING, [_string(piece) for piece in (*letters, "<|end|>")])
    kinds = [NORMAL] * len(letters) + [CONTROL]
    yield _array("tokenizer.ggml.token_type", I32, [struct.pack("<i", kind) for kind in kinds])
    yield _array("tokenizer.ggml.merges", STRING, [_string("a b")])
    for name in ("bos_token_id", "eos_token_id", "padding_token_id"):
        yield _number(f"tokenizer.ggml.{name}", len(letters))


def _letters() -> list[str]:
    """Return a byte-level vocabulary: the 256 letters that stand for bytes, those of a merge, and filling."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [LETTERS + at for at in range(LETTERS - len(shown))]
    return [*(chr(code) for code in (*shown, *hidden)), "ab", *(f"<{at}>" for at in range(62))]


def _vocabulary() -> int:
    return len(_letters()) + 1


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _key(name: str, kind: int, value: bytes) -> bytes:
    return _string(name) + struct.pack("<I", kind) + value


def _text(name: str, value: str) -> bytes:
    return _key(name, STRING, _string(value))


def _number(name: str, value: int) -> bytes:
    return _key(name, U32, struct.pack("<I", value))


def _array(name: str, kind: int, values: Sequence[bytes]) -> bytes:
    return _key(name, ARRAY, struct.pack("<IQ", kind, len(values)) + b"".join(values))
