"""Plain values as YAML that reads back the same, here and in llama-swap."""

from __future__ import annotations

import io
import re
from typing import cast

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

_BARE = re.compile(r"[A-Za-z/][\w./-]*( [\w./-]+)*", re.ASCII)
"""Text that needs no quotes in any dialect of YAML, but for the words below."""
_WORDS = frozenset(["y", "yes", "n", "no", "true", "false", "on", "off", "null", "inf", "nan"])


def yaml_text(tree: object) -> str:
    """One YAML document. Commands of several lines stay blocks; text that looks like a number is quoted."""
    yaml = YAML(typ="rt")
    yaml.width = 1 << 20  # lines are not folded: a command is read more easily as it was written
    yaml.allow_unicode = True
    out = io.StringIO()
    yaml.dump(_quoted(tree), out)  # pyright: ignore[reportUnknownMemberType]  ruamel has no types there
    return out.getvalue()


def _quoted(value: object) -> object:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        return {_key(str(key)): _quoted(item) for key, item in cast(dict[object, object], value).items()}
    if isinstance(value, list | tuple):
        return [_quoted(item) for item in cast(list[object], value)]
    return value


def _text(text: str) -> str:
    return LiteralScalarString(text) if "\n" in text and text[0] not in "\n\t " else _key(text)


def _key(text: str) -> str:
    if _BARE.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return DoubleQuotedScalarString(text)
