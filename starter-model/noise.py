"""How people really type: fillers, dropped words, short forms, typos, case and punctuation; and made-up words."""

import random

PREFIXES = (
    "hi,", "hello,", "hey", "please", "pls", "ok", "ok so", "so", "um", "quick question:", "question:", "sorry,",
    "hi there,", "well,", "hm", "and", "now", "just", "hey,", "yo", "one more thing:", "also", "i wonder", "btw",
    "excuse me,", "but", "then", "again:", "ok,", "thanks.", "right,", "oh", "again", "alright,", "guys",
    "one question,",
    "i am new here.", "i just installed it.", "i am on windows.", "i have a macbook.", "i use linux.",
    "sorry for asking.", "a friend told me about this.", "i am not a programmer.", "no idea about computers.",
)  # fmt: skip
SUFFIXES = (
    "on my laptop", "on my pc", "at work", "at home", "from home", "on linux", "on windows", "on my mac", "tonight",
    "this time", "as a beginner", "for my boss", "with my setup", "since yesterday", "later", "first", "somehow",
    "maybe",
    "as well", "too", "again and again", "without a manual", "step by step", "in a few words", "in detail",
    "once more",
    "on this machine", "on an old computer", "in the office", "for a friend", "and why", "or not", "you know", "mate",
    "my friend", "haha", "if you know", "as fast as possible", "i forgot", "dont know", "no clue", "any idea",
    "what now",
    "explain", "in english", "all the time", "sometimes", "always", "when i need it", "after that", "before that",
    "please", "pls", "thanks", "thx", "thank you", "now", "exactly", "then", "again", "btw", "help", "anyone", "here",
    "in short", "quickly", "for me", "if possible", "by the way", "really", "ty", "lol", "man", "dude", "today",
    "asap",
    "in simple words", "for a beginner", "anyway", "actually", "atm", "right now", "i wonder", "plz", "cheers", "ok",
)  # fmt: skip
SHORT_FORMS = {
    "you": ("u", "ya"), "are": ("r",), "your": ("ur",), "please": ("pls", "plz"), "for": ("4",), "to": ("2",),
    "what is": ("whats", "what's", "wats"), "where is": ("wheres", "where's"),
    "how do i": ("how to", "how do you", "howto"),
    "i want to": ("i wanna", "wanna", "want to"), "i have": ("ive", "got", "i've got"), "do not": ("dont", "don't"),
    "does not": ("doesnt", "doesn't"), "cannot": ("cant", "can't"), "model": ("mdl", "llm", "modell"),
    "because": ("cuz",),
    "something": ("smth", "sth"), "this": ("dis", "that"), "the": ("da", "teh"), "with": ("w/", "wiht"),
    "and": ("n", "&"),
    "computer": ("pc", "machine"), "show me": ("gimme", "show"), "give me": ("gimme",), "tell me": ("tell", "say"),
    "i need": ("need",), "i would like to": ("id like to", "i'd like to"), "without": ("w/o",), "about": ("abt",),
    "is not": ("isnt", "isn't"), "going to": ("gonna",), "people": ("ppl",), "program": ("programm", "prog"),
    "server": ("srv",), "which": ("wich", "what"), "should": ("shoud",), "how can i": ("how 2", "can i"),
    "how": ("hwo",), "memory": ("mem", "ram"), "question": ("q",), "language": ("lang",),
    "folder": ("dir", "directory"),
    "download": ("dl", "get"),
    "llama appliance": ("llama-appliance", "llama apliance", "the appliance", "llamaappliance"),
}  # fmt: skip
SMALL = frozenset(["the", "a", "an", "do", "i", "is", "my", "to", "of", "it", "does", "in", "me", "are", "can", "you"])
PROPER = {
    "gguf": "GGUF", "api": "API", "gpu": "GPU", "cpu": "CPU", "openai": "OpenAI",
    "llama appliance": "Llama Appliance",
    "anthropic": "Anthropic", "hugging face": "Hugging Face", "i": "I", "url": "URL", "ram": "RAM", "llm": "LLM",
    "claude": "Claude", "python": "Python", "windows": "Windows", "linux": "Linux", "english": "English",
}  # fmt: skip
ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
VOWELS = ("a", "e", "i", "o", "u", "ai", "ou", "ee", "a", "e", "o")
ONSETS = (*"bcdfghjklmnprstvwz", "br", "cl", "dr", "fl", "gr", "pl", "st", "tr", "sh", "ch", "th", "sk", "qu")
CODAS = ("", "", "n", "r", "s", "l", "t", "x", "ck", "nd", "m", "ng", "st", "p", "rt")


def neighbour(letter: str, rng: random.Random) -> str:
    """A key beside this one."""
    for row in ROWS:
        at = row.find(letter)
        if at >= 0:
            return row[max(0, min(len(row) - 1, at + rng.choice((-1, 1))))]
    return letter


def typo(text: str, rng: random.Random) -> str:
    """One slip of the fingers."""
    at = rng.randrange(len(text))
    kind = rng.randrange(5)
    if kind == 0:
        return text[:at] + text[at + 1 :]
    if kind == 1:
        return text[:at] + text[at] + text[at:]
    if kind == 2 and at + 1 < len(text):
        return text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    if kind == 3:
        return text[:at] + neighbour(text[at].lower(), rng) + text[at + 1 :]
    return text[:at] + neighbour(text[at].lower(), rng) + text[at:]


def shorten(text: str, rng: random.Random) -> str:
    """Replace some words by the short forms that people type."""
    padded = f" {text} "
    for long, forms in SHORT_FORMS.items():
        if f" {long} " in padded and rng.random() < 0.4:
            padded = padded.replace(f" {long} ", f" {rng.choice(forms)} ", 1)
    return padded.strip()


def capitalised(text: str, rng: random.Random) -> str:
    padded = f" {text} "
    for word, proper in PROPER.items():
        if f" {word} " in padded and rng.random() < 0.85:
            padded = padded.replace(f" {word} ", f" {proper} ")
    text = padded.strip()
    return text[:1].upper() + text[1:]


def as_typed(text: str, rng: random.Random) -> str:
    """The question as a hurried user would type it; about one in four stays clean."""
    if rng.random() < 0.12:
        text = f"{rng.choice(PREFIXES)} {text}"
    if rng.random() < 0.10:
        text = f"{text} {rng.choice(SUFFIXES)}"
    if rng.random() < 0.25:
        text = shorten(text, rng)
    words = text.split(" ")
    if len(words) > 3 and rng.random() < 0.2:
        kept = [w for w in words if w not in SMALL or rng.random() < 0.4]
        text = " ".join(kept) or text
    if rng.random() < 0.35:
        text = capitalised(text, rng)
    elif rng.random() < 0.03:
        text = text.upper()
    if len(text) > 5 and rng.random() < 0.25:
        for _ in range(rng.choice((1, 1, 2))):
            text = typo(text, rng)
    return text + rng.choices(("", "?", ".", "!", "??", " ?", "...", "?!"), (50, 32, 6, 3, 3, 3, 2, 1))[0]


def pseudo(rng: random.Random) -> str:
    """A word that nobody knows."""
    syllables = (rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS) for _ in range(rng.choice((1, 2, 2, 3))))
    return "".join(syllables)


def gibberish(rng: random.Random) -> str:
    """Keys hit by chance, codes, symbols or letters of any script."""
    kind = rng.randrange(7)
    if kind == 0:
        return " ".join("".join(rng.choices(rng.choice(ROWS), k=rng.randint(3, 9))) for _ in range(rng.randint(1, 5)))
    if kind == 1:
        return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz ", k=rng.randint(5, 40)))
    if kind == 2:
        return "".join(rng.choices("0123456789abcdef-", k=rng.randint(4, 40)))
    if kind == 3:
        return "".join(rng.choices("!\"#$%&'()*+,-./:;<=>?@[]^_`{|}~", k=rng.randint(2, 20)))
    if kind == 4:
        alphabet = rng.choice((0x100, 0x400, 0x3B1, 0x5D0, 0x630, 0x915, 0x4E00, 0x3042, 0xAC00, 0x1F600))
        return "".join(chr(alphabet + rng.randrange(30)) for _ in range(rng.randint(2, 30)))
    if kind == 5:
        return "".join(chr(rng.randrange(33, 0x3000)) for _ in range(rng.randint(1, 40)))
    return rng.choice("abcxyzhm?!.-=01_ ") * rng.randint(3, 60)


def total(rng: random.Random) -> str:
    """A small calculation."""
    operators = ("+", "-", "*", "/", "x", "plus", "minus", "times", "divided by", "^", "%")
    space = rng.choice(("", " "))
    text = str(rng.randint(0, 999))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        operator = rng.choice(operators)
        gap = " " if operator.isalpha() else space
        text += f"{gap}{operator}{gap}{rng.randint(0, rng.choice((12, 99, 999)))}"
    return text
