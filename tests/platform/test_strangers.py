"""Paths that another user could have changed: what is believed holds against one who tries."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from two_users import FILE, FOLDER, SHARED, STRANGER, VICTIM, acting_as, open_folder

from appliance.platform.strangers import stranger_at, take_folder

pytestmark = pytest.mark.needs("root")  # becomes one user and then another


def changed_by_stranger(parts: list[Path]) -> bool:
    """The stranger opens what it owns, writes into the file, and puts something else in the place of any part."""
    with acting_as(STRANGER, STRANGER, SHARED):
        for part in parts:
            with suppress(OSError):
                part.chmod(0o777)
        with suppress(OSError):
            parts[-1].write_text("changed")
            return True
        for part in reversed(parts):
            with suppress(OSError):
                part.rename(part.with_name("aside"))
                return True
    return False


@example(folders=[(STRANGER, 0, 0o755)], file=(VICTIM, VICTIM, 0o600))
@example(folders=[(STRANGER, 0, 0o1777), (VICTIM, VICTIM, 0o700)], file=(VICTIM, VICTIM, 0o600))
@example(folders=[(VICTIM, SHARED, 0o775)], file=(VICTIM, VICTIM, 0o600))
@example(folders=[(0, 0, 0o1777)], file=(STRANGER, 0, 0o644))
@given(folders=st.lists(FOLDER, min_size=1, max_size=3), file=FILE)
def test_nobody_else_can_change_what_is_believed(
    folders: list[tuple[int, int, int]], file: tuple[int, int, int]
) -> None:
    with open_folder() as top:
        parts = [top]
        for number in range(len(folders)):
            parts.append(parts[-1] / str(number))
            parts[-1].mkdir()
        parts.append(parts[-1] / "file")
        parts[-1].touch()
        for part, (owner, group, mode) in zip(parts[1:], (*folders, file), strict=True):
            os.chown(part, owner, group)
            part.chmod(mode)
        with acting_as(VICTIM, VICTIM):
            try:
                believed = not stranger_at(parts[-1])
            except PermissionError:  # nobody believes what cannot be looked at
                believed = False
        if changed_by_stranger(parts[1:]):
            assert not believed


def test_what_users_have_is_believed() -> None:
    """Homes as distributions make them, /tmp, links to elsewhere, and what does not exist yet."""
    with open_folder() as place:
        look_at(place)


def look_at(place: Path) -> None:
    home, data, common = place / "home", place / "home" / "data", place / "tmp"
    for folder, mode in ((home, 0o755), (data, 0o775), (common, 0o1777)):
        folder.mkdir()
        folder.chmod(mode)
    for folder in (home, data):
        os.chown(folder, VICTIM, VICTIM)
    (home / "link").symlink_to(data)
    with acting_as(VICTIM, VICTIM):
        (common / "mine").mkdir(mode=0o700)
        for path in (home, data / "not" / "yet", home / "link" / "x", common / "mine" / "x", Path("/usr/bin")):
            assert stranger_at(path) == ""
        assert str(common) in stranger_at(common)
    with acting_as(STRANGER, STRANGER):
        assert stranger_at(home / "link" / "x") == f"{home} belongs to another user (number {VICTIM})"
    assert f"(number {VICTIM})" in stranger_at(common / "mine")
    shutil.rmtree(data)
    (home / "link").unlink()
    (home / "link").symlink_to(common)
    assert f"(number {VICTIM})" in stranger_at(home)
    assert stranger_at(home / "link") == f"other users may write to {common}"


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o777, 0o1777, 0o2770])
@pytest.mark.parametrize("kind", ["own", "other", "link to own", "link to other", "file", "nothing"])
def test_a_folder_is_taken_only_where_it_is_the_users_own_and_no_link(kind: str, mode: int) -> None:
    with open_folder() as shared:
        shared.chmod(0o1777)
        places = {"own": (VICTIM, shared / "own"), "other": (STRANGER, shared / "other")}
        for owner, place in places.values():
            place.mkdir()
            os.chown(place, owner, owner)
            place.chmod(mode)
        path = shared / "taken"
        if kind.startswith("link"):
            path.symlink_to(kind.removeprefix("link to "))
            os.chown(path, VICTIM, VICTIM, follow_symlinks=False)
        elif kind == "file":
            path.touch()
        else:
            path = shared / kind
        before = {name: place.stat().st_mode for name, (_, place) in places.items()}
        why = "it raises"
        with acting_as(VICTIM), suppress(OSError):
            why = take_folder(path)
        after = {name: place.stat().st_mode for name, (_, place) in places.items()}
        if kind == "own":
            assert (why, after.pop("own") & 0o7777) == ("", 0o700)
            del before["own"]
        assert why or kind == "own"
        assert after == before
