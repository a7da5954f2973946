"""What an import takes for being here, and what it leaves where it came to lie."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from engine_folders import HERE, make_build
from msgspec import structs
from payload_folders import make_payload, name_of

from appliance.catalog.catalog import Catalog
from appliance.catalog.sources import ModelFolders
from appliance.errors import UsageError
from appliance.features.bundles import contents
from appliance.features.bundles.container import Bundle, write_bundle
from appliance.features.bundles.core.manifest import FORMAT, BundleItem, BundleManifest
from appliance.features.bundles.core.plan import UNSIGNED
from appliance.features.bundles.importing import Homes, bring, known, plan
from appliance.features.engines.carried import CarriedHere
from appliance.features.engines.shelf import Shelf
from appliance.start import linked
from appliance.store.carried import NoCarriedEngines

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
            plan(bundle, rest, contents.SumReader())


def test_a_build_for_what_no_engine_knows_has_no_place(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="abacus/b1' is not a build"):
        builds_in(tmp_path).places_of(f"{HERE}-abacus/b1")


def test_what_a_package_manager_keeps_is_here_as_long_as_it_is_whole(tmp_path: Path) -> None:
    program = installed(tmp_path / "usr")
    kept, empty = homes_in(tmp_path / "home", program), homes_in(tmp_path / "home")
    snapshot = Catalog(EMPTY).scan()
    with Bundle(carried(tmp_path, program)) as bundle:
        standings, wanted = plan(bundle, kept, contents.SumReader())
        places = [str(program), str(program / "engines" / HERE) + "-cpu/b100"]
        assert [(each.state, each.place) for each in standings] == [("here", place) for place in places]
        assert wanted == []
        names = [(one.kind, one.name) for one in known(kept, snapshot, HERE, contents.SumReader())]
        assert sorted(names) == [("engine", f"{HERE}-cpu/b100"), ("program", name_of(program))]
        assert [each.state for each in plan(bundle, empty, contents.SumReader())[0]] == ["missing", "missing"]
        assert known(empty, snapshot, HERE, contents.SumReader()) == []
        (program / "licenses" / "LICENSE").unlink()
        assert [each.state for each in plan(bundle, kept, contents.SumReader())[0]] == ["missing", "here"]


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
        _, wanted = plan(bundle, homes, contents.SumReader())
        await bring(bundle, homes, wanted, nothing, came.append)
        assert tuple(came) == bundle.manifest.items
        assert plan(bundle, homes, contents.SumReader())[1] == []
    assert not place.is_symlink()
    assert [folder for _, folder in linked(homes.programs)] == [program] * (not taken_away)
