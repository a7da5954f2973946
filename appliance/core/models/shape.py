"""The parts of a model, as far as its memory depends on them: from keys and tensor table of its GGUF header.

Which kind of memory an architecture keeps is llama.cpp's (b11434) knowledge beyond the files. One that is not in these
tables is taken for a transformer that keeps keys and values of all its layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, structs

from appliance.core.models.gguf_bytes import MAX_LAYERS, Array, Part, Tensors, Value

ENCODING = frozenset(
    ("bert", "clef", "dream", "eurobert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3", "llada", "llada-moe",
     "modern-bert", "neo-bert", "nomic-bert", "nomic-bert-moe", "rnd1", "wavtokenizer-dec")
)  # fmt: skip
"""Architectures that keep nothing between batches."""

RECURRENT = frozenset(("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"))
"""Architectures that keep a state of a fixed size and no context."""

HYBRID = {
    "bailingmoe3": 0, "deepseek4": 0, "falcon-h1": 0, "glm5-next": 0, "granitehybrid": 0, "jamba": 0, "kimi-k3": 0,
    "kimi-linear": 0, "lfm2": 0, "lfm2moe": 0, "minimax-01": 8, "nemotron_h": 0, "nemotron_h_moe": 0, "plamo2": 0,
    "qwen35": 4, "qwen35moe": 4, "qwen3next": 4, "qwen4exp": 4,
}  # fmt: skip
"""Some layers keep a state and the others a context: one layer in this many has a context; 0: the layers without heads
of keys and values keep a state.
"""
SHAPE_KEYS = frozenset({
    "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.key_length_mla",
    "attention.key_length_swa", "attention.kv_lora_rank", "attention.recurrent_layers", "attention.shared_kv_layers",
    "attention.sliding_window", "attention.sliding_window_pattern", "attention.value_length",
    "attention.value_length_swa", "block_count", "context_length", "embedding_length", "expert_count",
    "expert_feed_forward_length", "expert_used_count", "feed_forward_length", "full_attention_interval",
    "kda.head_dim", "nextn_predict_layers", "shortconv.l_cache", "ssm.conv_kernel", "ssm.group_count",
    "ssm.inner_size", "ssm.state_size", "token_shift_count", "wkv.head_size",
})  # fmt: skip
"""Keys after ``<architecture>.`` that are read for a model's shape."""
MOST = 1 << 31
"""Every number of a shape is smaller: llama.cpp holds them in 32 bits."""


class Windows(Struct, frozen=True, kw_only=True):
    """Sliding windows of an architecture; a file's own keys win."""

    every: int = 0  # one layer in this many sees everything; 0: no layer does
    full_first: bool = False
    usual: int = 0  # the window if the file does not say it
    cached_from_start: int = 0  # only this many of the first layers have a cache of their own; 0: all


WINDOWS = {
    "afmoe": Windows(every=4),
    "cohere2": Windows(every=4),
    "cohere2moe": Windows(every=4),
    "exaone-moe": Windows(every=4),
    "exaone4": Windows(every=4),
    "gemma2": Windows(every=2, usual=4096),
    "gemma3": Windows(every=6),
    "gemma3n": Windows(every=5, cached_from_start=20),
    "gemma4": Windows(every=6),
    "gpt-oss": Windows(every=2),
    "laguna": Windows(every=4, full_first=True),
    "llama4": Windows(every=4, usual=8192),
    "mellum": Windows(every=4),
    "mimo2": Windows(every=6),
    "olmo2": Windows(every=4),
    "plamo3": Windows(every=8),
    "smallthinker": Windows(every=4, full_first=True),
    "step35": Windows(every=4),
}


class ModelLayer(Struct, frozen=True, kw_only=True):
    """One layer: its weights in bytes, and how many numbers it keeps."""

    attention: int = 0  # norms, and everything that mixes tokens
    feed: int = 0
    experts: int = 0
    repacked: int = 0  # the part of the weights that the CPU backend copies into another order
    keys: int = 0  # numbers per token in the cache; 0 for a layer without one
    values: int = 0
    windowed: bool = False  # true if it looks back no further than the window
    state: int = 0  # numbers per sequence, whatever its length
    queries: int = 0  # numbers per token in its queries to the cache

    @property
    def weights(self) -> int:
        return self.attention + self.feed + self.experts


class Shape(Struct, frozen=True, kw_only=True):
    """A model. Sizes in bytes, widths in numbers per token."""

    architecture: str
    layers: tuple[ModelLayer, ...]
    input: int = 0  # the table that tokens are looked up in; it stays in main memory
    output: int = 0
    """The weights that make logits. With tied weights the input is loaded twice if a GPU makes them."""
    other: int = 0  # loaded with the output
    tied: bool = True
    output_repacked: int = 0
    tail: int  # bytes at the file's end that are no longer needed if weights are copied into another order
    vocabulary: int
    trained: int  # tokens of context that it was trained for; 0 if the file does not say
    width: int
    heads: int
    feed: int = 0  # width of a feed-forward part of its own, or of the experts that all tokens share
    gated: bool = False
    experts: int
    experts_used: int
    expert_feed: int
    window: int
    latent: int  # numbers per token in the compressed keys and values; 0: not compressed
    latent_head: int  # width of a head that is computed from them
    inner: int  # width of the recurrent part
    encoder: bool  # true if it keeps no context between batches

    @property
    def weights(self) -> int:
        return self.input + self.output + self.other + sum(layer.weights for layer in self.layers)


def shape_of(architecture: str, values: Mapping[str, Value], tensors: Tensors) -> Shape | None:
    """Return None for a file that is not a model of its own, or does not say enough, or contains nonsense."""
    keys = _Keys(architecture, values)
    count, width = keys.number("block_count"), keys.number("embedding_length")
    if not 0 < count <= MAX_LAYERS or not 0 < width < MOST or tensors.unknown:
        return None
    heads = keys.number("attention.head_count")
    latent = keys.number("attention.kv_lora_rank") if keys.number("attention.key_length_mla") else 0
    tokens = values.get("tokenizer.ggml.tokens")
    table = next((part.rows for part in tensors.parts if (part.layer, part.kind) == (-1, "input")), 0)
    shape = Shape(
        architecture=architecture,
        layers=_layers(keys, count, width),
        tail=tensors.tail,
        vocabulary=tokens.count if isinstance(tokens, Array) else table,
        trained=keys.number("context_length"),
        width=width,
        heads=heads,
        experts=keys.number("expert_count"),
        experts_used=keys.number("expert_used_count"),
        expert_feed=keys.number("expert_feed_forward_length") or keys.number("feed_forward_length"),
        window=keys.number("attention.sliding_window") or _windows(keys).usual,
        latent=latent,
        latent_head=keys.number("attention.key_length_mla"),
        inner=keys.number("ssm.inner_size"),
        encoder=architecture in ENCODING,
    )
    sane = max(shape.vocabulary, shape.trained, shape.heads, shape.experts_used) < MOST
    return with_parts(shape, tensors.parts) if sane else None


def with_parts(shape: Shape, parts: Iterable[Part]) -> Shape:
    """Add the weights of a file: of the only one, or of one more shard."""
    layers = list(shape.layers)
    sums = {"input": shape.input, "output": shape.output, "other": shape.other}
    repacked, tied = shape.output_repacked, shape.tied
    feed, gated = shape.feed, shape.gated
    for part in parts:
        gated = gated or part.gated
        feed = max(feed, part.rows) if part.kind == "feed" else feed
        if part.layer < 0:
            sums[part.kind] += part.size
            repacked += part.repacked
            tied = tied and part.kind != "output"
        elif part.layer < len(layers):
            layer = layers[part.layer]
            more = {part.kind: getattr(layer, part.kind) + part.size, "repacked": layer.repacked + part.repacked}
            layers[part.layer] = structs.replace(layer, **more)
    return structs.replace(
        shape, layers=tuple(layers), **sums, output_repacked=repacked, tied=tied, feed=feed, gated=gated
    )


class _Keys:
    """The numbers under one architecture's name; a value that is absent, negative, too large or not a number is 0."""

    def __init__(self, architecture: str, values: Mapping[str, Value]) -> None:
        self.architecture = architecture
        self._values = values

    def number(self, key: str) -> int:
        """Return the largest element of a list, or the value itself."""
        return max(self.list(key), default=0)

    def list(self, key: str) -> tuple[int, ...]:
        value = self._values.get(f"{self.architecture}.{key}")
        numbers = value.numbers if isinstance(value, Array) else (value,)
        return tuple(int(n) if isinstance(n, int) and 0 <= n < MOST else 0 for n in numbers if n is not None)

    def of_layers(self, key: str, count: int) -> tuple[int, ...] | None:
        """Return one number for each layer, from a list or from one number for all; None when it is absent."""
        numbers = self.list(key)
        if not numbers:
            return None
        return (numbers * count)[:count] if len(numbers) == 1 else (numbers + (0,) * count)[:count]


# Not every layer has a cache of its own. The last ones of some models read the cache of an earlier layer (``cached`` is
# the first of these). Layers behind ``trunk`` guess further tokens ahead (next-n prediction) and keep nothing. With
# latent attention the values are computed from the compressed keys, so they take no room.
def _layers(keys: _Keys, count: int, width: int) -> tuple[ModelLayer, ...]:
    heads = keys.of_layers("attention.head_count", count) or (0,) * count
    kv_heads = keys.of_layers("attention.head_count_kv", count) or heads
    most_heads = max(heads)
    usual = width // most_heads if most_heads else 0
    full = (keys.number("attention.key_length") or usual, keys.number("attention.value_length") or usual)
    windowed = _windowed(keys, count)
    near = (
        keys.number("attention.key_length_swa") or full[0],
        keys.number("attention.value_length_swa") or full[1],
    )
    latent = bool(keys.number("attention.key_length_mla"))
    recurrent, attending = _recurrent(keys, count, kv_heads)
    cached = min(count - keys.number("attention.shared_kv_layers"), _windows(keys).cached_from_start or count)
    trunk = count - keys.number("nextn_predict_layers")
    state = _state(keys, width, most_heads)
    layers: list[ModelLayer] = []
    for number in range(count):
        head = near if windowed[number] else full
        keeps = number in attending and number < min(cached, trunk)
        layers.append(
            ModelLayer(
                keys=kv_heads[number] * head[0] if keeps else 0,
                values=kv_heads[number] * head[1] if keeps and not latent else 0,
                windowed=windowed[number],
                state=state if number in recurrent and number < trunk else 0,
                queries=heads[number] * head[0],
            )
        )
    return tuple(layers)


def _windows(keys: _Keys) -> Windows:
    return WINDOWS.get(keys.architecture, Windows())


def _windowed(keys: _Keys, count: int) -> tuple[bool, ...]:
    """Return which layers look back no further than the window. A pattern of n is n - 1 such layers and a full one."""
    windows = _windows(keys)
    if keys.architecture not in WINDOWS or not (keys.number("attention.sliding_window") or windows.usual):
        return (False,) * count
    told = keys.list("attention.sliding_window_pattern")
    if len(told) > 1:
        return tuple(bool(n) for n in (told + (0,) * count)[:count])
    every = told[0] if told else windows.every
    if every == 0:
        return (True,) * count
    return tuple(n % every != (0 if windows.full_first else every - 1) for n in range(count))


def _recurrent(keys: _Keys, count: int, kv_heads: tuple[int, ...]) -> tuple[frozenset[int], frozenset[int]]:
    """Return the layers that keep a state, and the layers that keep keys and values."""
    every = frozenset(range(count))
    if keys.architecture in RECURRENT:
        return every, frozenset()
    if keys.architecture in ENCODING:
        return frozenset(), frozenset()
    if keys.architecture not in HYBRID:
        return frozenset(), every
    if keys.architecture == "falcon-h1":
        return every, every
    if told := keys.list("attention.recurrent_layers"):
        mixing = frozenset(n for n, recurrent in enumerate(told[:count]) if recurrent)
    elif HYBRID[keys.architecture]:
        interval = keys.number("full_attention_interval") or HYBRID[keys.architecture]
        mixing = frozenset(n for n in every if (n + 1) % interval)
    else:
        mixing = frozenset(n for n in every if not kv_heads[n])
    if keys.architecture.startswith("nemotron_h"):
        feeds = keys.of_layers("feed_forward_length", count) or (0,) * count
        alone = frozenset(n for n in every if not feeds[n])
        return mixing & alone, alone - mixing
    return mixing, every - mixing


def _state(keys: _Keys, width: int, heads: int) -> int:
    """Return the numbers that a recurrent layer keeps for one sequence."""
    if head := keys.number("wkv.head_size"):
        return (keys.number("token_shift_count") or 2) * width + width * head
    if cells := keys.number("shortconv.l_cache"):
        return width * (cells - 1)
    kernel = keys.number("ssm.conv_kernel")
    if head := keys.number("kda.head_dim"):
        return 3 * ((kernel - 1) if kernel else 3) * heads * head + head * head * heads
    inner, size = keys.number("ssm.inner_size"), keys.number("ssm.state_size")
    return max(0, kernel - 1) * (inner + 2 * keys.number("ssm.group_count") * size) + size * inner
