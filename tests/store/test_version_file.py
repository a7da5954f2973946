"""The file that remembers versions of the program: an older release and this one read each other's."""

from __future__ import annotations

from pathlib import Path

from appliance.core.programs import LINE
from appliance.core.versions import BuildLine, StepDone, UpdateBegun, VersionState
from appliance.features.engines.shelf import StateFile
from appliance.start import program_file
from appliance.store.version_file import FILE

OLD, NEW = f"{LINE}/0.1.0-aaaaaaaaaaaa", f"{LINE}/0.2.0-bbbbbbbbbbbb"
OF_OLDER = f"""
{{"version": 1, "state": {{
  "proofs": [], "probations": [], "listed": [], "look": null, "signature": "", "use": null, "pinned": false,
  "models": {{}}, "channel": "latest",
  "lines": [{{"name": "{LINE}", "current": "{NEW}", "previous": ["{OLD}"], "switched_at": 5.0}}],
  "withdrawn": {{"{LINE}/0.3.0-cccccccccccc": "it crashed"}}, "journal": null, "refused": null, "contexts": []
}}}}
"""


def test_what_an_older_release_has_written_is_read(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(OF_OLDER, "utf-8")
    state = program_file(tmp_path).read()
    line = BuildLine(name=LINE, current=NEW, previous=(OLD,), switched_at=5.0)
    assert state == VersionState(lines=(line,), withdrawn={f"{LINE}/0.3.0-cccccccccccc": "it crashed"})


def test_an_older_release_reads_what_this_one_writes(tmp_path: Path) -> None:
    """Its file had the shape of that of engines, whose keys it does without."""
    state = program_file(tmp_path).apply([UpdateBegun(build=NEW, old=OLD, at=1.0), *[StepDone(2.0)] * 4])
    older = StateFile(tmp_path).read()
    assert (older.lines, older.journal) == (state.lines, state.journal)
    assert older.role(NEW) == "current"
    assert not (tmp_path / f"{FILE}.unreadable").exists()
