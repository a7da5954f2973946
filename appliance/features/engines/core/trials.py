"""An engine's test run, asked and answered: the starter model's known answers, the measuring model's file, the log.

The starter model is so small that starting a kernel costs more than computing: it would put every graphics card behind
the processor. So speed is measured with a file that weighs as much as a small real model. Its weights are zeros, which
a file system need not store, and matrix products of zeros take the time of any others. Its answers are worthless.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence

from msgspec import Struct

from appliance.features.engines.core.listing import LOST_LIBRARY, Fault
from appliance.features.engines.core.standing import ProvenSpeeds

# The starter model's answers: an engine that computes correctly says exactly this, whatever it runs on. The short
# questions go through kernels for a few tokens, the long conversations through those for batches. The constants belong
# to the starter's weights: when it is trained anew, tests/features/engines/test_trials.py fails and prints new ones.

NO_MEMORY = re.compile(
    r"out of memory|OutOfDeviceMemory|OutOfHostMemory|failed to allocate|unable to allocate|failed to fit params",
    re.IGNORECASE,
)
PORT_TAKEN = re.compile(r"couldn't bind|address already in use", re.IGNORECASE)
USING = re.compile(
    r"using device (?P<name>\S+) \(.*\) \((?P<pci>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])\)", re.IGNORECASE
)
BUFFER = re.compile(r": +(?P<place>\S+) +model buffer size = ")
WARM_UP = (64, 2)  # tokens of prompt and answer of the first request; it may build kernels, and is not measured
SMALL = (64, 4)
WHOLE = (512, 32)
ROUNDS = 3  # most repetitions of the measurement; the fastest counts, as cards need a moment to wake up
MOST_TOKENS = 1e6  # largest number of tokens of one request; no measurement asks for as many
QUICKEST, SLOWEST = 1e-3, 1e9  # shortest and longest plausible time for a part of a request, in milliseconds
BUDGET = 6.0  # seconds that measuring may take after the first request; a slow machine computes fewer tokens

SPEED_KEPT = 0.8  # part of the old build's speed that a new one must reach
FILE_NAME = "ballast-1-5x2048.gguf"
"""The measuring model's file. Its first number is the version of everything that is written into it."""
WIDTH = 2048
FEED_FORWARD = 5632
HEADS = 16
KV_HEADS = 4
CONTEXT = 4096
LAYERS = 5  # together 240 MB
ALIGNMENT = 32
F32, Q8_0 = 0, 8
BLOCK, BLOCK_BYTES = 32, 34  # Q8_0: this many weights take this many bytes
U32, FLOAT, STRING, ARRAY, I32 = 4, 6, 8, 9, 5
LETTERS = 256  # number of tokens that are letters, the first ones
NORMAL, CONTROL = 1, 3
FORMAT_VERSION = 3
MAGIC = b"GGUF"


class KnownCompletion(Struct, frozen=True):
    """A prompt for ``/completion``, in the starter's chat template, and what follows it at temperature 0."""

    prompt: str
    content: str
    tokens: tuple[int, ...]  # they end with the one that ends the turn


FORMAT = (
    "What does GGUF mean?",
    "GGUF is a file format for language models. One file holds the weights, the vocabulary and the settings.",
)
JOKE = "Tell me a joke.", "Why did the llama run so well on a small computer? It carried only light weights."
SAFETENSORS = (
    "i have safetensors files, do they work",
    "Models must be GGUF files. Other formats have to be converted to GGUF first.",
)
OFFLINE = (
    "Does it work without the internet?",
    "Llama Appliance works without the internet. Only fetching a new model file needs a connection.",
)
EMBEDDING = (
    "What do I need embeddings for?",
    "An embedding is a list of numbers that stands for the meaning of a text. Texts with close meaning get close "
    "numbers.",
)
GOODBYE = "See you soon, bye!", "Goodbye! Come back whenever you like."


def _known(tokens: tuple[int, ...], *talk: tuple[str, str]) -> KnownCompletion:
    """The last answer of the talk, of these tokens."""
    user, answer, end = "<|im_start|>user\n", "<|im_start|>assistant\n", "<|im_end|>\n"
    *before, (asked, content) = talk
    turns = "".join(f"{user}{question}{end}{answer}{said}{end}" for question, said in before)
    return KnownCompletion(f"{turns}{user}{asked}{end}{answer}", content, tokens)


KNOWN: tuple[KnownCompletion, ...] = (
    _known(
        (1174, 306, 259, 406, 877, 371, 582, 354, 16, 744, 406, 1179, 276, 654, 14, 276, 1186, 325, 276, 1059, 16, 2),
        FORMAT,
    ),
    _known((1102, 551, 276, 341, 365, 313, 918, 285, 259, 294, 505, 33, 433, 861, 305, 1221, 654, 16, 2), JOKE),
    _known(
        (
            1352, 1218, 306, 259, 481, 350, 834, 288, 1448, 371, 276, 957, 350, 259, 460, 16, 1451, 382, 1019, 957, 549,
            1019, 834, 16, 2,
        ),
        FORMAT, JOKE, SAFETENSORS, OFFLINE, EMBEDDING,
    ),
    _known((1143, 3, 1142, 795, 754, 315, 639, 16, 2), SAFETENSORS, OFFLINE, EMBEDDING, FORMAT, JOKE, GOODBYE),
)  # fmt: skip
"""Two of about 20 tokens, one of about 150 and one of about 200, the shortest first."""


def fault_of_start(status: str, executed: bool, lines: Sequence[str]) -> Fault:
    """Return the kind of failure of an engine that ended before it was ready; ``status`` in words."""
    text = "\n".join((*lines, status))
    if re.search(LOST_LIBRARY, text):
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


class EngineTimings(Struct, frozen=True):
    """llama-server's own measurement of a request. Times in milliseconds."""

    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0

    @property
    def told(self) -> bool:
        """True if all of it is there, and plausible."""
        counts, times = (self.prompt_n, self.predicted_n), (self.prompt_ms, self.predicted_ms)
        return all(0 < count <= MOST_TOKENS for count in counts) and all(QUICKEST <= ms <= SLOWEST for ms in times)


def next_request(done: Sequence[EngineTimings], spent: float) -> tuple[int, int] | None:
    """Return the tokens of prompt and answer to measure with next; None: it is enough.

    ``spent``: seconds since the first request was answered. The expected time of a request follows the fastest one so
    far, because the first of a size may also build kernels.
    """
    if len(done) < 2:
        return SMALL if done else WARM_UP
    found = speeds_of(done[1:])
    if found is None or len(done) >= 2 + ROUNDS:
        return None
    expected = WHOLE[0] / found.prompt + WHOLE[1] / found.generation
    part = (BUDGET - spent) / expected
    if part >= 1:
        return WHOLE
    smaller = int(WHOLE[0] * part), max(SMALL[1], int(WHOLE[1] * part))
    return smaller if len(done) == 2 and smaller[0] >= 2 * SMALL[0] else None


def speeds_of(done: Sequence[EngineTimings], part: float = 1.0) -> ProvenSpeeds | None:
    """Return the best result; ``part``: the share of the measuring model that was computed. None: no result."""
    told = [timings for timings in done if timings.told]
    if not told:
        return None
    prompt = max(timings.prompt_n / timings.prompt_ms for timings in told) * 1000
    generation = max(timings.predicted_n / timings.predicted_ms for timings in told) * 1000
    return ProvenSpeeds(prompt * part, generation * part)


def canary_failure(old: ProvenSpeeds, new: ProvenSpeeds) -> str:
    """Return why the new build is refused for its speed; empty: it is not."""
    if new.nominal_seconds * SPEED_KEPT <= old.nominal_seconds:
        return ""
    reached = 100 * old.nominal_seconds / new.nominal_seconds
    return (
        f"it reaches {reached:.0f} % of the speed of the build in use (at least "
        f"{100 * SPEED_KEPT:.0f} % are required): {new.prompt:.0f} and {new.generation:.0f} tokens/s, "
        f"not {old.prompt:.0f} and {old.generation:.0f}"
    )


def tensors() -> dict[str, tuple[int, ...]]:
    """Return the dimensions of all tensors by name, in the order of the file. Those with one are norms."""
    kv = WIDTH // HEADS * KV_HEADS
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (WIDTH,), "ffn_norm": (WIDTH,),
        "attn_q": (WIDTH, WIDTH), "attn_k": (WIDTH, kv), "attn_v": (WIDTH, kv), "attn_output": (WIDTH, WIDTH),
        "ffn_gate": (WIDTH, FEED_FORWARD), "ffn_up": (WIDTH, FEED_FORWARD), "ffn_down": (FEED_FORWARD, WIDTH),
    }  # fmt: skip
    ends = {"token_embd.weight": (WIDTH, len(_vocabulary())), "output_norm.weight": (WIDTH,)}
    return ends | {f"blk.{at}.{name}.weight": shape for at in range(LAYERS) for name, shape in layer.items()}


def header() -> bytes:
    """Return everything in front of the weights, padded so that the weights begin at its end."""
    keys = [_string(name) + _typed(value) for name, value in _keys().items()]
    described: list[bytes] = []
    at = 0
    for name, shape in tensors().items():
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        described.append(_string(name) + dims + struct.pack("<IQ", F32 if len(shape) == 1 else Q8_0, at))
        at += _aligned(size_of(shape))
    head = struct.pack("<4sIQQ", MAGIC, FORMAT_VERSION, len(described), len(keys))
    text = head + b"".join(keys) + b"".join(described)
    return text.ljust(_aligned(len(text)), b"\0")


def weights_size() -> int:
    """Return the number of bytes behind the header."""
    return sum(_aligned(size_of(shape)) for shape in tensors().values())


def size_of(shape: tuple[int, ...]) -> int:
    """Return the bytes of a tensor with these dimensions."""
    return shape[0] * 4 if len(shape) == 1 else shape[0] * shape[1] // BLOCK * BLOCK_BYTES


def _keys() -> dict[str, str | int | float | list[str] | list[int]]:
    pieces = _vocabulary()
    end = len(pieces) - 1
    return {
        "general.architecture": "llama",
        "general.name": "measuring model",
        "llama.context_length": CONTEXT,
        "llama.embedding_length": WIDTH,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": FEED_FORWARD,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.rope.dimension_count": WIDTH // HEADS,
        "llama.vocab_size": len(pieces),
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [NORMAL] * end + [CONTROL],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": end,
        "tokenizer.ggml.eos_token_id": end,
        "tokenizer.ggml.padding_token_id": end,
    }


def _vocabulary() -> list[str]:
    """Return a byte-level vocabulary: the 256 letters that stand for bytes, those of a merge, filling, and the end."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [LETTERS + at for at in range(LETTERS - len(shown))]
    return [*(chr(code) for code in (*shown, *hidden)), "ab", *(f"<{at}>" for at in range(62)), "<|end|>"]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _typed(value: str | float | Sequence[str | int]) -> bytes:
    """A value behind the word for its type; arrays are of text or of signed numbers."""
    match value:
        case str():
            return struct.pack("<I", STRING) + _string(value)
        case int():
            return struct.pack("<II", U32, value)
        case float():
            return struct.pack("<If", FLOAT, value)
        case _:
            items = [_string(one) if isinstance(one, str) else struct.pack("<i", one) for one in value]
            kind = STRING if isinstance(value[0], str) else I32
            return struct.pack("<IIQ", ARRAY, kind, len(items)) + b"".join(items)
