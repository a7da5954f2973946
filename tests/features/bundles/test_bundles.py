"""Bundles: what one machine exports, another one takes in, whatever happens in between."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from engine_folders import HERE, make_build
from gguf_files import write_model
from homes import NEVER, Home, changes_of
from one_files import make_one_file, missing
from payload_folders import NAME, make_payload, name_of, write_key
from program import COMMAND

from appliance.catalog.catalog import Catalog
from appliance.catalog.sources import STARTER, ModelFolders
from appliance.features.bundles.container import Bundle
from appliance.features.engines.found import EngineFolders, list_engines
from appliance.store.partial_file import claim

if sys.platform == "win32":
    pytest.skip("the engine of these tests is a shell script", allow_module_level=True)

OLD, NEW = f"{HERE}-cpu/b50", f"{HERE}-cpu/b100"
REPO, COMMIT, CACHED = "acme/small-GGUF", "c" * 40, "acme/small-GGUF:Q8_0"
LARGE = 12 << 20
"""Bytes of the one model that takes several pieces of a partial file."""
SHARES = 3
CONFIG = "# ours\nmodels: {}\n"


class Machine(Home):
    """A machine in a folder: its own home, data, cache."""

    def __init__(self, folder: Path, program: Path = COMMAND) -> None:
        super().__init__(folder, program=program)
        self.data = folder / "xdg_data_home" / "llama-appliance"
        self.models = self.data / "models"
        self.hub = folder / "hf_home" / "hub"

    def bundle(self, *words: str | Path) -> dict[str, Any]:
        return self.json("bundle", *words)

    def refused(self, *words: str | Path) -> str:
        told = self.bad("bundle", *words)
        assert told.count("\n") == 1, told
        return told

    def works(self) -> set[str]:
        """Names of the builds and models that are here; each must be whole."""
        own = self.data / "engines"
        places = EngineFolders(named=None, beside=None, installed=own, cache=self.folder, search_path="")
        engines = [engine for engine in list_engines(places) if engine.folder is not None]
        assert [engine.damage for engine in engines] == [""] * len(engines)
        models = Catalog(ModelFolders(models_dir=self.models, cache=self.hub, starter=None)).scan().models
        assert [model.error for model in models] == [None] * len(models)
        return {engine.id for engine in engines} | {model.id for model in models}


def cached_model(hub: Path, content: bytes) -> None:
    """Put a model into a hub cache, as a download does."""
    folder = hub / "models--acme--small-GGUF"
    sha256 = hashlib.sha256(content).hexdigest()
    for part in ("blobs", "refs", f"snapshots/{COMMIT}"):
        (folder / part).mkdir(parents=True)
    (folder / "blobs" / sha256).write_bytes(content)
    (folder / "refs" / "main").write_text(COMMIT)
    (folder / "snapshots" / COMMIT / "small-Q8_0.gguf").symlink_to(f"../../blobs/{sha256}")


@pytest.fixture(scope="module")
def sender(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine with a build, models in three places, a configuration and a plugin."""
    machine = Machine(tmp_path_factory.mktemp("sender"))
    make_build(machine.data / "engines", build="b100")
    machine.models.mkdir()
    shutil.copyfile(STARTER, machine.models / "tiny.gguf")
    large = write_model(machine.models / "large.gguf", weights=LARGE // 4)
    with large.open("r+b") as file:
        file.seek(4096)
        file.write(random.Random(3).randbytes(LARGE - 8192))
    for number in (1, 2):
        path = machine.models / f"pair-0000{number}-of-00002.gguf"
        write_model(path, weights=8 * number, split__count=2, split__no=number - 1, split__tensors__count=2)
    cached_model(machine.hub, STARTER.read_bytes())
    (machine.folder / "ours.yaml").write_text(CONFIG)
    plugin = machine.folder / "plugins" / "hello"
    plugin.mkdir(parents=True)
    (plugin / "agent.py").write_text("def on_request(request):\n    return request\n")
    (plugin / "config.json").write_text("{}")
    (machine.folder / "plugins" / "again").symlink_to("hello/agent.py")
    machine.run("bundle", "keygen", "mine")
    machine.run("bundle", "keygen", "others")
    return machine


def export(sender: Machine, out: Path, *words: str | Path, models: str = f"tiny,{CACHED}") -> dict[str, Any]:
    return sender.bundle("export", "--models", models, "--engines", "cpu", "-o", out, *words)


@pytest.fixture(scope="module")
def whole(sender: Machine) -> Path:
    """A signed bundle of everything but the large model, in one file."""
    out = sender.folder / "whole.bundle"
    export(sender, out, "--key", "mine", "--config", "ours.yaml", "--plugins", "plugins")
    return out


@pytest.fixture
def receiver(tmp_path: Path) -> Machine:
    """A machine that works already, with an older build."""
    return working(tmp_path / "receiver")


def working(home: Path) -> Machine:
    machine = Machine(home)
    make_build(machine.data / "engines", build="b50")
    machine.models.mkdir()
    shutil.copyfile(STARTER, machine.models / "old.gguf")
    return machine


def items(told: dict[str, Any]) -> dict[str, str]:
    return {row["name"]: row["state"] for row in told["items"]}


def test_from_one_machine_to_another(sender: Machine, receiver: Machine, tmp_path: Path) -> None:
    everything = ("--config", "ours.yaml", "--plugins", "plugins")
    made = export(sender, tmp_path / "b", "--key", "mine", "--split", "1M", *everything)
    assert len(made["files"]) > 2
    public = sender.folder / "mine.pub"
    names = {NEW, "tiny", CACHED, "settings"}
    verified = receiver.bundle("verify", tmp_path / "b", "--key", public)
    assert verified["trust"] == "signed"
    assert items(verified) == dict.fromkeys(names, "carried")
    assert receiver.works() == {OLD, "old"}, "verifying changes nothing"
    told = receiver.bundle("import", tmp_path / "b", "--key", public)
    assert items(told) == dict.fromkeys(names, "imported")
    assert receiver.works() == {OLD, NEW, "old", "tiny", CACHED}
    settings = next(Path(row["place"]) for row in told["items"] if row["name"] == "settings")
    assert (settings / "config" / "ours.yaml").read_text() == CONFIG
    assert (settings / "plugins" / "again").read_text() == (sender.folder / "plugins/hello/agent.py").read_text()
    assert os.access(receiver.data / "engines" / NEW / "llama-server", os.X_OK)
    assert not list(receiver.folder.rglob(".incoming"))
    again = receiver.bundle("import", tmp_path / "b", "--key", public)
    assert items(again) == dict.fromkeys(names, "here")
    receiver.check_serves()


@pytest.mark.slow
def test_what_the_other_machine_has_is_left_out(
    sender: Machine, receiver: Machine, whole: Path, tmp_path: Path
) -> None:
    receiver.bundle("import", whole, "--key", sender.folder / "mine.pub")
    receiver.good("bundle", "inventory", "-o", tmp_path / "there.json")
    made = export(sender, tmp_path / "b", "--against", tmp_path / "there.json", models=f"tiny,large,pair,{CACHED}")
    assert items(made) == dict.fromkeys((NEW, "tiny", CACHED), "left out") | dict.fromkeys(("large", "pair"), "carried")
    assert (tmp_path / "b").stat().st_size < LARGE + (1 << 20)
    told = receiver.bundle("import", tmp_path / "b", "--unsigned")
    assert items(told) == {NEW: "here", "tiny": "here", CACHED: "here", "large": "imported", "pair": "imported"}
    assert len(list((receiver.models / "pair").iterdir())) == 2
    assert "pair" in receiver.works()
    (receiver.models / "tiny.gguf").unlink()
    assert "model tiny" in (said := receiver.refused("import", tmp_path / "b", "--unsigned"))
    assert "without --against" in said


def test_contents_of_the_cache_are_not_written_again(sender: Machine, receiver: Machine, tmp_path: Path) -> None:
    cached_model(receiver.hub, STARTER.read_bytes())
    export(sender, tmp_path / "b")
    assert items(receiver.bundle("import", tmp_path / "b", "--unsigned"))[CACHED] == "here"
    assert receiver.works() == {OLD, NEW, "old", "tiny", CACHED}
    blob = (receiver.hub / "models--acme--small-GGUF" / "snapshots" / COMMIT / "small-Q8_0.gguf").resolve()
    assert (receiver.models / "tiny.gguf").samefile(blob)


@pytest.mark.slow
def test_refusals_change_nothing(sender: Machine, receiver: Machine, whole: Path, tmp_path: Path) -> None:
    mine, others = sender.folder / "mine.pub", sender.folder / "others.pub"
    before = sorted(receiver.folder.rglob("*"))
    told = receiver.refused("import", whole)
    assert f"signed with the key {name_of_key(mine)}, and no key that is trusted here fits" in told
    assert "import once with --key FILE" in told
    for verb in ("import", "verify"):
        assert f"but with the key {name_of_key(mine)}; ask" in receiver.refused(verb, whole, "--key", others)
    shutil.copyfile(whole, tmp_path / "altered")
    altered = (tmp_path / "altered").read_bytes().replace(b'"version": "0', b'"version": "9', 1)
    (tmp_path / "altered").write_bytes(altered)
    told = receiver.refused("import", tmp_path / "altered", "--key", mine)
    assert "but with another one, or its manifest was changed" in told
    export(sender, tmp_path / "free", models="tiny")
    assert "the bundle is not signed" in receiver.refused("import", tmp_path / "free", "--key", mine)
    with Bundle(tmp_path / "free") as bundle:
        text, manifest = bundle.text, bundle.manifest
    for change, said in (
        ({"format": 2, "version": "9.0.0"}, "made by version '9.0.0'"),
        ({"target": "macos-arm64", "items": []}, f"--target {HERE}"),
    ):
        changed = msgspec.json.encode({**msgspec.to_builtins(manifest), **change})
        content = (tmp_path / "free").read_bytes()
        (tmp_path / "changed").write_bytes(content.replace(text, changed.ljust(len(text)), 1))
        assert said in receiver.refused("import", tmp_path / "changed", "--unsigned")
    (receiver.models / "tiny.gguf").write_bytes(b"mine")
    assert "llama-appliance rm tiny" in receiver.refused("import", tmp_path / "free", "--unsigned")
    (receiver.models / "tiny.gguf").unlink()
    export(sender, tmp_path / "parts", models="pair")
    (receiver.models / "pair").mkdir()
    assert "llama-appliance rm pair" in receiver.refused("import", tmp_path / "parts", "--unsigned")
    (receiver.models / "pair").rmdir()
    left = [path for path in receiver.folder.rglob("*") if path not in before and path.suffix != ".lock"]
    assert left == []


def test_a_flipped_bit_ends_the_import_and_a_good_copy_continues_it(
    sender: Machine, receiver: Machine, tmp_path: Path
) -> None:
    export(sender, tmp_path / "good", models="tiny,large")
    content = bytearray((tmp_path / "good").read_bytes())
    content[-(LARGE // 2)] ^= 4
    (tmp_path / "bad").write_bytes(content)
    for here in ({OLD, NEW, "old", "tiny"}, {OLD, NEW, "old", "tiny", "large"}):  # what was whole; then everything
        for words in (("verify",), ("import", "--unsigned")):
            told = receiver.refused(words[0], tmp_path / "bad", *words[1:])
            assert "bad is damaged" in told
            assert "model large" in told
        assert receiver.works() == here
        state = "here" if "large" in here else "imported"
        assert items(receiver.bundle("import", tmp_path / "good", "--unsigned"))["large"] == state
    (receiver.models / "tiny.gguf").unlink()
    assert "the parts that came whole are kept" in receiver.refused("import", tmp_path / "bad", "--unsigned")
    assert "tiny" in receiver.works(), "what is needed comes before the rest is read"


@pytest.mark.slow
def test_what_a_program_on_a_medium_takes_in_stays_when_the_medium_goes(tmp_path: Path) -> None:
    """The stick has the same version, and a cache that may be emptied has the same engine."""
    stick = make_payload(tmp_path / "stick" / NAME, "0.2.0")
    name, bundle = name_of(stick), tmp_path / "stick" / "b"
    sender, receiver = (Machine(tmp_path / each, stick / NAME) for each in ("sender", "receiver"))
    make_build(sender.data / "engines", build="b100")
    make_build(receiver.folder / "xdg_cache_home" / NAME / "engines", build="b100")
    sender.bundle("export", "--engines", "cpu", "-o", bundle)
    receiver.good("bundle", "inventory", "-o", tmp_path / "there.json")
    there = msgspec.json.decode((tmp_path / "there.json").read_bytes())
    assert there["items"] == [], "an export against it must leave out nothing"
    told = receiver.good("bundle", "import", bundle, "--unsigned")
    assert f"{receiver.data / 'programs' / name / NAME} serve" in told, "this version cannot be switched to"
    (tmp_path / "stick").rename(tmp_path / "taken away")
    shutil.rmtree(receiver.folder / "xdg_cache_home")
    assert receiver.works() == {NEW}
    receiver.program = receiver.data / "programs" / name / NAME
    again = receiver.bundle("import", tmp_path / "taken away" / "b", "--unsigned")
    assert items(again) == {name: "here", NEW: "here"}
    assert all(Path(row["place"]).is_dir() for row in again["items"])
    receiver.program = make_payload(tmp_path / "installed", "0.1.0") / NAME
    receiver.good("upgrade", "switch", name, "--key", write_key(tmp_path / "publisher.pub"))
    assert receiver.json("upgrade", "list")[-1]["role"] == "current"
    (receiver.data / "programs" / name / "licenses" / "LICENSE").unlink()
    assert "remove it (the folder)" in receiver.refused("import", tmp_path / "taken away" / "b", "--unsigned")


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_a_runnable_bundle_says_what_it_is_imports_itself_and_serves(sender: Machine, tmp_path: Path) -> None:
    one_file = make_one_file(tmp_path / "llama.AppImage", f'#!/bin/sh\nexec {COMMAND} "$@"\n', tmp_path)
    exporter = Machine(sender.folder, one_file)
    run = tmp_path / "office.run"
    words = ("--runnable", "--key", "mine", "--config", "ours.yaml")
    export(exporter, run, *words, models="tiny")
    content = run.read_bytes()
    assert content.startswith(one_file.read_bytes())
    assert items(sender.bundle("verify", run)) == {NEW: "carried", "tiny": "carried", "settings": "carried"}
    bare = Machine(tmp_path / "bare", run)
    told = bare.good()
    for part in (NEW, f"signed with the key {name_of_key(sender.folder / 'mine.pub')}", f"'{run} bundle import'"):
        assert part in told
    assert "no key that is trusted here fits" in bare.refused("import")
    shutil.copyfile(sender.folder / "mine.pub", bare.folder / "mine.pub")
    assert items(bare.bundle("import", "--key", "mine.pub")) == dict.fromkeys((NEW, "tiny", "settings"), "imported")
    assert items(bare.bundle("import")) == dict.fromkeys((NEW, "tiny", "settings"), "here")
    assert bare.works() == {NEW, "tiny"}
    bare.check_serves()
    again = tmp_path / "again.run"
    Machine(sender.folder, run).bundle("export", "--models", "pair", "--runnable", "-o", again)
    assert items(Machine(tmp_path / "bare", again).bundle("import", "--unsigned")) == {"pair": "imported"}
    assert again.stat().st_size < len(content), "the bundle behind the exporting program is not taken along"
    alone = Machine(tmp_path / "bare", one_file)
    assert "has no bundle behind its program" in alone.refused("import")
    assert "This machine:" in alone.good()
    front = bytearray(content)
    front[len(one_file.read_bytes()) - 4096] ^= 1
    run.write_bytes(front)
    for words in (("verify", run), ("import", run, "--unsigned")):
        assert "the program at its beginning" in sender.refused(*words)
    run.write_bytes(one_file.read_bytes() + b"x" + content[one_file.stat().st_size :])
    assert "is not a bundle of llama-appliance" in sender.refused("verify", run)


def name_of_key(public: Path) -> str:
    """As people read it in the file."""
    return public.read_text("utf-8").splitlines()[1][-44:]


def test_a_key_that_has_fitted_is_remembered_and_the_journal_tells_it(
    sender: Machine, receiver: Machine, whole: Path, tmp_path: Path
) -> None:
    mine, others = sender.folder / "mine.pub", sender.folder / "others.pub"
    assert "no bundle has brought anything here" in receiver.good("bundle", "log")
    assert receiver.bundle("verify", whole)["trust"] == "unchecked"
    receiver.refused("import", whole, "--key", others)
    (tmp_path / "both.pub").write_text(others.read_text() + mine.read_text())
    receiver.env["SUDO_USER"] = "anna"
    told = receiver.good("bundle", "import", whole, "--key", tmp_path / "both.pub")
    receiver.env["SUDO_USER"] = ""
    assert f"the key {name_of_key(mine)} is remembered" in told
    trusted = receiver.data / "programs" / "trusted.pub"
    assert trusted.read_text() == mine.read_text(), "of two keys the one that has fitted"
    assert receiver.bundle("verify", whole)["trust"] == "signed"
    export(sender, tmp_path / "next", "--key", "mine", models="large")
    assert items(receiver.bundle("import", tmp_path / "next")) == {NEW: "here", "large": "imported"}
    export(sender, tmp_path / "theirs", "--key", "others", models="pair")
    assert name_of_key(others) in receiver.refused("import", tmp_path / "theirs")
    journal = receiver.data / "bundles.jsonl"
    journal.write_bytes(journal.read_bytes() + b'\xff{"at": "torn')
    receiver.bundle("import", tmp_path / "theirs", "--unsigned")
    rows = receiver.json("bundle", "log")
    came = [(row["name"], Path(row["file"]).name, row["trust"], row["key"]) for row in rows]
    signed, unchecked = ("signed", name_of_key(mine)), ("unchecked", name_of_key(others))
    assert came == [
        *((name, whole.name, *signed) for name in (NEW, "tiny", CACHED, "settings")),
        ("large", "next", *signed),
        ("pair", "theirs", *unchecked),
    ]
    assert [row["user"] for row in rows] == ["anna"] * 4 + [psutil.Process().username()] * 2
    assert all(row["at"].endswith("Z") and Path(row["place"]).exists() for row in rows)
    assert b"torn" in journal.read_bytes(), "nothing is taken out of it"
    assert trusted.read_text() == mine.read_text()
    assert "large" in receiver.good("bundle", "log")


@pytest.mark.slow
def test_mistakes_of_an_export(sender: Machine, tmp_path: Path) -> None:
    def refused(*words: str | Path) -> str:
        return sender.refused("export", "-o", tmp_path / "x", *words)

    assert "the bundle would be empty" in refused()
    assert "model 'nothing' not found" in refused("--models", "nothing")
    assert "the starter model is part of every program" in refused("--models", "starter")
    other = "linux-arm64" if HERE != "linux-arm64" else "linux-x64"
    assert f"engines install cpu --platform {other}" in refused("--engines", "cpu", "--target", other)
    assert "is not a private ed25519 key" in refused("--models", "tiny", "--key", "mine.pub")
    assert "payload.json" in refused("--program", ".")
    assert "config" in refused("--config", "missing.yaml")
    assert "start the export with the llama-appliance .AppImage" in refused("--models", "tiny", "--runnable")
    assert "leave one out" in refused("--models", "tiny", "--runnable", "--split", "4M")
    assert f"export on a {other} machine" in refused("--models", "tiny", "--runnable", "--target", other)
    assert "--split takes at least 1M" in refused("--models", "tiny", "--split", "1K")
    assert not list(tmp_path.iterdir())
    (tmp_path / "x").touch()
    assert "is there already" in refused("--models", "tiny")
    assert "is there already" in sender.refused("keygen", "mine")


def test_a_disk_that_gets_full_keeps_what_has_come(sender: Machine, receiver: Machine, tmp_path: Path) -> None:
    export(sender, tmp_path / "b", models="large")
    limit = ("sh", "-c", f'ulimit -f {(5 << 20) // 512}; exec "$@"', "sh", str(COMMAND))
    done = receiver.run("bundle", "import", tmp_path / "b", "--unsigned", under=limit)
    assert done.returncode == 1, done.stderr
    assert "the disk is full" in done.stderr
    assert "make room" in done.stderr
    assert receiver.works() == {OLD, NEW, "old"}
    part = next(receiver.models.rglob("*.part"))
    assert part.stat().st_size >= 4 << 20
    node = part.stat().st_ino
    receiver.bundle("import", tmp_path / "b", "--unsigned")
    assert (receiver.models / "large.gguf").stat().st_ino == node, "it continued what was there"
    assert (receiver.models / "large.gguf").read_bytes() == (sender.models / "large.gguf").read_bytes()


@pytest.mark.needs("namespaces")
def test_a_disk_that_is_too_small_is_seen_before_the_first_byte(
    sender: Machine, receiver: Machine, tmp_path: Path
) -> None:
    export(sender, tmp_path / "b", models="large")
    script = (
        f"mount -t tmpfs -o size={100 << 20} tmpfs {receiver.data}; "
        f'head -c {30 << 20} /dev/zero >{receiver.data}/filler; "$@" && exit 9; find {receiver.data} -name "*.part"; '
        f'rm {receiver.data}/filler; exec "$@"'
    )
    driver = ("unshare", "--mount", "sh", "-c", script, "sh", str(COMMAND))
    done = receiver.run("bundle", "import", tmp_path / "b", "--unsigned", under=driver)
    assert done.returncode == 0, done.stderr
    assert "make room for" in done.stderr
    assert ".part" not in done.stdout
    assert "large.gguf" in done.stdout


@pytest.fixture(scope="module")
def changes(sender: Machine, whole: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str, str]]:
    """Every change that an undisturbed import makes to the disk."""
    machine = working(tmp_path_factory.mktemp("undisturbed") / "machine")
    done = take(machine, whole, sender)
    assert done.returncode == 0, done.stderr
    return changes_of(machine.folder)


def take(machine: Machine, bundle: Path, sender: Machine, last: int = NEVER) -> subprocess.CompletedProcess[str]:
    """Import, killed right before change number ``last``."""
    words = ("bundle", "import", bundle, "--key", sender.folder / "mine.pub")
    return machine.run_until(last, machine.folder, *words)


def stamps(paths: Iterable[Path]) -> set[tuple[int, int]]:
    """Return number and time of change of each file that arrives once and is not touched after that."""
    files = [path for path in paths if path.suffix in (".gguf", ".yaml", ".py") and path.is_file()]
    return {(path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_killed_before_any_of_its_changes_the_machine_works_and_the_import_continues(
    sender: Machine,
    receiver: Machine,
    whole: Path,
    changes: list[tuple[int, str, str]],
    request: pytest.FixtureRequest,
    share: int,
) -> None:
    deep = request.config.getoption("--deep") or request.config.getoption("--kills")
    numbers = [number for number, event, _ in changes if deep or event == "os.rename"]
    assert len(numbers) > 10
    for number in numbers[share::SHARES]:
        copy = shutil.copytree(receiver.folder, receiver.folder.with_name(f"killed-{number}"), symlinks=True)
        machine = Machine(copy)
        ended = take(machine, whole, sender, number)
        assert ended.returncode == -signal.SIGKILL, (number, ended.stderr)
        assert machine.works() >= {OLD, "old"}
        arrived = stamps(path for path in machine.folder.rglob(".incoming/**/*") if path.suffix != ".part")
        if number == numbers[share]:
            machine.check_serves()
        done = take(machine, whole, sender)
        assert done.returncode == 0, (number, done.stderr)
        assert machine.works() == {OLD, NEW, "old", "tiny", CACHED}
        assert not [path for path in machine.folder.rglob("*.part*")]
        assert arrived <= stamps(machine.folder.rglob("*")), (number, "a file that had arrived was brought again")
        shutil.rmtree(machine.folder)


def test_one_import_at_a_time(sender: Machine, receiver: Machine, whole: Path) -> None:
    lock = claim(receiver.data / ".import.lock")
    try:
        assert "is under way; wait until it ends" in receiver.refused("import", whole, "--unsigned")
    finally:
        lock.release()
