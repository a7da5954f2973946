"""``run`` in a terminal: a conversation typed by hand, and what Ctrl-C means in it."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from engine_folders import make_build
from program import COMMAND, STARTER_QUESTION, Server, StartServer, begun, fresh_environment, run_command
from waiting import SOON

from appliance.catalog.sources import STARTER

if sys.platform == "win32":
    pytest.skip("there is no pseudo-terminal", allow_module_level=True)

import pty

PROMPT = ">>> "


class Terminal:
    """The command in a pseudo-terminal of its own."""

    def __init__(self, *argv: str, cwd: Path) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [str(COMMAND), *argv],
            cwd=cwd,
            env={**fresh_environment(cwd), "TERM": "dumb"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(theirs)
        self.seen = ""

    def wait_for(self, pattern: str, seconds: float = 60) -> str:
        """What appeared since the last call, up to the end of the match."""
        until = time.monotonic() + seconds
        while (match := re.search(pattern, self.seen)) is None:
            left = until - time.monotonic()
            assert left > 0, f"{pattern!r} did not appear in {self.seen!r}"
            if select.select([self._ours], [], [], left)[0]:
                self.seen += self._read()
        taken, self.seen = self.seen[: match.end()], self.seen[match.end() :]
        return taken

    def _read(self) -> str:
        try:
            return os.read(self._ours, 65536).decode("utf-8", "replace").replace("\r\n", "\n")
        except OSError:
            raise AssertionError(f"the program ended: {self.seen!r}") from None

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)


def _take_terminal() -> None:
    """Make the pseudo-terminal the process's controlling one, so that a typed Ctrl-C is a signal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def terminals() -> Generator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def interrupt_prompt(terminal: Terminal) -> None:
    """Ctrl-C, and again where CPython's readline was between printing the prompt and beginning to wait for a key.

    A signal in that instant is noticed at the next key.
    """
    for patience in (2, 2, 20):
        terminal.type("\x03")
        try:
            terminal.wait_for(r"/bye or Ctrl-D ends\)\n", patience)
        except AssertionError:
            if patience == 20:
                raise
        else:
            return


def test_a_conversation(server: Server, tmp_path: Path, terminals: list[Terminal]) -> None:
    alone = run_command("run", "starter", STARTER_QUESTION, "--url", server.url, cwd=tmp_path).stdout.strip()
    terminal = Terminal("run", "starter", "--url", server.url, cwd=tmp_path)
    terminals.append(terminal)
    terminal.wait_for(PROMPT)
    terminal.type(f"{STARTER_QUESTION}\n")
    assert alone in terminal.wait_for(PROMPT)
    interrupt_prompt(terminal)
    terminal.wait_for(PROMPT)
    terminal.type("And what is your name?\n")
    assert len(terminal.wait_for(PROMPT).split()) > 3
    terminal.type("/bye\n")
    assert terminal.process.wait(10) == 0


def test_ctrl_c_stops_an_answer_and_ctrl_d_the_chat_and_a_single_question_ends_with_130(
    fake_engine: Path, start_server: StartServer, tmp_path: Path, terminals: list[Terminal]
) -> None:
    slow = {"FAKE_TOKENS": "1000", "FAKE_TOKEN_DELAY": "0.05"}
    server = start_server("serve", "--listen", "127.0.0.1:0", "--engine", str(fake_engine), env=slow)
    terminal = Terminal("run", "starter", "--url", server.url, cwd=tmp_path)
    terminals.append(terminal)
    terminal.wait_for(PROMPT)
    terminal.type("Tell me everything.\n")
    terminal.wait_for(r"\n\w+ \w+")
    began = time.monotonic()
    terminal.type("\x03")
    terminal.wait_for(PROMPT)
    assert time.monotonic() - began < 2 * SOON
    terminal.type("\x04")
    assert terminal.process.wait(10) == 0
    for more in (("--url", server.url), ("--engine", str(fake_engine))):
        argv = [str(COMMAND), "run", "starter", "Tell me everything.", *more]
        env = {**fresh_environment(tmp_path), **slow}
        with subprocess.Popen(argv, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as asking:
            assert asking.stderr is not None
            assert asking.stdout.read(1)
            asking.send_signal(signal.SIGINT)
            assert asking.wait(10) == 130
            assert b"Traceback" not in asking.stderr.read()
            asking.stdout.read()


@pytest.mark.slow
def test_ctrl_c_at_a_question_ends_the_command_at_once(tmp_path: Path, terminals: list[Terminal]) -> None:
    installed = run_command("engines", "install", "--from", str(make_build(tmp_path, build="b100")), cwd=tmp_path)
    assert installed.returncode == 0, installed.stderr
    model = tmp_path / "xdg_data_home" / "llama-appliance" / "models" / "mine.gguf"
    model.parent.mkdir(parents=True, exist_ok=True)
    model.symlink_to(STARTER)
    update = ("engines", "update", "--from", str(make_build(tmp_path, build="b200")))
    for words, question in ((update, r"Continue\? "), (("rm", "mine"), r"Remove mine.*\?")):
        terminal = Terminal(*words, cwd=tmp_path)
        terminals.append(terminal)
        terminal.wait_for(question)
        time.sleep(0.2)
        terminal.type("\x03")
        assert terminal.process.wait(10) == 130
    assert model.exists()
    declining = Terminal(*update, cwd=tmp_path)
    terminals.append(declining)
    declining.wait_for(r"Continue\? ")
    declining.type("n\n")
    declining.wait_for("nothing has changed")
    assert declining.process.wait(10) == 1


def test_top_draws_what_is_under_way_until_it_is_interrupted(
    serve_fake: StartServer, tmp_path: Path, terminals: list[Terminal]
) -> None:
    server = serve_fake(FAKE_TOKENS="100000", FAKE_TOKEN_DELAY="0.02")
    terminal = Terminal("top", "--url", server.url, cwd=tmp_path)
    terminals.append(terminal)
    terminal.wait_for(r"\x1b\[\?1049h\x1b\[\?25l\x1b\[Hnothing is under way\x1b\[K\x1b\[J")
    with begun(server, "small"):
        terminal.wait_for(r"\x1b\[H.*CLIENT")
        terminal.wait_for(r"tester/1.0, 127.0.0.1 +small +answering")
        terminal.wait_for(r"small:latest +loaded")
    terminal.wait_for("nothing is under way")
    terminal.type("\x03")
    terminal.wait_for(r"\x1b\[\?25h\x1b\[\?1049l", SOON)
    assert terminal.process.wait(SOON) == 130
