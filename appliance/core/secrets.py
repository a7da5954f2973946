"""Which texts are secrets, and how they are hidden: one list of names, and one function, for every answer and log.

A secret is found by the name that it has, by its place in a command, and by its form: a login in an address, a bearer's
token. In doubt a value is hidden. No rule finds every secret: one under an innocent name is shown.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import PurePosixPath
from typing import cast
from urllib.parse import quote

from appliance.core.bodies.json_text import JSON
from appliance.core.command_words import split_command
from appliance.core.llama.flags import lookup

REDACTED = "[REDACTED]"
SECRET_WORDS = (
    "KEY",
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "CREDENTIAL",
    "_PASS",
    "_PAT",
    "AUTH",
    "AUTHORIZATION",
    "BEARER",
    "COOKIE",
)
LEAST = 3
"""A shorter value, or one of `WORDS`, is not looked for in other texts: all of them are full of it."""
ALONE = 6
"""Secrets shorter than this are looked for only as whole words; they occur within other words."""
MAX_REMEMBERED = 64
"""Longest name whose meaning is remembered."""
WORDS = frozenset((
    "on", "off", "auto", "all", "none", "true", "false", "yes", "no", "null", "enabled", "disabled", "layer", "row",
    "tensor", "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1", "mmap", "mlock", "linear", "yarn",
    "distribute", "isolate", "numactl", "deepseek", "mean", "cls", "last", "rank",
))  # fmt: skip
"""Values of options and variables that mean the same everywhere."""
_WORD = "|".join(word for word in SECRET_WORDS if word[0] != "_")
_NAME = re.compile(rf"{_WORD}|(?:^|_)(?:PASS|PAT|PW|PWD)S?(?![A-Z])")
_STARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_COUNT = re.compile(r"[-+]?[0-9.,]{1,12}")
_COUNTED = "TOKENS"
"""A number under a name with this word is a count, as in ``answer_tokens``."""
# A word of a command may be a megabyte long. So no pattern begins within a name, and none tries a shorter one again.
_LOGIN = re.compile(r"(?<=://)(?:[^/?#\s]+|[^\s@/?#:]*+:(?!\d*+(?:[/?#\s]|$)).{1,500})(?=@)")
"""The user and password of an address."""
_NAMED = re.compile(r"(?<![A-Za-z0-9_.-])([A-Za-z0-9_.-]++)(?:[\"'\])]*+\s*+=\s*|[\"'\])]*+\s*+:\s+|[\"'\])]++\s*+:)")
_VARIABLE = re.compile(r"(?<![\w.])(?:-[eE])?(?:[A-Z_][A-Z0-9_]*+=|\"[A-Z_][A-Z0-9_]*+\"\s*+:\s*)")
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=")
_SCHEME = re.compile(r"(?:bearer|basic)\s+", re.IGNORECASE)
_USER = re.compile(r"(?!\d*:\d*$)[^\s:/]*:")
_ENVIRONMENT = frozenset({"-e", "-E", "--env", "--setenv", "--environment"})
_HEADER = frozenset({"-H", "--header", "--headers", "--proxy-header", "--add-header"})
_LOGGED_IN = frozenset({"-u", "-U", "--user", "--proxy-user", "--login", "--userpwd"})
_PROSE = re.compile(r"--?[a-z][a-z-]*(?:=.*)?|--?|-[A-Za-z]|[A-Za-z]?[a-z]*[^\w\s]?")
"""A word behind one such as "token" that is another option, or part of a sentence."""
_LEADS = frozenset({"env", "sudo", "doas", "export", "setsid", "nohup", "exec"})
"""Programs behind which variables may stand before the command."""
_LEAD = re.compile("|".join(sorted(_LEADS)))


def is_secret_name(name: str) -> bool:
    """True for a name of a setting, an option, a header or a variable that promises a secret."""
    return _promises(name) if len(name) <= MAX_REMEMBERED else _promises.__wrapped__(name)


@lru_cache(maxsize=4096)
def _promises(name: str) -> bool:
    """Lists of models ask again and again for the same options."""
    plain = re.sub("[^A-Za-z0-9]+", "_", name)
    return any(_NAME.search(form.upper()) for form in (plain, _STARTS.sub("_", plain)))


def holds_secret(name: str, value: str) -> bool:
    """True for a name that promises a secret, unless the value is empty, a switch or a count."""
    if not value.strip() or not is_secret_name(name) or value.lower() in ("true", "false"):
        return False
    return _COUNT.fullmatch(value) is None or is_secret_name(name.upper().replace(_COUNTED, ""))


def without_secret_values(values: Mapping[str, object]) -> dict[str, object]:
    """Return the values, JSON by name, with `REDACTED` for what a secret's name holds, at any depth, and for the logins
    in addresses. Switches, nulls and empty values are not secrets.
    """
    return {name: _shown(cast("JSON", value), name) for name, value in values.items()}


def _shown(value: JSON, name: str) -> JSON:
    if not value or isinstance(value, bool):
        return value
    if holds_secret(name, "1" if isinstance(value, int | float) else "x"):
        return REDACTED
    if isinstance(value, dict):
        return {inner: _shown(each, inner) for inner, each in value.items()}
    if isinstance(value, list):
        return [_shown(each, name) for each in value]
    return _LOGIN.sub(REDACTED, value) if isinstance(value, str) else value


_SIGNS = re.compile(
    r"key|token|secret|pass|credential|auth|bearer|basic|cookie|pat|pw|hft|header|setenv|user|login|(?<![-\w])-[hu]|[=@'\"\\]",
    re.IGNORECASE,
)


def may_hold_secret(command: str) -> bool:
    """False for most commands, which need no closer look."""
    return _SIGNS.search(command) is not None


Place = tuple[int, int, int]
"""A part of a command: the number of its word, and where in it the part begins and ends."""


def secret_places(words: Sequence[str]) -> Iterator[Place]:
    """The parts of a command that are secrets, or may be. They may overlap."""
    leading = True
    for number, word in enumerate(words):
        before, earlier = (words[number - back].strip() if number >= back else "" for back in (1, 2))
        if _takes_secret(before, earlier, word) or (earlier == "--setenv" and "=" not in before):
            yield number, 0, len(word)
        assigned = _ASSIGNED.match(word)
        if assigned and (leading or before in _ENVIRONMENT):
            yield from _rest(number, word, assigned.end())
        else:
            leads = _LEAD.search(word) is not None and PurePosixPath(word).name in _LEADS
            leading = leads or (leading and word.startswith("-"))
        option, _, value = word.partition("=")
        if option in _ENVIRONMENT and (variable := _ASSIGNED.match(value)):
            yield from _rest(number, word, len(option) + 1 + variable.end())
        if before in _HEADER or ((option in _HEADER or word.startswith("-H")) and ":" in word):
            yield from _rest(number, word, word.find(":") + 1)
        joined = value if option in _LOGGED_IN else word[2:] if word.startswith("-u") else ""
        if _USER.match(word if before in _LOGGED_IN else joined):
            yield number, 0, len(word)
        yield from ((number, start, end) for start, end in secrets_within(word))


def _takes_secret(option: str, before: str, word: str) -> bool:
    """True if ``word`` is the value of an option that is called a secret, or of a list of them that goes on."""
    if option.endswith(",") and is_secret_name(before):
        return True
    flag = lookup(option)
    if not holds_secret(flag.name if flag is not None else option, word) or re.search(r"[=:/\s]", option):
        return False
    if not option.startswith("-"):  # a command of a program, as in "login token X"
        return bool(before) and not before.startswith("-") and not _PROSE.fullmatch(word)
    return flag is None or flag.arity > 0 or not word.startswith("-")


def secrets_within(word: str) -> Iterator[tuple[int, int]]:
    """The parts of one word. A part behind a name or a scheme goes on to the word's end."""
    if not may_hold_secret(word):
        return
    for found in _NAMED.finditer(word):
        if not is_secret_name(found[1]) or word.startswith("//", found.end()):
            continue
        if holds_secret(found[1], word[found.end() :]):
            yield found.end(), len(word)
            break
    for found in _VARIABLE.finditer(word):
        if not _is_word(word[found.end() :]):
            yield found.end(), len(word)
            break
    if (found := _SCHEME.search(word)) is not None:
        yield found.end(), len(word)
    yield from (found.span() for found in _LOGIN.finditer(word))
    inner = split_command(re.sub(r"(?m)^\s*#+", "", word), windows=False)
    if inner != [word]:  # a command of a shell, for example
        for number, start, _ in secret_places(inner):
            at = word.find(inner[number])
            yield (at + start, len(word)) if at >= 0 else (0, len(word))


def _rest(number: int, word: str, start: int) -> Iterator[Place]:
    if start < len(word) and not _is_word(word[start:]):
        yield number, start, len(word)


def _is_word(value: str) -> bool:
    return not value or value.lower() in WORDS or _COUNT.fullmatch(value) is not None


def secrets_of_command(words: Sequence[str]) -> Iterator[str]:
    """The secrets in a command; of a list also each part."""
    for number, start, end in secret_places(words):
        yield from secret_parts(words[number][start:end])


def secret_parts(secret: str) -> Iterator[str]:
    """A secret, what it is behind the word of its scheme, and the parts of a list of them."""
    yield secret
    bare = _SCHEME.sub("", secret, count=1)
    yield bare
    yield from (part.strip() for part in bare.split(","))


def secret_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """The values of variables whose names promise a secret."""
    for name, value in environ.items():
        if holds_secret(name, value):
            yield from secret_parts(value)


@lru_cache(maxsize=4096)
def shown_command(words: tuple[str, ...]) -> tuple[str, ...]:
    """The command with `REDACTED` for its secrets: as many words, and everything else as it is."""
    if not may_hold_secret(" ".join(words)):
        return words
    spans: dict[int, list[tuple[int, int]]] = {}
    secrets: list[str] = []
    for number, start, end in secret_places(words):
        spans.setdefault(number, []).append((start, end))
        secrets += secret_parts(words[number][start:end])
    if not spans:
        return words
    known = Secrets(secrets)
    return tuple(
        known.hidden(with_marks(word, spans.get(number, ()), lambda _: REDACTED)) for number, word in enumerate(words)
    )


def shown_text(text: str, words: Sequence[str]) -> str:
    """The text of a command without its secrets; it is split into ``words``."""
    secrets = {words[number][start:end] for number, start, end in secret_places(words)}
    hidden = Secrets(secrets).hidden(text)
    # a secret that the text spells in another way, or that is too short to be looked for
    return (
        shlex.join(shown_command(tuple(words)))
        if any(one in hidden for one in secrets) or (hidden.count(REDACTED) < len(secrets))
        else hidden
    )


def shown_lines(text: str) -> str:
    """Settings of a file, each ``name = value`` on a line, without the secrets."""
    lines = text.split("\n")
    return "\n".join(with_marks(line, secrets_within(line), lambda _: REDACTED) for line in lines)


def merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans in order; those that touch each other are one."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        elif start < end:
            found.append((start, end))
    return found


def with_marks(text: str, spans: Iterable[tuple[int, int]], mark: Callable[[str], str]) -> str:
    """The text with a mark in the place of each of the `merged` spans."""
    pieces, behind = list[str](), 0
    for start, end in merged(spans):
        pieces += [text[behind:start], mark(text[start:end])]
        behind = end
    return "".join([*pieces, text[behind:]])


class Secrets:
    """Known secrets, which are looked for in any text: as they are, in JSON and in addresses."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        forms: set[str] = set()
        for secret in {one.strip() for one in texts}:
            if len(secret) >= LEAST and not _is_word(secret):
                import json  # see `core.bodies.json_text`

                inner = json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]
                forms |= {secret, *inner, quote(secret), quote(secret, safe=""), " ".join(secret.split())}
        self._forms = sorted(forms - {REDACTED}, key=lambda form: (-len(form), form))

    def found(self, text: str) -> re.Pattern[str] | None:
        """A pattern for those that are in the text; None: there is none."""
        present = [_bounded(form) for form in self._forms if form in text]
        pattern = re.compile("|".join(present)) if present else None
        return pattern if pattern is not None and pattern.search(text) else None

    def hidden(self, text: str, mark: str = REDACTED) -> str:
        return self.counted(text, mark)[0]

    def counted(self, text: str, mark: str) -> tuple[str, int]:
        """The text with marks for secrets, and their number."""
        pattern = self.found(text)
        return pattern.subn(lambda _: mark, text) if pattern is not None else (text, 0)


def _bounded(form: str) -> str:
    return re.escape(form) if len(form) >= ALONE else rf"(?<![A-Za-z0-9]){re.escape(form)}(?![A-Za-z0-9])"
