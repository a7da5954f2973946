"""The reports of a Windows service, whatever happens in whatever order, and the words of its entry."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.features.service.core import windows

ORDER = [windows.START_PENDING, windows.RUNNING, windows.STOP_PENDING, windows.STOPPED]


@given(st.lists(st.sampled_from(["listening", "stopping", "alive", "ended", "failed"])), st.booleans())
def test_states_only_go_forward_and_a_pending_one_shows_progress(steps: list[str], asked: bool) -> None:
    life = windows.Life()
    reports: list[windows.ServiceReport] = [life.begun()]
    for step in steps:
        if step in ("ended", "failed"):
            report = life.ended(0 if step == "ended" else 7, asked=asked)
        else:
            report = {"listening": life.listening, "stopping": life.stopping, "alive": life.alive}[step]()
        reports += [report] if report is not None else []
    for before, after in pairwise(reports):
        assert ORDER.index(before.state) <= ORDER.index(after.state)
        assert before.state != after.state or after.checkpoint > before.checkpoint
    for report in reports:
        pending = report.state in (windows.START_PENDING, windows.STOP_PENDING)
        assert pending == (report.hint > 0) == (report.checkpoint > 0)
        assert report.accepts == (windows.ACCEPTS if report.state == windows.RUNNING else 0)
        assert (report.error, report.own) in ((0, 0), (1066, 7))
    ends = [step for step in steps if step in ("ended", "failed")]
    assert (reports[-1].state == windows.STOPPED) == bool(ends)
    if ends:
        assert (reports[-1].own == 7) == (ends[0] == "failed" and not asked)


def test_a_stop_is_heard_once_and_what_is_unknown_is_refused() -> None:
    for control in (1, 15):
        assert windows.answer(control, 0, asked=False) == (0, "stop")
        assert windows.answer(control, 0, asked=True) == (0, "")
    assert [windows.answer(13, event, asked=False)[1] for event in (4, 7, 10, 18)] == ["", "wake", "", "wake"]
    assert windows.answer(4, 0, asked=False) == (0, "")
    assert {windows.answer(control, 0, asked=False)[0] for control in (2, 3, 5, 14, 200)} == {120}


def test_the_account_is_the_one_that_windows_makes() -> None:
    known = "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464"  # in Microsoft's list of well-known SIDs
    assert windows.service_sid("TrustedInstaller") == windows.service_sid("trustedinstaller") == known
    assert windows.home_rights("TrustedInstaller").endswith(f";{known})")


@pytest.mark.parametrize(
    ("program", "profile", "hidden"),
    [
        (r"C:\Users\ada\apps\llama-appliance.exe", r"C:\Users\ada", r"C:\Users"),
        (r"c:\users\Bob\llama-appliance.exe", r"C:\Users\ada", r"C:\Users"),
        (r"C:\Program Files\Llama Appliance\llama-appliance.exe", r"C:\Users\ada", None),
        (r"D:\Users\ada\llama-appliance.exe", r"C:\Users\ada", None),
        (r"C:\llama-appliance.exe", r"C:\ada", None),
        (r"C:\llama-appliance.exe", "", None),
    ],
)
def test_a_program_in_somebodys_profile_is_hidden(program: str, profile: str, hidden: str | None) -> None:
    assert windows.hidden_from_service(program, profile) == hidden


FOLDERS = st.lists(st.sampled_from(["", r"C:\a", r"c:\A", r"C:\Program Files\b", "%SystemRoot%", "D:\\"]), max_size=6)


@given(FOLDERS)
def test_path_is_left_as_it_was(folders: list[str]) -> None:
    before, ours = ";".join(folders), r"C:\Program Files\Llama Appliance"
    after = windows.with_folder(before, ours)
    assert after.split(";")[-1] == ours
    assert windows.with_folder(after, ours.lower() + "\\") == after
    assert windows.without_folder(after, ours.upper()) == before
    assert windows.without_folder(before, ours) == before


def test_everybodys_path_has_only_folders_that_administrators_write() -> None:
    """Else a user could put a program there that others then start."""
    environ = {"ProgramFiles": r"C:\Program Files (x86)", "ProgramW6432": r"C:\Program Files"}
    for folder in (r"C:\Program Files\Llama Appliance", r"c:\program files (x86)\x", r"C:/Program Files/x"):
        assert windows.is_for_everybody(folder, environ)
    for folder in (r"C:\Tools", r"D:\Program Files\x", r"C:\Program Files\..\Tools", r"C:\Program Files2\x", "C:"):
        assert not windows.is_for_everybody(folder, environ)
    assert not windows.is_for_everybody(r"C:\Tools", {})


def test_the_last_error_of_a_log_is_told() -> None:
    lines = ["llama-appliance: error: one", "listening", "llama-appliance: error: two ", "bye"]
    assert windows.last_error(lines) == "llama-appliance: error: two"
    assert windows.last_error(["listening"]) == ""
