"""Values on the command line, whole command lines, and facts as text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from command_line import Command, settings_of
from gguf_files import write_model
from hypothesis import given
from hypothesis import strategies as st

from appliance import __version__
from appliance.cli.options import ListenAddress, Size, api_keys
from appliance.cli.show import human_count, human_size, print_table
from appliance.core.settings import UnixSocket
from appliance.errors import UsageError
from appliance.feature import verb_ground
from appliance.features import FEATURES
from appliance.features.stand_in.verb import HERE
from appliance.fleet.budgets import limits_of
from appliance.platform.console import say


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:8080", ("::1", 8080)),
        ("[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
        ("0.0.0.0:65535", ("0.0.0.0", 65535)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert ListenAddress().convert(text, None, None) == address


@pytest.mark.parametrize("text", ["", "8080", ":8080", "host", "host:", "host:x", "::1:80", "[::1]", "h:65536", "h :1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not an address such as"):
        ListenAddress().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("10k", 10240), ("1MiB", 1 << 20), ("2 GB", 2 << 30), ("3m", 3 << 20), ("7b", 7)]
)
def test_sizes(text: str, size: int) -> None:
    assert Size().convert(text, None, None) == size


@given(st.text(max_size=12))
def test_a_size_is_a_positive_number_or_a_complaint(text: str) -> None:
    try:
        size = Size().convert(text, None, None)
    except click.BadParameter:
        return
    assert size > 0


def test_keys_come_from_options_the_environment_and_a_file_that_has_some(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# the team's\nfrom-file\n\n  second  \none\n")
    keys = api_keys(["one,two", " three"], file, {"K": "four, five,"}, "K")
    assert keys == ("one", "two", "three", "four", "five", "from-file", "second")
    file.write_text("# nothing here\n")
    with pytest.raises(UsageError, match="contains no key"):
        api_keys([], file, {}, "K")
    with pytest.raises(UsageError, match="cannot be read"):
        api_keys([], tmp_path / "missing", {}, "K")
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not text"):
        api_keys([], file, {}, "K")


@pytest.mark.parametrize("key", ["sch\u00fcssel", "a\x00b", "tab\there"])
def test_a_key_must_fit_a_header(key: str) -> None:
    with pytest.raises(UsageError, match="printable ASCII"):
        api_keys([key], None, {}, "K")


def test_a_socket_in_a_file_is_an_address() -> None:
    assert ListenAddress().convert("unix:/run/llama.sock", None, None) == UnixSocket("/run/llama.sock")
    with pytest.raises(click.BadParameter, match="is not an address such as"):
        ListenAddress().convert("unix:", None, None)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (2_095_872, "2.1 MB"),
        (670_000, "670 kB"),
        (4_370_000_000, "4.4 GB"),
        (7 * 10**12, "7.0 TB"),
    ],
)
def test_sizes_as_text(size: int, text: str) -> None:
    assert human_size(size) == text


@pytest.mark.parametrize(
    ("count", "text"), [(7, "7"), (1000, "1k"), (110_000_000, "110M"), (7_240_000_000, "7.2B"), (8_030_000_000, "8B")]
)
def test_counts(count: int, text: str) -> None:
    assert human_count(count) == text


def test_a_table_in_a_pipe_is_plain_whole_and_takes_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    long = "organisation/" + "very-" * 60 + "long"
    print_table(("ID", "SIZE"), [(long, "1 B"), ("[bold]x[/bold]", "10 GB")], right=("SIZE",))
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["ID", "SIZE"]
    assert first == f"{long}    1 B"
    assert second.split() == ["[bold]x[/bold]", "10", "GB"]


def test_what_engines_and_folders_are_called_gives_a_terminal_no_orders(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("ID",), [("a\x1b]0;title\x07\x9b2J",)])
    say("no \x1b[2Jengine\r here")
    out, err = capsys.readouterr()
    assert out.splitlines()[1] == "a\ufffd]0;title\ufffd\ufffd2J"
    assert err == "no \ufffd[2Jengine here\n"


def test_names_pass_pipes_as_utf_8_whatever_the_language_of_the_machine(tmp_path: Path) -> None:
    """Windows' pipes have the code page of its language, in which most names cannot be written."""
    write_model(tmp_path / "größe-日本.gguf")
    language = {"PYTHONUTF8": "0"} if sys.platform == "win32" else {"LC_ALL": "C.UTF-8"}
    command = [sys.executable, "-m", "appliance", "ls", "--models-dir", str(tmp_path)]
    done = subprocess.run(command, env={**os.environ, **language}, capture_output=True, timeout=60, check=True)
    assert "größe-日本" in done.stdout.decode("utf-8")


VERBS = [verb.name for verb in verb_ground(FEATURES).verbs]


@pytest.mark.usefixtures("plain_environment")  # nothing is in its folder
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("frobnicate", "there is no command 'frobnicate'; the commands are ls, ps"),
        ("--frobnicate", "No such option"),
        ("serve --frobnicate", "No such option"),
        ("serve model.gguf", "unexpected extra argument"),
        ("serve --listen 8080", "is not an address such as 127.0.0.1:8080"),
        ("serve --listen", "requires an argument"),
        ("serve --listen 127.0.0.1:99999", "is not an address such as"),
        ("serve --model none.gguf", "no such file"),
        ("serve --models-dir none", "does not exist"),
        ("serve --models-max -1", "-1"),
        ("serve --models-max many", "many"),
        ("serve --load-timeout 0", "'0' is not a number of seconds from 0.1"),
        ("serve --grace soon", "'soon' is not a number of seconds from 0 to"),
        ("serve --grace inf", "'inf' is not a number of seconds"),
        ("serve --load-timeout nan", "'nan' is not a number of seconds"),
        ("serve --max-body 0", "is not a size"),
        ("serve --max-connections 0", "0"),
        ("serve --threads 0", "0"),
        ("serve --api-key-file none", "cannot be read"),
        ("serve --listen 0.0.0.0:8080", "--allow-unauthenticated"),
        ("serve --listen [::]:8080", "--allow-unauthenticated"),
        ("serve -- --port 1", "--port cannot be given after '--'"),
        ("serve -- --api_key x", "--api_key cannot be given after '--'"),
        ("serve -- -m x", "-m cannot be given after '--'"),
        ("serve -- --models-dir x", "--models-dir cannot be given after '--'"),
        ("serve -- --hf-repo a/b", "--hf-repo cannot be given after '--'"),
        ("serve -- --version", "--version cannot be given after '--'"),
        ("serve -- --ctx-sise 1", "--ctx-sise; did you mean --ctx-size"),
        ("serve -- --ctx-size", "--ctx-size needs a value"),
        ("run", "Missing argument 'MODEL'"),
        ("run m hello there", "unexpected extra argument"),
        ("run m hello --temp hot", "hot"),
        ("run m hello --url ftp://x", "expected an address such as http://"),
        ("run m hello --url http://x:abc", "--url http://x:abc"),
        ("run m ''", "prompt is empty"),
        ("ps --url 127.0.0.1:8080", "expected an address such as http://"),
        ("load", "Missing argument 'MODEL'"),
        ("unload", "Missing argument 'MODEL'"),
        ("ls --models-dir none", "does not exist"),
        ("version --engine ./none", "no such file or folder"),
        ("version extra", "unexpected extra argument"),
        ("llama-server -m x --ssl-key-file k", "--ssl-key-file needs --ssl-cert-file"),
        ("llama-server -m x --path none", "--path none: no such folder"),
        ("llama-server --tools read_files", 'unknown tool "read_files"; there are read_file, '),
        ("llama-server -m x --port 99999", "a port is a number from 0 to 65535"),
        ("serve --path nowhere", "nowhere"),
        ("serve --cors-proxy-allow 10.0.0.0/8", "--cors-proxy-allow needs --cors-proxy"),
        ("llama-server --ui-config-file none.json", "--ui-config-file none.json cannot be read"),
        ("llama-server --ui-config []", "--ui-config is not a JSON object"),
        ("serve --watch-config", "--watch-config needs something to watch"),
        ("serve --tools bogus", 'unknown tool "bogus"; there are read_file, '),
        ("serve --tools all --tools-runtime x:y", "unknown tool runtime"),
        ("llama-server --tools all --tools-runtime x:y", "unknown tool runtime"),
        ("serve --mcp-servers-json {", "--mcp-servers-json is not valid JSON"),
        ("llama-server --mcp-servers-json {", "--mcp-servers-json is not valid JSON"),
        ("serve --mcp-servers-config none", "--mcp-servers-config none cannot be read"),
        ("serve --mcp-server", "--mcp-server needs a key"),
        ("serve --admin --listen 0.0.0.0:0 --allow-unauthenticated", "--admin lets every machine"),
        ("serve --mcp-server --listen 0.0.0.0:0 --allow-unauthenticated", "works only on this machine"),
        ("serve --mcp-server-tools x --api-key k", "needs --mcp-server"),
        ("serve --plugins none", "there is no folder none"),
        ("serve --plugins / --no-plugins", "contradict each other"),
        ("doctor --yes", "--yes needs --report"),
        ("doctor --logs", "--logs needs --report"),
        ("doctor --json --report", "--json, --line, --watch and --report"),
        ("doctor --json --line", "give one of them"),
        ("config show --models-preset p.ini --config x.yaml", "--models-preset cannot be combined with --config"),
        ("config show --config x.yaml -- -c 4", "unexpected argument '-c'"),
        ("config show --models-preset none.ini", "there is no file"),
    ],
)
def test_a_mistake_is_told_in_one_line(command: Command, line: str, message: str) -> None:
    outcome = command(*(word.strip("'") for word in line.split(" ")))
    assert outcome.program is None
    assert outcome.status == (1 if line.startswith("llama-server") else 2)
    assert outcome.out == ""
    assert outcome.err.startswith("llama-appliance: error: ")
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("llama-server --foo", "error: invalid argument: --foo"),
        ("llama-server -m x --foo 1", "error: invalid argument: --foo"),
        ("llama-server foo", "error: invalid argument: foo"),
        ("llama-server -m x --no-ui y", "error: invalid argument: y"),
        ("llama-server -m x --port", "error: --port needs a value"),
    ],
)
def test_a_flag_llama_server_cannot_read_is_told_its_way(command: Command, line: str, message: str) -> None:
    outcome = command(*line.split())
    assert (outcome.status, outcome.out, outcome.err) == (1, "", message + "\n")


@pytest.mark.parametrize(
    "line",
    [
        *("-m x --port 1 -c 512", "--models-max 2 --port 1", "-m x --ssl-key-file k", "-m x --foo"),
        *("--tools read_files", "-m x --host 0.0.0.0 --tools all", "--help"),
    ],
)
@pytest.mark.parametrize("verb", ["serve", "server"])
def test_llama_serve_is_llama_server(command: Command, plain_environment: None, line: str, verb: str) -> None:
    """llama.cpp's own program for all its commands, under either name of this one."""
    there, here = command("llama-server", *line.split()), command("llama", verb, *line.split())
    assert (here.status, here.out, here.err) == (there.status, there.out, there.err)
    assert here.program == there.program


@pytest.mark.parametrize(
    ("verb", "told"),
    [
        ("cli", "command 'cli' is not here; there is 'llama-appliance run MODEL'"),
        ("get", "command 'get' is not here; there is 'llama-appliance pull NAME'"),
        ("quantize", "command 'quantize' is not here; 'llama serve'"),
        ("frob", "command 'frob' is unknown; 'llama serve'"),
    ],
)
def test_other_commands_of_llama_name_what_there_is_here(command: Command, verb: str, told: str) -> None:
    outcome = command("llama", verb, "-m", "x")
    assert (outcome.status, outcome.out, outcome.program) == (1, "", None)
    assert outcome.err.startswith(f"error: {told}")
    assert outcome.err.count("\n") == 1
    for here in filter(None, HERE.values()):
        assert here.split()[0] in VERBS
    assert (f"  {verb} " in command("llama").out) is bool(HERE.get(verb))


@pytest.mark.parametrize("verb", [verb for verb in VERBS if not verb.startswith("llama")])
def test_every_verb_explains_itself_with_an_example(command: Command, verb: str) -> None:
    outcome = command(verb, "--help")
    assert outcome.status == 0
    assert f"llama-appliance {verb}" in outcome.out
    assert "Example" in outcome.out


@pytest.mark.parametrize("verb", ["agent", "agents", "config"])
def test_a_group_without_a_verb_is_explained(command: Command, verb: str) -> None:
    outcome = command(verb)
    assert outcome.status == 2
    assert outcome.err.splitlines()[0] == f"Usage: llama-appliance {verb} [OPTIONS] COMMAND [ARGS]..."
    assert "Examples:" in outcome.err


def test_help_names_every_verb(command: Command) -> None:
    for argv in (("--help",), ("-h",), ()):
        outcome = command(*argv)
        assert outcome.status == 0
        assert all(verb in outcome.out for verb in VERBS)
    assert command("--version").out == f"llama-appliance {__version__}\n"


def test_help_and_version_import_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from appliance.__main__ import start\n"
        "from appliance.cli.app import run\n"
        "from appliance.feature import verb_ground\n"
        "from appliance.features import FEATURES\n"
        "assert run(sys.argv[1:], start, verb_ground(FEATURES)) == 0\n"
        "print(sorted({'trio', 'hypercorn', 'quart', 'rich', 'h11', 'psutil'} & set(sys.modules)))\n"
    )
    for argv in (["--help"], ["version"], ["serve", "--help"]):
        done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, timeout=30)
        assert done.stdout.endswith("[]\n"), (argv, done.stdout, done.stderr)


def test_serve_defaults_and_that_everybody_may_be_let_in_on_purpose(command: Command) -> None:
    app = settings_of(command, "serve")
    assert app.http.listen == (("127.0.0.1", 8080),)
    assert (app.http.api_keys, app.http.open_inference, app.http.single) == ((), False, None)
    assert limits_of(None, app.fleet).capacity == 4
    assert app.sources.starter is not None
    assert settings_of(command, "serve", "--listen", "0.0.0.0:8080", "--allow-unauthenticated").http.api_keys == ()


def test_serve_takes_everything(command: Command, gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_APPLIANCE_API_KEY", "from-env")
    app = settings_of(
        command,
        *("serve", "--listen", "0.0.0.0:0", "--listen", "[::1]:9", "--model", f"mine={gguf}", "--no-starter"),
        *("--models-dir", str(tmp_path), "--models-max", "0", "--preload", "mine", "--engine", "embedded"),
        *("--threads", "3", "--api-key", "k1,k2", "--allow-host", "box.lan", "--cors-origins", "*"),
        *("--load-timeout", "9.5", "--grace", "0", "--max-body", "2G"),
        *("--max-connections", "10000"),
        *("--", "--ctx-size", "512", "--flash_attn", "on", "--no-warmup"),
    )
    assert app.http.listen == (("0.0.0.0", 0), ("::1", 9))
    assert app.http.api_keys == ("k1", "k2", "from-env")
    assert app.http.allow_hosts == ("box.lan",)
    assert (app.http.cors.origins, app.http.grace, app.http.max_body) == ("*", 0, 2 << 30)
    assert app.http.max_bodies >= app.http.max_body
    assert app.http.clients == 10_000
    assert (app.fleet.models_max, app.fleet.threads) == (0, 3)
    assert app.fleet.load_timeout == 9.5
    assert app.fleet.engine_args == ("--ctx-size", "512", "--flash_attn", "on", "--no-warmup")
    assert [(file.id, file.path) for file in app.sources.files] == [("mine", str(gguf))]
    assert (app.sources.models_dir, app.sources.starter) == (tmp_path, None)
    assert (app.preload, app.engine) == (("mine",), "embedded")
