"""A llama in plain torch: RMSNorm, rotary pairs, SwiGLU, tied embedding; the shapes llama.cpp calls `llama`."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPSILON = 1e-5
ROPE_BASE = 10000.0
CONTEXT = 8192


@dataclass(frozen=True)
class Shape:
    """The sizes of one model. Every row length must be a multiple of 32, the block of Q8_0."""

    width: int = 192
    layers: int = 4
    heads: int = 6
    hidden: int = 512
    vocabulary: int = 3072


def rotary_tables(head: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines for all positions, (CONTEXT, head/2)."""
    frequencies = ROPE_BASE ** (-torch.arange(0, head, 2, dtype=torch.float32) / head)
    angles = torch.arange(CONTEXT, dtype=torch.float32)[:, None] * frequencies[None, :]
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate neighbouring pairs (x[2i], x[2i+1]): llama.cpp's own order, so the weights need no permutation."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.attn_norm = nn.RMSNorm(shape.width, eps=EPSILON)
        self.attn_q = nn.Linear(shape.width, shape.width, bias=False)
        self.attn_k = nn.Linear(shape.width, shape.width, bias=False)
        self.attn_v = nn.Linear(shape.width, shape.width, bias=False)
        self.attn_output = nn.Linear(shape.width, shape.width, bias=False)
        self.ffn_norm = nn.RMSNorm(shape.width, eps=EPSILON)
        self.ffn_gate = nn.Linear(shape.width, shape.hidden, bias=False)
        self.ffn_up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.ffn_down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rows, length, width = x.shape
        h = self.attn_norm(x)
        q, k, v = (
            project(h).view(rows, length, self.heads, width // self.heads).transpose(1, 2)
            for project in (self.attn_q, self.attn_k, self.attn_v)
        )
        mixed = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        x = x + self.attn_output(mixed.transpose(1, 2).reshape(rows, length, width))
        h = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))


class Llama(nn.Module):
    """Logits for the chosen positions; the embedding is also the output matrix."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocabulary, shape.width)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = nn.RMSNorm(shape.width, eps=EPSILON)
        cos, sin = rotary_tables(shape.width // shape.heads)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.initialise()

    def initialise(self) -> None:
        nn.init.normal_(self.token_embd.weight, std=0.02)
        for name, weight in self.blk.named_parameters():
            if weight.dim() == 2:
                residual = name.endswith(("attn_output.weight", "ffn_down.weight"))
                nn.init.normal_(weight, std=0.5 * weight.shape[1] ** -0.5 * (0.3 if residual else 1.0))

    def forward(self, tokens: Tensor, wanted: Tensor) -> Tensor:
        """(rows, length) ids and a mask of the same shape -> (wanted.sum(), vocabulary)."""
        length = tokens.shape[1]
        x = self.token_embd(tokens)
        for block in self.blk:
            x = block(x, self.cos[:length], self.sin[:length])
        return F.linear(self.output_norm(x[wanted]), self.token_embd.weight)
