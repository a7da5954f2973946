"""Which files are read, in which order, and what is said about those that cannot be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from two_users import STRANGER, acting_as, open_folder

from appliance.catalog.configuration import LARGEST, config_paths, read_sources, sources_below
from appliance.errors import UsageError


def refused(config: Path | None, folder: Path | None) -> str:
    with pytest.raises(UsageError) as raised:
        read_sources(config, folder)
    return str(raised.value)


def test_one_file(tmp_path: Path) -> None:
    path = tmp_path / "anything.conf"
    path.write_bytes(b"\xef\xbb\xbfname: \xc3\xa9\r\n")
    (source,) = read_sources(path, None)
    assert (source.file, source.text) == (str(path), "name: é\r\n")


def test_a_folder_by_name_without_its_folders_and_other_files(tmp_path: Path) -> None:
    for name in ("b.yml", "a.yaml", "C.yaml", "d.json", "e.YAML", ".hidden.yml"):
        (tmp_path / name).write_text(f"# {name}")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "folder.yaml" / "x.yaml").write_text("")
    assert [Path(source.file).name for source in read_sources(None, tmp_path)] == [
        ".hidden.yml",
        "C.yaml",
        "a.yaml",
        "b.yml",
    ]


def test_the_file_is_the_base_of_the_folder_and_is_not_read_twice(tmp_path: Path) -> None:
    folder, other = tmp_path / "d", tmp_path / "z.yaml"
    folder.mkdir()
    (folder / "a.yaml").write_text("a")
    other.write_text("z")
    assert [source.text for source in read_sources(other, folder)] == ["z", "a"]
    (tmp_path / "link").hardlink_to(folder / "a.yaml")
    for same in (folder / "a.yaml", tmp_path / "link"):
        assert "would be read twice" in refused(same, folder)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    assert refused(None, None) == "there is no configuration file; name one with --config FILE"
    assert "there is no configuration file in " in refused(None, tmp_path)
    assert ".yml or .yaml" in refused(None, tmp_path)
    assert "there is no file " in refused(tmp_path / "gone.yaml", None)
    assert "there is no folder " in refused(None, tmp_path / "gone")
    assert "is a folder; name a file, or use --config-dir" in refused(tmp_path, None)
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"a: 1\nb: \xe9\n")
    assert f"{path}:2: is not UTF-8 text" in refused(path, None)
    assert "is not a folder; name a file with --config" in refused(None, path)
    with path.open("wb") as file:
        file.truncate(LARGEST + 1)
    assert "is larger than 16 MiB" in refused(path, None)
    if sys.platform != "win32":  # which has other words
        assert "cannot be read: File name too long" in refused(tmp_path / ("x" * 300), None)


def test_a_root_gives_what_is_there(tmp_path: Path) -> None:
    root, named = tmp_path / "root", tmp_path / "named.yaml"
    file, folder = root / "config.yaml", root / "conf.d"
    for config in (None, named):
        assert sources_below(root, config) == (config, None)
    folder.mkdir(parents=True)
    (folder / "README").touch()
    assert sources_below(root, None) == (None, None)
    (folder / "10-fleet.yaml").touch()
    assert sources_below(root, None) == (None, folder)
    file.touch()
    assert sources_below(root, None) == (file, folder)
    assert sources_below(root, named) == (named, folder)
    folder.rename(root / "elsewhere")
    folder.touch()
    with pytest.raises(UsageError, match="is not a folder"):
        sources_below(root, None)


@pytest.mark.needs("root")
def test_a_root_that_must_not_be_entered_is_an_error_and_not_an_empty_one() -> None:
    with open_folder() as folder:
        root = folder / "root"
        root.mkdir(mode=0o700)
        with acting_as(STRANGER), pytest.raises(UsageError, match="Permission denied; let the server's user into"):
            sources_below(root, None)


def test_paths_to_watch_need_not_be_there(tmp_path: Path) -> None:
    folder, file = tmp_path / "d", tmp_path / "c.yaml"
    assert config_paths(None, None) == []
    assert config_paths(file, folder) == [file]
    folder.mkdir()
    (folder / "b.yml").write_text("")
    (folder / "a.yaml").write_text("")
    assert config_paths(file, folder) == [file, folder / "a.yaml", folder / "b.yml"]
