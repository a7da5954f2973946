"""The editor's files: opened by their names; and earlier texts, where something else may have a text's name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from odd_files import KINDS, assert_ends

from appliance.catalog.configuration import Files
from appliance.errors import UsageError
from appliance.features.config_editing.editor import ConfigEditor, KeptTexts


def test_a_file_of_the_configuration_is_opened_by_its_name_or_alone(tmp_path: Path) -> None:
    one, folder = tmp_path / "one.yaml", tmp_path / "folder"
    one.write_text("globalTTL: 1\n", "utf-8")
    folder.mkdir()

    def opened(files: Files, name: str | None = None) -> str:
        return ConfigEditor(files, tmp_path / "earlier").open(name).text

    alone = Files(config=one)
    assert opened(alone) == opened(alone, str(one)) == "globalTTL: 1\n"
    with pytest.raises(UsageError, match=r"x is not a file of the configuration; there is .*one"):
        opened(alone, "x")
    with pytest.raises(UsageError, match="there is no configuration file"):
        opened(Files(config_dir=folder))
    for name in ("a.yaml", "b.yaml"):
        (folder / name).write_text(f"# {name}", "utf-8")
    both = Files(config_dir=folder)
    with pytest.raises(UsageError, match="has 2 files; name one of"):
        opened(both)
    assert opened(both, str(folder / "b.yaml")) == "# b.yaml"
    assert ConfigEditor(both, tmp_path / "earlier").beside(str(folder / "a.yaml")) == ["# b.yaml"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pipes in folders")
@pytest.mark.parametrize("kind", KINDS)
def test_keeping_never_waits_for_what_is_no_file(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert_ends(lambda path: KeptTexts(path.parent).keep(b"text"), folder / "000001", kind)
