"""What presets mean. The tables hold what llama-server b11434's router made of the same files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.config.nodes import Problem
from appliance.core.llama import flags
from appliance.core.llama.flags import FLAGS, Kind
from appliance.features.stand_in.core.preset_file import (
    ENDS_AT_ONCE,
    FRONTS_OWN,
    chosen,
    from_words,
    read_key,
    wrong_value,
)
from appliance.features.stand_in.core.presets import Definition, Layers, Presets, canonical_name, define, read_presets

HERE = "p.ini"


def told(problems: list[Problem], level: str) -> list[str]:
    return [str(problem) for problem in problems if problem.level == level]


def understood(text: str) -> Presets:
    presets, problems = read_presets(text, HERE)
    assert told(problems, "error") == []
    return presets


def model(text: str, name: str = "m", *, argv: str = "", env: dict[str, str] | None = None) -> Definition:
    """The model called ``name`` after a file, a command line and an environment."""
    layers = Layers(
        presets=understood(text),
        command=chosen(flags.split(argv.split())),
        environment=chosen(flags.from_env(env or {})),
    )
    return define(name, layers.of(name))


@pytest.mark.parametrize(
    ("settings", "args"),
    [
        ("LLAMA_ARG_CTX_SIZE = 9", "--ctx-size 9"),
        ("m = /x\nc = 9\nngl = 3", "--ctx-size 9 --n-gpu-layers 3"),
        ("--ctx-size = 9", "--ctx-size 9"),
        ("c = 1\nc = 2", "--ctx-size 2"),
        ("c = 1\nctx-size = 2", "--ctx-size 2"),
        ("ctx-size = 1\nc = 2\nLLAMA_ARG_CTX_SIZE=3", "--ctx-size 1"),
        ("version = banana\nc = 1", "--ctx-size 1"),
        ("jinja = false", "--no-jinja"),
        ("jinja =", "--jinja"),
        ("no-jinja = false", "--jinja"),
        ("jinja = false\nno-jinja = false", "--jinja"),
        ("jinja = true\nno-jinja = true", "--no-jinja"),
        ("metrics = off", ""),
        ("embedding = disabled\nno-host = 0", ""),
        ("slots=off\nkv-unified=0\nno-kv-offload=1", "--no-slots --no-kv-offload --no-kv-unified"),
        ("no-warmup = false\nno-repack=disabled", "--repack --warmup"),
        ("cont-batching=TRUE", "--cont-batching"),
        ("LLAMA_ARG_NO_PERF = true", "--no-perf"),  # llama-server's router takes it for its opposite
        ("verbose = true\nv=1\nlog-verbosity=2", "--log-verbosity 2 --log-verbose"),
        ('chat-template-kwargs = {"a":"b"}', '--chat-template-kwargs {"a":"b"}'),
        (
            "timeout=5\nsse-ping-interval=3\nsleep-idle-seconds=8",
            "--sleep-idle-seconds 8 --sse-ping-interval 3 --timeout 5",
        ),
        ("temp = 0.3\nseed = -1", "--temperature 0.3 --seed -1"),
        ("load-on-startup=false\nstop-timeout=4\ndedup-cache-models=true", ""),
        ("mlock = true", "--load-mode mlock"),  # this key and the next are of earlier releases
        ("mlock = false", ""),
        ("no-mmap = on", "--load-mode none"),
        ("no-mmap = off", "--load-mode mmap"),
    ],
)
def test_keys_become_flags(settings: str, args: str) -> None:
    assert " ".join(model(f"[m]\n{settings}\n").args) == args


@pytest.mark.parametrize(
    ("text", "argv", "args"),
    [
        ("[*]\nc=1\nngl=2\nb=7\n[m]\nc=3\nngl=4\n", "-c 99", "--batch-size 7 --ctx-size 99 --n-gpu-layers 4"),
        ("[*]\nno-jinja=true\n[m]\njinja=true\n", "", "--jinja"),
        ("[*]\nmetrics=true\nembedding = on\n[m]\nmetrics=false\nembedding=off\n", "", ""),
        ("[m]\nmetrics=false\nc=3\n", "--metrics -c 77 --no-jinja", "--no-jinja --metrics --ctx-size 77"),
        ("[*]\nc=1\n[m]\nngl=3\n[*]\nngl=2\n", "", "--n-gpu-layers 3"),
        ("[m]\n", "--lora /a --lora /b", "--lora /b"),
        ("[m]\n", "--temp 0.3 -v --verbosity 4", "--temperature 0.3 --log-verbosity 4 --log-verbose"),
    ],
)
def test_command_line_over_section_over_star(text: str, argv: str, args: str) -> None:
    assert " ".join(model(text, argv=argv).args) == args


def test_the_environment_is_weakest() -> None:
    env = {"LLAMA_ARG_CTX_SIZE": "55", "LLAMA_ARG_N_GPU_LAYERS": "8", "LLAMA_ARG_BATCH": "9", "HF_TOKEN": "secret"}
    assert " ".join(model("[*]\nngl=1\n[m]\nc=3\n", env=env).args) == "--batch-size 9 --ctx-size 3 --n-gpu-layers 1"


def test_what_the_command_line_keeps_from_the_models() -> None:
    words = (
        "--host ::1 --port 1 --api-key k --api-prefix /p --path /p --cors-origins x --no-ui --tools all --agent "
        "--ui-mcp-proxy --mcp-servers-json {} --models-max 2 --models-dir /d --no-models-autoload --alias al "
        "--model /x --mmproj /m --hf-repo a/b --log-file /l --hf-token t --log-colors on --reuse-port -c 5"
    )
    assert model("[m]\n", argv=words).args == ("--ctx-size", "5")


@pytest.mark.parametrize(
    ("settings", "aliases", "tags"),
    [
        ("alias = b, a,c\ntags = t1, t2", ("a", "b", "c"), ("t1", "t2")),
        ("alias = ,, a ,\ntags = ,x,,", ("a",), ("x",)),
        ("alias = m", (), ()),
    ],
)
def test_aliases_and_tags(settings: str, aliases: tuple[str, ...], tags: tuple[str, ...]) -> None:
    found = model(f"[m]\n{settings}\n")
    assert (found.aliases, found.tags) == (aliases, tags)


def test_tags_of_the_command_line_replace_those_of_the_section() -> None:
    assert model("[m]\ntags=own\n", argv="--tags t9,t8").tags == ("t8", "t9")


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("org/repo:q8_0", "org/repo:Q8_0"),
        ("org/repo:latest", "org/repo:LATEST"),
        ("org/repo:ud-q4_k_xl", "org/repo:Q4_K_XL"),
        ("m:weird-tag", "m:TAG"),
        ("a:b:c", "a:b:C"),
        ("n:", "n:"),
        (":q", ":Q"),
        ("plain-name", "plain-name"),
    ],
)
def test_names_with_a_tag(written: str, name: str) -> None:
    assert canonical_name(written) == name
    assert list(understood(f"[{written}]\nm=/x\n").sections) == [name]


def test_of_two_sections_for_one_model_the_later_letters_count() -> None:
    presets, problems = read_presets("[a:q8_0]\nm=/x\n[a:Q8_0]\nm=/y\n", HERE)
    assert define("a:Q8_0", presets.sections["a:Q8_0"]).model == "/x"
    assert told(problems, "warning") == [
        "p.ini:1:1: warning: [a:q8_0] is the same model as the section in line 3, and replaces it"
    ]


def test_settings_in_front_are_a_model_called_default() -> None:
    assert list(understood("version = 1\nc = 7\n[m]\n").sections) == ["default", "m"]
    assert list(understood("version = 1\n[m]\n").sections) == ["m"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("foo-bar = 9", "llama-server has no option 'foo-bar'"),
        ("ctx_size = 9", "no option 'ctx_size'; did you mean ctx-size?"),
        ("CTX-SIZE = 9", "no option 'CTX-SIZE'; did you mean ctx-size?"),
        ("reranking = no", "reranking is on or off, and 'no' is neither; write reranking = true or reranking = false"),
        ("load-on-startup = maybe", "load-on-startup is on or off"),
        ("stop-timeout = abc", "stop-timeout is a whole number of seconds, not 'abc'"),
        ("stop-timeout = -3", "stop-timeout is a whole number of seconds, not '-3'"),
        ("ctx-size =", "ctx-size has no value"),
        ("ctx-size = 8k", "ctx-size is a whole number, not '8k'"),
        ("temp = warm", "temp is a number, not 'warm'"),
        ("sleep-idle-seconds = 0", "from 1 on, or -1 for never"),
        ("control-vector-layer-range = 1 2", "takes two values, which presets cannot hold"),
        ("draft-max = 3", "draft-max has been removed from llama-server; use spec-draft-n-max or"),
        ("engine =", "engine has no value; write engine = auto"),
        ("rpc = [::1]:5", "rpc: '[::1]:5' is an IPv6 address"),
        ("rpc = a:1,b:0", "rpc: 'b:0' has no port"),
        ("help = 1", "with help llama-server ends at once"),
    ],
)
def test_a_mistake_has_its_place_and_a_cure(setting: str, message: str) -> None:
    (error,) = told(read_presets(f"[m]\nm = /x\n{setting}\nc = 1\n", HERE)[1], "error")
    assert error.startswith("p.ini:3:1: error: [m]: ")
    assert message in error


def test_all_mistakes_of_a_file_are_told_at_once() -> None:
    _, problems = read_presets("[m]\nfoo=1\n b=2\n[*]\nzip=3\n[n]\nalias=m\n", HERE)
    assert [problem.at.line for problem in problems if problem.at] == [2, 3, 5, 6]


@pytest.mark.parametrize(
    "setting",
    [
        "models-max=3",
        "models-dir=/zz",
        "api-key=k",
        "ssl-key-file=/s",
        "host=0.0.0.0",
        "port=99",
        "tools=all",
        "path=/p",
    ],
)
def test_what_belongs_to_the_server_is_passed_over(setting: str) -> None:
    presets, problems = read_presets(f"[m]\nc=1\n{setting}\n", HERE)
    assert list(presets.sections["m"]) == ["--ctx-size"]
    (warning,) = told(problems, "warning")
    assert warning.startswith("p.ini:3:1: warning: [m]: ")
    assert "is for the server" in warning


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[m]\nalias = n\n[n]\n", "the alias 'n' is also the name or an alias of model 'n'"),
        ("[m]\nalias = z\n[n]\nalias=z\n", "the alias 'z' is also the name or an alias of model 'm'"),
        ("[*]\nalias = z\n[m]\n[n]\n", "the alias 'z' is also the name or an alias of model 'm'"),
    ],
)
def test_a_name_stands_for_one_model(text: str, message: str) -> None:
    (error,) = told(read_presets(text, HERE)[1], "error")
    assert message in error


def test_an_alias_for_all_is_good_for_the_one_model_without_its_own() -> None:
    presets = understood("[*]\nalias=zz\n[m]\n[n]\nalias=q\n")
    layers = Layers(presets=presets)
    assert [define(name, layers.of(name)).aliases for name in ("m", "n")] == [("zz",), ("q",)]


def test_who_says_where_the_model_is_says_all_of_it() -> None:
    found = model("[*]\nhf-repo=a/b\nhf-file=c\nmmproj=/mm\n[m]\nm=/x\n")
    assert (found.model, found.repo, found.repo_file, found.mmproj) == ("/x", "", "", "/mm")


def test_files_repositories_and_the_routers_own_keys() -> None:
    found = model("[m]\nhf=a/b:q\nhff=f\nhfd=d/e\nmd=/d\nmm=/p\nno-mmproj=1\nload-on-startup=1\nstop-timeout=4\n")
    assert (found.repo, found.repo_file, found.draft_repo, found.draft, found.mmproj) == (
        "a/b:q",
        "f",
        "d/e",
        "/d",
        "/p",
    )
    assert (found.load_on_startup, found.stop_timeout, found.dedup, found.projector) == (True, 4.0, False, False)
    assert found.args == ("--no-mmproj-auto",)


def test_engine_and_workers() -> None:
    found = model("[*]\nengine=vulkan\n[m]\nm=/x\nengine=linux-x64-cpu/b11434\nrpc=a:1,b\n")
    assert found.engine == "linux-x64-cpu/b11434"
    assert found.args == ("--rpc", "a:1,b")
    assert dict(found.origins)["engine"] == "p.ini:5"
    assert "engine = linux-x64-cpu/b11434\n" in found.preset
    assert model("[*]\nengine=vulkan\n[m]\nm=/x\n").engine == "vulkan"
    assert model("[m]\nm=/x\n").engine == ""


def test_it_is_shown_as_llama_server_shows_it() -> None:
    found = model(
        "[*]\nno-perf=yes\n".replace("yes", "true") + "[m]\nm=/x\nc=3\nalias=a\nstop-timeout=4\n", argv="--metrics"
    )
    assert found.preset == "[m]\nmetrics = 1\nperf = false\nctx-size = 3\nmodel = /x\nstop-timeout = 4\n\n"


def test_every_option_knows_who_said_it() -> None:
    found = model("[*]\nngl=1\n[m]\nc=3\n", argv="-t 2", env={"LLAMA_ARG_BATCH": "9"})
    assert dict(found.origins) == {
        "--n-gpu-layers": "p.ini:2",
        "--ctx-size": "p.ini:4",
        "--threads": "-t",
        "--batch-size": "LLAMA_ARG_BATCH",
    }


_VALUED = [flag for flag in FLAGS if flag.arity == 1 and flag.name not in FRONTS_OWN | ENDS_AT_ONCE]


@given(st.sampled_from(_VALUED), st.data())
def test_every_spelling_of_an_option_is_the_same_key(flag: flags.Flag, data: st.DataObject) -> None:
    if flag.kind is Kind.REMOVED:
        return
    key = data.draw(st.sampled_from([word.lstrip("-") for word in flag.spellings] + ([flag.env] if flag.env else [])))
    choice = read_key(key, "1", HERE)
    assert not isinstance(choice, str)
    assert (choice.name, choice.words) == (flag.name, (flag.name, "1"))
    assert flags.lookup(choice.words[0]) is flag


def test_the_programs_own_flags_for_a_model_are_choices_too() -> None:
    choices = from_words(("--ctx-size", "8192", "--temp", "0"), "starter")
    assert [(choice.words, choice.origin) for choice in choices.values()] == [
        (("--ctx-size", "8192"), "starter"),
        (("--temperature", "0"), "starter"),
    ]


def test_a_wrong_value_is_told_by_the_word_it_was_said_with() -> None:
    flag = flags.lookup("-c")
    assert flag is not None
    assert wrong_value(flag, "-c", "many") == "-c is a whole number, not 'many'"
    assert wrong_value(flag, "-c", "0") is None
