"""The plists of launchd jobs, and what launchctl prints."""

from __future__ import annotations

import plistlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.installed import MAC_ACCOUNT
from appliance.features.service.core import launchd

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
