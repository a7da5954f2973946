"""Folders of engine builds as the program finds them, whose `llama-server` is the lying engine.

`make_build` writes one, with a true ``engine.json``; `tell` changes what it does, also while it runs.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct, field, structs

from appliance.core.engines.builds import MANIFEST, Build, FileSum, platform_of
from appliance.core.engines.trials import KNOWN

LYING_ENGINE = Path(__file__).parent / "fakes" / "lying_engine.py"
LIES = "lies.json"
PROGRAM = "llama-server"
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
    program = folder / PROGRAM
    words = " ".join(f"'{word}'" for word in (sys.executable, "-S", "-E", str(LYING_ENGINE)))
    program.write_text(f'#!/bin/sh\n# {system} {backend} {build}\nexec {words} "$0" "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    content = program.read_bytes()
    sums = FileSum(path=PROGRAM, size=len(content), sha256=hashlib.sha256(content).hexdigest(), executable=True)
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


def tell(folder: Path, lie: Lie) -> None:
    """From now on the build does this; an engine that runs follows with its next request."""
    new = folder / f"{LIES}.new"
    new.write_bytes(msgspec.json.encode(lie))
    new.replace(folder / LIES)


def lie_of(folder: Path) -> Lie:
    """What it does now."""
    return msgspec.json.decode((folder / LIES).read_bytes(), type=Lie)
