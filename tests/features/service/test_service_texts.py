"""The texts of services: systemd's unit, launchd's plists, and the reports and words of a service of Windows."""

from __future__ import annotations

import plistlib
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from appliance.core.installed import ENVIRONMENT_FILES, KEY_FILE, MAC_ACCOUNT
from appliance.features.service.core import launchd, windows
from appliance.features.service.core.status import ServiceStatus
from appliance.features.service.core.systemd import exec_line, status_of, system_unit, user_unit

ARGUMENT = st.text(st.characters(min_codepoint=32, exclude_characters="\x7f", exclude_categories=["Cs"]), min_size=1)


def as_systemd_reads(line: str) -> list[str]:
    """Undo the quoting in systemd's order: words with their quotes and backslashes, then %, then $ after the first."""
    words: list[str] = []
    word, quoted, begun, escaped = "", False, False, False
    for char in line:
        if escaped:
            word, escaped = word + char, False
        elif char == "\\":
            escaped = begun = True
        elif char == '"':
            quoted, begun = not quoted, True
        elif char == " " and not quoted:
            if begun:
                words.append(word)
            word, begun = "", False
        else:
            word, begun = word + char, True
    assert not quoted
    words = [each.replace("%%", "%") for each in [*words, *([word] if begun else [])]]
    return [words[0], *(each.replace("$$", "$") for each in words[1:])]


@given(st.lists(ARGUMENT, min_size=1, max_size=5))
def test_every_argument_of_a_unit_arrives_as_it_is(command: list[str]) -> None:
    assert as_systemd_reads(exec_line(command)) == command


@pytest.mark.parametrize("word", ["", "a\nb", "a\0b", "\x7f", "\x1b[0m"])
def test_what_no_unit_can_hold_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="cannot stand in a systemd unit"):
        exec_line(["/bin/true", word])


RUNS = {
    "LoadState": "loaded", "UnitFileState": "enabled", "ActiveState": "active", "SubState": "running", "MainPID": "7",
    "NRestarts": "2", "Result": "success", "StatusText": "listening on x=y", "FragmentPath": "/u/l.service",
}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({}, {}),
        ({"ActiveState": "failed", "Result": "exit-code"}, {"state": "failed", "detail": "exit-code"}),
        ({"MainPID": "0", "FragmentPath": ""}, {"pid": None, "unit": "mine"}),
        ({"LoadState": "not-found", "UnitFileState": ""}, {"installed": False, "enabled": False}),
        ({"MainPID": "²", "NRestarts": "[not set]", "Result": ""}, {"pid": None, "restarts": 0}),
    ],
)
def test_what_systemd_shows_is_read(words: dict[str, str], told: dict[str, object]) -> None:
    runs = ServiceStatus(
        installed=True, enabled=True, state="active", detail="running", pid=7, restarts=2, said="listening on x=y",
        unit="/u/l.service",
    )  # fmt: skip
    shown = "\n".join(f"{name}={value}" for name, value in (RUNS | words).items())
    assert status_of(shown, "mine") == structs.replace(runs, **told)
    assert status_of("", "mine") == ServiceStatus(state="unknown", unit="mine")


def test_nothing_hides_graphics_cards_or_breaks_their_drivers() -> None:
    text = system_unit(["/opt/x/llama-appliance", "serve"])
    assert "PrivateDevices" not in text
    assert "MemoryDenyWriteExecute" not in text
    assert {line.partition("=")[2] for line in text.splitlines() if line.startswith("DeviceAllow=char-nvidia")}


def test_the_administrators_settings_come_after_the_key_that_was_made() -> None:
    """So a key that stands there takes the place of the other one, and a service without either has none."""
    found = [line for line in system_unit(["/x", "serve"]).splitlines() if line.startswith("EnvironmentFile=")]
    assert found == [f"EnvironmentFile=-{file}" for file in ENVIRONMENT_FILES]
    assert ENVIRONMENT_FILES[0] == KEY_FILE
    assert "EnvironmentFile" not in user_unit(["/x", "serve"])


@pytest.mark.needs("systemd-analyze")
@pytest.mark.parametrize("unit", [system_unit, user_unit])
def test_systemd_accepts_the_unit(unit: Callable[[list[str]], str], tmp_path: Path) -> None:
    file = tmp_path / "llama-appliance.service"
    file.write_text(unit(["/bin/sh", "a b", "100%", "$HOME", 'say "x"']), "utf-8")
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if file.name in line]
    assert complaints == []


WORD = st.text(st.characters(min_codepoint=32, exclude_characters="\x7f", exclude_categories=["Cs", "Cn"]), min_size=1)
PROGRAM = "/Applications/Llama Appliance.app/Contents/Resources/arm64/llama-appliance"
PRINTED = """\
gui/501/io.llama-appliance = {
\tactive count = 1
\tpath = /Users/x/Library/LaunchAgents/io.llama-appliance.plist
\ttype = LaunchAgent
\tstate = running

\tprogram = /x/llama-appliance
\targuments = {
\t\t/x/llama-appliance
\t\tpid = 7
\t}

\tdomain = gui/501 [100002]
\truns = 3
\tpid = 16090
\tlast terminating signal = Killed: 9

\tresource coalition = {
\t\tID = 1114
\t\tstate = active
\t}
}
"""


@given(st.lists(WORD.filter(lambda word: not word.startswith("--ready-file")), max_size=4))
def test_every_argument_arrives_as_it_is(words: list[str]) -> None:
    job = plistlib.loads(launchd.plist(launchd.agent("/Users/x", 501), [PROGRAM, "serve", *words]))
    assert job["ProgramArguments"][:2] == [PROGRAM, "serve"]
    assert job["ProgramArguments"][4:] == words


def test_the_machines_service_has_an_account_and_a_folder_of_its_own() -> None:
    job = plistlib.loads(launchd.plist(launchd.DAEMON, [PROGRAM, "serve", "--listen", "0.0.0.0:80"]))
    assert (job["UserName"], job["GroupName"]) == (MAC_ACCOUNT, MAC_ACCOUNT)
    own = ["--home", launchd.HOME, "--ready-file", f"{launchd.HOME}/service.json"]
    assert job["ProgramArguments"] == [PROGRAM, "serve", *own, "--listen", "0.0.0.0:80"]
    assert job["KeepAlive"] == {"SuccessfulExit": False}
    assert job["Umask"] == 0o077


def test_a_users_service_runs_as_the_user_with_the_users_files() -> None:
    job = plistlib.loads(launchd.plist(launchd.agent("/Users/x", 501), [PROGRAM, "serve"]))
    assert not {"UserName", "GroupName", "EnvironmentVariables"} & set(job)
    assert "--home" not in job["ProgramArguments"]
    assert job["StandardErrorPath"].startswith("/Users/x/Library/Logs/")


@pytest.mark.parametrize("word", ["a\nb", "a\0b", "\x7f", "--ready-file", "--ready-file=/x"])
def test_what_no_plist_can_hold_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="leave"):
        launchd.plist(launchd.DAEMON, [PROGRAM, "serve", word])


def test_a_job_is_read_from_the_outermost_level_alone() -> None:
    assert launchd.read_job(PRINTED) == launchd.LaunchdJob(16090, 3, "Killed: 9")
    stopped = PRINTED.replace("\tpid = 16090\n", "")
    assert launchd.read_job(stopped).pid is None
    codes = {"0": "", "(never exited)": "", "78: EX_CONFIG": "exit 78: EX_CONFIG", "1": "exit 1"}
    for said, ended in codes.items():
        line = f"last exit code = {said}"
        assert launchd.read_job(stopped.replace("last terminating signal = Killed: 9", line)).ended == ended


@given(st.lists(st.tuples(st.sampled_from(["pid", "runs", "last exit code", "x"]), st.text(max_size=5)), max_size=5))
def test_whatever_launchctl_prints_is_read(pairs: list[tuple[str, str]]) -> None:
    assert launchd.read_job("".join(f"\t{name} = {value}\n" for name, value in pairs)).runs >= 0


@pytest.mark.parametrize(("word", "off"), [("true", True), ("disabled", True), ("false", False), ("enabled", False)])
def test_both_spellings_of_disabled_count(word: str, off: bool) -> None:
    assert (
        launchd.is_disabled(f'\t\t"com.example.io.llama-appliance" => true\n\t\t"io.llama-appliance" => {word}\n')
        is off
    )


def test_an_account_gets_a_number_that_nobody_has() -> None:
    listed = "_mbsetupuser   248\nnobody   -2\nroot   0\n_other   400\n\n_group 401\n"
    assert launchd.free_id(listed) == 402
    with pytest.raises(ValueError, match="taken"):
        launchd.free_id("\n".join(f"_x {number}" for number in launchd.FREE_IDS))


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
