"""The output of llama.cpp's programs, as far as it is read: options, one line for a message, the line that blames.

Any text has a reading, if an empty one; none raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from appliance.core.engine import Manual

MAX_TEXT = 1 << 20
"""Characters examined in one text."""
MAX_LINE = 1024
"""A longer line is skipped."""
STAMP = re.compile(r"^\s*[0-9]+(?:\.[0-9]{2,3}){3} [A-Z] ")
"""The beginning of llama.cpp's log lines."""
LEVEL = re.compile(r"^\d+\.\d\d\.\d{3}\.\d{3} (?P<level>[EWID]) ")
"""llama-server's time and level; lines that backends print themselves have none."""
OPTION = re.compile(r"-{1,2}[a-zA-Z0-9][\w.-]*(?:, +-{1,2}[a-zA-Z0-9][\w.-]*)*")
"""The spellings at the beginning of an option's first line, which is not indented; explanations name other options."""
PORT = re.compile(r"--port\b.*\(default: ([0-9]{1,5})\)")
BLAME = re.compile(r"error|fail|cannot|couldn't|abort|assert|invalid|unsupported|not supported|lost", re.IGNORECASE)
EMPTY_BLAME = re.compile(r"failed to load model|exiting due to|error loading model$", re.IGNORECASE)
"""Lines that only repeat that it failed."""
LONGEST = 300
"""Longest line that is shown, in characters."""


def parse_manual(text: str) -> Manual:
    """Read what ``--help`` prints. Any text has a reading, if an empty one."""
    options: dict[str, None] = {}
    port: int | None = None
    for line in lines_of(text[:MAX_TEXT]):
        if found := OPTION.match(line):
            options |= dict.fromkeys(word for word in re.split(r"[ ,]+", found[0]) if word.startswith("--"))
        if (said := PORT.match(line)) and 0 < int(said[1]) <= 65535:
            port = int(said[1])
    return Manual(options=" ".join(options), port=port)


def printable(text: str, most: int = 300) -> str:
    """Return one line of a program's output for a message: bounded, without time stamp and cursor movements."""
    said = STAMP.sub("", text[: most + 100]).strip()
    shown = "".join(char if char.isprintable() else "?" for char in said[:most])
    return shown if len(said) <= most else f"{shown}..."


def lines_of(text: str) -> Iterator[str]:
    """Return the lines that are not too long."""
    return (line.rstrip("\r") for line in text.split("\n") if len(line) <= MAX_LINE)


def explanation(lines: Sequence[str]) -> str:
    """Return the line that explains the end: the last one that blames something, else the last. Empty without lines."""
    told = [line for line in lines if line.strip()]
    blaming = [line for line in told if _blames(line)]
    telling = [line for line in blaming if not EMPTY_BLAME.search(line)]
    best = (telling or blaming or told or [""])[-1]
    shown = LEVEL.sub("", best).strip()
    return "".join(letter if letter.isprintable() else "?" for letter in shown)[:LONGEST]


def _blames(line: str) -> bool:
    level = LEVEL.match(line)
    if level is not None and level["level"] in "ID":
        return False
    return (level is not None and level["level"] == "E") or BLAME.search(line) is not None
