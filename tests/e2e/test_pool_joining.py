"""Several real programs on loopback, each with a home and a door of its own, as boxes of one pool; one dials out."""

from __future__ import annotations

import base64
import http.client
import json
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from gguf_files import write_model
from homes import Home
from port_blocks import port_block
from program import Answer, Server
from program import http as ask
from waiting import wait

from appliance.core.settings import HttpSettings
from appliance.engines.named import ENGINE_VARIABLE
from appliance.features.pool.bus_server import server_program
from appliance.features.pool.core.join_code import read_code
from appliance.features.pool.core.keys import PoolKeys
from appliance.features.pool.door import DoorRoutes
from appliance.features.pool.doors import REVERSE, UPGRADE
from appliance.http.way.routes import POSTED
from appliance.traffic.request import PUBLIC_PATHS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="commands find no server by themselves on Windows")
NEVER_RUNS = 9
"""A port where nothing listens."""


class PooledHome(Home):
    """A user's machine whose program may be in a pool."""

    apart = True
    server: Server

    def __init__(self, folder: Path, name: str, engine: Path) -> None:
        super().__init__(folder, {ENGINE_VARIABLE: str(engine)})
        self.name = name
        self.port = port_block(3)
        models = folder / "xdg_data_home" / "llama-appliance" / "models"
        models.mkdir(parents=True)
        write_model(models / f"of-{name}.gguf")

    def start(self, ended: ExitStack) -> None:
        self.server = ended.enter_context(self.serve("--offline")).wait_listening()

    def kill(self) -> None:
        self.server.signal(signal.SIGKILL)
        self.server.wait(20)

    def words(self, *, name: str | None = None) -> tuple[str, ...]:
        return ("--name", name or self.name, "--address", "127.0.0.1", "--port", str(self.port))

    def state(self) -> Any:
        return ask(self.server, "GET", "/api/pool").json()

    def boxes(self) -> dict[str, Any]:
        return {box["name"]: box for box in self.state()["boxes"]}

    def create(self) -> str:
        return _code(self.good("pool", "create", *self.words()))

    def join(self, code: str) -> None:
        self.good("pool", "join", code, *self.words())

    def secret(self) -> bytes:
        kept = json.loads(next(self.folder.rglob("pool.json")).read_text())
        return base64.b64decode(kept["secret"])

    def knock(self, method: str, path: str, *, key: str = "", body: bytes = b"") -> tuple[int, bytes]:
        """Ask at the door, without a look at its certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=20, context=context)
        try:
            connection.request(method, path, body, {"Authorization": f"Bearer {key}"} if key else {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@pytest.fixture
def make_box(fake_engine: Path) -> Iterator[Callable[[str], PooledHome]]:
    """Makes boxes whose programs run, and ends them."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="p") as folder, ExitStack() as ended:

        def make(name: str) -> PooledHome:
            box = PooledHome(Path(folder, name), name, fake_engine)
            box.start(ended)
            return box

        yield make


MakeBox = Callable[[str], PooledHome]


def pool_of(make_box: MakeBox, *names: str) -> list[PooledHome]:
    """Boxes in one pool, each of which sees all others up."""
    boxes = [make_box(name) for name in names]
    code = boxes[0].create()
    for box in boxes[1:]:
        box.join(code)
        code = _code(boxes[0].good("pool", "invite"))
    wait_together(boxes)
    return boxes


def wait_together(boxes: list[PooledHome]) -> None:
    names = {box.name for box in boxes}
    for box in boxes:
        wait(box.boxes, lambda found: found.keys() == names and all(one["up"] for one in found.values()))


def _code(told: str) -> str:
    found = re.search(r"LAP1-[A-Z2-7]+", told)
    assert found is not None, told
    return found[0]


@pytest.mark.slow
def test_a_nats_that_is_there_already_is_the_bus(make_box: MakeBox, tmp_path: Path) -> None:
    b1, b2 = make_box("b1"), make_box("b2")
    assert "its scheme is 'http'" in b1.bad("pool", "create", *b1.words(), "--bus", "http://127.0.0.1")
    login, port = ("--user", "me", "--pass", "a word"), str(port_block(1))
    store = ("-js", "-sd", str(tmp_path / "store"), "-a", "127.0.0.1", "-p", port)
    with subprocess.Popen([server_program(), *store, *login], stderr=subprocess.DEVNULL) as nats:
        try:
            url = f"nats://me:a%20word@127.0.0.1:{port}"
            b2.join(_code(b1.good("pool", "create", *b1.words(), "--bus", url)))
            for box in (b1, b2):
                wait(box.state, lambda found: found["bus"]["state"] == "connected")
                wait(box.boxes, lambda found: all(one["beat_age"] is not None for one in found.values()))
            b2.good("pool", "drain", "b1")
            wait(b1.boxes, lambda found: found["b1"]["drained"])
        finally:
            nats.terminate()
    wait(b1.state, lambda found: found["bus"]["state"] == "lost" and found["cut_off"])
    wait(b1.state, lambda found: "bus-unreachable" in {problem["id"] for problem in found["problems"]})


@pytest.mark.slow
def test_two_boxes_are_one_until_one_leaves(make_box: MakeBox) -> None:
    b1, b2 = pool_of(make_box, "b1", "b2")
    assert b1.state()["pool"] == b2.state()["pool"]
    kept = next(b2.folder.rglob("pool.json"))
    assert kept.stat().st_mode & 0o077 == 0
    body = {"model": "of-b2", "messages": [{"role": "user", "content": "hi"}]}
    wait(lambda: ask(b1.server, "POST", "/v1/chat/completions", body).status, lambda status: status == 200)
    listed = wait(b1.boxes, lambda found: found["b2"]["models"] and found["b2"]["linked"])
    assert [model["id"] for model in listed["b2"]["models"] if model["id"].startswith("of-")] == ["of-b2"]

    for box, name in ((b1, "b2/of-b2"), (b2, "b2/of-b2"), (b2, "b1/of-b1"), (b1, "b1/of-b1")):
        wait(
            lambda b=box, n=name: ask(b.server, "POST", "/v1/chat/completions", body | {"model": n}).status,
            (200).__eq__,
        )
    ask(b1.server, "POST", "/v1/chat/completions", body | {"stream": True}, X_Conversation_Id="kept/1")
    kept_there = ask(b1.server, "GET", "/v1/stream?conv_id=kept/1&from=7&sse_ids=1")
    here = ask(b2.server, "GET", "/v1/stream?conv_id=kept/1&from=7&sse_ids=1")
    assert (here.status, here.body) == (200, kept_there.body)
    assert here.headers.items() >= {("content-type", "text/event-stream")}
    assert b"[DONE]" in here.body
    for offset in ("", "0", "99999999", "-1", "x"):
        path = f"/v1/stream?conv_id=kept/1&from={offset}"
        one, other = (ask(box.server, "GET", path) for box in (b1, b2))
        assert (one.status, one.body) == (other.status, other.body), offset
    found = ask(b2.server, "POST", "/v1/streams/lookup", {"conversation_ids": ["kept/1", "none"]}).json()
    assert [one["conversation_id"] for one in found] == ["kept/1"]
    assert ask(b2.server, "DELETE", "/v1/stream?conv_id=kept/1").status == 204
    assert {ask(box.server, "GET", "/v1/stream?conv_id=kept/1").status for box in (b1, b2)} == {404}

    assert re.search(r"b2 +up +of-b2 +of-b2, starter", b1.good("pool", "ls"))
    assert {one["listen"] for one in b1.boxes().values()} == {b1.server.url, b2.server.url}
    for box in (b1, b2):
        box.good("pool", "rotate")
        time.sleep(4)  # until then each has asked the other one, if it still does
        for each in (b1, b2):
            wait(each.state, lambda found: not found["problems"] and found["bus"]["state"] == "connected")

    assert "up, drained" in b1.good("pool", "drain", "b2")
    wait(b2.boxes, lambda found: found["b2"]["drained"])
    b2.good("pool", "drain", "b2", "--undo")
    wait(b1.boxes, lambda found: not found["b2"]["drained"])

    assert b2.json("pool", "leave")["pool"] is None
    assert not kept.exists()
    wait(b1.boxes, lambda found: found.keys() == {"b1"})
    with pytest.raises(ConnectionRefusedError):
        b2.knock("GET", "/health")
    assert "was a box of this pool" in b2.bad("pool", "join", _code(b1.good("pool", "invite")), *b2.words())


@pytest.mark.slow
def test_the_pool_outlives_kill_9_of_each_side(make_box: MakeBox) -> None:
    boxes = pool_of(make_box, "b1", "b2")
    with ExitStack() as ended:
        for box, other in (boxes, boxes[::-1]):
            box.kill()
            wait(other.boxes, lambda found, name=box.name: found[name]["up"] is False)
            wait(other.state, lambda found, serves=box is boxes[0]: found["cut_off"] == serves)  # one serves the bus
            box.start(ended)
            wait_together(boxes)
    assert all("Traceback" not in box.server.told() for box in boxes)


@pytest.mark.slow
def test_every_mistake_of_joining_is_told_with_the_fix(make_box: MakeBox) -> None:
    b1, b2 = make_box("b1"), make_box("b2")
    assert "in no pool" in b1.good("pool", "ls")
    assert "in no pool" in b1.bad("pool", "invite")
    code = b1.create()
    wrong = code[:20] + ("A" if code[20] != "A" else "B") + code[21:]
    assert "typing mistake" in b2.bad("pool", "join", wrong, *b2.words())
    assert "another version" in b2.bad("pool", "join", code.replace("LAP1", "LAP2"), *b2.words())
    taken = b2.bad("pool", "join", code, *b2.words(name="b1"))
    assert "'b1' is a box of this pool" in taken
    assert "'b1-2'" in taken
    assert "is not a box" in b2.bad("pool", "join", code, *b2.words(name="No Name"))
    busy = b2.bad("pool", "join", code, "--name", "b2", "--address", "127.0.0.1", "--port", str(b1.port))
    assert "--port" in busy
    b2.join(code)  # none of these has used the code up
    b3 = make_box("b3")
    assert "used already" in b3.bad("pool", "join", code, *b3.words())
    assert "in a pool already" in b2.bad("pool", "join", code, *b2.words())
    found = read_code(code)
    away = type(found)(addresses=("127.0.0.1",), port=NEVER_RUNS, ca_public=found.ca_public, token=found.token)
    unreachable = b3.bad("pool", "join", away.text(), *b3.words(), status=1)
    assert "firewall" in unreachable
    assert f"port {NEVER_RUNS}" in unreachable
    other = type(found)(addresses=("127.0.0.1",), port=b1.port, ca_public=bytes(32), token=found.token)
    assert "another pool" in b3.bad("pool", "join", other.text(), *b3.words(), status=1)
    b3.kill()
    assert "no server answers" in b3.bad("pool", "join", code, status=1)


@pytest.mark.slow
def test_new_keys_shut_out_the_old_ones(make_box: MakeBox) -> None:
    b1, b2, b3 = boxes = pool_of(make_box, "b1", "b2", "b3")
    old = PoolKeys(b3.secret())
    assert b1.knock("GET", "/pool/roster", key=old.door_key)[0] == 200
    with ExitStack() as ended:
        b3.server.signal(signal.SIGSTOP)  # it hears nothing of it
        told = b1.json("pool", "rotate", "--without", "b3")
        assert told == {"reached": ["b2"], "missed": []}
        for box in (b1, b2):
            for method, path in (("GET", "/pool/roster"), ("GET", "/v1/models"), ("POST", "/v1/chat/completions")):
                assert box.knock(method, path, key=old.door_key)[0] == 401
        assert b1.secret() == b2.secret() != old.secret
        b3.server.signal(signal.SIGCONT)
        wait(b3.state, lambda state: state["pool"] is None or any(p["id"] == "left_out" for p in state["problems"]))
        wait_together(boxes[:2])
        b2.kill()
        missed = b1.run("pool", "rotate", "--json")
        assert (missed.returncode, json.loads(missed.stdout)) == (1, {"reached": [], "missed": ["b2"]})
        b2.start(ended)
        wait(b2.state, lambda state: any(problem["id"] == "left_out" for problem in state["problems"]))
        assert "this box has left, and the others do not know" in b2.bad("pool", "leave", status=1)
        assert b2.state()["pool"] is None
        b1.good("pool", "leave", "b2")
        b2.name = "b2-2"
        b2.join(_code(b1.good("pool", "invite")))
        wait_together([b1, b2])


def test_changes_need_admin_and_nothing_is_told_without_the_key(make_box: MakeBox) -> None:
    box = make_box("b1")
    for verb in ("create", "invite", "join", "leave", "drain", "rotate"):
        refused = ask(box.server, "POST", f"/api/pool/{verb}", {})
        assert (refused.status, refused.json()["error"]["reason"]) == (403, "admin_off"), verb
    assert not list(box.folder.rglob("pool.json"))
    box.create()
    routes = [*DoorRoutes.ROUTES, *(("POST", path) for path in POSTED), *(("GET", path) for path in PUBLIC_PATHS)]
    routes += [("GET", "/api/link"), ("GET", "/api/pool"), ("GET", "/none"), ("OPTIONS", "/v1/models"), ("GET", "/ui/")]
    routes += [("GET", "/pool/join"), ("POST", "/pool/roster?x=/pool/join"), ("GET", "/upstream/of-b1/props")]
    answers = {box.knock(method, path) for method, path in routes if (method, path) != ("POST", "/pool/join")}
    answers |= {box.knock(method, path, key="f" * 64) for method, path in routes if path != "/pool/join"}
    assert len(answers) == 1
    status, body = answers.pop()
    assert status == 401
    assert not re.search(rb"b1|of-b1|llama|pool", body)
    for refused in (b"", b"{", b"[]", b"{}", b'{"token": 1}', b"x" * 100_000):
        status, body = box.knock("POST", "/pool/join", body=refused)
        assert status in (400, 413)
        assert b"of-b1" not in body
    key = PoolKeys(box.secret()).door_key
    assert box.knock("GET", "/health", key=key) == (200, b'{"status":"ok"}')
    for method, path in (
        ("GET", "/"),
        ("GET", "/api/pool"),
        ("GET", "/ui/"),
        ("POST", "/api/pool/leave"),
        ("GET", "/logs"),
    ):
        assert box.knock(method, path, key=key)[0] == 404
    assert b"of-b1" in box.knock("GET", "/v1/models", key=key)[1]


@pytest.mark.slow
def test_two_boxes_join_at_two_others_at_the_same_time(make_box: MakeBox) -> None:
    b1, b2 = pool_of(make_box, "b1", "b2")
    b3, b4 = make_box("b3"), make_box("b4")
    codes = [_code(box.good("pool", "invite")) for box in (b1, b2)]
    with ThreadPoolExecutor(2) as together:
        list(together.map(PooledHome.join, (b3, b4), codes))
    wait_together([b1, b2, b3, b4])
    rosters = {tuple(box.state()["boxes"][number]["name"] for number in range(4)) for box in (b1, b2, b3, b4)}
    assert len(rosters) == 1


NOWHERE = "192.0.2.1"
"""An address of nobody (RFC 5737)."""
GRACE = HttpSettings().grace


def body(model: str, **more: object) -> dict[str, object]:
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], **more}


def chat(box: PooledHome, model: str, **more: object) -> Answer:
    return ask(box.server, "POST", "/v1/chat/completions", body(model, **more))


def pool_with_one_that_dials_out(make_box: MakeBox) -> tuple[PooledHome, PooledHome]:
    b1, b2 = boxes = make_box("b1"), make_box("b2")
    words = ("--name", "b2", "--address", NOWHERE, "--port", str(b2.port), "--dials-out")
    b2.good("pool", "join", b1.create(), *words)
    wait_together(list(boxes))
    wait_for_model(b1)
    return boxes


def wait_for_model(b1: PooledHome) -> None:
    """``b1`` sees the model of the box that dials out, over a link and a listing that took connections from there."""

    def names(found: dict[str, Any]) -> bool:
        return found["b2"]["linked"] and "of-b2" in [model["id"] for model in found["b2"]["models"]]

    wait(b1.boxes, names)


def knock(box: PooledHome, key: str, *lines: str, more: bytes = b"") -> bytes:
    """The first bytes of the answer to ``GET /pool/reverse`` with these lines; ``more`` is sent behind it."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    head = [f"GET {REVERSE} HTTP/1.1", "Host: b1.llama-pool", f"Authorization: Bearer {key}", *lines]
    with context.wrap_socket(socket.create_connection(("127.0.0.1", box.port), 20)) as sock:
        sock.sendall("\r\n".join([*head, "", ""]).encode("latin-1"))
        answer = sock.recv(4096)
        sock.sendall(more)
        return answer


@pytest.mark.slow
def test_a_box_that_nobody_can_dial_answers(make_box: MakeBox) -> None:
    b1, b2 = pool_with_one_that_dials_out(make_box)
    found = chat(b1, "of-b2")
    assert (found.status, found.headers["X-Appliance-Box"]) == (200, "b2"), found
    with ThreadPoolExecutor(12) as together:
        asked = [together.submit(chat, b1, "of-b2") for _ in range(12)]
        assert {answer.result().status for answer in asked} == {200}
    streamed = chat(b1, "of-b2", stream=True).body
    assert streamed.count(b"data: ") > 3
    assert streamed.endswith(b"data: [DONE]\n\n")
    assert chat(b2, "of-b1").status == 200  # it dials as ever

    b1.good("pool", "drain", "b2")  # the roster comes to it over its own connections
    wait(b2.boxes, lambda boxes: boxes["b2"]["drained"])
    assert b1.json("pool", "rotate")["missed"] == []
    wait_together([b1, b2])
    assert chat(b1, "of-b2").status == 200


@pytest.mark.slow
def test_a_client_that_leaves_ends_the_request_there(make_box: MakeBox) -> None:
    b1, b2 = pool_with_one_that_dials_out(make_box)
    connection = HTTPConnection("127.0.0.1", b1.server.port, timeout=20)
    endless = body("of-b2", stream=True, fake={"tokens": 100_000, "token_delay": 0.01})
    connection.request("POST", "/v1/chat/completions", json.dumps(endless), {"Content-Type": "application/json"})
    assert connection.getresponse().read(10)
    wait(b2.boxes, lambda found: found["b2"]["queue"] == 1)
    connection.close()
    wait(b2.boxes, lambda found: found["b2"]["queue"] == 0)


@pytest.mark.slow
def test_both_sides_come_back_after_kill_9(make_box: MakeBox) -> None:
    b1, b2 = boxes = pool_with_one_that_dials_out(make_box)
    with ExitStack() as ended:
        for box in boxes:
            box.kill()
            box.start(ended)
            wait_together(list(boxes))
            wait_for_model(b1)
            assert chat(b1, "of-b2").status == 200
        b2.kill()
        wait(b1.boxes, lambda found: found["b2"]["up"] is False)
        assert chat(b1, "of-b2").status >= 500
    assert "Traceback" not in b1.server.told() + b2.server.told()


@pytest.mark.slow
def test_other_upgrades_are_refused(make_box: MakeBox) -> None:
    b1, b2 = pool_with_one_that_dials_out(make_box)
    key, asks = PoolKeys(b1.secret()).door_key, ("Connection: upgrade", f"Upgrade: {UPGRADE.decode()}")
    for name in ("b1", "b3", "", "\xff"):
        assert knock(b1, key, *asks, f"X-Appliance-Box-Name: {name}").startswith(b"HTTP/1.1 400 ")
    for upgrade in ((), ("Connection: upgrade", "Upgrade: websocket"), ("Connection: upgrade", "Upgrade: h2c")):
        assert knock(b1, key, *upgrade, "X-Appliance-Box-Name: b2").startswith(b"HTTP/1.1 400 ")
    assert knock(b1, "f" * 64, *asks, "X-Appliance-Box-Name: b2").startswith(b"HTTP/1.1 401 ")
    # The newest connection is taken first. The request that gets garbage on it fails, and the box stays well.
    with ThreadPoolExecutor(1) as beside:
        offered = beside.submit(knock, b1, key, *asks, "X-Appliance-Box-Name: b2", more=b"garbage\r\n" * 9)
        while not offered.done():
            chat(b1, "of-b2")
        assert offered.result().startswith(b"HTTP/1.1 101 ")
    wait(lambda: chat(b1, "of-b2").status, lambda status: status == 200)
    assert "Traceback" not in b1.server.told() + b2.server.told()


@pytest.mark.slow
def test_the_end_waits_for_no_spare_connection(make_box: MakeBox) -> None:
    for box in pool_with_one_that_dials_out(make_box):
        box.server.signal(signal.SIGTERM)
        box.server.wait(GRACE - 2)
