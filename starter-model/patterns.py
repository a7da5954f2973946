"""The question patterns of `text/`: `{a|b}` is a choice, `<name>` a word family, both may nest."""

import random
import re
import string
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import product

TEXT = Path(__file__).parent / "text"
Maker = Callable[[random.Random], str]
Node = str | list["Node"] | tuple["Node", ...]


@dataclass(frozen=True)
class Intent:
    """One meaning: its single answer and the patterns that ask for it."""

    name: str
    weight: float
    answer: str
    patterns: tuple[Node, ...]


def parse(pattern: str) -> Node:
    """A tree: str as it stands, list = sequence, tuple = choice, `<name>` as the string "<name>"."""
    parts = re.findall(r"[{}|]|<\w+>|[^{}|<]+|<", pattern)
    node, rest = _sequence(parts, 0)
    if rest != len(parts):
        raise ValueError(f"unbalanced pattern: {pattern}")
    return node


def _sequence(parts: list[str], at: int) -> tuple[Node, int]:
    items: list[Node] = []
    while at < len(parts) and parts[at] not in "|}":
        if parts[at] == "{":
            options: list[Node] = []
            while parts[at] != "}":
                option, at = _sequence(parts, at + 1)
                options.append(option)
            items.append(tuple(options))
        else:
            items.append(parts[at])
        at += 1
    return items, at


class Grammar:
    """Every intent and word family of `text/`, ready to be sampled."""

    def __init__(self, makers: dict[str, Maker]) -> None:
        self._makers = makers
        self._families: dict[str, Node] = {}
        for name in ("macros.txt", "words.txt"):
            for line in _lines(name):
                family, _, choices = line.partition(" = ")
                self._families[family] = parse(choices)
        self.known = [i for name in KNOWN for i in _intents(name)]
        self.unknown = _intents("unknown.txt")

    def sample(self, intent: Intent, rng: random.Random) -> str:
        """One question of this intent, lower case, single spaces."""
        text = self._expand(rng.choice(intent.patterns), rng)
        return re.sub(r"\s+", " ", text).strip()

    def _expand(self, node: Node, rng: random.Random) -> str:
        if isinstance(node, list):
            return "".join([self._expand(part, rng) for part in node])
        if isinstance(node, tuple):
            return self._expand(rng.choice(node), rng)
        if node.startswith("<") and node.endswith(">") and len(node) > 2:
            maker = self._makers.get(node[1:-1])
            return maker(rng) if maker else self._expand(self._families[node[1:-1]], rng)
        return node


KNOWN = (
    "identity.txt",
    "program.txt",
    "models.txt",
    "api.txt",
    "concepts.txt",
    "trouble.txt",
    "talk.txt",
)


def _lines(name: str) -> list[str]:
    lines = (TEXT / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("# ")]


def _intents(name: str) -> list[Intent]:
    facts = product.facts()
    intents: list[Intent] = []
    for block in re.split(r"^(?=\[\w+)", "\n".join(_lines(name)), flags=re.MULTILINE):
        if not block:
            continue
        head, answer, *patterns = block.strip().split("\n")
        title, _, weight = head.strip("[]").partition(" ")
        text = string.Template(answer.removeprefix("> ")).substitute(facts)
        intents.append(Intent(title, float(weight or 1), text, tuple(parse(p) for p in patterns)))
    return intents


def foreign_sentences() -> list[str]:
    return _lines("foreign.txt")
