"""Every byte of a file system is free, in one of the folders, or other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.features.disk.rules import FolderUse, disk_spaces

FOLDERS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10**12)), max_size=8)


@given(FOLDERS, st.integers(0, 10**13), st.integers(0, 10**13))
def test_every_byte_has_one_place(found: list[tuple[int, int]], free: int, other: int) -> None:
    folders = [
        FolderUse(kind=str(number), path=f"/{number}", disk=disk, bytes=size, files=1)
        for number, (disk, size) in enumerate(found)
    ]
    ours = {disk: sum(size for each, size in found if each == disk) for disk, _ in found}
    spaces = disk_spaces(folders, {disk: (ours[disk] + free + other, free) for disk in ours})
    assert [space.disk for space in spaces] == list(dict.fromkeys(disk for disk, _ in found))
    for space in spaces:
        assert space.total == space.free + space.other + ours[space.disk]


def test_a_folder_that_grows_meanwhile_takes_no_more_than_there_is() -> None:
    folder = FolderUse(kind="cache", path="/cache", disk=0, bytes=120, files=1)
    (space,) = disk_spaces([folder], {0: (100, 10)})
    assert space.other == 0
