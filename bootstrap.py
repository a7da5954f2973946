"""Set up and drive this checkout with nothing but Python 3.11 or newer.

    python3 bootstrap.py serve [ARGS...]       start the server; ARGS go to `llama-appliance serve`
    python3 bootstrap.py test [--all] [ARGS]   run the tests, --all of them; ARGS go to pytest
    python3 bootstrap.py test --soak MINUTES   the soak; --fuzz N and --kills N: damaged inputs, and kills of everything
    python3 bootstrap.py test --upstream       run llama.cpp's own server tests against both programs
    python3 bootstrap.py test --llama-page     build llama.cpp's own page and drive it against this program
    python3 bootstrap.py check                 format, lint, types, import directions, prose, workflow; the page's too,
                                               once `web` has run
    python3 bootstrap.py web [--check]         check and build the page of appliance/web (needs Node); --check compares
    python3 bootstrap.py documents             write what documents say of the program from the program itself
    python3 bootstrap.py freeze [ARGS...]      make the stand-alone program and all it carries, dist/llama-appliance/
    python3 bootstrap.py test --wine           freeze for Windows, install, and run as a service, under wine
    python3 bootstrap.py test --wine --tests [WORDS]   the tests with Windows' Python; WORDS are pytest's
    python3 bootstrap.py package [KINDS...]    make deb rpm tar appimage oci in dist/packages/; deb-vulkan and its kin;
                                               app pkg; nsis msi
    python3 bootstrap.py bench [ARGS...]       measure the program beside nginx and other relays
    python3 bootstrap.py setup [--dev]         only install what `serve` (or, with --dev, everything else) needs
    python3 bootstrap.py lock                  renew requirements/*.txt from pyproject.toml

Everything goes into .venv beside this file (LLAMA_APPLIANCE_VENV names another folder): no root, no compiler. Packages
are pinned with hashes in requirements/, and come from wherever pip is configured to look. The first start installs;
later ones see that nothing changed and add a fraction of a second. A set-up that was interrupted is done again.
"""

import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 - this line is for the machines that have an older one
    sys.exit(
        "llama-appliance needs Python 3.11 or newer, and {} is {}.{}; "
        "start bootstrap.py with a newer one, for example 'python3.11 bootstrap.py serve'".format(
            sys.executable, *sys.version_info[:2]
        )
    )

ROOT = Path(__file__).resolve().parent
WINDOWS = sys.platform == "win32"
VENV_VARIABLE = "LLAMA_APPLIANCE_VENV"
LOCK_NAME = ".setup.lock"
STAMP_NAME = ".setup.json"
BEGUN_NAME = ".setup-begun"
"""Exists while packages are being installed; found later, it means that an installation was cut short."""

PROFILES = {"serve": "serve.txt", "dev": "dev.txt"}
"""The requirements of each profile. ``dev`` holds everything that ``serve`` holds."""
EMBEDDED = "embedded.txt"
"""The llama.cpp engine in a wheel; the one requirement a platform may lack."""
PAGE = ROOT / "appliance" / "web"
PAGE_STAMP = PAGE / "node_modules" / ".lock.sha256"
"""The digest of `package-lock.json` with which the packages of the page were installed."""


class SetupError(Exception):
    """A problem that the user can fix; the text says how."""


# ---- one set-up at a time --------------------------------------------------------------------------------------------


@contextmanager
def exclusive(path: Path, what: str) -> Generator[None, None, None]:
    """Hold the lock file ``path``, waiting for another process that holds it. The system frees it if its owner dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        if not _try_lock(file.fileno()):
            say(f"another process is busy with {what}; waiting for it")
            while not _try_lock(file.fileno()):
                time.sleep(0.1)
        yield


if sys.platform == "win32":
    import msvcrt

    def _try_lock(fd: int) -> bool:
        os.lseek(fd, 0, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _try_lock(fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


# ---- the virtual environment -----------------------------------------------------------------------------------------


def venv_python(venv: Path) -> Path:
    """The interpreter of a virtual environment, whether it exists or not."""
    return venv / "Scripts" / "python.exe" if WINDOWS else venv / "bin" / "python"


def make_venv(venv: Path) -> None:
    """Make a virtual environment that `pip_of` can install into. Needs no root; raises SetupError when nothing can."""
    attempts: list[list[str]] = []
    if importlib.util.find_spec("ensurepip"):
        attempts.append([sys.executable, "-m", "venv", str(venv)])
    else:  # Debian and Ubuntu without the package python3-venv
        if importlib.util.find_spec("pip"):
            attempts.append([sys.executable, "-m", "venv", "--without-pip", str(venv)])
        if importlib.util.find_spec("virtualenv"):
            attempts.append([sys.executable, "-m", "virtualenv", str(venv)])
        if shutil.which("uv"):
            attempts.append(["uv", "venv", "--seed", "--allow-existing", "--python", sys.executable, str(venv)])
    output = "this Python has no ensurepip, and neither pip, virtualenv nor uv is here"
    for attempt in attempts:
        done = subprocess.run(attempt, env=_clean_environment(), capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        output = (done.stdout + done.stderr).strip()
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    raise SetupError(
        f"cannot make a virtual environment in {venv}: {output}\n"
        f"On Debian and Ubuntu 'sudo apt-get install python{version}-venv' mends it; without root, put uv on PATH, "
        f"or run bootstrap.py with a Python that has pip or ensurepip."
    )


def pip_of(venv: Path) -> list[str]:
    """Return the command of pip for ``venv``: its own, or this interpreter's if the environment was made without
    one.
    """
    python = venv_python(venv)
    own = [str(python), "-m", "pip"]
    probe = [str(python), "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('pip') is None)"]
    if subprocess.run(probe, env=_clean_environment(), check=False).returncode == 0:
        return own
    return [sys.executable, "-m", "pip", "--python", str(python)]


def run_pip(pip: Sequence[str], *args: str, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run one pip command without questions; the exit status and what it said."""
    done = subprocess.run(
        [*pip, *args],
        env={**_clean_environment(), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_USER": "0"}
        | dict(env or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return done.returncode, done.stdout


def _clean_environment() -> dict[str, str]:
    """This process's environment without what would let another Python's packages in."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ---- what is installed -----------------------------------------------------------------------------------------------


def venv_folder() -> Path:
    """Return the environment's folder."""
    return Path(os.environ.get(VENV_VARIABLE) or ROOT / ".venv").absolute()


def digest(profile: str) -> str:
    """Changes when what ``profile`` installs changes, or when the checkout was moved."""
    sums = hashlib.sha256(str(ROOT).encode())
    for path in (ROOT / "requirements" / PROFILES[profile], ROOT / "requirements" / EMBEDDED, ROOT / "pyproject.toml"):
        sums.update(path.read_bytes())
    return sums.hexdigest()


def is_current(venv: Path, profile: str) -> bool:
    """True if ``profile`` is installed as the files ask, into an environment whose interpreter is still the same."""
    try:
        stamp: dict[str, str] = json.loads((venv / STAMP_NAME).read_bytes())
    except (OSError, ValueError):
        return False
    if stamp.get("python") != os.path.realpath(venv_python(venv)) or not venv_python(venv).exists():
        return False
    return stamp.get("dev") == digest("dev") or stamp.get(profile) == digest(profile)


def ensure(profile: str) -> Path:
    """The environment's interpreter, with ``profile`` installed. Raises SetupError."""
    venv = venv_folder()
    if not is_current(venv, profile):
        with exclusive(venv / LOCK_NAME, f"setting up {venv}"):
            if not is_current(venv, profile):
                set_up(venv, profile)
    return venv_python(venv)


def set_up(venv: Path, profile: str) -> None:
    """Install ``profile``; the stamp is written last, so that only a whole installation counts."""
    began = time.monotonic()
    say(f"setting up {venv} (once; needs a network or a mirror that pip knows)")
    if not reusable(venv):
        empty(venv)
        make_venv(venv)
    (venv / STAMP_NAME).unlink(missing_ok=True)
    (venv / BEGUN_NAME).touch()
    pip = pip_of(venv)
    packages = ROOT / "requirements" / PROFILES[profile]
    count = sum(line[:1].isalnum() for line in packages.read_text(encoding="utf-8").splitlines())
    with telling(f"installing {count} packages (requirements/{packages.name})"):
        install(pip, "--require-hashes", "-r", str(packages))
    with telling("installing the embedded engine, llama.cpp"):
        install_embedded(pip)
    with telling("installing the program itself"):
        install(pip, "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    stamp = {"python": os.path.realpath(venv_python(venv)), profile: digest(profile)}
    temporary = venv / f"{STAMP_NAME}.new"
    temporary.write_text(json.dumps(stamp, indent=2) + "\n", encoding="utf-8")
    temporary.replace(venv / STAMP_NAME)
    (venv / BEGUN_NAME).unlink()
    say(f"set up in {time.monotonic() - began:.0f} s")


TELL_EVERY = 10.0
"""Seconds between two lines that say that pip is still at work, which says nothing for a minute or two itself."""


@contextmanager
def telling(what: str) -> Generator[None]:
    """Say what is being done, and while the block runs, that it goes on: in lines, for terminals and for logs."""
    began, over = time.monotonic(), threading.Event()

    def tell() -> None:
        while not over.wait(TELL_EVERY):
            say(f"  {what}: goes on after {time.monotonic() - began:.0f} s")

    say(f"  {what}")
    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def reusable(venv: Path) -> bool:
    """True if packages can be added to the environment: one for this interpreter, complete and not moved."""
    if (venv / BEGUN_NAME).exists():
        say("the last set-up did not finish; starting afresh")
        return False
    probe = "import sys; print(sys.prefix); print(*sys.version_info[:2])"
    try:
        done = subprocess.run(
            [venv_python(venv), "-c", probe], env=_clean_environment(), capture_output=True, text=True, check=False
        )
        config = (venv / "pyvenv.cfg").read_text(encoding="utf-8")
    except OSError:
        return False
    made_by = [line for line in config.splitlines() if line.startswith("command = ")]
    moved = any(not line.endswith(f" {venv}") for line in made_by)  # its scripts still name the old place
    here = [str(venv), f"{sys.version_info[0]} {sys.version_info[1]}"]
    return done.returncode == 0 and not moved and done.stdout.splitlines() == here


def empty(venv: Path) -> None:
    """Delete a broken environment, except for the lock that this process holds in it."""
    if not venv.exists() or not any(entry.name != LOCK_NAME for entry in venv.iterdir()):
        return
    if not any((venv / name).exists() for name in ("pyvenv.cfg", BEGUN_NAME, STAMP_NAME)):
        raise SetupError(f"{venv} is not a virtual environment; move it away, or name another with {VENV_VARIABLE}")
    for entry in venv.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != LOCK_NAME:
            entry.unlink()


def install(pip: Sequence[str], *args: str) -> None:
    """`pip install`, or SetupError with what pip said."""
    status, output = run_pip(pip, "install", "--quiet", *args)
    if status != 0:
        raise SetupError(f"pip could not install what is needed:\n{output.strip()}")


def install_embedded(pip: Sequence[str]) -> None:
    """The engine in a wheel, never compiled here. A platform that has no wheel goes on without."""
    wanted = str(ROOT / "requirements" / EMBEDDED)
    status, output = run_pip(pip, "install", "--quiet", "--only-binary", ":all:", "--require-hashes", "-r", wanted)
    if status == 0:
        return
    if "No matching distribution found" not in output:
        raise SetupError(f"pip could not install the embedded engine:\n{output.strip()}")
    say(
        "there is no ready-made llama.cpp (xllamacpp) for this platform; going on without the embedded engine. "
        "'python3 llama-builds/build.py' builds one, or put llama-server on PATH."
    )


# ---- the verbs -------------------------------------------------------------------------------------------------------


def run_setup(args: Sequence[str]) -> int:
    """Install and stop."""
    unknown = [arg for arg in args if arg != "--dev"]
    if unknown:
        raise SetupError(f"setup knows --dev, not {' '.join(unknown)}")
    print(ensure("dev" if args else "serve"))
    return 0


def run_serve(args: Sequence[str]) -> int:
    """Become `llama-appliance serve`, so that signals and the exit status are the server's own."""
    return become([script(ensure("serve"), "llama-appliance"), "serve", *args])


def run_test(args: Sequence[str]) -> int:
    """pytest; tests/conftest.py knows --all, pyproject.toml leaves out the tests of the frozen program."""
    for option, place in (
        ("--upstream", "tools/upstream_suite/run.py"),
        ("--llama-page", "tools/upstream_suite/page.py"),
        ("--wine", "packaging/windows_under_wine.py"),
    ):
        if option in args:
            rest = [arg for arg in args if arg != option]
            return become([str(ensure("dev")), str(ROOT / place), *rest])
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):  # a thousand processes would each compile the whole program
        os.environ["PYTHONPYCACHEPREFIX"] = os.environ.get("PYTHONPYCACHEPREFIX") or str(ROOT / ".cache" / "bytecode")
    return become([str(ensure("dev")), "-m", "pytest", *args], folder=ROOT)


def run_check(args: Sequence[str]) -> int:
    """Every check, whatever the ones before it said; the status tells whether all passed."""
    if args:
        raise SetupError(f"check takes no arguments, not {' '.join(args)}")
    python = ensure("dev")
    ruff = [script(python, "ruff")]
    workflows = [str(path) for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))]
    checks = {
        "format": [*ruff, "format", "--check", "."],
        "lint": [*ruff, "check", "."],
        "types": [script(python, "pyright"), "--pythonpath", str(python)],
        "imports": [script(python, "lint-imports"), "--no-cache", "--no-logo"],
        "layout": [str(python), str(ROOT / ".ci" / "layout.py")],
        "documents": [str(python), str(ROOT / ".ci" / "documents.py")],
        "packages": [str(python), str(ROOT / ".ci" / "imports.py")],
        "words": [str(python), str(ROOT / ".ci" / "banned.py")],
        "names": [str(python), str(ROOT / ".ci" / "names.py")],
        "prose": [str(python), str(ROOT / ".ci" / "prose.py")],
        "workflow": [script(python, "check-jsonschema"), "--builtin-schema", "vendor.github-workflows", *workflows],
        "pins, permissions": [script(python, "zizmor"), "--offline", "--quiet", *workflows],
    }
    npm = shutil.which("npm")
    if npm and page_is_current():
        checks["page"] = [npm, "--prefix", str(PAGE), "run", "--silent", "check"]
    else:
        say("==> page\n    left out: its packages are not here, which 'python3 bootstrap.py web' installs")
    failed: list[str] = []
    for name, command in checks.items():
        began = time.monotonic()
        say(f"==> {name}")
        if subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, check=False).returncode != 0:
            failed.append(name)
        say(f"    {'FAILED' if name in failed else 'ok'} in {time.monotonic() - began:.1f} s")
    say(f"check: {', '.join(failed)} FAILED" if failed else f"check: all of {', '.join(checks)} passed")
    return 1 if failed else 0


def run_documents(args: Sequence[str]) -> int:
    """Write the parts of documents that are made from the program."""
    if args:
        raise SetupError(f"documents takes no arguments, not {' '.join(args)}")
    return become([str(ensure("dev")), str(ROOT / ".ci" / "documents.py"), "write"])


def run_web(args: Sequence[str]) -> int:
    """Check format, lint, types and tests of the page; then build it, or compare."""
    npm, node = page_packages()
    status = subprocess.run([npm, "run", "--silent", "check"], cwd=PAGE, check=False).returncode
    if status != 0:
        return status
    return become([node, "build.mjs", *args], folder=PAGE)


def page_packages() -> tuple[str, str]:
    """Install what the page's lock file pins, if that has changed. Return npm and node. Raises SetupError."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        raise SetupError("the page is built with Node 20.19 or newer; on Debian 'apt-get install nodejs npm' brings it")
    with exclusive(PAGE / "node_modules" / LOCK_NAME, "the packages of the page"):
        if not page_is_current():
            say(f"installing the packages of the page into {PAGE_STAMP.parent}")
            command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            if subprocess.run(command, cwd=PAGE, stdout=sys.stderr, check=False).returncode != 0:
                raise SetupError(f"'npm ci' failed in {PAGE}; its messages are above")
            PAGE_STAMP.write_text(page_digest(), encoding="utf-8")
    return npm, node


def page_is_current() -> bool:
    """True if the packages of the page are installed as its lock file asks."""
    return PAGE_STAMP.is_file() and PAGE_STAMP.read_text(encoding="utf-8") == page_digest()


def page_digest() -> str:
    return hashlib.sha256((PAGE / "package-lock.json").read_bytes()).hexdigest()


def run_freeze(args: Sequence[str]) -> int:
    return become([str(ensure("dev")), str(ROOT / "packaging" / "freeze.py"), *args], folder=ROOT)


def run_package(args: Sequence[str]) -> int:
    """Each system has a script; its kinds of packages name it."""
    kinds = {"app": "macos.py", "pkg": "macos.py", "nsis": "windows.py", "msi": "windows.py"}
    script_name = kinds.get(args[0] if args else "", "linux.py")
    return become([str(ensure("dev")), str(ROOT / "installer" / script_name), *args], folder=ROOT)


def run_bench(args: Sequence[str]) -> int:
    return become([str(ensure("dev")), str(ROOT / "bench" / "bench.py"), *args], folder=ROOT)


def run_lock(args: Sequence[str]) -> int:
    """Compile the pins from pyproject.toml; ARGS go to uv (--upgrade, --upgrade-package NAME)."""
    python = ensure("dev")
    import tomllib  # not at the top: older Pythons lack it, and must come as far as the check of their version

    with (ROOT / "pyproject.toml").open("rb") as file:
        embedded: list[str] = tomllib.load(file)["project"]["optional-dependencies"]["embedded"]
    locks = {  # dev first: what it chose, the server is tested with
        "dev.txt": ["pyproject.toml", "--group", "dev"],
        "serve.txt": ["pyproject.toml", "--group", "install", "--constraints", "requirements/dev.txt"],
        EMBEDDED: ["-"],
        "cmake.txt": ["--group", "engine"],
        "cuda.txt": ["--group", "cuda"],
        "export.txt": ["--group", "export"],
        "mutants.txt": ["--group", "mutants", "--no-deps"],
        "upstream.txt": ["--group", "upstream"],
    }
    for name, sources in locks.items():
        say(f"==> requirements/{name}")
        command = [str(python), "-m", "uv", "pip", "compile", *sources, "-o", f"requirements/{name}", *args]
        command += ["--universal", "--generate-hashes", "--python-version", "3.11", "--fork-strategy", "fewest"]
        command += ["--quiet", "--custom-compile-command", "python3 bootstrap.py lock"]
        done = subprocess.run(command, cwd=ROOT, input="\n".join(embedded), text=True, check=False)
        if done.returncode != 0:
            return done.returncode
    return 0


def script(python: Path, name: str) -> str:
    """A program that a package has put beside the environment's interpreter."""
    return str(python.with_name(f"{name}.exe" if WINDOWS else name))


def become(command: Sequence[str], folder: Path | None = None) -> int:
    """Let ``command`` take this process's place, in ``folder``; where a process cannot be replaced, wait for it."""
    if folder is not None:
        os.chdir(folder)
    if sys.platform != "win32":
        os.execv(command[0], list(command))
    for number in (signal.SIGINT, signal.SIGBREAK):  # Ctrl-C reaches the whole console: the child answers it
        signal.signal(number, signal.SIG_IGN)
    return subprocess.run(command, check=False).returncode


VERBS: dict[str, Callable[[Sequence[str]], int]] = {
    "setup": run_setup,
    "serve": run_serve,
    "test": run_test,
    "check": run_check,
    "web": run_web,
    "documents": run_documents,
    "freeze": run_freeze,
    "package": run_package,
    "bench": run_bench,
    "lock": run_lock,
}


def main(argv: Sequence[str]) -> int:
    """One verb and its arguments; the result is the exit status."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(__doc__)
        return 0 if argv else 2
    if argv[0] not in VERBS:
        print(f"error: there is no verb {argv[0]!r}; one of: {', '.join(VERBS)}", file=sys.stderr)
        return 2
    try:
        return VERBS[argv[0]](argv[1:])
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
