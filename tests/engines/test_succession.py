"""A new build that fails at work gives way to the one before it, in this program and in the next one."""

from __future__ import annotations

from pathlib import Path

from appliance.core.engines.changes import Changes, Line, switched
from appliance.engines.succession import Succession
from appliance.store.changes_file import ChangesFile

LINE, OLD, NEW = "linux-x64-cpu", "linux-x64-cpu/b100", "linux-x64-cpu/b200"


def switched_file(folder: Path) -> ChangesFile:
    file = ChangesFile(folder / "changes.json")
    file.change(lambda changes: switched(changes, LINE, NEW, OLD, 1000.0)[0])
    return file


def test_the_failure_is_on_the_disk_once_it_was_written(tmp_path: Path) -> None:
    file = switched_file(tmp_path)
    succession = Succession(file)
    succession.refresh()
    assert not succession.failed(OLD, "it crashed", 1001.0)
    assert succession.failed(NEW, "it crashed", 1001.0)
    assert not succession.failed(NEW, "it crashed", 1002.0)
    assert file.read().role(NEW) == "current"
    succession.refresh()  # which does not forget what is not written yet
    assert succession.changes.role(OLD) == "current"
    succession.write()
    assert file.read().line(LINE) == Line(name=LINE, current=OLD)
    assert file.read().role(NEW) == "withdrawn"


def test_a_disk_that_takes_nothing_changes_nothing_in_what_is_used(tmp_path: Path) -> None:
    file = switched_file(tmp_path)
    succession = Succession(file)
    succession.refresh()
    (tmp_path / ".changes.json.new").mkdir()  # where the new contents would have been put together
    assert succession.failed(NEW, "it crashed", 1001.0)
    succession.write()
    assert file.read().role(NEW) == "current"
    assert succession.changes.role(OLD) == "current"
    (tmp_path / ".changes.json.new").rmdir()
    succession.write()
    assert file.read().role(OLD) == "current"


def test_what_another_program_has_changed_is_kept(tmp_path: Path) -> None:
    file = switched_file(tmp_path)
    succession = Succession(file)
    succession.refresh()
    file.change(lambda changes: switched(changes, "linux-x64-vulkan", "v2", "v1", 5.0)[0])
    assert succession.failed(NEW, "it crashed", 1001.0)
    succession.write()
    assert file.read().role("linux-x64-vulkan/b1") == ""
    line = file.read().line("linux-x64-vulkan")
    assert line is not None
    assert line.current == "v2"


def test_a_damaged_file_counts_for_nothing_and_is_written_anew(tmp_path: Path) -> None:
    file = switched_file(tmp_path)
    file.path.write_bytes(b"{")
    assert file.read() == Changes()
    file.change(lambda changes: switched(changes, LINE, NEW, OLD, 1000.0)[0])
    assert file.read().role(NEW) == "current"
