"""Commands that were written for a shell: each kind of word is told with its line and the way out."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.config.load import Loaded, SourceFile, load
from appliance.core.config.shell_words import shell_words


def loaded(text: str) -> Loaded:
    return load([SourceFile("c.yaml", text)], {})


SH, ENV, PLACE = "sh -c", "${env.NAME}", "write ${env.HOME}"
LEADING = {"CUDA_VISIBLE_DEVICES=0": "write env: [CUDA_VISIBLE_DEVICES=...]", "A=1": "env: [A=...]"} | dict.fromkeys(
    ("cd /opt &&", "export A=1;", "source env.sh &&", ". ./x", "ulimit -l 9 &&", "if true;", "exec"), SH
)
WORDS = {
    **dict.fromkeys(
        ("> /tmp/log", "2>&1", ">>log", "&>/dev/null", "< in", "<<EOF", "| tee x", "&& b", "; b", "|| b"), SH
    ),
    **dict.fromkeys(("b &", "$(date)", "`date`", '"$(nproc)"', "x;", "a&&b", "2>/dev/null"), SH),
    **dict.fromkeys(("$HOME/a", "-v $PWD/d:/d", '"$HOME/a b"', "${A:-b}", "%USERPROFILE%", "a=$B"), ENV),
    **dict.fromkeys(("~/a.gguf", "~", "--model=~/x", "~me/x"), PLACE),
    **dict.fromkeys(("/m/*.gguf", "*.gguf", "./m/*"), "write the name of the file"),
    **dict.fromkeys(('{"a":1}', '{"a": true, "b": 2}'), "single quotes"),
    **dict.fromkeys(("C:\\Users\\me", "-m a\\b"), "single quotes"),
    **dict.fromkeys(("–ctx-size 1", "—x", "−ngl 9"), "write - or --"),
    **dict.fromkeys(("“a”", "‘a", "«a»"), "typographic quotes"),
    **dict.fromkeys(("-m\u00a0x", "\u3000", "a\u200bb"), "usual space"),
    **dict.fromkeys(("'a b", '"a'), "close it"),
    "# comment": "line of its own",
    "^\n": "end the line with a backslash",
    "`\n": "end the line with a backslash",
    "{a,b}": "write each word",
}
FINE = (
    r"-ot .ffn_.*_exps.=CPU", '-ot "blk\\.(1|2)\\..*=CPU$"', "--samplers top_k;top_p", "http://a/b?x=1&y=2*z", "$",
    "--chat-template-kwargs '{\"a\": 1, \"b\": \"$X\"}'", "-r </s>", "<|im_end|>", "a#b", "${PID}", "5$",
    "%20", "x~", "a-b–c",
    "sh -c 'cd a && b > c; echo $D ~ *'", "bash -lc \"$A\"", "/bin/sh -ec 'a &'", "A=1", "a|b", "'~/a' \"b*\" '# c'",
)  # fmt: skip


@pytest.mark.parametrize(("odd", "way_out"), [*WORDS.items()])
def test_each_kind_is_told_with_its_line_and_the_way_out(odd: str, way_out: str):
    (told,) = shell_words(f"llama-server --port 1\n-x {odd}", windows=False)
    assert way_out in told
    assert told.startswith("a word in line 2 of the command")


@pytest.mark.parametrize(("odd", "way_out"), [*LEADING.items()])
def test_a_command_that_begins_with_what_is_a_shells(odd: str, way_out: str):
    assert way_out in shell_words(f"{odd} llama-server --port 1", windows=False)[0]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0%\n")), max_size=6))
def test_what_is_quoted_for_a_shell_needs_none(words: list[str]):
    assert shell_words(shlex.join(["llama-server", *words]), windows=False) == []


def test_what_looks_like_it_and_is_not_is_left_alone():
    for words in FINE:
        assert shell_words(f"llama-server {words}", windows=False) == [], words
    assert shell_words(r"C:\Users\me\llama-server.exe -m D:\a's\m.gguf", windows=True) == []
    assert shell_words("cmd /c cd x ^& set A=%B% > c", windows=True) == []


def test_a_file_with_such_a_command_works_and_is_warned_of_without_its_values():
    cmd = "CUDA_VISIBLE_DEVICES=0 llama-server --port ${PORT} --api-key ${k} -m ~/a.gguf > /tmp/log 2>&1"
    result = loaded(
        f"macros: {{k: 'a$Kq7Canary'}}\nmodels:\n  m:\n    cmd: {cmd}\n    cmdStop: docker stop x && true\n"
    )
    assert result.errors == ()
    told = [str(problem) for problem in result.warnings]
    assert len(told) == 5
    assert all("4:" in line or "5:" in line for line in told)
    assert "Kq7Canary" not in "".join(told)


WRONG = ("7", "[a, {b: c}]", "${nope}", "${env.NOPE}", "{x: ['${nope}', 1.5]}", "text")
IGNORED = (
    "models: {{m: {{cmd: a, proxy: 'http://h:1', {key}: {value}}}}}",
    "ui: {{{key}: {value}}}\nmodels: {{m: {{cmd: a, proxy: 'http://h:1'}}}}",
    "{key}: {value}\nmodels: {{m: {{cmd: a, proxy: 'http://h:1'}}}}",
)


@given(st.sampled_from(IGNORED), st.sampled_from(WRONG), st.sampled_from(["unknown", "argv"]))
def test_a_key_that_is_ignored_stops_nothing(text: str, value: str, key: str):
    result = loaded(text.format(key=key, value=value if value[0] in "[{7" else f'"{value}"'))
    assert list(result.require().models) == ["m"], result.errors


def test_a_profile_of_the_old_form_is_ignored():
    text = "models: {m: {cmd: a, proxy: 'http://h:1'}}\nprofiles: {coding: [m, n], good: {pins: {x: m}}}\n"
    result = loaded(text)
    assert list(result.require().profiles) == ["good"]
    assert ["write groups" in str(problem) for problem in result.warnings] == [True]
