"""The program as a part of another application, by itself and through the packages in sdk/: docs/embedding.md."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import venv
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil
import pytest
from command_line import run_here
from program import COMMAND, Server, fresh_environment, run_command, wait_gone
from slow import one_of
from waiting import PATIENCE, wait

ROOT = Path(__file__).resolve().parents[2]
SDK = ROOT / "sdk"
PAGE = (ROOT / "docs" / "embedding.md").read_text("utf-8")
ASKED = json.dumps({"model": "starter", "prompt": "Hi", "max_tokens": 2}).encode()
PYTHON = """
import json, sys
from llama_appliance_embed import StartError, start

def tell(**words):
    print(json.dumps(words), flush=True)

program, home, options = json.loads(sys.argv[1])
try:
    server = start(program, home=home, options=options, on_log=lambda line: print(line, file=sys.stderr))
    tell(url=server.url, key=server.key)
    sys.stdin.readline()
    tell(status=server.stop(1))
except StartError as error:
    tell(error=str(error))
"""
JAVASCRIPT = """
const { start, StartError } = require("llama-appliance-embed");
const tell = (words) => console.log(JSON.stringify(words));

async function main() {
  const [program, home, options] = JSON.parse(process.argv[2]);
  const server = await start(program, { home, options, onLog: (line) => console.error(line) });
  tell({ url: server.url, key: server.key });
  await new Promise((resolve) => process.stdin.once("data", resolve));
  tell({ status: await server.stop(1000) });
  process.stdin.destroy();
}
main().catch((error) => tell({ error: error instanceof StartError ? error.message : `unexpected: ${error.stack}` }));
"""
"""Applications: they tell the address, wait for a line, and stop the program; or they tell the error."""


STRICT = ("-X", "dev", "-W", "error")


class Host:
    """A language with its package: how it runs a file, and the application above in it."""

    def __init__(self, folder: Path, command: Sequence[str | Path], language: str, application: str) -> None:
        self.folder, self.command, self.language = folder, command, language
        self.application = self.write("application", application)

    def write(self, name: str, code: str) -> Path:
        file = self.folder / name
        file.write_text(code, "utf-8")
        return file

    @contextmanager
    def run(
        self, folder: Path, program: Path = COMMAND, options: Sequence[str] = ()
    ) -> Generator[tuple[subprocess.Popen[str], dict[str, str]]]:
        """The running application, and the first thing it tells."""
        words = json.dumps([str(program), str(folder / "home"), options])
        with subprocess.Popen(
            [*self.command, self.application, words],
            env=environment(folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as application:
            try:
                yield application, json.loads(application.stdout.readline())
            finally:
                application.kill()


languages = pytest.fixture(
    scope="module", params=["python", pytest.param("node", marks=pytest.mark.needs("node", "npm"))]
)


@languages
def host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Host:
    """With the package as its sources are."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "python":
        (folder / "llama_appliance_embed").symlink_to(SDK / "python" / "llama_appliance_embed")
        return Host(folder, [sys.executable, *STRICT], "python", PYTHON)
    (folder / "node_modules").mkdir()
    (folder / "node_modules" / "llama-appliance-embed").symlink_to(SDK / "node")
    return Host(folder, ["node", "--preserve-symlinks"], "javascript", JAVASCRIPT)


@languages
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Host:
    """With the package as its users install it."""
    folder = tmp_path_factory.mktemp(request.param)
    install = install_python if request.param == "python" else install_node
    return install(folder)


def install_python(folder: Path) -> Host:
    """Build the wheel with what is here, and install it where nothing else is."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run(*pip, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", folder, SDK / "python")
    venv.create(folder / "venv")
    [wheel] = folder.glob("*.whl")
    python = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / Path(sys.executable).name
    run(*pip, "--python", python, "install", "--no-index", wheel)
    assert (SDK / "python" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    return Host(folder, [python, *STRICT], "python", PYTHON)


def install_node(folder: Path) -> Host:
    npm = ["npm", "--cache", folder / "cache", "--offline", "--no-audit", "--no-fund", "--no-update-notifier"]
    run(*npm, "pack", "--pack-destination", folder, SDK / "node")
    [package] = folder.glob("*.tgz")
    run(*npm, "install", "--prefix", folder, package)
    installed = folder / "node_modules" / "llama-appliance-embed"
    assert {path.name for path in installed.iterdir()} == {
        "LICENSE",
        "README.md",
        "index.d.ts",
        "index.js",
        "package.json",
    }
    assert (installed / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    return Host(folder, ["node"], "javascript", JAVASCRIPT)


def run(*words: str | Path) -> None:
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def environment(folder: Path) -> dict[str, str]:
    return fresh_environment(folder) | {name: str(folder) for name in ("TMPDIR", "TEMP", "TMP")}


def ask(told: dict[str, str]) -> None:
    """Have an engine start and answer."""
    headers = {"Authorization": f"Bearer {told['key']}"}
    with urlopen(Request(f"{told['url']}/v1/completions", ASKED, headers), timeout=PATIENCE) as answer:
        assert answer.status == 200


@pytest.mark.slow
def test_the_examples_of_the_page_work(installed: Host, tmp_path: Path) -> None:
    [code] = re.findall(rf"^```{installed.language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    payload = tmp_path / "llama-appliance"
    payload.mkdir()
    (payload / COMMAND.name).symlink_to(COMMAND)
    done = subprocess.run(
        [*installed.command, installed.write("example", code)],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "appliance" in done.stdout.lower()
    assert {path.name for path in tmp_path.iterdir()} == {"llama-appliance", "data"}


def test_only_the_holder_of_the_key_is_answered_and_nobody_else_can_read_it(host: Host, tmp_path: Path) -> None:
    with host.run(tmp_path) as (application, told):
        ask(told)
        [ready] = tmp_path.glob("*.json")
        if os.name == "posix":
            assert ready.stat().st_mode & 0o777 == 0o600
        program, *engines = psutil.Process(application.pid).children(recursive=True)
        assert engines
        assert all(told["key"] not in " ".join(each.cmdline()) for each in (program, *engines))
        assert all(told["key"] not in each.environ().values() for each in engines)
        answer, _ = application.communicate("stop\n", PATIENCE)
        assert json.loads(answer) == {"status": 0}
        wait_gone([program, *engines])
    assert not ready.exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGSTOP")
def test_a_program_that_does_not_end_is_killed(host: Host, tmp_path: Path) -> None:
    with host.run(tmp_path) as (application, told):
        ask(told)
        program, *engines = psutil.Process(application.pid).children(recursive=True)
        program.suspend()
        answer, _ = application.communicate("stop\n", PATIENCE)
        assert json.loads(answer)["status"] == (-signal.SIGKILL if host.language == "python" else None)
        wait_gone([program, *engines])
    assert not list(tmp_path.glob("*.json"))


def test_nothing_is_left_when_the_application_is_killed(host: Host, tmp_path: Path) -> None:
    with host.run(tmp_path) as (application, told):
        ask(told)
        below = psutil.Process(application.pid).children(recursive=True)
        assert len(below) > 1
        application.kill()
        wait_gone(below)
        wait(lambda: list(tmp_path.glob("*.json")), lambda left: not left)


@pytest.mark.parametrize(
    ("program", "options", "told"),
    [
        (
            COMMAND,
            ["--bogus"],
            "ended with status 2 before it was ready:\nllama-appliance: error: No such option '--bog",
        ),
        (Path("missing"), [], "missing cannot be started: "),
        (ROOT, [], "give the folder llama-appliance, or the program in it"),
    ],
)
def test_a_program_that_does_not_start_is_an_error_with_its_words(
    host: Host, tmp_path: Path, program: Path, options: list[str], told: str
) -> None:
    with host.run(tmp_path, program, options) as (application, said):
        assert told in said["error"]
        assert application.wait(PATIENCE) == 0
    assert not list(tmp_path.glob("*.json"))


class Embedded(Server):
    """As an application starts it: with a file that says when it is ready, and where."""

    def __init__(self, folder: Path, *options: str, **env: str) -> None:
        self.ready = folder / "ready"
        super().__init__(
            ["serve", "--port", "0", "--no-stores", "--ready-file", str(self.ready), *options], folder, env
        )

    def ask(self, **headers: str) -> int:
        """The status of a question, once the file is there."""
        self.wait_for(self.ready.exists)
        request = Request(f"{json.loads(self.ready.read_bytes())['url']}/v1/completions", ASKED, headers)
        try:
            with urlopen(request, timeout=PATIENCE) as answer:
                return int(answer.status)
        except HTTPError as error:
            with error:
                return error.code

    def end(self) -> None:
        self.signal(signal.SIGTERM)
        assert self.wait(PATIENCE) == 0


def test_it_writes_nothing_outside_its_home_and_the_key_of_the_variable_is_asked_for_and_not_passed_on(
    tmp_path: Path,
) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    elsewhere.mkdir()
    env = {"HOME": str(elsewhere), "XDG_CACHE_HOME": str(elsewhere), "MY_KEY": "sesame"}
    with Embedded(tmp_path, "--home", str(home), "--api-key-env", "MY_KEY", **env) as server:
        assert [server.ask(), server.ask(Authorization="Bearer sesame")] == [401, 200]
        assert all("sesame" not in child.environ().values() for child in server.children())
        assert (home / "data").is_dir()
        server.end()
    assert list(elsewhere.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"home", "elsewhere", server.errors.name}


@pytest.mark.parametrize("how", one_of(["terminate", "kill"]))
def test_it_ends_in_order_when_its_parent_ends(tmp_path: Path, how: str) -> None:
    """Its messages are JSON meanwhile, and an old ready file is gone before it listens."""
    (tmp_path / "ready").write_text("old")
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as parent,
        Embedded(tmp_path, "--parent-pid", str(parent.pid), "--log-json") as server,
    ):
        server.wait_for(lambda: server.ready.exists() and server.ready.read_text() != "old")
        assert json.loads(server.ready.read_bytes())["pid"] == server.process.pid
        if os.name == "posix":
            assert server.ready.stat().st_mode & 0o777 == 0o600
        assert server.ask() == 200
        children = server.children()
        assert children
        getattr(parent, how)()
        assert server.wait(PATIENCE) == 0
        wait_gone(children)
        assert not server.ready.exists()
    lines = [json.loads(line) for line in server.told().splitlines()]
    assert lines[0]["message"].startswith("llama-appliance ")
    assert {"time", "level", "message"} == set(lines[0])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--port", "0", "--listen", "127.0.0.1:0"), "--port 0 is short for --listen"),
        (("--api-key-env", "NOT_SET"), "this environment variable is not set"),
        (("--parent-pid", "2147483647"), "there is no such process"),
    ],
)
def test_a_mistake_is_named_and_ends_with_2(tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    done = run_here(("serve", "--no-stores", *options), tmp_path, fresh_environment(tmp_path))
    assert done.returncode == 2
    assert told in done.stderr


def test_a_mistake_is_json_where_messages_are(tmp_path: Path) -> None:
    words = ("--no-stores", "--port", "0", "--ready-file", "missing/ready")
    done = run_command("serve", "--log-json", *words, cwd=tmp_path)
    assert done.returncode == 2
    said = json.loads(done.stderr.splitlines()[-1])
    assert said["level"] == "error"
    assert "--ready-file" in said["message"]
