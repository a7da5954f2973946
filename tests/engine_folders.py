"""Folders of engine builds as the program finds them, whose `llama-server` is the lying engine.

`make_build` writes one, with a true ``engine.json``; `tell` changes what it does, also while it runs.
"""

from __future__ import annotations

import hashlib
import io
import platform
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct, field, structs

from appliance.core.builds import MANIFEST, Build, FileSum
from appliance.core.machine_look import platform_of
from appliance.engines.builds import EXECUTABLE
from appliance.features.engines.core.trials import KNOWN

LYING_ENGINE = Path(__file__).parent / "fakes" / "lying_engine.py"
LIES = "lies.json"
CRASHED = "access violation" if sys.platform == "win32" else "SIGSEGV"
ABORTED = "aborted" if sys.platform == "win32" else "SIGABRT"
"""The words for its two ways to die."""
HERE = platform_of(sys.platform, platform.machine())


class Listed(Struct, frozen=True, kw_only=True):
    """A device that it lists. Sizes in MiB."""

    name: str
    description: str = "Test Card 9000"
    total: int = 8192
    free: int = 8000
    pci: str | None = None


class Answer(Struct, frozen=True):
    content: str
    tokens: Sequence[int]


TRUE_ANSWERS: Mapping[str, Answer] = {each.prompt: Answer(each.content, each.tokens) for each in KNOWN}
"""What the starter model says, so that an honest one of these can be proven."""


class Lie(Struct, frozen=True, kw_only=True):
    """``lies.json``; tests/fakes/lying_engine.py says what each key does."""

    devices: Sequence[Listed] = ()
    list: Literal["well", "hang", "crash", "absurd", "flood", "garbage", "fail"] = "well"
    load: Literal["well", "hang", "crash", "abort", "fail", "memory", "missing"] = "well"
    work: Literal["well", "crash", "hang", "garbage", "refuse"] = "well"
    heavy: Literal["well", "crash", "hang"] = "well"
    after_tokens: int | None = None
    after_requests: int = 0
    on: Sequence[str] = ()
    list_delay: float = 0.0
    load_delay: float = 0.0
    prompt_speed: float = 1000.0
    generation_speed: float = 100.0
    answers: Mapping[str, Answer] = field(default_factory=lambda: TRUE_ANSWERS)
    help: str | msgspec.UnsetType = msgspec.UNSET


def make_build(
    root: Path,
    backend: str = "cpu",
    build: str = "b11434",
    devices: Sequence[Listed] = (),
    lie: Lie | None = None,
    system: str = HERE,
) -> Path:
    """Write ``<root>/<system>-<backend>/<build>/`` and return it. Without ``lie`` it is honest."""
    folder = root / f"{system}-{backend}" / build
    folder.mkdir(parents=True)
    program = folder / EXECUTABLE
    content = lying_program(f"{system} {backend} {build}")
    program.write_bytes(content)
    program.chmod(0o755)
    sums = FileSum(path=EXECUTABLE, size=len(content), sha256=hashlib.sha256(content).hexdigest(), executable=True)
    manifest = Build(
        name=f"llama-server-{backend}",
        backend=backend,
        platform=system,
        build=build,
        version=build,
        files=(sums,),
    )
    (folder / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    tell(folder, structs.replace(lie or Lie(), devices=devices or (lie.devices if lie else ())))
    return folder


def pack(folder: Path, archive: Path) -> Path:
    """A build as it is handed around."""
    with tarfile.open(archive, "w:gz", compresslevel=1) as file:
        file.add(folder, f"llama-{folder.name}")
    return archive


def lying_program(name: str) -> bytes:
    """The lying engine as one executable file. ``name`` makes it another file than others."""
    if sys.platform != "win32":
        words = " ".join(f"'{word}'" for word in (sys.executable, "-S", "-E", str(LYING_ENGINE)))
        return f'#!/bin/sh\n# {name}\nexec {words} "$0" "$@"\n'.encode()
    code = f"""# {name}
import runpy, sys
sys.argv[:1] = [{str(LYING_ENGINE)!r}, sys.argv[0]]
sys.path[0] = {str(LYING_ENGINE.parent)!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr(zipfile.ZipInfo("__main__.py"), code)
    # As pip makes commands: a program that executes what its first line names, with itself as the script.
    launcher = files("pip._vendor.distlib").joinpath("t64.exe").read_bytes()
    return launcher + f'#!"{sys.executable}" -S -E\r\n'.encode() + packed.getvalue()


def tell(folder: Path, lie: Lie) -> None:
    """From now on the build does this; an engine that runs follows with its next request."""
    new = folder / f"{LIES}.new"
    new.write_bytes(msgspec.json.encode(lie))
    new.replace(folder / LIES)
