"""The byte-level BPE vocabulary and the chat format, both exactly as llama.cpp will apply them."""

import random
from dataclasses import dataclass

from corpus import Conversation, questions
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIALS = (END_OF_TEXT, START, END)  # ids 0, 1, 2
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CHOOSING = 6  # the first tokens of an answer choose the intent
CHOOSING_WEIGHT = 3.0
BRIEF = 14  # a brief row ends after so many answer tokens: long enough to tell every answer from every other


def build(size: int, seed: int) -> Tokenizer:
    """Merges learnt from the corpus itself; answers and questions alike."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    text = [part for pair in questions(60000, seed) for part in pair]
    tokenizer.train_from_iterator(text, trainer)
    return tokenizer


@dataclass(frozen=True)
class Row:
    tokens: list[int]
    weights: list[float]  # weight of predicting this token


class Encoder:
    """Conversations to token ids with their loss weights."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._tokenizer = tokenizer
        self._rng = random.Random(seed)

    def text(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def broken(self, text: str) -> list[int]:
        """The text cut at chance places before merging, so that the model meets words in unusual pieces."""
        if len(text) < 6 or self._rng.random() > 0.25:
            return self.text(text)
        cuts = sorted(self._rng.sample(range(1, len(text)), max(1, len(text) // 12)))
        ids: list[int] = []
        for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            ids += self.text(text[start:end])
        return ids

    def row(self, conversation: Conversation) -> Row:
        row = Row([], [])
        if conversation.raw:
            return self._raw(row, conversation)
        if conversation.system is not None:
            self._add(row, self.text(f"{START}system\n{conversation.system}{END}\n"), 0.0)
        for turn in conversation.turns:
            self._add(row, self.text(f"{START}user\n"), 0.0)
            self._add(row, self.broken(turn.question), 0.0)
            self._add(row, self.text(f"{END}\n{START}assistant\n"), 0.0)
            self._answer(row, turn.answer, BRIEF if conversation.brief else None)
            self._add(row, self.text("\n"), 0.0)
        return row

    def _raw(self, row: Row, conversation: Conversation) -> Row:
        """Nothing of the question is learnt here, or the model would go on with it instead of answering."""
        turn = conversation.turns[0]
        if self._rng.random() < 0.8:
            self._add(row, self.broken(turn.question), 0.0)
            answer = self._rng.choice((" ", "\n", "\n\n")) + turn.answer
        else:
            answer = turn.answer
        self._answer(row, answer, None)
        return row

    def _answer(self, row: Row, answer: str, limit: int | None) -> None:
        ids = self.text(answer + END)[:limit]
        self._add(row, ids[:CHOOSING], CHOOSING_WEIGHT)
        self._add(row, ids[CHOOSING:], 1.0)

    @staticmethod
    def _add(row: Row, ids: list[int], weight: float) -> None:
        row.tokens.extend(ids)
        row.weights.extend([weight] * len(ids))
