"""Secrets of a configuration's text hidden by marks, ``(secret 1)``, which an edit leaves where they are.

`core.config.secret_places` says what is hidden. After that every secret is looked for in the whole text, comments
included, and so it is after an edit. A text in which one may be left is not shown at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from appliance.core.config.nodes import LineIndex, MappingNode, Node, Position, ScalarNode, SequenceNode
from appliance.core.config.secret_places import KNOWN, Found, Span, find, scalars
from appliance.core.config.types import Config
from appliance.core.config.yaml import AS_WRITTEN, parse
from appliance.core.secrets import LEAST, Secrets, merged, secrets_within, with_marks
from appliance.errors import UsageError
from appliance.features.config_editing.core.splices import spans

MARK = "(secret "  # the beginning of every mark
_MARKS = re.compile(r"\(secret \d+\)")
_PLACEHOLDER = "${env.SECRET}"  # stands for a mark when a shown text is looked through; it does not have to be hidden
_COMMENT = re.compile(r"#.*")
_FIX = "edit it on the machine, as with 'llama-appliance config edit'"


class MaskedText(Struct, frozen=True):
    """A text with marks. ``hidden`` has the text behind each of them, ``places`` where these are in the whole text."""

    text: str
    hidden: Mapping[str, str]
    places: Sequence[Span]
    secrets: Secrets
    beside: Sequence[str]  # the texts of the other files
    config_type: type[Config]

    def revealed(self, text: str) -> str:
        """Return another text with these secrets in the place of its marks.

        Raises UsageError for a mark that is not where it was, and for an edit after which a secret would be shown.
        """
        before, now = _marked(self.text), _marked(text)
        if any(before.get(mark) != place for mark, place in now.items()):
            raise UsageError(
                f"a mark of a secret, as '{MARK}1)', can only stay in its own value or comment, once and as it is; "
                f"put it back there, or {_FIX}"
            )
        kept, grown = list[Span](), 0
        for mark in _MARKS.finditer(text):
            size = len(self.hidden[mark[0]])
            kept.append((mark.start() + grown, mark.start() + grown + size))
            grown += size - len(mark[0])
        whole = _MARKS.sub(lambda mark: self.hidden[mark[0]], text)
        old = _MARKS.sub(lambda mark: self.hidden[mark[0]], self.text)
        changes = [(kept, masked(whole, self.beside, self.config_type))]
        for number, file in enumerate(self.beside):
            others = [*self.beside[:number], *self.beside[number + 1 :]]
            before_it, after_it = (masked(file, [text, *others], self.config_type) for text in (old, whole))
            changes.append((list(before_it.places), after_it))
        for places, shown in changes:
            if merged([*places, *shown.places]) != list(shown.places) or self.secrets.found(_MARKS.sub("", shown.text)):
                raise UsageError(f"after this edit, a secret that is hidden now would be shown; {_FIX}")
        return whole


def masked(text: str, beside: Sequence[str] = (), config_type: type[Config] = Config) -> MaskedText:
    """Put marks into a text. Raises UsageError where it is not certain that they hide every secret.

    ``beside`` are texts whose secrets are hidden as well, and which use this one's macros: the configuration's others.
    """
    root, others = _root(text, "0"), [_root(other, str(number)) for number, other in enumerate(beside, 1)]
    if root is None or MARK in text or any(other is None for other in others):
        why = f"it contains the words '{MARK}'" if MARK in text else "a file of it is not YAML that can be read"
        raise UsageError(f"the configuration's text cannot be shown over HTTP, because {why}; {_FIX}")
    beyond = [other for other in others if other is not None]
    found = find([root, *beyond], config_type)
    secrets = found.secrets
    for in_parts in (True, False):  # a value is hidden as a whole where a part of it is not hidden for certain
        places = merged(_places(root, text, found, secrets, in_parts=in_parts))
        hidden = {f"{MARK}{number})": text[start:end] for number, (start, end) in enumerate(places, 1)}
        marks = iter(hidden)
        shown = with_marks(text, places, lambda _, marks=marks: next(marks))
        seen = _MARKS.sub(_PLACEHOLDER, shown)
        after = _root(seen, "0")
        if after is not None and not _is_left(after, seen, find([after, *beyond], config_type), secrets):
            return MaskedText(shown, hidden, places, secrets, beside, config_type)
    raise UsageError(f"the configuration has a secret that cannot be hidden over HTTP as it is written; {_FIX}")


def _places(root: MappingNode, text: str, found: Found, secrets: Secrets, *, in_parts: bool) -> Iterator[Span]:
    """Yield the places of what the text has to hide. ``in_parts``: parts of values, and not all of these values."""
    lines, (_, written) = LineIndex("0", text), spans(text)
    nodes = {node.at: node for node in scalars(root, keys=True)}
    pattern = secrets.found("\0".join(node.text for at, node in nodes.items() if at not in found.whole))
    outside, whole, behind = list[Span](), list[Span](), 0
    for start, span in sorted(written.items()):
        raw, at = text[start : span.end], lines.at(start)
        node = nodes.get(at)
        is_tag = node is not None and not node.text and raw[:1] in ("!", "&")  # a key that begins so, not in quotes
        parts = set(found.parts.get(at, ()))
        if node is not None and pattern is not None:
            parts |= {one.span() for one in pattern.finditer(node.text)}
        if at in found.whole or is_tag or (parts and not in_parts):
            whole.append((start, span.end))
        elif node is not None and parts:
            yield from ((start + first, start + last) for first, last in _written(raw, node.text, merged(parts)))
        outside.append((behind, start))
        if raw[:1] in ("|", ">"):
            outside.append((start, start + len(raw.partition("\n")[0])))
        behind = span.end
    for start, end in (*outside, (behind, len(text))):
        for comment in _COMMENT.finditer(text[start:end]):
            at = start + comment.start()
            yield from ((at + first, at + last) for first, last in secrets_within(comment[0]))
    yield from whole
    rest = with_marks(text, whole, lambda secret: "\0" * len(secret))
    if pattern := secrets.found(rest):
        yield from (one.span() for one in pattern.finditer(rest))


def _written(raw: str, text: str, parts: Sequence[Span]) -> Iterator[Span]:
    """Yield the places of a value's parts in what the file has of it; all of that where this is not certain."""
    if raw.count(text) == 1:
        yield from ((raw.find(text) + start, raw.find(text) + end) for start, end in parts)
        return
    for part in {text[start:end] for start, end in parts}:
        if len(part) < LEAST or raw.count(part) != text.count(part):
            yield 0, len(raw)
        yield from (found.span() for found in re.finditer(re.escape(part), raw))


def _is_left(root: MappingNode, shown: str, again: Found, secrets: Secrets) -> bool:
    """True if a text with marks has something that must not be shown. ``again`` is found in it."""
    nodes = {node.at: node.text for node in scalars(root, keys=True)}
    parts = (nodes[at][a:b] for at, parts in again.parts.items() if at in nodes for a, b in parts)
    return (
        any(at in nodes for at in again.whole)
        or not all(KNOWN.fullmatch(part) for part in parts)
        or secrets.found("\0".join([shown, *nodes.values()]).replace(_PLACEHOLDER, "\0")) is not None
    )


def _marked(text: str) -> dict[str, object]:
    """Return the holder of each mark: the values that have it, or the rest of its line if it is in a comment."""
    root, holders = _root(text, ""), dict[str, object]()
    values = [(path, text) for path, text in _values(root, ()) if MARK in text] if root is not None else []
    for mark in _MARKS.finditer(text):
        end = re.compile(r"[\r\n]|\Z").search(text, mark.end())
        line = max(text.rfind("\n", 0, mark.start()), text.rfind("\r", 0, mark.start())) + 1
        comment = max(text.rfind("#", line, mark.start()), line)
        inside = [(path, value) for path, value in values if mark[0] in value]
        rest = text[comment : end.start()] if end is not None else ""
        holders[mark[0]] = "twice" if mark[0] in holders else inside or rest
    spelt_otherwise = any(mark not in holders for _, value in values for mark in _MARKS.findall(value))
    if spelt_otherwise or text.count(MARK) != len(_MARKS.findall(text)):
        holders[MARK] = "strange"
    return holders


def _values(node: Node, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    match node:
        case ScalarNode():
            yield path, node.text
        case SequenceNode():
            for number, item in enumerate(node.items):
                yield from _values(item, (*path, str(number)))
        case MappingNode():
            for entry in node.entries:
                yield path, entry.key.text
                yield from _values(entry.value, (*path, entry.key.text))


def _root(text: str, file: str) -> MappingNode | None:
    """The root of a text without mistakes; an empty text is an empty one."""
    root, problems = parse(text, file, AS_WRITTEN)
    if any(problem.level == "error" for problem in problems):
        return None
    return root if isinstance(root, MappingNode) else MappingNode((), Position(file, 1, 1))
