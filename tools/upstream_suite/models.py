"""Generates the models that llama.cpp's suites ask for, as a folder that a hub serves and as a cache that is filled.

``python models.py HUB CACHE`` writes HUB/<org>/<repo>/<file> and, of all but what the suites download themselves,
CACHE/models--<org>--<repo>/. A model is a table of what follows what, dressed as a Llama: the embeddings are one-hot,
attention and feed-forward add nothing, and the output matrix holds the table.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import words
from gguf_writer import Tensors, Value, write, write_split
from pictures import png, projector

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "fakes"))

from model_hub import State

CONTEXT = 8192
HEAD, FEED_FORWARD = 32, 32
NORMAL, UNKNOWN_TOKEN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
NEVER, UNLIKELY, LIKELY, CERTAIN = -40.0, -12.0, 1.2, 12.0
MEAN_POOLING = 1

OWN = "ggml-org"
FETCHED = ("test-model-router-download", "test-preset-ci", "tiny-llamas")
"""Not in the cache: the suites download them."""
PRESETS = """\
[tinygemma3-preset]
hf-repo = ggml-org/tinygemma3-GGUF:Q8_0

[stories260K-test]
hf-repo = ggml-org/test-model-stories260K
"""


def tokens_of(pieces: Sequence[str]) -> list[str]:
    """Special ones, bytes, letters, pieces; the order is the numbering."""
    one_byte = [f"<0x{byte:02X}>" for byte in range(256)]
    return list(dict.fromkeys([*words.SPECIAL, *one_byte, *words.LETTERS, *pieces]))


def story_table(tokens: Sequence[str]) -> np.ndarray:
    """The logit of each token (row) after each token (column)."""
    number = {token: at for at, token in enumerate(tokens)}
    table = np.full((len(tokens), len(tokens)), UNLIKELY, dtype=np.float32)
    table[: len(words.SPECIAL) + 256] = NEVER
    story = [number[word] for word in words.STORY]
    table[story, :] = np.linspace(0.0, -0.4, len(story))[:, np.newaxis]  # no two alike, or sorting could go either way
    for word, following in zip(story, [*story[1:], story[0]], strict=True):
        table[following, word] = LIKELY
    # Nothing hints at a beginning: any word of the story, but the same one when nothing is left to chance.
    others = [at for at in range(len(tokens)) if at not in set(story)]
    table[story[0], others] = LIKELY
    for last, following in words.CERTAIN.items():
        table[number[following], number[last]] = CERTAIN
    return table


def llama(tokens: Sequence[str], table: np.ndarray) -> tuple[dict[str, Value], Tensors]:
    """Metadata and tensors of a model with this vocabulary that continues as ``table`` says."""
    count = len(tokens)
    width = -(-count // 64) * 64
    embedding = np.eye(count, width, dtype=np.float32)
    output = np.zeros((count, width), dtype=np.float32)
    output[:, :count] = table / np.sqrt(width)  # the norm in front makes a one-hot vector sqrt(width) long

    def nothing(rows: int, columns: int) -> np.ndarray:
        return np.zeros((rows, columns), dtype=np.float32)

    ones = np.ones(width, dtype=np.float32)
    tensors = {
        "token_embd.weight": embedding,
        "output_norm.weight": ones,
        "output.weight": output,
        "blk.0.attn_norm.weight": ones,
        "blk.0.attn_q.weight": nothing(HEAD, width),
        "blk.0.attn_k.weight": nothing(HEAD, width),
        "blk.0.attn_v.weight": nothing(HEAD, width),
        "blk.0.attn_output.weight": nothing(width, HEAD),
        "blk.0.ffn_norm.weight": ones,
        "blk.0.ffn_gate.weight": nothing(FEED_FORWARD, width),
        "blk.0.ffn_up.weight": nothing(FEED_FORWARD, width),
        "blk.0.ffn_down.weight": nothing(width, FEED_FORWARD),
    }
    metadata: dict[str, Value] = {
        "general.architecture": "llama",
        "general.name": "generated for the suites of llama.cpp",
        "llama.context_length": CONTEXT,
        "llama.embedding_length": width,
        "llama.block_count": 1,
        "llama.feed_forward_length": FEED_FORWARD,
        "llama.attention.head_count": 1,
        "llama.attention.head_count_kv": 1,
        "llama.attention.key_length": HEAD,
        "llama.attention.value_length": HEAD,
        "llama.attention.layer_norm_rms_epsilon": 1e-9,
        "llama.rope.dimension_count": HEAD,
        "llama.vocab_size": count,
        **vocabulary(tokens),
    }
    return metadata, tensors


def vocabulary(tokens: Sequence[str]) -> dict[str, Value]:
    """A SentencePiece vocabulary; of two pairs the one with the shorter piece is joined first."""
    by_length = sorted(tokens, key=lambda token: (len(token), token))
    rank = {token: -float(at) for at, token in enumerate(by_length)}
    kinds = [UNKNOWN_TOKEN, CONTROL, CONTROL] + [BYTE] * 256
    other = dict.fromkeys(words.IMAGE, USER_DEFINED) | dict.fromkeys(words.INFILL, CONTROL)
    kinds += [other.get(token, NORMAL) for token in tokens[len(kinds) :]]
    infill = {
        f"tokenizer.ggml.fim_{name}_token_id": token
        for name, token in zip(("pre", "suf", "mid"), words.INFILL, strict=True)
    }
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.scores": [rank[token] for token in tokens],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        **{key: tokens.index(token) for key, token in infill.items() if token in tokens},
    }


def storyteller() -> tuple[dict[str, Value], Tensors]:
    """What stands in for every model that writes."""
    tokens = tokens_of([*words.PIECES, *words.STORY, *words.CERTAIN.values(), *words.IMAGE, *words.INFILL])
    return llama(tokens, story_table(tokens))


def teller_of_poems() -> tuple[dict[str, Value], Tensors, dict[str, Value], Tensors]:
    """A storyteller with more words, and the adapter (LoRA) that makes it say them: the other ones the stronger it is.

    A word's logit is a straight line over the adapter's scale, whatever the last word was, and these lines cross.
    """
    added = (*words.GREETING, *words.DISTANT, *words.LOVELY)
    tokens = tokens_of([*words.PIECES, *words.STORY, *words.CERTAIN.values(), *added])
    table, change = story_table(tokens), np.zeros((len(tokens), 1), dtype=np.float32)
    for spoken, (at_none, at_full) in ((words.DISTANT, (-10.0, 10.0)), (words.LOVELY, (-40.0, 16.0))):
        rows = [tokens.index(word) for word in spoken]
        table[rows, :] = at_none - np.linspace(0.0, 0.4, len(rows))[:, np.newaxis]
        change[rows] = at_full - at_none
    metadata, tensors = llama(tokens, table)
    width = tensors["output.weight"].shape[1]
    adapter: dict[str, Value] = {
        "general.type": "adapter",
        "general.architecture": "llama",
        "adapter.type": "lora",
        "adapter.lora.alpha": 1.0,
    }
    alike = np.full((1, width), 1 / np.sqrt(width), dtype=np.float32)
    return metadata, tensors, adapter, {"output.weight.lora_a": alike, "output.weight.lora_b": change}


def embedder() -> tuple[dict[str, Value], Tensors]:
    """What stands in for the model that makes embeddings: a token for each word, one before and one after."""
    beginnings = [f"▁{word[:end]}" for word in words.PLAIN_WORDS for end in range(1, len(word) + 1)]
    tokens = tokens_of(beginnings)
    metadata, tensors = llama(tokens, np.zeros((len(tokens), len(tokens)), dtype=np.float32))
    return metadata | {"llama.pooling_type": MEAN_POOLING, "tokenizer.ggml.add_eos_token": True}, tensors


def write_hub(hub: Path) -> None:
    """Every repository that the suites name, but those of real models."""
    own = hub / OWN
    metadata, tensors = storyteller()
    for repo, name in {
        "test-model-stories260K": "stories260K-f32.gguf",
        "test-model-stories260K-infill": "stories260K-infill-f32.gguf",
        "test-model-router-download": "model-f16.gguf",
    }.items():
        write(own / repo / name, metadata, tensors)
    *model, adapter, change = teller_of_poems()
    write(own / "stories15M_MOE" / "stories15M_MOE-F16.gguf", *model)
    write(own / "stories15M_MOE" / "moe_shakespeare15M.gguf", adapter, change)
    write(own / "tiny-llamas" / "stories15M-q4_0.gguf", *model)
    gemma = own / "tinygemma3-GGUF"
    write(gemma / "tinygemma3-Q8_0.gguf", metadata | {"tokenizer.ggml.add_space_prefix": False}, tensors)
    write(gemma / "mmproj-tinygemma3-Q8_0.gguf", *projector(tensors["token_embd.weight"].shape[1]))
    for seed, name in enumerate(("91_cat.png", "11_truck.png")):
        (gemma / "test").mkdir(exist_ok=True)
        (gemma / "test" / name).write_bytes(png(seed))
    parts = [own / "models" / f"tinyllamas/split/stories15M-q8_0-0000{part}-of-00003.gguf" for part in (1, 2, 3)]
    write_split(parts, metadata, tensors)
    write(own / "models" / "bert-bge-small/ggml-model-f16.gguf", *embedder())
    (own / "test-preset-ci").mkdir(parents=True)
    (own / "test-preset-ci" / "preset.ini").write_text(PRESETS, encoding="utf-8")


def fill_cache(hub: Path, cache: Path) -> None:
    """As a download from the hub would have left it, for what the suites expect to be there."""
    state = State(hub)
    for folder in sorted(path for path in hub.glob("*/*") if path.name not in FETCHED):
        repo = folder.relative_to(hub).as_posix()
        place = cache / f"models--{repo.replace('/', '--')}"
        commit = state.commit(repo)
        (place / "refs").mkdir(parents=True)
        (place / "refs" / "main").write_text(commit, encoding="utf-8")
        (place / "blobs").mkdir()
        for path in state.files(repo):
            sha256, git = state.hash_of(path)
            blob = place / "blobs" / (sha256 if path.suffix == ".gguf" else git)
            shutil.copyfile(path, blob)
            entry = place / "snapshots" / commit / path.relative_to(folder)
            entry.parent.mkdir(parents=True, exist_ok=True)
            entry.symlink_to(Path(*[".."] * (len(entry.parent.relative_to(place).parts)), "blobs", blob.name))


def main() -> None:
    hub, cache = (Path(argument) for argument in sys.argv[1:])
    write_hub(hub)
    fill_cache(hub, cache)


if __name__ == "__main__":
    main()
