"""The bench's own ends: they count what there is, and notice what is missing."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from contestants import contestant
from peers import CHUNKS, HERE, Peers, prepare, run_json, run_streams
from processes import Failed, cpu, free_port, running, wait_listening

CUTTING_RELAY = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener:
    while True:
        with listener.accept()[0] as client:
            whole = client.recv(9999).startswith(b"GET")
            client.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\ndata: " % (6 if whole else 999))
"""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the bench runs on POSIX systems")


@pytest.fixture(params=["c", "python"])
def peers(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Peers:
    if request.param == "python":
        monkeypatch.setenv("PATH", str(tmp_path))
    elif not shutil.which("cc"):
        pytest.skip("no C compiler")
    return prepare(tmp_path)


@pytest.fixture
def upstream(peers: Peers, tmp_path: Path) -> Generator[int]:
    port = free_port()
    with running([str(peers.upstream), "--port", str(port)], tmp_path / "log") as process:
        wait_listening(process, port)
        yield port


def test_every_record_and_request_is_counted(peers: Peers, upstream: int) -> None:
    assert run_streams(peers, upstream, 3, 1) == 3 * CHUNKS
    assert run_json(peers._replace(wrk=None), upstream, 2, 1) > 100


def test_a_relay_that_cuts_its_answers_off_is_noticed(peers: Peers, tmp_path: Path) -> None:
    relay = tmp_path / "relay.py"
    relay.write_text(CUTTING_RELAY)
    port = free_port()
    with running([sys.executable, str(relay), str(port)], tmp_path / "log") as process:
        wait_listening(process, port)
        with pytest.raises(Failed, match="1 answers broke off"):
            run_streams(peers, port, 1, 1)


@pytest.mark.parametrize("relay", ["Trio + h11", "Hypercorn ASGI + h11 client"])
def test_the_yardsticks_relay_everything(relay: str, tmp_path: Path) -> None:
    peers = prepare(tmp_path)
    with contestant(relay, peers) as found:
        assert run_streams(peers, found.port, 2, 1) == 2 * CHUNKS
        assert run_json(peers._replace(wrk=None), found.port, 2, 1) > 10
        assert cpu(found.process).own > 0


def test_the_programs_are_where_they_are_looked_for() -> None:
    assert (HERE / "upstream.c").is_file()
    assert (HERE / "load.c").is_file()
