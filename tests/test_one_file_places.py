"""installer/onefile.c with a payload of two lines: the folders that it unpacks itself into, and those that it refuses.

tests/frozen/test_one_file.py has the rest, with the real payload.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from one_files import make_one_file, missing
from two_users import FOLDER, STRANGER, VICTIM, acting_as, open_folder

from appliance.platform.strangers import stranger_at

TIME = 60

Ran = subprocess.CompletedProcess[str]


def lacking() -> str:
    """What this machine lacks to make such a file and to be two users; empty: nothing."""
    return "needs root on Linux" if sys.platform != "linux" or os.geteuid() != 0 else missing()


pytestmark = pytest.mark.skipif(bool(lacking()), reason=lacking())


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """A one-file program that says where it runs, where everybody may read it."""
    with open_folder() as public:
        work = tmp_path_factory.mktemp("one")
        yield make_one_file(public / "llama-appliance", '#!/bin/sh\necho "${0%/*}"\n', work)


def start(file: Path, user: int = VICTIM, before: tuple[str, ...] = (), **environ: str) -> Ran:
    """Start it as this user, who has no home."""
    return subprocess.run(
        [*before, str(file)], env={"PATH": os.environ["PATH"], "HOME": str(file / "home")} | environ, cwd="/",
        user=user, group=user, extra_groups=[], capture_output=True, text=True, timeout=TIME,
    )  # fmt: skip


@example(folders=[(0, 0, 0o1777), (STRANGER, STRANGER, 0o755), (VICTIM, VICTIM, 0o700)])
@example(folders=[(VICTIM, VICTIM, 0o775)])
@given(folders=st.lists(FOLDER, min_size=1, max_size=3))
def test_it_starts_from_no_folder_that_another_user_could_replace(
    file: Path, folders: list[tuple[int, int, int]]
) -> None:
    """It has the rule of the rest of the program, in another language. The last folder is where it unpacks itself."""
    with open_folder() as top:
        place = top
        for number, (owner, group, mode) in enumerate(folders, 1):
            place = place / (str(number) if number < len(folders) else "llama-appliance")
            place.mkdir()
            os.chown(place, owner, group)
            place.chmod(mode)
        done = start(file, LLAMA_APPLIANCE_UNPACK_DIR=str(place.parent))
        with acting_as(VICTIM, VICTIM):
            try:
                why = stranger_at(place / "unpacked")
            except PermissionError as cause:
                why = str(cause.strerror)
        if why:
            assert (done.returncode, done.stdout) == (1, "")
            assert why in done.stderr or "Permission denied" in done.stderr, (why, done.stderr)
            assert "neither write to nor replace" in done.stderr
            assert not list(top.rglob("unpacked"))
        elif done.returncode:
            assert "Permission denied" in done.stderr
        else:
            [unpacked] = (place / "unpacked").glob("0.1-*")
            assert done.stdout == f"{unpacked}\n"


def test_root_with_a_users_home_unpacks_nothing_there(file: Path) -> None:
    """Nor does anybody else with the home of another user: everybody has a folder of their own in /var/tmp for that."""
    own = Path(f"/var/tmp/llama-appliance-{STRANGER}")
    shutil.rmtree(own, ignore_errors=True)
    with open_folder() as home:
        home.chmod(0o777)
        os.chown(home, VICTIM, VICTIM)
        try:
            done = start(file, STRANGER, HOME=str(home))
            assert (done.returncode, Path(done.stdout.strip()).parent) == (0, own)
            assert list(home.iterdir()) == []
        finally:
            shutil.rmtree(own, ignore_errors=True)


def test_a_link_to_a_folder_of_ones_own_is_followed_once(file: Path) -> None:
    with open_folder() as top, tempfile.TemporaryDirectory(dir="/var/tmp") as other:
        os.chown(top, VICTIM, VICTIM)
        os.chown(other, VICTIM, VICTIM)
        (top / "link").symlink_to(other)
        done = start(file, XDG_CACHE_HOME=str(top / "link"))
        assert Path(done.stdout.strip()).is_relative_to(other)


def test_the_way_out_of_a_disk_that_starts_nothing_is_not_into_a_folder_of_everybody(file: Path) -> None:
    with open_folder() as top:
        mount = f'mount -t tmpfs -o noexec,mode=0755 none {top} && exec "$@"'
        done = start(file, 0, ("unshare", "--mount", "sh", "-c", mount, "-"), XDG_CACHE_HOME=str(top))
        assert done.returncode == 1
        assert "may be mounted noexec" in done.stderr
        assert "neither write to nor replace" in done.stderr
