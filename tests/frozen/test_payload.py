"""The payload: what it lists, what it says of itself, its second name, and the environment of its children."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from fixed_work import multiples_of_fixed_work
from frozen_harness import PATIENCE, ROOT, SUFFIX, Server, bare_environment
from two_users import STRANGER, open_folder

pytestmark = pytest.mark.frozen

NAME = "llama-appliance"
CORE = 60e6
"""Bytes of the payload without engines and the server of a pool's bus, at most."""
LISTING = 6
"""Multiples of the fixed work that `ls` may cost. It costs 4.1 to 4.8 of them, busy or not."""


def run(program: Path, *argv: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [str(program), *argv]
    environment = bare_environment() | (env or {})
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=PATIENCE)


def test_the_list_names_every_file_as_it_is(program: Path) -> None:
    listed = json.loads((program.parent / "payload.json").read_bytes())
    files = {entry["path"]: entry for entry in listed["files"]}
    for path in program.parent.rglob("*"):
        name = path.relative_to(program.parent).as_posix()
        if path.is_symlink():
            assert files.pop(name)["link"] == path.readlink().as_posix()
        elif path.is_file() and name not in ("payload.json", "payload.json.sig"):
            assert files.pop(name)["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest(), name
    assert files == {}


def test_the_bill_of_materials_and_the_licences_are_whole(program: Path) -> None:
    bill = json.loads((program.parent / "sbom.cdx.json").read_bytes())
    things = [bill["metadata"]["component"], *bill["components"]]
    listed = json.loads((program.parent / "payload.json").read_bytes())
    files = {each["name"] for each in things if each["type"] == "file"}
    assert files == {entry["path"] for entry in listed["files"]} - {"sbom.cdx.json"}
    for each in things:
        if each["type"] in ("library", "platform") or each is things[0]:
            [stated] = each["licenses"]
            assert {*stated, *stated.get("license", ())} & {"expression", "id", "name"}, each["name"]
            assert any((program.parent / "licenses" / each["name"]).iterdir()), each["name"]
    for engine in (program.parent / "engines").glob("*/*"):
        assert any((engine / "licenses").iterdir())
    needs = {each["ref"]: set(each["dependsOn"]) for each in bill["dependencies"]}
    reached, ahead = set[str](), {things[0]["bom-ref"]}
    while ahead:
        reached |= ahead
        ahead = set[str]().union(*(needs[each] for each in ahead)) - reached
    assert reached == {each["bom-ref"] for each in things if each["type"] != "file"}


@pytest.mark.slow(only_all=True)
@pytest.mark.needs("git")
@pytest.mark.skipif(sys.platform == "win32", reason="the other user is one of POSIX")
def test_another_user_makes_an_equal_payload_in_another_folder(program: Path) -> None:
    """All is made again but the engine. The other user needs a package index, and a Python that everybody may start."""
    python = Path(os.path.realpath(sys.executable))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LLAMA_", "XDG_"))}
    with open_folder() as folder:
        checkout, engines = folder / "elsewhere" / "checkout", folder / "engines"
        shutil.copytree(program.parent / "engines", engines)
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, checkout], check=True)
        edited = subprocess.run(
            ["git", "diff", "--binary", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, check=True
        ).stdout
        if edited:
            subprocess.run(["git", "apply", "-"], cwd=checkout, input=edited, check=True)
        user = None
        if os.geteuid() == 0 and all(parent.stat().st_mode & 0o001 for parent in python.parents):
            user = STRANGER
            subprocess.run(["chown", "-R", f"{user}:{user}", folder], check=True)
        words = ["freeze", "--engines", ",".join(str(each.parent) for each in engines.glob("*/*/engine.json"))]
        done = subprocess.run(
            [python, checkout / "bootstrap.py", *words], cwd=checkout, env=environment | {"HOME": str(folder)},
            user=user, group=user, extra_groups=None if user is None else [], capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        lists = [
            json.loads((each / "payload.json").read_bytes()) for each in (program.parent, checkout / "dist" / NAME)
        ]
    here, there = ({each["path"]: each for each in listed.pop("files")} for listed in lists)
    assert lists[0] == lists[1]
    assert {path for path in here | there if here.get(path) != there.get(path)} == set()


def test_no_module_tells_where_it_was_compiled(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every module keeps the name of its source file, without the folders above its package."""
    monkeypatch.syspath_prepend(str(ROOT / "packaging"))
    from builder_paths import traces

    named = dict(traces(program.parent, [Path("appliance/core"), Path("trio/_core"), ROOT], ()))
    assert named[f"{program.name}: appliance.core.scheduling"] == "appliance/core"
    assert named[f"{program.name}: trio._core._run"] == "trio/_core"
    assert str(ROOT) not in named.values()


def test_it_says_which_commit_payload_and_engines_it_is(program: Path, tmp_path: Path) -> None:
    facts = json.loads(run(program, "version", "--json", cwd=tmp_path).stdout)
    content = (program.parent / "payload.json").read_bytes()
    listed = json.loads(content)
    assert facts["payload"] == hashlib.sha256(content).hexdigest()
    assert (facts["version"], facts["commit"]) == (listed["version"], listed["commit"])
    assert re.fullmatch(r"[0-9a-f]{40}(-edited)?", facts["commit"])
    assert set(listed["engines"]) <= set(facts["engines"])


def test_under_its_second_name_it_stands_in_for_llama_server(program: Path, tmp_path: Path) -> None:
    second = program.with_name(f"llama-server{SUFFIX}")
    told = run(second, "--version", cwd=tmp_path)
    assert told.returncode == 0
    assert told.stdout + told.stderr == "".join(
        getattr(run(program, "llama-server", "--version", cwd=tmp_path), name) for name in ("stdout", "stderr")
    )
    copied = tmp_path / "copied"
    shutil.copytree(program.parent, copied, ignore=shutil.ignore_patterns("engines"))  # links become files
    copy = run(copied / second.name, "--version", cwd=tmp_path, env={"PATH": str(copied), "HOME": str(tmp_path)})
    assert copy.returncode == 1, "it took itself for an engine, being on PATH"
    assert "no llama.cpp engine found" in copy.stderr


CONFIGURATION = """
models:
  alpha:
    cmd: /bin/sh -c 'env > {seen}; exec "$0" "$@"' '{engine}' --model '{model}' --port ${{PORT}} --threads 1
"""


@pytest.mark.skipif(sys.platform == "win32", reason="asks env(1)")
def test_a_child_sees_the_environment_of_an_unfrozen_start(program: Path, tmp_path: Path) -> None:
    """The bootloader's additions would make an engine load the program's libraries instead of the system's."""
    [engine] = (program.parent / "engines").glob("*/*/llama-server")
    [model] = (program.parent / "_internal" / "appliance" / "catalog" / "starter").glob("*.gguf")
    unfrozen = Path(sysconfig.get_path("scripts")) / "llama-appliance"
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LD_LIBRARY_PATH": "/mine"}
    environment["LANG"] = "C.UTF-8"  # else Python would set LC_CTYPE
    seen: list[dict[str, str]] = []
    for number, each in enumerate((program, unfrozen)):
        file, note = tmp_path / f"{number}.yaml", tmp_path / f"{number}.env"
        file.write_text(CONFIGURATION.format(seen=note, engine=engine, model=model), "utf-8")
        with Server(each, tmp_path, environment, "--config", str(file)) as server:
            server.ask("/v1/completions", {"model": "alpha", "max_tokens": 1, "prompt": "Hi"})
            assert server.stop() == 0
        pairs = [line.partition("=") for line in note.read_text("utf-8").splitlines()]
        seen.append({name: value for name, _, value in pairs if name not in ("_", "SHLVL", "PORT")})
    assert seen[0] == seen[1]
    assert seen[0]["LD_LIBRARY_PATH"] == "/mine"


def test_it_is_small_and_lists_models_quickly(
    program: Path, tmp_path: Path, record_property: pytest.RecordProperty, capsys: pytest.CaptureFixture[str]
) -> None:
    engines = program.parent / "engines"
    files = [path for path in program.parent.rglob("*") if path.is_file() and not path.is_symlink()]
    apart = [path for path in files if path.is_relative_to(engines) or path.stem == "nats-server"]
    core = sum(path.stat().st_size for path in files) - sum(path.stat().st_size for path in apart)
    listing = multiples_of_fixed_work(lambda: run(program, "ls", "--no-stores", cwd=tmp_path))
    with capsys.disabled():
        print(f"\n  without engines and nats-server {core / 1e6:.1f} MB; listing {listing:.1f} of fixed work")
    record_property("core_bytes", core)
    record_property("listing_multiples", listing)
    assert core <= CORE
    assert listing <= LISTING
