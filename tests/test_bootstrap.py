"""bootstrap.py on small checkouts of its own: real environments, real pip, a folder of wheels in place of an index."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

BOOTSTRAP = Path(__file__).resolve().parents[1] / "bootstrap.py"
WINDOWS = sys.platform == "win32"
PATIENCE = 120.0

BACKEND = """\
import os, zipfile

def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    name = "llama_appliance-1.0-py3-none-any.whl"
    info = "llama_appliance-1.0.dist-info/"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as wheel:
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: llama-appliance\\nVersion: 1.0\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "entry_points.txt", "[console_scripts]\\nllama-appliance = server:main\\n")
        wheel.writestr(info + "RECORD", "")
    return name
"""
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
SERVER = """\
import json, os, signal, sys, time

def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    print(json.dumps({"version": VERSION, "pid": os.getpid(), "argv": sys.argv[1:]}), flush=True)
    if "--wait" in sys.argv:
        time.sleep(60)
"""


class Checkout:
    """A project small enough to be set up in seconds, with the real bootstrap.py.

    Without a pip of its own an environment uses the pip of the Python that makes it, as on a Debian without its package
    for environments. That takes half the time.
    """

    def __init__(self, folder: Path, *, own_pip: bool = False) -> None:
        self.folder = folder
        self.wheels = folder.parent / "wheels"  # pip's settings cannot name a folder with a space in it
        for made in (self.wheels, folder / "requirements"):
            made.mkdir(parents=True)
        no_ensurepip = "" if own_pip else "import sys\nsys.modules['ensurepip'] = None\n"
        (folder / "bootstrap.py").write_text(no_ensurepip + BOOTSTRAP.read_text("utf-8"), "utf-8")
        (folder / "pyproject.toml").write_text(PYPROJECT)
        (folder / "backend.py").write_text(BACKEND)
        self.pin("embedded.txt", "engine", "1.0")
        self.pin_server("1.0")

    @property
    def venv(self) -> Path:
        return self.folder / ".venv"

    def pin_server(self, version: str) -> None:
        for name in ("serve.txt", "dev.txt"):
            self.pin(name, "server", version, SERVER.replace("VERSION", repr(version)))

    def pin(self, requirements: str, package: str, version: str, code: str = "", *, tag: str = "py3-none-any") -> Path:
        """Publish a wheel with one module, and make it the only requirement in the file."""
        wheel = self.wheels / f"{package}-{version}-{tag}.whl"
        info = f"{package}-{version}.dist-info/"
        files = {
            f"{package}.py": code,
            f"{info}METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n",
            f"{info}WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
            f"{info}RECORD": "",
        }
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, content in files.items():
                archive.writestr(zipfile.ZipInfo(name), content)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        (self.folder / "requirements" / requirements).write_text(f"{package}=={version} --hash=sha256:{digest}\n")
        return wheel

    def begin(self, *args: str, **env: str) -> subprocess.Popen[str]:
        keep = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "LLAMA_APPLIANCE_"))}
        offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels), "PIP_CONFIG_FILE": os.devnull}
        return subprocess.Popen(
            [sys.executable, str(self.folder / "bootstrap.py"), *args],
            cwd=self.folder.parent,
            env=keep | offline | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        with self.begin(*args, **env) as process:
            out, err = process.communicate(timeout=PATIENCE)
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def works(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        """A run that succeeds."""
        done = self.run(*args, **env)
        assert done.returncode == 0, done.stderr
        return done

    def module(self, name: str) -> Path:
        """Where an installed module lies."""
        (found,) = self.venv.rglob(f"site-packages/{name}.py")
        return found


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "a checkout")


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """One that is set up, with a pip of its own. Its tests leave it that way."""
    made = Checkout(tmp_path_factory.mktemp("ready") / "checkout", own_pip=True)
    made.works("setup")
    return made


@pytest.mark.slow
def test_later_starts_only_start(ready: Checkout) -> None:
    began = time.monotonic()
    done = ready.run("serve", "--listen", "a b", "--help")
    took = time.monotonic() - began
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["argv"] == ["serve", "--listen", "a b", "--help"]
    assert took < 5, "a start that changes nothing must not run pip"


@pytest.mark.slow
@pytest.mark.skipif(WINDOWS, reason="a Windows process cannot be replaced, nor asked to end")
def test_the_server_takes_the_place_of_bootstrap(ready: Checkout) -> None:
    with ready.begin("serve", "--wait") as process:
        assert json.loads(process.stdout.readline())["pid"] == process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 7


@pytest.mark.slow
def test_a_new_pin_is_installed(ready: Checkout) -> None:
    for version in ("1.1", "1.0"):
        assert json.loads(ready.run("serve").stdout)["version"] != version
        ready.pin_server(version)
        assert json.loads(ready.run("serve").stdout)["version"] == version


@pytest.mark.slow
def test_what_an_interruption_left_is_not_trusted(checkout: Checkout) -> None:
    with checkout.begin("setup") as process:
        deadline = time.monotonic() + PATIENCE
        while not (checkout.venv / ".setup-begun").exists():
            assert process.poll() is None, "the set-up ended before it began to install"
            assert time.monotonic() < deadline
            time.sleep(0.001)
        kill_group(process)
    done = checkout.works("serve")
    assert "did not finish" in done.stderr


@pytest.mark.slow
def test_a_half_installed_package_is_replaced(ready: Checkout) -> None:
    """pip takes a package for installed when its metadata is there, and would leave the hole."""
    (ready.venv / ".setup.json").unlink()
    (ready.venv / ".setup-begun").touch()
    ready.module("server").unlink()
    ready.works("serve")


@pytest.mark.slow
def test_a_moved_checkout_is_set_up_again(ready: Checkout) -> None:
    ready.folder = ready.folder.rename(ready.folder.with_name("moved"))
    ready.works("serve")


@pytest.mark.slow
def test_a_platform_without_the_embedded_engine_goes_on(checkout: Checkout) -> None:
    checkout.pin("embedded.txt", "engine", "2.0", tag="cp39-cp39-manylinux_2_17_s390x")
    done = checkout.works("serve")
    assert "without the embedded engine" in done.stderr
    assert checkout.run("serve").stderr == "", "said once, not at every start"


@pytest.mark.slow
def test_debian_without_its_venv_package_uses_the_pip_it_has(checkout: Checkout) -> None:
    checkout.works("serve")
    assert not list(checkout.venv.rglob("site-packages/pip"))


@pytest.mark.slow
def test_a_package_that_was_tampered_with_is_refused(checkout: Checkout) -> None:
    wheel = checkout.pin("serve.txt", "server", "3.0", SERVER)
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("surprise.py", "")
    done = checkout.run("serve")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "hash" in done.stderr.lower()
    assert not (checkout.venv / ".setup.json").exists()


@pytest.mark.slow
def test_two_at_once_set_up_once(checkout: Checkout) -> None:
    with checkout.begin("setup") as first, checkout.begin("setup") as second:
        said = [process.communicate(timeout=PATIENCE)[1] for process in (first, second)]
        assert (first.returncode, second.returncode) == (0, 0), said
    assert "".join(said).count("set up in") == 1
    assert "".join(said).count("waiting for it") == 1


def test_a_folder_that_is_something_else_is_left_alone(checkout: Checkout, tmp_path: Path) -> None:
    precious = tmp_path / "home" / "thesis.txt"
    precious.parent.mkdir()
    precious.write_text("years")
    done = checkout.run("setup", LLAMA_APPLIANCE_VENV=str(precious.parent))
    assert done.returncode == 1
    assert "not a virtual environment" in done.stderr
    assert precious.read_text() == "years"


@pytest.mark.slow
@pytest.mark.parametrize("argv", [["frobnicate"], ["setup", "--frobnicate"], ["check", "everything"]])
def test_a_wrong_command_line_says_what_is_wrong(ready: Checkout, argv: list[str]) -> None:
    done = ready.run(*argv)
    assert done.returncode in (1, 2)
    assert argv[-1] in done.stderr
    assert "Traceback" not in done.stderr


def test_an_old_python_is_told_what_is_needed() -> None:
    """It must get as far as the message: the file has to be readable, and imports nothing young before it."""
    source = BOOTSTRAP.read_text(encoding="utf-8")
    tree = ast.parse(source, feature_version=(3, 6))
    before = tree.body[: next(i for i, node in enumerate(tree.body) if isinstance(node, ast.If))]
    imported = {name.name for node in before if isinstance(node, ast.Import) for name in node.names}
    assert "tomllib" not in imported
    pretend = f"import sys; sys.version_info = (3, 8, 0); exec(compile({source!r}, 'bootstrap.py', 'exec'))"
    done = subprocess.run([sys.executable, "-c", pretend], capture_output=True, text=True)
    assert done.returncode == 1
    assert "needs Python 3.11" in done.stderr
    assert "3.8" in done.stderr


def kill_group(process: subprocess.Popen[str]) -> None:
    """End a process and its children in the rudest way there is."""
    if WINDOWS:
        subprocess.run(["taskkill", "/F", "/T", "/PID", str(process.pid)], capture_output=True, check=True)
    else:
        os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_tests_keep_what_they_compile_and_get_their_arguments(checkout: Checkout) -> None:
    said = "import json, sys; print(json.dumps([sys.argv[1:], sys.dont_write_bytecode, sys.pycache_prefix]))"
    checkout.pin("dev.txt", "pytest", "1.0", said)
    for variables, prefix in (({}, None), ({"PYTHONDONTWRITEBYTECODE": "1"}, str(checkout.folder / ".cache/bytecode"))):
        done = checkout.run(
            "test", "tests/a.py", "-k", "b c", **{"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": ""} | variables
        )
        assert json.loads(done.stdout) == [["tests/a.py", "-k", "b c"], False, prefix], done.stderr
