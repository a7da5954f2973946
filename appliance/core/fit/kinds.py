"""llama.cpp's (b11434) knowledge of architectures beyond their files: which kind of memory each one keeps.

An architecture that is not here is taken for a transformer that keeps keys and values of all its layers.
"""

from __future__ import annotations

from msgspec import Struct

ENCODING = frozenset(
    ("bert", "clef", "dream", "eurobert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3", "llada", "llada-moe",
     "modern-bert", "neo-bert", "nomic-bert", "nomic-bert-moe", "rnd1", "wavtokenizer-dec")
)  # fmt: skip
"""Architectures that keep nothing between batches."""

RECURRENT = frozenset(("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"))
"""Architectures that keep a state of a fixed size and no context."""

HYBRID = {
    "bailingmoe3": 0,
    "deepseek4": 0,
    "falcon-h1": 0,
    "glm5-next": 0,
    "granitehybrid": 0,
    "jamba": 0,
    "kimi-k3": 0,
    "kimi-linear": 0,
    "lfm2": 0,
    "lfm2moe": 0,
    "minimax-01": 8,
    "nemotron_h": 0,
    "nemotron_h_moe": 0,
    "plamo2": 0,
    "qwen35": 4,
    "qwen35moe": 4,
    "qwen3next": 4,
    "qwen4exp": 4,
}
"""Some layers keep a state and the others a context: one layer in this many has a context; 0: the layers without heads
of keys and values keep a state.
"""


class Windows(Struct, frozen=True, kw_only=True):
    """Sliding windows of an architecture; a file's own keys win."""

    used: bool = False
    every: int = 0
    """One layer in this many sees everything; 0: no layer does."""
    full_first: bool = False
    usual: int = 0
    """The window if the file does not say it."""
    cached_from_start: int = 0
    """Only this many of the first layers have a cache of their own; 0: all."""

    def shared(self, layers: int) -> int:
        """Number of the last layers that use the cache of others."""
        return max(0, layers - self.cached_from_start) if self.cached_from_start else 0


WINDOWS = {
    "afmoe": Windows(used=True, every=4),
    "cohere2": Windows(used=True, every=4),
    "cohere2moe": Windows(used=True, every=4),
    "exaone-moe": Windows(used=True, every=4),
    "exaone4": Windows(used=True, every=4),
    "gemma2": Windows(used=True, every=2, usual=4096),
    "gemma3": Windows(used=True, every=6),
    "gemma3n": Windows(used=True, every=5, cached_from_start=20),
    "gemma4": Windows(used=True, every=6),
    "gpt-oss": Windows(used=True, every=2),
    "laguna": Windows(used=True, every=4, full_first=True),
    "llama4": Windows(used=True, every=4, usual=8192),
    "mellum": Windows(used=True, every=4),
    "mimo2": Windows(used=True, every=6),
    "olmo2": Windows(used=True, every=4),
    "plamo3": Windows(used=True, every=8),
    "smallthinker": Windows(used=True, every=4, full_first=True),
    "step35": Windows(used=True, every=4),
}
