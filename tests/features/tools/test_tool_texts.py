"""Lines for a model, edits, globs and regular expressions: each against a plain reading of its rule."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from appliance.core.capped_output import MAX_OUTPUT, CappedOutput, whole_characters
from appliance.features.tools.core.patterns import (
    MAX_GLOB,
    MAX_REGEX,
    BadToolPattern,
    Glob,
    posix_pattern,
    python_pattern,
)
from appliance.features.tools.core.search import GrepLines
from appliance.features.tools.core.texts import TRUNCATED, EditProblem, LineWindow, TextEdit, apply_edits

TEXT = st.text("aé\n→", max_size=40)


def fed(window: LineWindow, data: bytes, sizes: list[int]) -> str:
    at = 0
    for size in [*sizes, len(data)]:
        window.feed(data[at : at + size])
        at += size
    return window.text()


@given(
    TEXT,
    st.lists(st.integers(0, 9), max_size=8),
    st.integers(-1, 5),
    st.one_of(st.none(), st.integers(0, 6)),
    st.booleans(),
)
def test_the_lines_that_were_asked_for(
    text: str, sizes: list[int], first: int, last: int | None, numbered: bool
) -> None:
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    wanted = [
        f"{number}→{line}\n" if numbered else f"{line}\n"
        for number, line in enumerate(lines, 1)
        if number >= first and (last is None or number <= last)
    ]
    assert fed(LineWindow(first, last, numbered=numbered), text.encode(), sizes) == "".join(wanted)


@given(st.lists(st.integers(1, 9000), min_size=1, max_size=12), st.integers(1, 3))
def test_it_is_cut_at_the_limit(lengths: list[int], first: int) -> None:
    data = b"".join(b"x" * length + b"\n" for length in lengths)
    wanted = "".join("x" * length + "\n" for length in lengths[first - 1 :])
    window = LineWindow(first)
    window.feed(data)
    text = window.text()
    if len(wanted) <= MAX_OUTPUT:
        assert text == wanted
    else:
        assert text == wanted[:MAX_OUTPUT] + ("" if wanted[MAX_OUTPUT - 1] == "\n" else "\n") + TRUNCATED
        assert window.full


def test_a_character_is_not_cut() -> None:
    window = LineWindow()
    window.feed(b"x" * (MAX_OUTPUT - 1) + "é".encode() + b"\n")
    assert window.text() == "x" * (MAX_OUTPUT - 1) + "\n" + TRUNCATED


@given(TEXT, st.integers(0, 60), st.lists(st.integers(1, 9), max_size=8))
def test_output_is_capped_and_whole(text: str, limit: int, sizes: list[int]) -> None:
    output, data, at = CappedOutput(limit), text.encode(), 0
    kept = b""
    for size in [*sizes, len(data)]:
        kept += output.feed(data[at : at + size])
        at += size
    assert kept == output.kept == data[:limit]
    assert output.truncated == (len(data) > limit)
    assert text.startswith(output.text())


@given(st.binary(max_size=20))
def test_of_any_bytes_at_most_one_character_is_left_out(data: bytes) -> None:
    assert data.decode(errors="replace").startswith(whole := whole_characters(data))
    assert any(whole == data[: len(data) - back].decode(errors="replace") for back in range(4))


def edit(old: str, new: str) -> TextEdit:
    return TextEdit(old_text=old, new_text=new)


MANY = [f"<{n}>" for n in range(1001)]


@given(
    st.lists(st.tuples(st.text("xy \n\r\t“é", max_size=6), st.text("xy\n", max_size=6)), min_size=1, max_size=6),
    st.text("xy \n", max_size=6),
    st.randoms(use_true_random=False),
)
def test_pieces_that_are_there_once_are_replaced_and_the_rest_stays(parts, end: str, random) -> None:
    marks = [f"<{n}>" for n in range(len(parts))]
    text = "".join(before + mark for (before, _), mark in zip(parts, marks, strict=True)) + end
    edits = [edit(mark, new) for (_, new), mark in zip(parts, marks, strict=True)]
    random.shuffle(edits)
    assert apply_edits(text, edits) == "".join(before + new for before, new in parts) + end


@given(st.lists(st.text("ab", min_size=1, max_size=3), min_size=3, max_size=8), st.data())
def test_a_piece_is_found_although_its_spaces_and_quotes_are_others(words: list[str], data: st.DataObject) -> None:
    lines = [f"{n}{word}“{n}”" for n, word in enumerate(words)]
    at = data.draw(st.integers(0, len(lines) - 1))
    ends = [data.draw(st.sampled_from(["", " ", "\t ", "\r"])) for _ in lines]
    text = "\n".join(line + end for line, end in zip(lines, ends, strict=True)) + "\n"
    wanted = lines[at].replace("“", '"').replace("”", '"') + data.draw(st.sampled_from(["", "  "]))
    changed = apply_edits(text, [edit(wanted, "NEW")])
    before, after = text.split("\n"), changed.split("\n")
    assert len(before) == len(after)
    assert [n for n, (old, new) in enumerate(zip(before, after, strict=True)) if old != new] == [at]
    assert after[at].startswith("NEW")


@pytest.mark.parametrize(
    ("text", "edits", "word"),
    [
        ("dup\ndup\n", [edit("dup", "x")], "unique"),
        ("aaa", [edit("aa", "x")], "unique"),
        ("dup \ndup\t\n", [edit("dup\n", "x")], "unique"),
        ("line1\nline2\n", [edit("line1\nline2", "a"), edit("line2", "b")], "overlap"),
        ("abc", [edit("", "x")], "empty"),
        ("abc", [], "non-empty"),
        ("abc", [edit("b", "b")], "no changes"),
        ("abc", [edit("z", "x")], "could not find"),
        ("abc", [edit("  ", "x")], "could not find"),
        ("".join(MANY), [edit(each, "") for each in MANY], "there are 1001 edits; the most is 1000"),
    ],
)
def test_what_cannot_be_done_changes_nothing_and_says_why(text: str, edits: list[TextEdit], word: str) -> None:
    with pytest.raises(EditProblem, match=word):
        apply_edits(text, edits)


@pytest.mark.parametrize(
    ("text", "edits", "changed"),
    [
        ("a b", [edit("a", "b"), edit("b", "a")], "b a"),  # all against the original
        ("ab", [edit("a", "1"), edit("b", "2")], "12"),  # neighbours do not overlap
        ("a\r\nb\r\nc\r\n", [edit("a\nb", "x\ny")], "x\r\ny\r\nc\r\n"),  # the file's line ends are kept
    ],
)
def test_what_is_changed(text: str, edits: list[TextEdit], changed: str) -> None:
    assert apply_edits(text, edits) == changed


@given(st.text(max_size=60), st.text(max_size=10), st.text(max_size=10))
def test_any_text_is_replaced_or_refused(text: str, old: str, new: str) -> None:
    try:
        changed = apply_edits(text, [edit(old, new)])
    except EditProblem:
        return
    assert changed != text
    if text.count(old) == 1:
        assume("\r" not in text)
        assert changed == text.replace(old, new)


CASES = [
    (r"\d+", "v42", True),
    (r"^\d+$", "٤٢", False),  # no digits in ECMAScript
    (r"\w", "é", False),
    (r"[\w-]+x", "a-x", True),
    (r"[^\d]", "7", False),
    (r"\bfoo\b", "a foo b", True),
    (r"\bfoo\b", "afoo", False),
    (r"(?:ab){2}", "abab", True),
    (r"a+?b", "aab", True),
    (r"\/\/ *TODO", "// TODO", True),
    (r"x\$", "x$", True),
    (r"end$", "the end", True),
    (r"[]x]", "x]", False),  # an empty class, then text
    (r"[\]x]", "]", True),
    (r"[[:digit:]]", "5", True),
    (r"a{,2}", "a{,2}", True),
    (r"{", "{", True),
    (r"\x41\u0042", "AB", True),
    (r"[&&]", "&", True),
    (r"[a-\x63]", "b", True),
    (r"[\^a]", "^", True),
    (r"a|b", "b", True),
    (r"[a^-]", "^", True),
    (r"\.", "x", False),
]


@pytest.mark.parametrize(("pattern", "text", "matches"), CASES)
def test_python_reads_it_so(pattern: str, text: str, matches: bool) -> None:
    assert (python_pattern(pattern, literal=False, ignore_case=False).search(text) is not None) is matches


@pytest.mark.skipif(sys.platform == "win32" and not shutil.which("grep"), reason="Windows comes without grep")
@pytest.mark.parametrize(("pattern", "text", "matches"), [case for case in CASES if "[]" not in case[0]])
def test_grep_reads_it_so(pattern: str, text: str, matches: bool) -> None:
    if pattern in (r"\w", r"^\d+$"):
        return  # what a letter is, is up to grep's locale
    words = ["grep", "-E", "-e", posix_pattern(pattern)]
    done = subprocess.run(words, input=f"{text}\n".encode(), capture_output=True, timeout=20, env={"LC_ALL": "C"})
    assert done.returncode == (0 if matches else 1), done.stderr


def test_lookbehind_and_names_are_python_s_too() -> None:
    assert python_pattern(r"(?<=a)(?<letter>b)", literal=False, ignore_case=False).search("ab")
    assert python_pattern("[^]", literal=False, ignore_case=False).search("\n")
    assert python_pattern("É", literal=False, ignore_case=True).search("é")


@pytest.mark.parametrize("pattern", ["(", "[a", "a)", "*a", "(?P<n>a)", "(?i)a", r"\8", "[z-a]", "[[:nope:]]", "a**"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(BadToolPattern, match="invalid regex"):
        python_pattern(pattern, literal=False, ignore_case=False)


@pytest.mark.parametrize("pattern", ["a(?=b)", "(?<!a)b", r"[\W]", "[^]", r"[!-\]]", r"[\--a]"])
def test_what_grep_cannot_do_is_named(pattern: str) -> None:
    with pytest.raises(BadToolPattern, match="runtime"):
        posix_pattern(pattern)


def test_a_pattern_has_an_end() -> None:
    with pytest.raises(BadToolPattern, match="the most is"):
        python_pattern("a" * (MAX_REGEX + 1), literal=True, ignore_case=False)
    with pytest.raises(ValueError, match="the most is"):
        Glob("x" * (MAX_GLOB + 1))


@given(st.text(max_size=20), st.text(max_size=20))
def test_literal_text_is_found_where_it_is(pattern: str, text: str) -> None:
    assert (python_pattern(pattern, literal=True, ignore_case=False).search(text) is not None) is (pattern in text)


@given(st.text("ab()[]{}^$.|?*+\\-:=!<dwsWDSbBxuc01,", max_size=15))
def test_any_text_is_a_pattern_or_is_refused(pattern: str) -> None:
    for read in (lambda: python_pattern(pattern, literal=False, ignore_case=True), lambda: posix_pattern(pattern)):
        try:
            read()
        except BadToolPattern:
            pass


def oracle(pattern: str, path: str) -> bool:
    """The rule as it is told, by trying everything."""
    if "/" not in pattern:
        return tried(pattern, path.rpartition("/")[2])
    whole = pattern if pattern.startswith(("**/", "/")) else f"**/{pattern}"
    return tried(whole.removeprefix("/"), path)


def tried(pattern: str, text: str, *, begins: bool = True) -> bool:
    """``begins``: a name begins here in the pattern."""
    if not pattern:
        return not text
    if begins and pattern.startswith("**/"):
        folders = [at for at in range(1, len(text) + 1) if text[at - 1] == "/"]
        return any(tried(pattern[3:], text[at:]) for at in (0, *folders))
    if pattern.startswith("**"):
        return any(tried(pattern[2:], text[at:], begins=False) for at in range(len(text) + 1))
    if pattern.startswith("*"):
        reach = len(text.partition("/")[0])
        return any(tried(pattern[1:], text[at:], begins=False) for at in range(reach + 1))
    if not text:
        return False
    return (pattern[0] == text[0] or (pattern[0] == "?" and text[0] != "/")) and tried(
        pattern[1:], text[1:], begins=pattern[0] == "/"
    )


@given(st.text("ab/*?", max_size=8), st.text("ab/", max_size=8))
def test_a_pattern_matches_what_trying_everything_finds(pattern: str, path: str) -> None:
    assert Glob(pattern).matches(path) == oracle(pattern, path)


MEMBERS = st.characters(min_codepoint=0x20, max_codepoint=0x2100, exclude_characters="]-^!")


@given(st.sampled_from(("", "!", "^")), st.lists(st.tuples(MEMBERS, st.none() | MEMBERS), min_size=1), MEMBERS)
def test_a_set_has_its_members_and_never_a_slash(sign: str, ranges: list[tuple[str, str | None]], char: str) -> None:
    members = "".join(first if last is None else f"{first}-{last}" for first, last in ranges)
    inside = any(first <= char <= (last or first) for first, last in ranges)
    expected = inside is not bool(sign) and char != "/"
    assert Glob(f"/[{sign}{members}]x").matches(f"{char}x") == expected


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("*.cpp", "src/deep/main.cpp", True),
        ("src/*.py", "a/src/x.py", True),
        ("src/**/*.py", "src/x.py", True),
        ("src/**x.py", "src/b/x.py", True),
        ("**/src/*.py", "a/src/b/x.py", False),
        ("src/**/b", "src/ab", False),
        ("/a/*", "b/a/b", False),
        ("[]]", "]", True),
        ("[x", "[x", True),
        ("[a-]", "-", True),
    ],
)
def test_by_example(pattern: str, path: str, expected: bool) -> None:
    assert Glob(pattern).matches(path) is expected


def test_no_pattern_is_slow() -> None:
    glob = Glob("*a" * 400 + "b")
    assert not glob.matches("a" * 5000)  # takes for ever by trying


@given(st.lists(st.text("a1:-.", min_size=1, max_size=6), min_size=1, max_size=4, unique=True), st.data())
def test_what_grep_says_is_told_with_and_without_numbers(names: list[str], data: st.DataObject) -> None:
    rows = data.draw(
        st.lists(
            st.tuples(st.sampled_from(names), st.sampled_from(":-"), st.integers(1, 999), st.text("xyz ", max_size=6)),
            max_size=8,
        )
    )
    output = "".join(f"{name}{mark}{number}{mark}{text}\n" for name, mark, number, text in rows).encode()
    lines = GrepLines(names, "", numbers=True, limit=100)
    size = data.draw(st.integers(1, 50))
    assert all(lines.feed(output[at : at + size]) for at in range(0, len(output), size))
    # Names of these letters can make a line that reads in two ways; it is told as it was said in each.
    assert lines.text.encode() == output
    assert lines.matches <= len(rows)


def test_one_file_has_no_name_in_grep_s_output() -> None:
    lines = GrepLines((), "given/name", numbers=False, limit=100)
    assert lines.feed(b"3:three:4\n4-four\n--\n")
    assert (lines.text, lines.matches) == ("given/name:three:4\ngiven/name-four\n--\n", 1)


def test_it_ends_at_the_limit() -> None:
    lines = GrepLines(("f",), "", numbers=False, limit=2)
    assert not lines.feed(b"f:1:a\nf:2:b\nf:3:c\nf:4:d\n")
    assert (lines.text, lines.matches, lines.full) == ("f:a\nf:b\n", 2, True)


def test_lines_of_no_known_file_are_let_go() -> None:
    lines = GrepLines(("f",), "", numbers=True, limit=9)
    assert lines.feed(b"Binary file g matches\nf:1:a\n")
    assert lines.text == "f:1:a\n"
