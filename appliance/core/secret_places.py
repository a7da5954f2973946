"""Finds the places of secrets in a text: behind the names of keys and passwords, in any syntax, and by their look.

A value is all that belongs to its name: a quoted string, a list in brackets, the indented lines of a YAML block, the
rest of a line of its own, else one word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

Span = tuple[int, int]

_NAME = (
    r"(?:[A-Za-z0-9_.-]{0,120}(?:api[_. -]?keys?|access[_-]?keys?|secret[_-]?keys?|private[_-]?keys?|[_-]keys?|"
    r"secrets?|token|passw(?:or)?ds?|passwd|passphrase|pwd|credentials?|authorization|cookie|passcode|[_-]pass|[_-]pat|"
    r"[_-]auth|[_-]jwt|session[_-]?id)|hft|auth|jwt|pw)"
)
_NAMED = re.compile(
    rf"""(?<![A-Za-z0-9_.-])(?P<name>{_NAME})(?![A-Za-z0-9_-])\\*["']?[ \t]*(?:=>|[:=])[ \t]*(?:[&!][\w!]+[ \t]+)*""",
    re.IGNORECASE,
)
_FLAG = re.compile(
    rf"""(?<![\w-])--?(?P<name>{_NAME})(?![\w-])(?P<close>\\*["'])?(?:,?\s+(?:-[ \t]+)?|,)(?P<open>\\*["'])?""",
    re.IGNORECASE,
)
_BLOCK = re.compile(r"[|>][+-]?[0-9]?[ \t]*(?:#[^\n]*)?(?=\n|$)")
_ITEM = re.compile(r"""\\*"(?P<double>(?:[^"\\]|\\.)*)\\*"?|'(?P<single>(?:[^']|'')*)'?|(?P<bare>[^\s,\[\]{}"']+)""")
_LINE_START = re.compile(r"""(?:^|\n)[ \t]*(?:-[ \t]+|export[ \t]+|set[ \t]+)*\\*["']?$""")
_NOT_SECRET = re.compile(r"(?:true|false|null|none|nil|~|\$\{[^{}]*\}|\$[A-Z_][A-Z0-9_]*|%[A-Z_]+%|\*+)", re.IGNORECASE)
_SMALL = re.compile(r"[0-9]{1,6}")
_STRONG = re.compile(r"api|passw|secret|pwd|passphrase|credential", re.IGNORECASE)
_WHOLE_LINE = re.compile(r"authorization$|cookie$", re.IGNORECASE)
LONGEST = 20_000
"""Number of characters within which a bracket or a quote must be closed."""

_PREFIXES = "hf_|sk-|sk_|pk_|rk_|gh[pousr]_|github_pat_|glpat-|xox[a-z]-|nvapi-|gsk_|r8_|AIza|npm_|dop_v1_|ya29[.]"
LOOKS = tuple(
    re.compile(pattern, flags)
    for pattern, flags in (
        (rf"(?<![A-Za-z0-9])(?:{_PREFIXES})[A-Za-z0-9_-]{{6,}}", 0),
        (r"(?<![A-Za-z0-9])A(?:KIA|SIA)[A-Z0-9]{12,}", 0),
        (r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?", 0),
        (r"\b(?:Bearer|Basic)\s+(?P<secret>[A-Za-z0-9._~+/=:-]{6,})", re.IGNORECASE),
        (r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{0,40}:\\*/\\*/(?P<secret>[^/\s\"'<>\\]+)@", 0),
        (r"[?&](?:[a-z0-9]{1,20}-){0,4}(?:key|sig|signature|auth|code)=(?P<secret>[^&\s\"'<>#]{6,})", re.IGNORECASE),
        (r"(?:hooks[.]slack[.]com/services|discord(?:app)?[.]com/api/webhooks)/(?P<secret>[^\s\"'<>]+)", re.IGNORECASE),
        (r"(?:^|(?<=\s))(?:-u|--user)[ =](?P<secret>[^\s:\"']+:[^\s\"']+)", 0),
        (r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?P<secret>.*?)(?=-----END|\Z)", re.DOTALL),
    )
)  # fmt: skip


def secret_spans(text: str) -> list[Span]:
    """Return begin and end of each place, in order, without overlaps and never across the end of a line."""
    found = [*_named(text), *_flags(text), *_looks(text)]
    merged: list[Span] = []
    for start, end in sorted(found):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _named(text: str) -> Iterator[Span]:
    done = 0
    for match in _NAMED.finditer(text):
        if match.start() < done:
            continue  # within the value of another, all of which goes
        for start, end in _value(text, match):
            for span in _worth(text, start, end, match["name"]):
                done = max(done, span[1])
                yield span


def _flags(text: str) -> Iterator[Span]:
    """``--api-key X`` as a command line, as a list of words, and as a YAML list."""
    for match in _FLAG.finditer(text):
        start = match.end()
        if opening := match["open"]:
            end = _closing(text, start, opening)
        else:
            end = start + len((re.compile(r"[^\s\"'<>]*").match(text, start) or [""])[0])
        if not text.startswith("-", start):
            yield from _worth(text, start, end, match["name"])


def _looks(text: str) -> Iterator[Span]:
    for pattern in LOOKS:
        for match in pattern.finditer(text):
            group = "secret" if "secret" in pattern.groupindex else 0
            yield from _by_line(text, match.start(group), match.end(group))


def _value(text: str, match: re.Match[str]) -> Iterator[Span]:
    """Find the places of values that belong to a name."""
    at = match.end()
    char = text[at : at + 1]
    if char in ("", "\n", "\r", "#") or _BLOCK.match(text, at):
        yield from _block(text, match)
    elif char in ("[", "{"):
        end = _bracket(text, at)
        for item in _ITEM.finditer(text, at + 1, end):
            group = next((name for name in ("double", "single", "bare") if item[name] is not None), 0)
            yield item.span(group)
    elif quoted := re.compile(r"\\*[\"']").match(text, at):
        yield quoted.end(), _closing(text, quoted.end(), quoted[0])
    else:
        yield at, _plain_end(text, at, match)


def _plain_end(text: str, at: int, match: re.Match[str]) -> int:
    line_end = _line_end(text, at)
    before = text[max(0, match.start() - 200) : match.start()]
    in_address = before[-1:] in ("?", "&")
    if _WHOLE_LINE.search(match["name"]) and not in_address:
        return at + len((re.compile(r"[^\"'\n]*").match(text, at) or [""])[0])
    if _LINE_START.search(before) and not in_address:
        return line_end
    stop = r"[^\s\"'<>&#]*" if in_address else r"[^\s\"'<>]*"
    word = (re.compile(stop).match(text, at) or [""])[0]
    return at + len(word.rstrip(",;)]}\\"))


def _block(text: str, match: re.Match[str]) -> Iterator[Span]:
    """Find the lines below a name that belong to it: deeper ones, and list items as deep as the name."""
    begin = text.rfind("\n", 0, match.start()) + 1
    lead = re.compile(r"[ \t]*(?:-[ \t]+)*").match(text, begin)
    depth = lead.end() - begin if lead is not None else 0
    at = _line_end(text, match.end()) + 1
    while at < len(text):
        end = _line_end(text, at)
        line = text[at:end]
        inner = line.lstrip()
        indent = len(line) - len(inner)
        if inner and indent <= depth and not (indent == depth and inner.startswith("- ")):
            return
        opened = re.compile(r"(?:-[ \t]+)*\\*[\"']?").match(inner)
        start = at + indent + (opened.end() if opened is not None else 0)
        yield start, at + len(line.rstrip().rstrip(",").rstrip("\"'")) if inner else start
        at = end + 1


def _bracket(text: str, at: int) -> int:
    """Return the place behind the bracket that closes the one at ``at``; the line's end if none does."""
    depth = 0
    for match in re.compile(r"""\\*"(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[\[\]{}]""").finditer(text, at, at + LONGEST):
        depth += 1 if match[0] in ("[", "{") else -1 if match[0] in ("]", "}") else 0
        if depth == 0:
            return match.start()
    return _line_end(text, at)


def _closing(text: str, at: int, quote: str) -> int:
    """Return where a quoted text that begins at ``at`` ends; ``quote`` opened it, perhaps with backslashes before
    it.
    """
    if len(quote) > 1:
        found = text.find(quote, at, _line_end(text, at))
        return found if found >= 0 else _line_end(text, at)
    inner = r'(?:[^"\\]|\\.)*' if quote == '"' else r"(?:[^']|'')*"
    match = re.compile(inner, re.DOTALL).match(text, at, at + LONGEST)
    end = match.end() if match is not None else at
    return end if text[end : end + 1] == quote else _line_end(text, at)


def _worth(text: str, start: int, end: int, name: str) -> Iterator[Span]:
    """Go line by line, unless the value says that there is none."""
    value = text[start:end].strip()
    if _NOT_SECRET.fullmatch(value) or (_SMALL.fullmatch(value) and not _STRONG.search(name)):
        return
    yield from _by_line(text, start, end)


def _by_line(text: str, start: int, end: int) -> Iterator[Span]:
    at = start
    for piece in text[start:end].split("\n"):
        inner = piece.strip()
        if inner:
            begin = at + piece.index(inner)
            yield begin, begin + len(inner)
        at += len(piece) + 1


def _line_end(text: str, at: int) -> int:
    found = text.find("\n", at)
    return len(text) if found < 0 else found
