"""A bundle's manifest and its import: nothing leads out of its place, and what is here is not taken twice."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path, PurePosixPath

import msgspec
import pytest
from engine_folders import HERE, make_build
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from payload_folders import make_payload, name_of

from appliance.catalog.catalog import Catalog
from appliance.catalog.sources import ModelFolders
from appliance.core import signing
from appliance.core.payload import PayloadFile
from appliance.errors import UsageError
from appliance.features.bundles import contents
from appliance.features.bundles.container import Bundle, write_bundle
from appliance.features.bundles.core import plan
from appliance.features.bundles.core.manifest import (
    CHUNK,
    FORMAT,
    Blob,
    BundleItem,
    BundleManifest,
    Inventory,
    PresentItem,
    is_plain,
    read_inventory,
    read_manifest,
    without_known,
)
from appliance.features.bundles.core.plan import UNSIGNED
from appliance.features.bundles.importing import Homes, bring, known
from appliance.features.bundles.importing import plan as plan_import
from appliance.features.engines.carried import CarriedHere
from appliance.features.engines.shelf import Shelf
from appliance.start import linked
from appliance.store.carried import NoCarriedEngines

SUM, OTHER = "a" * 64, "b" * 64
PARTS = st.sampled_from(["a", "b", "..", ".", "", "con", "x.gguf", "c:", "d\\e", "f\0", "g ", "h."])
FILE = PayloadFile(path="m.gguf", size=3, sha256=SUM)
MODEL = BundleItem(kind="model", name="m", digest=SUM, files=(FILE,))
MANIFEST = BundleManifest(
    format=FORMAT,
    version="0.2.0",
    target="linux-x64",
    made="2026-01-01T00:00:00Z",
    items=(MODEL,),
    blobs=(Blob(sha256=SUM, size=3, chunks=(SUM,)),),
)


def read(manifest: BundleManifest) -> BundleManifest:
    return read_manifest(msgspec.json.encode(manifest))


def of(*items: BundleItem) -> BundleManifest:
    return structs.replace(MANIFEST, items=items)


def file(path: str, link: str = "") -> PayloadFile:
    return PayloadFile(path=path, link=link) if link else structs.replace(FILE, path=path)


def engine(*files: PayloadFile, name: str = "linux-x64-cpu/b100") -> BundleItem:
    return BundleItem(kind="engine", name=name, digest="0123", files=files)


@given(st.lists(PARTS, min_size=1, max_size=4).map("/".join) | st.text(max_size=20))
def test_a_plain_path_stays_where_it_is_put(path: str) -> None:
    if is_plain(path):
        found = PurePosixPath("/place", path)
        assert str(found) == f"/place/{path}"
        assert ".." not in found.parts
        read(of(engine(file(path))))


@pytest.mark.parametrize(
    "item",
    [
        engine(file("../x")),
        engine(file("/etc/x")),
        engine(file("a"), file("a")),
        engine(file("a"), file("a/b")),
        engine(file("d", link="e"), file("e"), file("d/x")),
        engine(file("a"), file("l", link="../../a")),
        engine(file("a"), file("l", link="/a")),
        engine(file("a"), file("d/b"), file("l", link="d/../a")),
        engine(file("a"), file("l", link="missing")),
        engine(file("l", link="l2"), file("l2", link="l")),
        engine(structs.replace(FILE, sha256="x")),
        engine(structs.replace(FILE, sha256=OTHER)),
        engine(structs.replace(FILE, size=4)),
        engine(),
        engine(FILE, name="windows-x64-cpu/b100"),
        engine(FILE, name="linux-x64-cpu/../b100"),
        engine(FILE, name="linux-x64-cpu/"),
        engine(FILE, name="cpu/b100"),
        structs.replace(MODEL, name="a\nb"),
        structs.replace(MODEL, files=(file("a.gguf"), file("b.gguf"))),
        structs.replace(MODEL, files=(file(".incoming/a.gguf"),)),
        structs.replace(MODEL, repo="../x/y", commit="0" * 40),
        structs.replace(MODEL, repo="org/repo", commit="main"),
        structs.replace(MODEL, digest="../x"),
        structs.replace(MODEL, kind="program", name="0.2.0"),
        structs.replace(MODEL, kind="program", name="../0.2.0-0123456789ab"),
    ],
)
def test_files_and_names_that_could_be_anywhere_or_nowhere_are_refused(item: BundleItem) -> None:
    with pytest.raises(UsageError, match="export it again"):
        read(of(item))


def test_links_to_files_of_the_same_folder_are_taken() -> None:
    assert read(MANIFEST) == MANIFEST
    read(of(engine(file("lib/a.so.0"), file("lib/a.so", link="a.so.0"), file("bin/a", link="../lib/a.so"))))


@pytest.mark.parametrize(
    "blob",
    [
        Blob(sha256=SUM, size=3, chunks=()),
        Blob(sha256=SUM, size=CHUNK + 1, chunks=(SUM,)),
        Blob(sha256=SUM, size=-1, chunks=()),
        Blob(sha256=SUM, size=3, chunks=("x",)),
    ],
)
def test_sums_that_do_not_fit_are_refused(blob: Blob) -> None:
    with pytest.raises(UsageError, match="sums"):
        read(structs.replace(MANIFEST, blobs=(blob,)))
    with pytest.raises(UsageError, match="one name"):
        read(of(MODEL, structs.replace(MODEL, digest=OTHER)))


@pytest.mark.parametrize("text", [b"", b"{}", b"[" * 100_000, b'{"format": 1}', b"\xff"])
def test_something_else_is_refused(text: bytes) -> None:
    with pytest.raises(UsageError, match="damaged, or something else"):
        read_manifest(text)


def test_a_newer_bundle_is_refused_with_the_version_that_reads_it() -> None:
    with pytest.raises(UsageError, match=r"format 2, made by version '9\.1\.0'.*install that version"):
        read(structs.replace(MANIFEST, format=2, version="9.1.0"))


def test_a_bundle_for_another_machine_is_refused_with_the_option_that_makes_the_right_one() -> None:
    with pytest.raises(UsageError, match=r"for linux-x64, and this machine is macos-arm64.*--target macos-arm64"):
        plan.refuse_foreign(MANIFEST, "macos-arm64")
    plan.refuse_foreign(MANIFEST, "linux-x64")


@pytest.mark.parametrize("trust", ["signed", "unchecked", "unsigned"])
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("unsigned_is_fine", [True, False])
def test_only_a_trusted_key_or_a_clear_word_lets_a_bundle_in(trust: str, named: bool, unsigned_is_fine: bool) -> None:
    fine = trust == "signed" or (unsigned_is_fine and not named)
    for key, told in (("THEIRS", "the key THEIRS"), ("", "was changed")):
        signer = plan.BundleSigner(trust=trust, key=key)  # type: ignore[arg-type]
        told = "is not signed: export it with --key" if trust == "unsigned" else told
        with nullcontext() if fine else pytest.raises(UsageError, match=told):
            plan.refuse_untrusted(signer, named=named, unsigned_is_fine=unsigned_is_fine)


@pytest.mark.parametrize(
    ("trusted", "stated", "trust"), [(1, 1, "signed"), (1, 0, "signed"), (0, 1, "unchecked"), (0, 0, "")]
)
def test_the_signer_is_named_if_its_key_is_trusted_or_stated(trusted: bool, stated: bool, trust: str) -> None:
    seed = bytes(range(32))
    key, text = signing.public_of(seed), b"manifest"
    found = plan.signer_in(text, signing.sign(seed, text), signing.name_of(key) * stated, [key] * trusted)
    assert found == plan.BundleSigner(trust=trust or "unchecked", key=signing.name_of(key) if trust else "")
    assert plan.signer_in(text, plan.UNSIGNED, signing.name_of(key), [key]) == plan.BundleSigner(trust="unsigned")


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1 << 40), st.sampled_from(["here", "missing"])), max_size=6),
    st.lists(st.integers(0, 1 << 42), min_size=3, max_size=3),
)
def test_it_begins_exactly_when_every_disk_has_room(wanted: list[tuple[int, int, str]], free: list[int]) -> None:
    standings = [
        plan.Standing(item=MODEL, state=state, left=left if state == "missing" else 0, disk=disk, place="/x")  # type: ignore[arg-type]
        for disk, left, state in wanted
    ]
    needed = [sum(s.left for s in standings if s.disk == disk) for disk in range(3)]
    fits = all(not need or has >= need + plan.SPARE for need, has in zip(needed, free, strict=True))
    with nullcontext() if fits else pytest.raises(UsageError, match="make room"):
        found = plan.to_bring(standings, dict(enumerate(free)))
        assert found == [standing for standing in standings if standing.state == "missing"]


def test_what_is_in_the_way_and_what_was_left_out_is_said() -> None:
    with pytest.raises(UsageError, match="llama-appliance rm m"):
        plan.to_bring([plan.Standing(item=MODEL, state="other", place="/models/m.gguf")], {0: 0})
    gone = structs.replace(MODEL, left_out=True)
    with pytest.raises(UsageError, match="without --against"):
        plan.to_bring([plan.Standing(item=gone, state="missing")], {0: 1 << 40})
    assert plan.to_bring([plan.Standing(item=gone, state="here")], {0: 0}) == []


def test_what_the_other_machine_has_is_left_out_by_its_contents() -> None:
    known = (
        PresentItem(kind="model", name="another name", digest=SUM),
        PresentItem(kind="engine", name="m", digest=SUM),
    )
    there = Inventory(format=FORMAT, version="0.2.0", target="linux-x64", items=known)
    other = structs.replace(MODEL, digest=OTHER)
    assert [item.left_out for item in without_known([MODEL, other], there)] == [True, False]
    assert without_known([MODEL], None) == [MODEL]
    with pytest.raises(UsageError, match="--target linux-x64"):
        read_inventory(msgspec.json.encode(there), "linux-arm64")


EMPTY = ModelFolders(models_dir=None, cache=None, starter=None)


def nothing(_: object = None) -> None:
    """Hears of progress."""


def installed(folder: Path) -> Path:
    """A program with an engine beside it, as a package manager unpacks them."""
    program = make_payload(folder / "llama-appliance", "0.2.0")
    make_build(program / "engines", build="b100")
    return program


def builds_in(root: Path, packaged: Path | None = None) -> CarriedHere:
    return CarriedHere(Shelf(root), [root], packaged and packaged / "engines")


def carried(folder: Path, program: Path) -> Path:
    """A bundle of that program and its engine."""
    reader = contents.SumReader()
    build = builds_in(program / "engines").find("cpu", HERE)
    items = [contents.program(program, HERE, reader), contents.engine(build, reader)]
    blobs = reader.blobs(items)
    manifest = BundleManifest(
        format=FORMAT,
        version="0.2.0",
        target=HERE,
        made="",
        items=tuple(items),
        blobs=tuple(blob for blob, _ in blobs),
    )
    write_bundle(folder / "b", msgspec.json.encode(manifest), UNSIGNED, blobs, 0, nothing, nothing)
    return folder / "b"


def homes_in(folder: Path, packaged: Path | None = None) -> Homes:
    return Homes(
        data=folder,
        models=folder / "models",
        cache=folder / "cache",
        engines=builds_in(folder / "engines", packaged),
        programs=folder / "programs",
        packaged=packaged,
    )


def test_the_newest_build_that_is_meant_goes_into_a_bundle_and_the_others_are_named(tmp_path: Path) -> None:
    make_build(tmp_path, build="b99")
    make_build(tmp_path, build="b100")
    builds, none = builds_in(tmp_path), builds_in(tmp_path / "none")
    for word, build in (("cpu", "b100"), ("cpu/b99", "b99")):
        assert builds.find(word, HERE).name == f"{HERE}-cpu/{build}"
    for word, there, told in (
        ("vulkan", builds, rf"here, but {HERE}-cpu/b99, {HERE}-cpu/b100;|here, but {HERE}-cpu/b100, {HERE}-cpu/b99;"),
        ("cpu/b98", builds, "here, but "),
        ("cpu", none, "here, but none;"),
        ("windows-x64-cpu", builds, f"the bundle is for {HERE}"),
    ):
        with pytest.raises(UsageError, match=told):
            there.find(word, HERE)


def test_a_program_without_engines_neither_exports_builds_nor_takes_them_in(tmp_path: Path) -> None:
    program, rest = installed(tmp_path / "usr"), structs.replace(homes_in(tmp_path), engines=NoCarriedEngines())
    assert [one.kind for one in known(rest, Catalog(EMPTY).scan(), HERE, contents.SumReader())] == []
    with pytest.raises(UsageError, match="cpu cannot be exported: this program knows no builds"):
        rest.engines.find("cpu", HERE)
    with Bundle(carried(tmp_path, program)) as bundle:
        bundle.verify(nothing, nothing)
        with pytest.raises(UsageError, match=f"{HERE}-cpu/b100 cannot be taken in: this program knows no builds"):
            plan_import(bundle, rest, contents.SumReader())


def test_a_build_for_what_no_engine_knows_has_no_place(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="abacus/b1' is not a build"):
        builds_in(tmp_path).places_of(f"{HERE}-abacus/b1")


def test_what_a_package_manager_keeps_is_here_as_long_as_it_is_whole(tmp_path: Path) -> None:
    program = installed(tmp_path / "usr")
    kept, empty = homes_in(tmp_path / "home", program), homes_in(tmp_path / "home")
    snapshot = Catalog(EMPTY).scan()
    with Bundle(carried(tmp_path, program)) as bundle:
        standings, wanted = plan_import(bundle, kept, contents.SumReader())
        places = [str(program), str(program / "engines" / HERE) + "-cpu/b100"]
        assert [(each.state, each.place) for each in standings] == [("here", place) for place in places]
        assert wanted == []
        names = [(one.kind, one.name) for one in known(kept, snapshot, HERE, contents.SumReader())]
        assert sorted(names) == [("engine", f"{HERE}-cpu/b100"), ("program", name_of(program))]
        assert [each.state for each in plan_import(bundle, empty, contents.SumReader())[0]] == ["missing", "missing"]
        assert known(empty, snapshot, HERE, contents.SumReader()) == []
        (program / "licenses" / "LICENSE").unlink()
        assert [each.state for each in plan_import(bundle, kept, contents.SumReader())[0]] == ["missing", "here"]


@pytest.mark.parametrize("taken_away", [False, True])
async def test_a_link_to_a_medium_is_no_program_that_stays(tmp_path: Path, taken_away: bool) -> None:
    """`upgrade` makes such a link for the folder that the user unpacked. It goes on leading starts from there."""
    program = installed(tmp_path / "stick")
    homes = homes_in(tmp_path / "home")
    place = homes.programs / name_of(program)
    homes.programs.mkdir(parents=True)
    place.symlink_to(program)
    came: list[BundleItem] = []
    with Bundle(carried(tmp_path, program)) as bundle:
        if taken_away:
            program.rename(tmp_path / "gone")
        assert known(homes, Catalog(EMPTY).scan(), HERE, contents.SumReader()) == []
        _, wanted = plan_import(bundle, homes, contents.SumReader())
        await bring(bundle, homes, wanted, nothing, came.append)
        assert tuple(came) == bundle.manifest.items
        assert plan_import(bundle, homes, contents.SumReader())[1] == []
    assert not place.is_symlink()
    assert [folder for _, folder in linked(homes.programs)] == [program] * (not taken_away)
