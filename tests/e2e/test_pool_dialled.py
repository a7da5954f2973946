"""A box that nobody can dial: it is asked on connections that it has made itself."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPConnection
from typing import Any

import pytest
from program import Answer
from program import http as ask
from test_pool_joining import MakeBox, PooledHome, make_box, wait_together
from waiting import wait

from appliance.core.settings import HttpSettings
from appliance.features.pool.core.keys import PoolKeys
from appliance.features.pool.doors import REVERSE, UPGRADE

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="commands find no server by themselves on Windows")
__all__ = ["make_box"]
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
