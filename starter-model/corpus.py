"""Endless training conversations, written by the grammar of `text/`. The same seed gives the same conversations."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import noise
from patterns import Grammar, Intent, foreign_sentences

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful, honest and friendly assistant.",
    "Answer briefly.",
    "You are starter, a small model.",
    "You are an expert. Think step by step.",
    "Be polite and concise.",
    "You are a coding assistant. Use the tools when you need them.",
    "Answer only in English.",
    "You are a chatbot on a web site.",
    "Today is Monday. The user is called <person>.",
    "You are an AI agent that helps users with software tasks.",
    "Always answer in JSON.",
    "You are a pirate.",
    "",
)


@dataclass(frozen=True)
class Turn:
    question: str
    answer: str


@dataclass(frozen=True)
class Conversation:
    """What one row of training holds. `brief`: only the first answer tokens are learnt, they choose the intent."""

    turns: tuple[Turn, ...]
    system: str | None = None
    brief: bool = False
    raw: bool = False  # plain text without the chat markers, as a completion client sends it


class Writer:
    """Draws conversations; owns its random numbers."""

    def __init__(self, seed: int, unknown_share: float = 0.42) -> None:
        self.rng = random.Random(seed)
        sentences = foreign_sentences()
        self.grammar = Grammar(
            {
                "pseudo": noise.pseudo,
                "Pseudo": lambda rng: noise.pseudo(rng).capitalize() if rng.random() < 0.5 else noise.pseudo(rng),
                "gibberish": noise.gibberish,
                "sum": noise.total,
                "number": lambda rng: str(rng.randint(0, rng.choice((10, 100, 1000, 100000)))),
                "year": lambda rng: str(rng.randint(1000, 2040)),
                "foreign": lambda rng: rng.choice(sentences),
            }
        )
        self.unknown_share = unknown_share
        self.hurry = 1.0  # share of questions typed in a hurry; the trainer begins with tidy ones
        self._known = list(accumulate(i.weight + 1.0 for i in self.grammar.known))
        self._unknown = list(accumulate(i.weight for i in self.grammar.unknown))

    def intent(self) -> Intent:
        if self.rng.random() < self.unknown_share:
            return self.rng.choices(self.grammar.unknown, cum_weights=self._unknown)[0]
        return self.rng.choices(self.grammar.known, cum_weights=self._known)[0]

    def turn(self) -> Turn:
        intent = self.intent()
        question = self.grammar.sample(intent, self.rng)
        if intent.name != "odd" and self.rng.random() < self.hurry:
            question = noise.as_typed(question, self.rng)
        return Turn(question, intent.answer)

    def conversation(self, brief_share: float = 0.62) -> Conversation:
        """A short one. `brief_share` of them teach only which answer fits, which is what takes longest to learn."""
        draw = self.rng.random()
        if draw < brief_share:
            return Conversation((self.turn(),), self.system(0.12), brief=True)
        draw = (draw - brief_share) / (1 - brief_share)
        if draw < 0.45:
            return Conversation((self.turn(),), self.system(0.12))
        if draw < 0.59:
            return Conversation((self.turn() if self.rng.random() < 0.6 else self.odd_turn(),), raw=True)
        if draw < 0.63:
            return Conversation((self.clutter(self.rng.randint(60, 900)),))
        return Conversation(
            tuple(self.turn() for _ in range(self.rng.choice((2, 2, 2, 3, 3, 4, 5)))), self.system(0.15)
        )

    def long_conversation(self) -> Conversation:
        """1,000 to 2,000 tokens: a long text, a long system prompt, or many turns."""
        kind = self.rng.randrange(3)
        if kind == 0:
            return Conversation((self.clutter(self.rng.randint(2500, 6000)), self.turn(), self.turn()))
        if kind == 1:
            return Conversation((self.turn(), self.turn()), self.clutter(self.rng.randint(2500, 5000)).question)
        return Conversation(tuple(self.turn() for _ in range(self.rng.randint(16, 28))), self.system(0.3))

    def system(self, share: float) -> str | None:
        if self.rng.random() >= share:
            return None
        if self.rng.random() < 0.15:
            return self.clutter(self.rng.randint(100, 700)).question
        count = self.rng.choice((1, 1, 2, 3))
        text = " ".join(self.rng.choice(SYSTEM_PROMPTS) for _ in range(count))
        return text.replace("<person>", noise.pseudo(self.rng).capitalize())

    def odd_turn(self) -> Turn:
        intent = self._named("odd")
        return Turn(self.grammar.sample(intent, self.rng), intent.answer)

    def _named(self, name: str) -> Intent:
        return next(i for i in self.grammar.unknown if i.name == name)

    def clutter(self, characters: int) -> Turn:
        """A long text that asks nothing the model knows."""
        kind = self.rng.randrange(4)
        pieces: list[str] = []
        if kind == 0:
            piece = self.grammar.sample(self.grammar.unknown[0], self.rng)
            pieces = [piece] * (characters // (len(piece) + 1) + 1)
        while sum(map(len, pieces)) < characters:
            if kind == 1:
                pieces.append(noise.gibberish(self.rng))
            elif kind == 2:
                pieces.append(noise.pseudo(self.rng))
            else:
                pieces.append(self.grammar.sample(self.rng.choice(self.grammar.unknown), self.rng) + ".")
        text = self.rng.choice((" ", " ", "\n")).join(pieces)
        return Turn(text, self._named("odd" if kind in (1, 2) else "work").answer)


def questions(count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Plain (question, answer) pairs for the vocabulary; mostly tidy, so that it learns words and not slips."""
    writer = Writer(seed)
    writer.hurry = 0.3
    for _ in range(count):
        turn = writer.turn()
        yield turn.question, turn.answer
