"""Model files that engines load, made of a header and a hole: hundreds of megabytes of weights that take no disk."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from gguf_files import Value, aligned, header, padded, tensor
from msgspec import Struct

from appliance.core.models.gguf import GgufInfo, read_gguf
from appliance.core.models.shape import Shape as ModelShape

Shape = tuple[int, ...]

TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144)}
"""Type to its number, the values in a block, and the bytes of a block."""
OWN_NAMES = ("general.", "tokenizer.", "split.")


class Hollow(Struct, frozen=True, kw_only=True):
    """What a file says. Tensors whose name ends in ``.weight`` with two or more dimensions have the model's type."""

    architecture: str
    keys: dict[str, Value]
    """Without the architecture in front, unless a key starts with one of `OWN_NAMES`."""
    tensors: dict[str, Shape]
    weights: str = "F16"
    vocabulary: int = 32000


def encode(model: Hollow) -> tuple[bytes, int]:
    """The header with its padding, and the bytes of weights that follow."""
    keys: dict[str, Value] = {"general.architecture": model.architecture} if model.architecture else {}
    keys |= _vocabulary(model.vocabulary) if model.vocabulary else {}
    for key, value in model.keys.items():
        keys[key if key.startswith(OWN_NAMES) else f"{model.architecture}.{key}"] = value
    body = header(keys, len(model.tensors))
    offset = 0
    for name, shape in model.tensors.items():
        number, block, size = TYPES[type_of(name, shape, model.weights)]
        body += tensor(name, shape, number, offset)
        offset += padded(math.prod(shape) // block * size)
    return aligned(body), offset


def info_of(model: Hollow) -> GgufInfo:
    """What the program reads of it."""
    head, data = encode(model)
    return read_gguf(lambda offset, n: head[offset : offset + n], len(head) + data)


def shape_of(model: Hollow) -> ModelShape:
    return info_of(model).shape


def write_hollow(path: Path, model: Hollow) -> Path:
    header, data = encode(model)
    path.write_bytes(header)
    with path.open("r+b") as file:
        file.truncate(len(header) + data)
    return path


def type_of(name: str, shape: Shape, weights: str) -> str:
    plain = len(shape) < 2 or not name.endswith(".weight") or "norm" in name or "conv" in name or "gate_inp" in name
    return "F32" if plain or next(iter(shape)) % TYPES[weights][1] else weights


def _vocabulary(size: int) -> dict[str, Value]:
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))][:size]
        + [f"t{number}" for number in range(size - 259)],
        "tokenizer.ggml.scores": [0.0] * size,
        "tokenizer.ggml.token_type": ([2, 3, 3] + [6] * 256)[:size] + [1] * (size - 259),
    }


# ---- architectures ---------------------------------------------------------------------------------------------------


def dense(
    architecture: str = "llama",
    *,
    layers: int = 8,
    width: int = 1024,
    heads: int = 16,
    kv_heads: int = 4,
    head: int = 64,
    forward: int = 2816,
    vocabulary: int = 32000,
    weights: str = "F16",
    context: int = 8192,
    tied: bool = False,
    extra: Sequence[str] = (),
    keys: dict[str, Value] | None = None,
) -> Hollow:
    """A transformer of the usual kind; ``extra`` are norms of each layer, ``q_norm`` and ``k_norm`` of a head."""
    tensors: dict[str, Shape] = {"token_embd.weight": (width, vocabulary)}
    for blk in _layers(layers):
        tensors |= _attention(blk, width, heads, kv_heads, head, extra)
        tensors |= {f"{blk}.ffn_norm.weight": (width,)}
        tensors |= _forward(blk, width, forward)
    tensors |= {"output_norm.weight": (width,)} if tied else _output(width, vocabulary)
    return Hollow(
        architecture=architecture,
        keys={**_counts(layers, width, heads, kv_heads, forward, context), **_heads(head), **(keys or {})},
        tensors=tensors,
        weights=weights,
        vocabulary=vocabulary,
    )


def gemma(architecture: str, *, window: int = 512, weights: str = "F16", layers: int = 12) -> Hollow:
    """Sliding windows in most layers, tied weights, a large vocabulary."""
    norms = ("post_attention_norm", "post_ffw_norm", *(("q_norm", "k_norm") if architecture == "gemma3" else ()))
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    return dense(
        architecture,
        layers=layers,
        width=768,
        heads=4,
        kv_heads=2,
        head=256,
        forward=3072,
        vocabulary=65536,
        context=32768,
        weights=weights,
        tied=True,
        extra=norms,
        keys={"attention.sliding_window": window} | (caps if architecture == "gemma2" else {}),
    )


def experts(architecture: str = "qwen2moe", *, weights: str = "Q8_0") -> Hollow:
    """A mixture of experts; Mixtral is the architecture ``llama`` with experts."""
    layers, width, heads, kv_heads, head, count, used, forward = 6, 768, 12, 4, 64, 16, 4, 768
    tensors: dict[str, Shape] = {"token_embd.weight": (width, 32000)}
    for blk in _layers(layers):
        tensors |= _attention(blk, width, heads, kv_heads, head, ())
        tensors |= {f"{blk}.ffn_norm.weight": (width,), f"{blk}.ffn_gate_inp.weight": (width, count)}
        tensors |= _experts(blk, width, forward, count)
        if architecture == "qwen2moe":
            tensors |= {f"{blk}.ffn_gate_inp_shexp.weight": (width,)}
            tensors |= _forward(blk, width, 2 * forward, "_shexp")
    tensors |= _output(width, 32000)
    return Hollow(
        architecture=architecture,
        keys={
            **_counts(layers, width, heads, kv_heads, forward, 8192),
            **_heads(head),
            "expert_count": count,
            "expert_used_count": used,
            "expert_feed_forward_length": forward,
            "expert_shared_feed_forward_length": 2 * forward,
        },
        tensors=tensors,
        weights=weights,
    )


def latent(*, weights: str = "Q8_0") -> Hollow:
    """Latent attention with experts, as DeepSeek V2 Lite."""
    layers, width, heads, rank, rope, nope, value = 6, 1024, 16, 512, 64, 128, 128
    tensors: dict[str, Shape] = {"token_embd.weight": (width, 32000)}
    for number, blk in enumerate(_layers(layers)):
        tensors |= {
            f"{blk}.attn_norm.weight": (width,),
            f"{blk}.attn_q.weight": (width, heads * (nope + rope)),
            f"{blk}.attn_kv_a_mqa.weight": (width, rank + rope),
            f"{blk}.attn_kv_a_norm.weight": (rank,),
            f"{blk}.attn_k_b.weight": (nope, rank, heads),
            f"{blk}.attn_v_b.weight": (rank, value, heads),
            f"{blk}.attn_output.weight": (heads * value, width),
            f"{blk}.ffn_norm.weight": (width,),
        }
        if number:
            tensors |= {f"{blk}.ffn_gate_inp.weight": (width, 16), **_experts(blk, width, 512, 16)}
            tensors |= _forward(blk, width, 1024, "_shexp")
        else:
            tensors |= _forward(blk, width, 2816)
    tensors |= _output(width, 32000)
    return Hollow(
        architecture="deepseek2",
        keys={
            **_counts(layers, width, heads, 1, 2816, 8192),
            "attention.key_length": rank + rope,
            "attention.value_length": rank,
            "attention.key_length_mla": nope + rope,
            "attention.value_length_mla": value,
            "attention.kv_lora_rank": rank,
            "attention.q_lora_rank": 0,
            "rope.dimension_count": rope,
            "leading_dense_block_count": 1,
            "expert_count": 16,
            "expert_used_count": 4,
            "expert_shared_count": 2,
            "expert_feed_forward_length": 512,
            "expert_weights_scale": 1.0,
        },
        tensors=tensors,
        weights=weights,
    )


def mamba(*, weights: str = "F16") -> Hollow:
    """A recurrent model: no attention, state of a fixed size."""
    layers, width, inner, state, conv, rank = 12, 1024, 2048, 16, 4, 64
    tensors: dict[str, Shape] = {"token_embd.weight": (width, 32000), "output_norm.weight": (width,)}
    for blk in _layers(layers):
        tensors |= {
            f"{blk}.attn_norm.weight": (width,),
            f"{blk}.ssm_in.weight": (width, 2 * inner),
            f"{blk}.ssm_conv1d.weight": (conv, inner),
            f"{blk}.ssm_conv1d.bias": (inner,),
            f"{blk}.ssm_x.weight": (inner, rank + 2 * state),
            f"{blk}.ssm_dt.weight": (rank, inner),
            f"{blk}.ssm_dt.bias": (inner,),
            f"{blk}.ssm_a": (state, inner),
            f"{blk}.ssm_d": (inner,),
            f"{blk}.ssm_out.weight": (inner, width),
        }
    return Hollow(
        architecture="mamba",
        keys={
            "block_count": layers,
            "context_length": 8192,
            "embedding_length": width,
            "feed_forward_length": 0,
            "attention.head_count": 0,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "ssm.conv_kernel": conv,
            "ssm.inner_size": inner,
            "ssm.state_size": state,
            "ssm.time_step_rank": rank,
        },
        tensors=tensors,
        weights=weights,
    )


def bert(*, weights: str = "F16") -> Hollow:
    """An encoder, which makes vectors and keeps no context."""
    layers, width, forward, vocabulary, context = 12, 768, 3072, 30522, 512
    tensors: dict[str, Shape] = {
        "token_embd.weight": (width, vocabulary),
        "position_embd.weight": (width, context),
        "token_types.weight": (width, 2),
        "token_embd_norm.weight": (width,),
        "token_embd_norm.bias": (width,),
    }
    for blk in _layers(layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensors |= {f"{blk}.{name}.weight": (width, width), f"{blk}.{name}.bias": (width,)}
        for name in ("attn_output_norm", "layer_output_norm"):
            tensors |= {f"{blk}.{name}.weight": (width,), f"{blk}.{name}.bias": (width,)}
        tensors |= {f"{blk}.ffn_up.weight": (width, forward), f"{blk}.ffn_up.bias": (forward,)}
        tensors |= {f"{blk}.ffn_down.weight": (forward, width), f"{blk}.ffn_down.bias": (width,)}
    return Hollow(
        architecture="bert",
        keys={
            **_counts(layers, width, 12, 12, forward, context),
            "attention.layer_norm_epsilon": 1e-12,
            "attention.causal": False,
            "pooling_type": 1,
            "tokenizer.ggml.token_type_count": 2,
        },
        tensors=tensors,
        weights=weights,
        vocabulary=vocabulary,
    )


def _layers(count: int) -> Iterator[str]:
    return (f"blk.{number}" for number in range(count))


def _counts(layers: int, width: int, heads: int, kv_heads: int, forward: int, context: int) -> dict[str, Value]:
    return {
        "block_count": layers,
        "context_length": context,
        "embedding_length": width,
        "feed_forward_length": forward,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }


def _heads(head: int) -> dict[str, Value]:
    return {"attention.key_length": head, "attention.value_length": head, "rope.dimension_count": head}


def _output(width: int, vocabulary: int) -> dict[str, Shape]:
    """At the end, as converters write it."""
    return {"output_norm.weight": (width,), "output.weight": (width, vocabulary)}


def _attention(blk: str, width: int, heads: int, kv_heads: int, head: int, extra: Sequence[str]) -> dict[str, Shape]:
    tensors: dict[str, Shape] = {
        f"{blk}.attn_norm.weight": (width,),
        f"{blk}.attn_q.weight": (width, heads * head),
        f"{blk}.attn_k.weight": (width, kv_heads * head),
        f"{blk}.attn_v.weight": (width, kv_heads * head),
        f"{blk}.attn_output.weight": (heads * head, width),
    }
    for name in extra:
        own = name in ("q_norm", "k_norm")
        tensors[f"{blk}.{f'attn_{name}' if own else name}.weight"] = (head if own else width,)
    return tensors


def _forward(blk: str, width: int, forward: int, ending: str = "") -> dict[str, Shape]:
    return {
        f"{blk}.ffn_gate{ending}.weight": (width, forward),
        f"{blk}.ffn_up{ending}.weight": (width, forward),
        f"{blk}.ffn_down{ending}.weight": (forward, width),
    }


def _experts(blk: str, width: int, forward: int, count: int) -> dict[str, Shape]:
    return {
        f"{blk}.ffn_gate_exps.weight": (width, forward, count),
        f"{blk}.ffn_up_exps.weight": (width, forward, count),
        f"{blk}.ffn_down_exps.weight": (forward, width, count),
    }
