"""Removes private content from texts: keys, passwords, prompts and answers, the names of user and machine.

It recognises secrets by their place (the value of something called a key, token or password; a flag; a header; an
address), by their form (``hf_...``, ``sk-...``), and from a list. A text that is a secret in one place is removed
everywhere. The rest of a text, and the number of its lines, stays as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote

from msgspec import Struct

from appliance.core.secret_places import Span, secret_spans

REMOVED, HOME, USER, HOST = "<removed>", "<home>", "<user>", "<host>"
MARKERS = (REMOVED, HOME, USER, HOST)

ORDINARY = frozenset((
    "root", "user", "users", "admin", "administrator", "nobody", "guest", "test", "ubuntu", "debian", "fedora", "home",
    "host", "localhost", "local", "docker", "llama", "server", "client", "model", "models", "main", "system", "service",
    "appliance", "removed", "linux", "windows", "default",
))  # fmt: skip
"""Common names of users and machines, which identify nobody and stand in any log."""
LEAST = 3
"""Shortest name to look for; a shorter one occurs in too many words."""
ALONE = 6
"""Secrets shorter than this are removed only as whole words."""

_STAMP = re.compile(r"^(?:\[[^\]\s]{1,200}\] )?\d+\.\d\d\.\d{3}\.\d{3} (?P<level>[A-Z]) ")
"""The beginning of a line that llama-server logs, with the model's id before it in the log of all models."""
_JSON_DEBUG = re.compile(r'"level"\s*:\s*"(?:debug|trace)"')
_ENGINE = re.compile(
    r"^(?:\[[^\]\s]{1,200}\] )?(?:\S*ggml\S*[:(]|CUDA error|terminate called|Segmentation fault|Aborted)"
)
"""Lines that engines print without a stamp, and never with a user's words."""
_WORDS = (
    "prompt|content|messages?|input|inputs|text|quer(?:y|ies)|documents?|suffix|prefix|system|system_prompt|instructions?|"
    "generated_text|response|reasoning|reasoning_content|thinking|completion|arguments|delta|choices|input_extra|"
    "tool_calls|request|body|answer|output|parts|contents"
)
_MEMBER = re.compile(rf"""(?<!\\)\\*["'](?:{_WORDS})\\*["']\s*:\s*""", re.IGNORECASE)
_SAID = re.compile(rf"""\b(?:{_WORDS})\s*[:=]\s*(?=\\*["'{{\[`])""", re.IGNORECASE)
_PARSING = re.compile(r"\b(?:Parsing (?:PEG )?input with format [^:]*|next token|new token|sampled token)\s*:\s*")
_OTHER_HOME = re.compile(r"""(?<![\w.])(/home/|/Users/|[A-Za-z]:\\{1,2}Users\\{1,2})([^\s/\\"'<>:|,;]+)""")
_SHARED = frozenset(("Shared", "Public", "Default", "All"))
ROUNDS = 4
"""A removal may reveal another secret; more than two rounds were never seen to change anything."""


class Counts(Struct, frozen=True, kw_only=True):
    """The number of removals."""

    secrets: int = 0
    prompts: int = 0
    names: int = 0

    def plus(self, other: Counts) -> Counts:
        return Counts(
            secrets=self.secrets + other.secrets,
            prompts=self.prompts + other.prompts,
            names=self.names + other.names,
        )


class Private(Struct, frozen=True, kw_only=True):
    """The known private facts. ``home`` is a folder, ``users`` and ``hosts`` are names."""

    secrets: tuple[str, ...] = ()
    home: str = ""
    users: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


def learn(private: Private, texts: Iterable[str]) -> Private:
    """Return this with the secrets in these texts, so that they are also found in others."""
    found = {text[start:end] for text in texts for start, end in secret_spans(text)}
    known = dict.fromkeys(private.secrets)
    known |= dict.fromkeys(sorted(one for one in found if _tells(one)))
    # A line that belongs to a name as a whole holds the secret among other words.
    words = {word.strip("\"',;()[]{}") for one in found for word in re.split(r"[\s&]+", one)}
    known |= dict.fromkeys(sorted(word for word in words if _tells(word) and _is_mixed(word)))
    return Private(secrets=tuple(known), home=private.home, users=private.users, hosts=private.hosts)


class Redactor:
    """Removes ``private`` facts, and text that looks like a secret."""

    def __init__(self, private: Private) -> None:
        self._literal = _any_of(_forms(private.secrets))
        self._home = _home_pattern(private.home)
        self._users = _names(private.users)
        self._hosts = _names(private.hosts)

    def clean(self, text: str, *, log: bool = False) -> tuple[str, Counts]:
        """Return the cleaned text, and the removals.

        ``log``: servers and engines print it, so the words of users and models are removed as well. Cleaning it again
        changes nothing.
        """
        counts = Counts()
        for _ in range(ROUNDS):
            cleaned, removed = self._once(text, log)
            if cleaned == text:
                break
            text, counts = cleaned, counts.plus(removed)
        return text, counts

    def _once(self, text: str, log: bool) -> tuple[str, Counts]:
        text, prompts = _without_words(text) if log else (text, 0)
        text, secrets = _cut(text, secret_spans(text))
        text, more = _replaced(self._literal, text, REMOVED)
        names = 0
        for pattern, marker in ((self._home, HOME), (self._users, USER), (self._hosts, HOST)):
            text, found = _replaced(pattern, text, marker)
            names += found
        text, found = _other_homes(text)
        return text, Counts(secrets=secrets + more, prompts=prompts, names=names + found)


def _tells(secret: str) -> bool:
    """True if it is safe to look for it everywhere: a word such as "or" after ``--api-key`` is not."""
    plain = secret.isalpha() and (secret.islower() or secret.isupper() or secret.istitle())
    return len(secret) >= 16 or (len(secret) >= ALONE and not plain and not secret.isdigit())


def _is_mixed(word: str) -> bool:
    """True for a mix of letters and digits that is not a path."""
    return any(c.isdigit() for c in word) and any(c.isalpha() for c in word) and "/" not in word


def _cut(text: str, spans: list[Span]) -> tuple[str, int]:
    pieces: list[str] = []
    at = count = 0
    for start, end in spans:
        pieces += [text[at:start], REMOVED]
        count += text[start:end] != REMOVED
        at = end
    return "".join([*pieces, text[at:]]), count


# ---- the words of users and models -----------------------------------------------------------------------------------


def _without_words(text: str) -> tuple[str, int]:
    """Drop debug lines, which hold whole requests and every token; in other lines drop the text after the name of such
    a thing.
    """
    lines: list[str] = []
    count = 0
    before_was_cut = False
    for line in text.split("\n"):
        kept = _kept_of(line, before_was_cut)
        if kept is None:
            lines.append(line)
            before_was_cut = before_was_cut and not line.strip()
            continue
        before_was_cut = True
        whole = line[:kept] + REMOVED if line[kept:].strip() else line
        count += whole != line
        lines.append(whole)
    return "\n".join(lines), count


def _kept_of(line: str, before_was_cut: bool) -> int | None:
    """Return how much of the line may stay; None: all of it."""
    stamp = _STAMP.match(line)
    if stamp is not None and stamp["level"] == "D":
        return stamp.end()
    if _JSON_DEBUG.search(line):
        return 0
    found = [match.end() for pattern in (_MEMBER, _SAID, _PARSING) if (match := pattern.search(line)) is not None]
    if found:
        return min(found)
    if stamp is None and before_was_cut and line.strip() and not _ENGINE.match(line):
        return 0  # a text of several lines goes on
    return None


# ---- what is told ----------------------------------------------------------------------------------------------------


def _forms(secrets: Iterable[str]) -> set[str]:
    """Return each secret as it appears in plain text, in JSON, and in an address."""
    forms: set[str] = set()
    for secret in secrets:
        if len(secret) >= LEAST:
            forms |= {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
            forms |= {quote(secret, safe=""), quote(secret), secret.replace("'", "''"), secret.replace("\\", "\\\\")}
    return forms


def _any_of(words: Iterable[str]) -> re.Pattern[str] | None:
    ordered = sorted({word for word in words if word not in MARKERS}, key=lambda word: (-len(word), word))
    return _guarded("|".join(_bounded(word) for word in ordered)) if ordered else None


def _bounded(word: str) -> str:
    return re.escape(word) if len(word) >= ALONE else rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])"


def _names(names: Iterable[str]) -> re.Pattern[str] | None:
    """Whole words, in any case."""
    told = sorted(
        {name for name in names if len(name) >= LEAST and name.lower() not in ORDINARY}, key=len, reverse=True
    )
    words = "|".join(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])" for name in told)
    return _guarded(words, re.IGNORECASE) if told else None


def _home_pattern(home: str) -> re.Pattern[str] | None:
    if len(home.strip("/\\")) < LEAST:
        return None
    forms = {home, home.replace("\\", "\\\\"), home.replace("\\", "/")}
    return _guarded("|".join(rf"{re.escape(form)}(?![A-Za-z0-9_.-])" for form in sorted(forms, key=len, reverse=True)))


def _guarded(words: str, flags: int = 0) -> re.Pattern[str]:
    """Match earlier replacements, so that nothing within them is taken for something else."""
    return re.compile(f"(?P<marker>{'|'.join(MARKERS)})|(?:{words})", flags)


def _replaced(pattern: re.Pattern[str] | None, text: str, marker: str) -> tuple[str, int]:
    if pattern is None:
        return text, 0
    count = 0

    def by(match: re.Match[str]) -> str:
        nonlocal count
        if match["marker"] is not None:
            return match[0]
        count += 1
        return marker

    return pattern.sub(by, text), count


def _other_homes(text: str) -> tuple[str, int]:
    """Match homes of other users, as they appear in other machines' configurations."""
    found: Iterator[re.Match[str]] = (
        match for match in _OTHER_HOME.finditer(text) if match[2] not in _SHARED and match[2].lower() not in ORDINARY
    )
    pieces: list[str] = []
    at = count = 0
    for match in found:
        pieces += [text[at : match.start(2)], USER]
        at = match.end(2)
        count += 1
    return "".join([*pieces, text[at:]]), count
