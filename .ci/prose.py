"""Plain English in everything people read. Run by `bootstrap.py check`; prints each finding and exits 1.

Checks the length of lines in Markdown, and a short list of awkward phrases in Markdown and in the docstrings, messages
and comments of the whole program.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 100
"""Characters in a line of Markdown; rows of tables, code and lines that are one long link may be longer."""
UNKEPT = {".venv", ".git", ".pytest_cache", ".hypothesis", "build", "dist", "node_modules", "__pycache__"}
CHECKED = (".ci", "appliance", "bootstrap.py", "plugins", "sdk")
"""Folders and files whose docstrings, messages and comments are checked."""
QUOTED = ("is no worker:", "is no address of this machine", "takes cannot be foretold", "nothing was heard for")
"""Parts of messages that tests quote. A better message changes its tests with it."""

START = r"(?:^|[.:;!?]\s+)"
PHRASES = {
    START + r"Who (?!knows\b)[^?]*$": "say who it is: 'A client that ...'",
    r"(?:[;:]|\b(?:by|for|of|to)) who (?!is\b|are\b)[a-z]": "say who it is: 'the task that ...'",
    r"\b[Ww]hoever\b": "say who it is: 'the caller', 'a client that ...'",
    START
    + r"What (?!is|are|was|were|does|do|did|can|should|would|happens)\b[^?]*$": "name the thing: 'The result ...'",
    r"; (?:and )?what [a-z]": "name the thing, or begin a sentence",
    START + r"Whatever\b": "name the thing: 'Any file that ...'",
    START + r"All (?:that|who|which)\b": "name the things: 'Every request that ...'",
    START + r"(?:Nobody|Somebody|Everybody|Anybody)\b": "name the actor, or what happens: 'Release the lock'",
    r"\bthan (?:any|some|every)body\b": "name the limit",
    r"\b(?:is|are|was|were) no (?!longer\b|more than\b)[a-zA-Z]": "'is not a ...' or 'there is no ...'",
    r"(?<!\d )\b(?:is|are|was|were) none\b(?! of)": "'does not count', 'is skipped', 'is not a ...'",
    r", too[.;)]": "'also', or nothing",
    r"\bgo(?:es)? on on\b": "'continues on'",
    r"\b(?:is|are|was|were|be|been) told\b": "'reports', 'is reported', 'gets a message'",
    r"\b(?:[Hh]ears?|heard)\b": "'receives', 'is called', 'is notified'",
    r"\b(?:lets?|letting) go\b": "'releases'",
    r"\b[Tt]wice is once\b": "'idempotent'",
    r"^It (?:begins|ends) now\b": "name what begins: 'A probe stage has started.'",
    r"\bgoodbye\b": "'error response', 'close frame', 'farewell message': name it",
    r"\bforet(?:old|ells?)\b": "'predict', 'estimate'",
    r"\bon a stick\b": "'on a USB drive'",
    r"\bin place of\b": "'instead of'",
    r"\ball the same\b": "'anyway'",
    r"\bgone back from\b": "'rolled back'",
}
"""Regular expressions, tried on each sentence, to what to write instead of them."""
OPENINGS = re.compile(r"(?:What|How|Whether|Where|Who|Whom|Whose|Of|Those)\b(?! (?:many|much|long) )")
"""Words that do not begin a docstring: that is a noun ('The ...') or a verb ('Return ...')."""
PATTERNS = {re.compile(pattern): advice for pattern, advice in PHRASES.items()}
THERE = re.compile(r"\b(?:there (?:is|are|was|were)|where\w* is|are there) no(?:ne)?\b", re.IGNORECASE)
CODE = re.compile(r"``[^`]*``|`[^`]*`")
MARK = re.compile(r"\s*(?:#+|[-*]|\d+\.)\s+")
SENTENCE = re.compile(r"(?<=[.!?])\s+")


def phrases(text: str) -> Iterator[tuple[str, str]]:
    """Every awkward phrase of a text, with advice. Quoted code is left out."""
    plain = THERE.sub("THERE", CODE.sub("`x`", " ".join(text.split())))
    for sentence in SENTENCE.split(plain):
        for pattern, advice in PATTERNS.items():
            if found := pattern.search(sentence):
                yield found.group().strip(" .:;!?")[:50], advice


def markdown(text: str) -> Iterator[tuple[int, str]]:
    """Line and reason of everything to mend in a Markdown file."""
    paragraph: list[str] = []
    first, fenced = 1, False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        code = fenced or fence or (line.startswith("    ") and not paragraph)
        row = line.startswith("|")
        if len(line) > WIDTH and not (code or row or " " not in line.strip()):
            yield number, f"{len(line)} characters; wrap at {WIDTH}"
        begin = MARK.match(line)
        if code or row or not line.strip() or begin:
            for found, advice in phrases(" ".join(paragraph)):
                yield first, f"'{found}': write {advice}"
            first, paragraph = number, []
        if row:
            for cell in line.split("|"):
                for found, advice in phrases(cell):
                    yield number, f"'{found}': write {advice}"
        elif line.strip() and not code and not line.startswith("#"):  # a heading may be a question
            paragraph.append(line[begin.end() :] if begin else line)


def python(source: str) -> Iterator[tuple[int, str]]:
    """Line and reason of everything to mend in the docstrings, messages and comments of a Python file."""
    tree = ast.parse(source)
    documented = {id(node) for node in _docstrings(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") > 1:
            if id(node) in documented and (found := OPENINGS.match(node.value)):
                yield node.lineno, f"a docstring begins with '{found.group()}': begin with a noun or a verb"
            if any(quoted in node.value for quoted in QUOTED):
                continue
            for said, advice in phrases(node.value):
                yield node.lineno, f"'{said}': write {advice}"
    for line, comment in _comments(source):
        for said, advice in phrases(comment):
            yield line, f"'{said}': write {advice}"


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the docstrings of modules, classes, functions, fields and constants."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
            for statement in node.body:
                if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                    yield statement.value


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield each comment with its first line; comments on lines that follow each other are one."""
    first, words, last = 0, list[str](), 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line = token.start[0]
            if line != last + 1 and words:
                yield first, " ".join(words)
                words = []
            first = first if words else line
            words.append(token.string.lstrip("#: "))
            last = line
    if words:
        yield first, " ".join(words)


def _files(name: str, suffix: str) -> list[Path]:
    """The file of this name, or the folder's files with this suffix, but for those that no commit holds."""
    path = ROOT / name
    found = path.rglob(f"*{suffix}") if path.is_dir() else [path]
    return sorted(each for each in found if not _left_out(each.relative_to(ROOT)))


def _left_out(path: Path) -> bool:
    return bool(UNKEPT & set(path.parts))


def main() -> int:
    found = 0
    for path in (*_files("", ".md"), *(path for name in CHECKED for path in _files(name, ".py"))):
        look = markdown if path.suffix == ".md" else python
        for line, reason in look(path.read_text("utf-8")):
            print(f"{path.relative_to(ROOT)}:{line}: {reason}")
            found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
