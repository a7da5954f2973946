"""Train the starter model from nothing and write it as GGUF: one thread, no GPU, the same file each time.

Usage: python train.py --out FILE.gguf [--steps N]
"""

import argparse
import random
import time
from collections.abc import Iterator
from pathlib import Path

import export
import torch
import torch.nn.functional as F
from corpus import Writer
from model import Llama, Shape
from torch import Tensor
from vocabulary import Encoder, Row, build

SEED = 20260
STEPS = 2600
WARM_UP = 40
FLAT = 0.15  # of all steps; then the rate falls in a straight line
LONG_FROM = 0.5
LONG_EVERY = 8
LONG_TOKENS = 2048
BATCH_TOKENS = 2048
POOL = 2048
BRIEF_SHARES = (0.93, 0.75)  # in the first and in the second half
HURRY = (0.5, 0.9)


def batches(rows: list[Row], rng: random.Random) -> list[list[Row]]:
    """Rows of similar length together, at most BATCH_TOKENS with padding, in random order."""
    groups: list[list[Row]] = [[]]
    for row in sorted(rows, key=lambda r: len(r.tokens)):
        if (len(groups[-1]) + 1) * len(row.tokens) > BATCH_TOKENS and groups[-1]:
            groups.append([])
        groups[-1].append(row)
    rng.shuffle(groups)
    return groups


def stream(writer: Writer, encoder: Encoder, rng: random.Random, steps: int) -> Iterator[list[Row]]:
    """Batches for ever; `steps` only tells when the second half begins."""
    given = 0
    while True:
        second = given > steps / 2
        writer.hurry = HURRY[second]
        for batch in batches([encoder.row(writer.conversation(BRIEF_SHARES[second])) for _ in range(POOL)], rng):
            given += 1
            yield batch


def long_row(writer: Writer, encoder: Encoder) -> Row:
    """One row of up to LONG_TOKENS; letters of other scripts take several tokens each, so some texts are too long."""
    while True:
        row = encoder.row(writer.long_conversation())
        if len(row.tokens) <= LONG_TOKENS:
            return row


def tensors(rows: list[Row]) -> tuple[Tensor, Tensor]:
    length = max(len(row.tokens) for row in rows)
    tokens = torch.zeros(len(rows), length, dtype=torch.long)
    weights = torch.zeros(len(rows), length)
    for i, row in enumerate(rows):
        tokens[i, : len(row.tokens)] = torch.tensor(row.tokens)
        weights[i, : len(row.weights)] = torch.tensor(row.weights)
    return tokens, weights


def loss_of(model: Llama, rows: list[Row]) -> Tensor:
    tokens, weights = tensors(rows)
    wanted = weights[:, 1:] > 0
    logits = model(tokens[:, :-1], wanted)
    each = F.cross_entropy(logits, tokens[:, 1:][wanted], reduction="none")
    weights = weights[:, 1:][wanted]
    return (each * weights).sum() / weights.sum()


def chosen(model: Llama, rows: list[Row]) -> float:
    """Share of rows whose every learnt answer token is the model's first choice."""
    with torch.no_grad():
        tokens, weights = tensors(rows)
        wanted = weights[:, 1:] > 0
        wrong = torch.zeros_like(wanted)
        wrong[wanted] = model(tokens[:, :-1], wanted).argmax(-1) != tokens[:, 1:][wanted]
        return (~wrong.any(1)).float().mean().item()


def rate(step: int, steps: int) -> float:
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    done = step / steps
    return 1.0 if done < FLAT else 1.0 - 0.98 * (done - FLAT) / (1 - FLAT)


def train(model: Llama, encoder: Encoder, steps: int) -> None:
    matrices = [p for p in model.blk.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if all(p is not m for m in matrices)]
    optimisers = [
        torch.optim.Muon(matrices, lr=0.01, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(others, lr=0.005, betas=(0.9, 0.98), weight_decay=0.01),
    ]
    peaks = [o.param_groups[0]["lr"] for o in optimisers]
    writer, rng = Writer(SEED + 1), random.Random(SEED)
    check = Writer(SEED + 2)
    held_out = [encoder.row(check.conversation(1.0)) for _ in range(400)]
    supply = stream(writer, encoder, rng, steps)
    started, seen, average = time.monotonic(), 0, 0.0
    for step in range(steps):
        long = step > LONG_FROM * steps and step % LONG_EVERY == 0
        rows = [long_row(writer, encoder)] if long else next(supply)
        seen += sum(len(row.tokens) for row in rows)
        for optimiser, peak in zip(optimisers, peaks, strict=True):
            optimiser.param_groups[0]["lr"] = peak * rate(step, steps)
        loss = loss_of(model, rows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
        average = loss.item() if step == 0 else 0.97 * average + 0.03 * loss.item()
        if (step + 1) % 100 == 0 or step + 1 == steps:
            right = sum(chosen(model, g) * len(g) for g in batches(held_out, random.Random(0))) / len(held_out)
            took = time.monotonic() - started
            print(
                f"step {step + 1} loss {average:.3f} held-out right {right:.3f} tokens {seen} {took:.0f} s", flush=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    shape = Shape()
    tokenizer = build(shape.vocabulary, SEED)
    model = Llama(shape)
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    train(model, Encoder(tokenizer, SEED), options.steps)
    export.write(model, tokenizer, options.out)


if __name__ == "__main__":
    main()
