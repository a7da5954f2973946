"""The vocabulary and the language of the generated models.

llama.cpp's suites expect the words, and the numbers of tokens, of small models that are downloaded. Here a model is a
table instead: the next word depends on the last one alone, which is all that the suites look at. `PIECES` were found by
a search, so that the prompts of the suites come out as long as the suites say.
"""

from __future__ import annotations

SPACE = "▁"
UNKNOWN, BEGIN, END = "<unk>", "<s>", "</s>"
SPECIAL = (UNKNOWN, BEGIN, END)
"""Their ids are 0, 1 and 2, as in Llama's own vocabulary."""
INFILL = ("<PRE>", "<SUF>", "<MID>")
"""Around what stands before and behind a gap that is to be filled; control tokens."""
NEWLINE = "<0x0A>"
IMAGE = ("<start_of_image>", "<end_of_image>")
"""What llama.cpp writes around a picture for Gemma 3; one token each."""

LETTERS = f"{SPACE}abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,!?'\"-|<>_{{}}[]()+:;=/"

JOINED = """
    ++ Te Wh Wr Yo _e ca ct ed ev ey fe fu hi im it ke ll ma nc ni nt on pl pr ra ry sh ss th t| ▁A ▁B ▁F ▁G ▁I ▁T
    ▁b ▁i ▁l ▁m ▁n ▁v ▁w Hey Tes Wha You c++ eve fun llo nin ona ong pla rma rt| ted ▁AI ▁Bu ▁be ▁bo ▁it ▁no ▁sh ▁th
    ▁wi art| ello ning plat ▁But ▁Thi ▁bel ▁bes ▁boo ▁c++ ▁not ▁she ▁the ▁whi cated funct ▁c++. ▁long functi ncated
    uncated function
"""
WHOLE = ("▁quick", "▁dog", "▁hello")
"""One token each: a prompt of the suites has to fit where a vocabulary that was trained would fit it in."""
PIECES = (*JOINED.split(), *(word[:end] for word in WHOLE for end in range(2, len(word) + 1)))
"""Joined from the left by pairs, shorter ones first. None has a digit, nor a space but in front."""

CERTAIN = {
    "s": "▁blue",
    "▁blue": "▁going",
    "▁going": "▁bed",
    NEWLINE: "▁Suddenly",
    "▁Suddenly": "▁But",
    "▁But": "▁she",
    "▁she": "▁couldn't",
    "▁couldn't": "▁Whillicter",
}
"""What follows whatever the seed is: a prompt that ends so has its answer looked at in its first eight words."""

STORY_TEXT = (
    "▁little ▁girl ▁princesses ▁everyone ▁kids ▁Anna ▁forest ▁Whiskers ▁Flana ▁Jack ▁said ▁Aside ▁felter ▁alonger "
    "▁going ▁bed ▁small ▁house ▁Dad ▁Daddy ▁climb ▁leaf ▁friends ▁step ▁sky ▁cat ▁big ▁special ▁shiny ▁Jimmy ▁excited "
    "▁park ▁wise ▁kind ▁owl ▁answer ▁frog ▁Ann ▁eyes ▁night ▁tree ▁play ▁happy"
)
STORY = STORY_TEXT.split()
"""Each is followed by the next one most likely, and by any other one quite likely."""

GREETING = ("▁H", "▁He", "▁Hel", "▁Hell", "▁Hello")
"""One token in the end: a prompt that greets 248 times has to fit into a small context."""
DISTANT = ("▁far", "▁from", "▁home", "▁away")
LOVELY = ("▁eye", "▁love", "▁glass", "▁sun")
"""What the storyteller says under an adapter that is neither weak nor strong, and under a strong one."""

PLAIN_TEXT = (
    "I believe the meaning of life is This a test another hello world Write joke about AI from very long prompt which "
    "will not be truncated b c d"
)
PLAIN_WORDS = PLAIN_TEXT.split()
"""The words of the model that makes embeddings: one token each."""
