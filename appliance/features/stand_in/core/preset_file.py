"""The text of model presets, and one option of a model as a key, the command line or a variable gives it.

The INI dialect is llama.cpp b11434's, tried out against its ``llama-server``: a section header and ``key = value``
begin in the first column; a comment begins with ``;`` or ``#`` anywhere, so that no value can hold either; blank lines
and indented comments are passed over; quotes are part of a value; a repeated section discards the earlier one. This
reader takes two things more: a byte order mark, and dashes in front of a key.

A key is any spelling of an option without its dashes, or its variable. The rules are those of llama.cpp b11434's
router; where that takes a mistake for something else (``metrics = no`` switches on), this is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from msgspec import Struct

from appliance.core.config.nodes import Position, Problem
from appliance.core.llama import flags
from appliance.core.llama.flags import FALSE_WORDS, FLAGS, REPLACEMENT, TRUE_WORDS, Flag, Kind, Option
from appliance.core.rpc_workers import endpoints_of
from appliance.core.whole_numbers import whole_number
from appliance.errors import UsageError

DEFAULT = "default"  # the model for settings before the first section
EVERYWHERE = "*"  # the section for every model
_ENDS = re.compile(r"\r\n|\n|\r")
_HEADER = re.compile(r"\[([^\]]*)\][ \t]*(?:[;#].*)?")
_SETTING = re.compile(r"(-*)([A-Za-z_][A-Za-z0-9_.-]*)[ \t]*=[ \t]*(.*)")
_COMMENT = re.compile(r"[;#]")
LOAD_ON_STARTUP = "load-on-startup"
STOP_TIMEOUT = "stop-timeout"
DEDUP = "dedup-cache-models"
ENGINE = "engine"
PRESET_ONLY = (DEDUP, ENGINE, LOAD_ON_STARTUP, STOP_TIMEOUT)  # for the router alone; no options of llama-server
HF_TOKEN = "HF_TOKEN"
_SAMPLERS = {
    "dry": "d", "top_k": "k", "typ_p": "y", "top_p": "p", "top_n_sigma": "s", "min_p": "m", "temperature": "t",
    "xtc": "x", "infill": "i", "penalties": "e", "adaptive_p": "a",
}  # fmt: skip
"""Names of samplers and their letters in ``--sampler-seq`` (llama.cpp b11434)."""
_OPPOSITE = {"mmap": "none", "none": "mmap"}  # load modes that ``mmap = false`` and ``no-mmap = false`` once meant
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
NONE: Choices = MappingProxyType({})


class Setting(Struct, frozen=True, kw_only=True):
    """``key = value``: the key without dashes in front, the value without the blanks and the comment around it."""

    key: str
    value: str
    at: Position


class PresetSection(Struct, frozen=True, kw_only=True):
    """One section, or (named `DEFAULT`) the settings before the first."""

    name: str
    settings: tuple[Setting, ...] = ()
    at: Position


def parse(text: str, file: str) -> tuple[list[PresetSection], list[Problem]]:
    """The sections in the order of the file, each name once, and all problems and oddities of the lines."""
    problems: list[Problem] = []
    opened: list[tuple[PresetSection, list[Setting]]] = []
    for line in _lines(text.removeprefix("\ufeff"), file):
        match line:
            case Problem():
                problems.append(line)
            case PresetSection():
                opened.append((line, []))
            case Setting() if opened:
                opened[-1][1].append(line)
            case Setting():
                opened.append((PresetSection(name=DEFAULT, at=line.at), [line]))
    sections: dict[str, PresetSection] = {}
    for header, settings in opened:
        if earlier := sections.pop(header.name, None):
            message = f"this [{header.name}] discards the one in line {earlier.at.line}, as in llama-server; join them"
            problems.append(Problem(message=message, at=header.at, level="warning"))
        sections[header.name] = PresetSection(name=header.name, settings=tuple(settings), at=header.at)
    return list(sections.values()), sorted(problems, key=lambda problem: problem.at.line if problem.at else 0)


def _lines(text: str, file: str) -> Iterator[PresetSection | Setting | Problem]:
    for number, line in enumerate(_ENDS.split(text), start=1):
        at = Position(file, number, 1)
        bare = line.strip(" \t")
        if not bare or bare[0] in ";#":
            continue
        if "\0" in line:
            yield Problem(message="this line holds a NUL character; save the file as plain text", at=at)
        elif line != line.lstrip(" \t"):
            indent = len(line) - len(line.lstrip(" \t"))
            advice = "this line is indented; sections and keys begin in the first column: remove the blanks in front"
            yield Problem(message=advice, at=Position(file, number, indent + 1))
        elif line.startswith("["):
            yield _header(bare, at)
        else:
            yield from _setting(bare, at)


def _header(line: str, at: Position) -> PresetSection | Problem:
    match = _HEADER.fullmatch(line)
    if match is None:
        wrong = "there is text behind the section's ']'; remove it" if "]" in line else "the section's ']' is missing"
        return Problem(message=wrong, at=at)
    name = match[1].strip(" \t")
    if not name:
        return Problem(message="the section has no name; write the model's name, or [*] for all models", at=at)
    return PresetSection(name=name, at=at)


def _setting(line: str, at: Position) -> Iterator[Setting | Problem]:
    match = _SETTING.fullmatch(line)
    if match is None:
        key, equals, _ = line.partition("=")
        wrong = (
            f"{key.strip()!r} cannot be a key: it begins with a letter and holds letters, digits, '_', '.' and '-'"
            if equals
            else f"{line[:40]!r} is neither [section] nor key = value; a flag without a value is written key = true"
        )
        yield Problem(message=wrong, at=at)
        return
    dashes, key, rest = match.groups()
    value = _COMMENT.split(rest, maxsplit=1)[0]
    for oddity in _oddities(dashes, key, value, rest):
        yield Problem(message=oddity, at=at, level="warning")
    yield Setting(key=key, value=value.rstrip(" \t"), at=at)


def _oddities(dashes: str, key: str, value: str, rest: str) -> Iterator[str]:
    """A setting that works, though perhaps not as intended."""
    if dashes:
        yield f"llama-server itself refuses dashes in front of a key; write {key}"
    cut = len(value) < len(rest)
    if cut and (value.rstrip(" \t") == value != "" or value.count('"') % 2 or value.count("'") % 2):
        other = _as_sequence(key, rest)
        yield f"the value ends before {rest[len(value)]!r}, which begins a comment even within quotes{other}"
    elif len(bare := value.strip()) > 1 and bare[0] == bare[-1] and bare[0] in "\"'":
        yield f"the quotes are part of the value, as in llama-server; write {bare[1:-1]} without them"


def _as_sequence(key: str, rest: str) -> str:
    """Return how to write several samplers, whose names a semicolon would separate."""
    letters = [_SAMPLERS.get(name.strip()) for name in rest.split(";")]
    known = key.lstrip("-") == "samplers" and None not in letters
    return f"; write sampler-seq = {''.join(filter(None, letters))}" if known else ""


class EffectiveOption(Struct, frozen=True, kw_only=True):
    """One option as it counts for a model. ``name`` is llama-server's own spelling, or one of `PRESET_ONLY`."""

    name: str
    words: tuple[str, ...] = ()  # for the engine's command line; none for a switch that is off
    text: str  # the value as llama-server writes it into an INI
    on: bool = True
    origin: str  # a place in a file, a variable, a flag of the command line


Choices = Mapping[str, EffectiveOption]  # by `EffectiveOption.name`


def _flag_of(name: str) -> Flag:
    flag = flags.lookup(name)
    if flag is None:
        raise KeyError(name)
    return flag


def canonical(names: Iterable[str]) -> frozenset[str]:
    """Return the names that `EffectiveOption` uses for these spellings."""
    return frozenset(_flag_of(name).name for name in names)


FRONTS_OWN = canonical((
    "--host", "--port", "--reuse-port", "--path", "--api-prefix", "--api-key", "--api-key-file", "--ssl-key-file",
    "--ssl-cert-file", "--cors-origins", "--cors-methods", "--cors-headers", "--cors-credentials", "--ui",
    "--ui-config", "--ui-config-file", "--ui-mcp-proxy", "--tools", "--tools-runtime", "--tools-root", "--agent",
    "--mcp-servers-config", "--mcp-servers-json", "--models-dir", "--models-preset", "--models-max",
    "--models-autoload", "--log-colors", "--hf-token", "--allow-unauthenticated",
))  # fmt: skip
"""Options of the server in front, which no model process gets.

llama-server's own router passes some of them on; ``--hf-token`` would then be visible to every client in the list of
models.
"""
NOT_FOR_ALL = canonical(("--model", "--mmproj", "--alias", "--hf-repo", "--log-file"))  # of one particular model
ENDS_AT_ONCE = canonical(("--help", "--version", "--cache-list", "--completion-bash", "--list-devices"))
NOT_FROM_STRANGERS = canonical((
    "--rpc", "--lora", "--lora-scaled", "--control-vector", "--control-vector-scaled", "--model-url", "--mmproj-url",
    "--docker-repo", *(flag.name for flag in FLAGS if flag.kind is Kind.PATH and flag.name != "--hf-file"),
))  # fmt: skip
"""Options with which a preset from somebody's repository could reach files and servers of its choice."""
_SERVERS = FRONTS_OWN | NOT_FOR_ALL | ENDS_AT_ONCE


def chosen(options: Iterable[Option]) -> Choices:
    """Return the choices of the command line or the environment for all models; the last of each option counts."""
    return {
        option.canonical: choice_of(_flag_of(option.canonical), option.values, on=option.on, origin=option.flag)
        for option in options
        if option.canonical not in _SERVERS and option.flag != HF_TOKEN
    }


def from_words(words: Iterable[str], origin: str) -> Choices:
    """Return the same for flags that the program itself gives a model."""
    options = flags.split(tuple(words))
    return {o.canonical: choice_of(_flag_of(o.canonical), o.values, on=o.on, origin=origin) for o in options}


def choice_of(
    flag: Flag, values: tuple[str, ...], *, on: bool = True, text: str | None = None, origin: str
) -> EffectiveOption:
    """``text`` is the original spelling, if known."""
    spoken = " ".join(values) if flag.arity else str(int(on))
    name = flag.name if on else flag.negatives[-1] if flag.negatives else None
    words = () if name is None else (name, *values)
    return EffectiveOption(name=flag.name, words=words, text=spoken if text is None else text, on=on, origin=origin)


def read_key(key: str, value: str, origin: str) -> EffectiveOption | str:
    """Return the option that ``key = value`` chooses, or its mistake."""
    if key in PRESET_ONLY:
        return _for_the_router(key, value, origin)
    flag, on = KEYS.get(key, (None, True))
    if flag is None:
        return _former(key, value, origin) or _unknown(key)
    if flag.kind is Kind.REMOVED:
        return f"{key} has been removed from llama-server; use {REPLACEMENT[flag.name].replace('--', '')}"
    if flag.name in ENDS_AT_ONCE:
        return f"with {key} llama-server ends at once; remove it from the preset"
    if flag.kind is Kind.PAIR:
        return f"{key} takes two values, which presets cannot hold; give {flag.name} on the command line"
    if flag.arity == 0:
        return _switch(flag, on, key, value, origin)
    if not value:
        return f"{key} has no value; write one, or remove the line"
    if wrong := wrong_value(flag, key, value):
        return wrong
    return choice_of(flag, (value,), text=value, origin=origin)


def _for_the_router(key: str, value: str, origin: str) -> EffectiveOption | str:
    if key == STOP_TIMEOUT and whole_number(value) is None:
        return f"{key} is a whole number of seconds, not {value!r}; write {key} = 10"
    if key == ENGINE and not value:
        return f"{key} has no value; write {key} = auto, or a backend such as vulkan"
    on = True if key in (STOP_TIMEOUT, ENGINE) else _boolean(value)
    return _not_boolean(key, value) if on is None else EffectiveOption(name=key, text=value, on=on, origin=origin)


def _switch(flag: Flag, positive: bool, key: str, value: str, origin: str) -> EffectiveOption | str:
    """Treat ``no-x = true`` as ``x = false``."""
    said = _boolean(value)
    if said is None:
        return _not_boolean(key, value)
    text = value if positive else "false" if said else "true"
    return choice_of(flag, (), on=said is positive, text=text, origin=origin)


def _boolean(value: str) -> bool | None:
    """llama-server takes every word but its own for off as on; here ``no`` and ``False`` are mistakes."""
    if value in FALSE_WORDS:
        return False
    return True if not value or value.lower() in TRUE_WORDS else None


def _not_boolean(key: str, value: str) -> str:
    return f"{key} is on or off, and {value!r} is neither; write {key} = true or {key} = false"


def wrong_value(flag: Flag, key: str, value: str) -> str | None:
    """Return the mistake in the value of an option that takes one; ``key`` is its spelling."""
    if flag.kind is Kind.INTEGER and not _INTEGER.fullmatch(value):
        return f"{key} is a whole number, not {value!r}"
    if flag.kind is Kind.NUMBER and not _NUMBER.fullmatch(value):
        return f"{key} is a number, not {value!r}"
    if flag.name == "--sleep-idle-seconds" and int(value) == 0:
        return f"{key} is a number of seconds from 1 on, or -1 for never"
    if flag.name == "--rpc":
        try:
            endpoints_of(value)
        except UsageError as error:
            return f"{key}: {error}"
    return None


def _former(key: str, value: str, origin: str) -> EffectiveOption | str | None:
    """Return the new name for a key of earlier releases: ``mlock = true`` is ``load-mode = mlock``."""
    word = next((word for word in (f"--{key}", f"-{key}") if flags.lookup(word) is not None), None)
    if word is None or "_" in key:
        return None
    said = _boolean(value)
    if said is None:
        return _not_boolean(key, value)
    option = flags.split((word,))[0]
    mode = option.values[0] if said else _OPPOSITE.get(option.values[0])
    if mode is None:
        return EffectiveOption(name=option.canonical, text=value, on=False, origin=origin)
    return choice_of(_flag_of(option.canonical), (mode,), text=mode, origin=origin)


def _unknown(key: str) -> str:
    from difflib import get_close_matches  # only on the way to an error

    known = (*KEYS, *PRESET_ONLY)
    near = next(iter(get_close_matches(key.lower().replace("_", "-"), known, n=1, cutoff=0.75)), None)
    return f"llama-server has no option '{key}'" + (f"; did you mean {near}?" if near else "")


def _keys() -> dict[str, tuple[Flag, bool]]:
    """Return every key with its option, and whether it means the option or its opposite."""
    keys: dict[str, tuple[Flag, bool]] = {}
    for flag in FLAGS:
        keys |= {word.lstrip("-"): (flag, True) for word in (*flag.spellings, *((flag.env,) if flag.env else ()))}
        keys |= {word.lstrip("-"): (flag, False) for word in flag.negatives}
        if flag.env_off is not None:
            keys[flag.env_off] = (flag, False)
    return keys


KEYS = _keys()
