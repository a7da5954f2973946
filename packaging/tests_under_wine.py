"""Run the project's tests with Windows' Python under wine: `windows_under_wine.py --tests`.

What Windows itself lacks is said beside the tests, as a skip with its reason. What only wine lacks is said here.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDERS = (
    "catalog", "children", "cli", "core", "engines", "features", "http", "owners",
    "platform", "plugins_bundled", "store", "tools", "traffic", "upstream",
)  # fmt: skip
"""Folders that run unless the command names tests."""
ELSEWHERE = {
    "tests/frozen": "the frozen program is tried by `test --wine` and by the workflow's job windows-payload",
    "tests/long": "they take their time and show nothing of Windows that the others do not",
    "tests/e2e": "they start the installed command for nearly every test; not looked through yet",
    "tests/*.py": "they are of this repository, its packages for Linux and its tools",
}
"""Tests that run only if the command names them, each with its reason."""
SOCKET = "wine 8 keeps a killed process's socket open if one of its threads waited for it: wineserver lists both then"
CLOCK = "wine 8 says of every process what the asking one has used of the processor"
WINE_LACKS: dict[str, str] = {
    "tests/catalog/test_configuration.py::test_what_cannot_be_read": "wine calls the path of a file no name at all, "
    "where Windows says that it is no folder",
    "tests/store/test_activity_store.py::test_a_damaged_page_names": "wine 8's robocopy does nothing",
    "tests/features/conversations/test_conversations.py::test_a_damaged_file_names": "wine 8's robocopy does nothing",
    "tests/http/test_fallback.py::test_the_official_clients": "a client chooses the times of probes; wine 8 refuses",
    "tests/http/test_reload.py::test_no_request_fails": "a process starts more slowly than its changes come",
    "tests/features/sockets/test_websocket.py::test_a_client_that_floods": "wine 8 tells a reset behind what came "
    "before it",
    "tests/http/test_fallback.py::test_a_story_goes_on": SOCKET,
    "tests/http/test_fallback.py::test_a_thought_goes_on": SOCKET,
    "tests/http/test_reload.py::test_unchanged_processes_live": "it starts too many processes for its minute",
    "tests/children/test_configured.py::test_a_command_that_cannot_run_says_so[too long]": "wine runs command lines "
    "that are longer than Windows allows",
    "tests/features/embedded/test_embedded.py::test_one_thread_is": CLOCK,
    "tests/features/engines/test_rpc_look.py::test_one_that_ends_or_breaks": "wine 8 ends a connection in order where "
    "SO_LINGER asks for a reset",
    "tests/features/doctor/test_doctor_route.py::test_who_listens_on_a_port": "wine 8 says of no port whose it is",
    "tests/children/test_port_holders.py": "wine 8 says of no port whose it is",
    "tests/features/metrics/test_samples.py::test_a_sample_agrees": "psutil asks performance counters, which wine "
    "lacks",
    "tests/platform/test_poller.py::test_a_broken_connection": "wine 8 tells of a reset as of an end, even to a plain "
    "recv of a connection that Linux has reset",
    "tests/features/tools/test_mcp_stdio.py::test_streams_of_events[flags2]": "40 MiB of events have to pass in 10 s; "
    "they took "
    "12 on a busy machine, and Windows has not been asked",
    "tests/features/tools/test_mcp_stdio.py::test_output_closed_without_dying": "for a process without a window "
    "wine 8 starts "
    "its console's server with the pipes of that process, and so they stay open",
    "tests/upstream/test_client.py::test_keep_alive_probes": "wine 8 lets nobody choose the times of probes",
}
"""Tests, by the beginning of their names, that Windows ought to pass and wine 8 does not. Each says why."""
LAST_WORDS = 1.0


def run_tests(python: list[str], tree: Path, env: dict[str, str], words: list[str]) -> int:
    """Run pytest with these words, and show what it says as it says it. Returns its status.

    Wine's programs need pipes, and what they leave running keeps theirs open: the output ends with the command.
    """
    for name, reason in {**ELSEWHERE, **WINE_LACKS}.items():
        print(f"    not run: {name}: {reason}")
    left_out = [f"--deselect={name}" for name in WINE_LACKS]
    named = any((tree / word.partition("::")[0]).exists() for word in words)
    chosen = [] if named else [f"tests/{folder}" for folder in FOLDERS]
    command = [*python, "-m", "pytest", "-p", "no:cacheprovider", "-n", "2", *left_out, *words, *chosen]
    with subprocess.Popen(
        command, cwd=tree, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as running, subprocess.Popen(["cat"], stdin=running.stdout, stdout=sys.stdout) as reader:  # fmt: skip
        status = running.wait()
        try:
            reader.wait(LAST_WORDS)
        except subprocess.TimeoutExpired:
            reader.kill()
    return status
