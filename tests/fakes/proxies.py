"""An HTTP and a SOCKS5 proxy that lead every name and every address of the documentation's networks to this machine.

``python proxies.py [--user U:P] [--status N]`` prints ``[{"http": PORT, "socks": PORT}]``, and then a line for each
request: its kind, where to, and for a request that it reads itself also the path.
"""

from __future__ import annotations

import argparse
import base64
import json
import socket
import threading
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit


class Proxies:
    def __init__(self, user: str, status: int) -> None:
        self.user, self.status = user, status

    def serve_http(self, client: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += (data := client.recv(1 << 16))
            if not data:
                return
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ")
        proof = "Proxy-Authorization: Basic " + base64.b64encode(self.user.encode()).decode()
        if self.user and proof not in lines:
            client.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        elif self.status:
            client.sendall(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % self.status)
        elif method == "CONNECT":
            host, _, port = target.rpartition(":")
            say("connect", host, int(port))
            there = socket.create_connection(("127.0.0.1", int(port)))
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            join(client, there)
        else:
            url = urlsplit(target)
            say("relay", url.hostname or "", url.port or 80, url.path)
            there = socket.create_connection(("127.0.0.1", url.port or 80))
            path = target.removeprefix(f"{url.scheme}://{url.netloc}")
            kept = [line for line in lines[1:] if not line.startswith("Proxy-")]
            there.sendall("\r\n".join([f"{method} {path} HTTP/1.1", *kept]).encode("latin-1"))
            join(client, there)

    def serve_socks(self, client: socket.socket) -> None:
        _, count = exactly(client, 2)
        methods, wanted = exactly(client, count), 2 if self.user else 0
        client.sendall(bytes([5, wanted if wanted in methods else 255]))
        if wanted not in methods:
            return
        if wanted:
            exactly(client, 1)
            name = exactly(client, exactly(client, 1)[0])
            proof = name + b":" + exactly(client, exactly(client, 1)[0])
            client.sendall(bytes([1, proof != self.user.encode()]))
            if proof != self.user.encode():
                return
        kind = exactly(client, 4)[3]
        if kind == 3:
            host = exactly(client, exactly(client, 1)[0]).decode()
        else:
            family = socket.AF_INET if kind == 1 else socket.AF_INET6
            host = socket.inet_ntop(family, exactly(client, 4 if kind == 1 else 16))
        port = int.from_bytes(exactly(client, 2), "big")
        say("socks", host, port)
        if not self.status:
            there = socket.create_connection(("127.0.0.1", port))
        client.sendall(bytes([5, self.status, 0, 1, 0, 0, 0, 0, 0, 0]))
        if not self.status:
            join(client, there)


def exactly(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += (more := client.recv(count - len(data)))
        if not more:
            raise OSError
    return data


def join(one: socket.socket, other: socket.socket) -> None:
    def pump(source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)

    back = threading.Thread(target=pump, args=(other, one))
    back.start()
    pump(one, other)
    back.join()
    other.close()


def say(*what: Any) -> None:
    print(json.dumps(what), flush=True)


def listen(serve: Any) -> int:
    listener = socket.create_server(("127.0.0.1", 0))

    def one(client: socket.socket) -> None:
        with suppress(OSError), client:
            serve(client)

    def accept() -> None:
        while True:
            threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener.getsockname()[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--user", default="")
    parser.add_argument("--status", type=int, default=0)
    options = parser.parse_args()
    proxies = Proxies(options.user, options.status)
    say({"http": listen(proxies.serve_http), "socks": listen(proxies.serve_socks)})
    threading.Event().wait()


if __name__ == "__main__":
    main()
