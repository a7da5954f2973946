"""A stand-in for the Hugging Face hub with its content servers, and flags for what goes wrong between here and there.

``python model_hub.py --root DIR`` serves DIR/<org>/<repo>/<file> and prints ``{"hub": URL, "cdn": URL}``. Files are
redirected to the second address, which is another host (localhost in place of 127.0.0.1), as the real hub does it.
``GET /_stats`` tells what was asked and how many bytes left; ``POST /_control`` sets the `Mood`, which is misbehaviour.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

PIECE = 1 << 16


@dataclass
class Mood:
    """How the hub behaves. Numbers of 0 and empty texts mean: not at all."""

    rate: int = 0
    """Bytes a second."""
    drop_after: int = 0
    """Bytes of a file after which a connection is closed."""
    stall_after: int = 0
    """Bytes of a file after which a connection stays silent."""
    ignore_range: bool = False
    wrong_range: bool = False
    """Answer 206 with another part than was asked for."""
    unsatisfiable: bool = False
    """Answer 416 to every range."""
    corrupt: int = 0
    """In so many answers that hold a whole file or its end, one byte is another."""
    etag: str = ""
    """Put behind every ETag of the content server."""
    fail_status: int = 0
    fail_times: int = 0
    retry_after: str = ""
    cdn_status: int = 0
    cdn_times: int = 0
    gated: bool = False
    private: bool = False
    token: str = "hf_right"
    no_sizes: bool = False
    redirect_to: str = ""
    """In place of the content server."""
    page: int = 1000
    """Files of one page of the tree."""
    lie_size: int = 0
    """Added to sizes in the tree."""
    die_after: int = 0
    """Bytes of all answers together after which it is dead: it cuts that one, and answers nobody."""
    evil_path: str = ""
    """A file of the tree with this path."""
    branches: dict[str, dict[str, str]] = field(default_factory=dict)
    """Revisions by their names: what is different there, each path with that of main whose contents it has."""


@dataclass
class State:
    root: Path
    mood: Mood = field(default_factory=Mood)
    requests: list[dict[str, object]] = field(default_factory=list)
    hashes: dict[tuple[str, int, int], tuple[str, str]] = field(default_factory=dict)
    told: int = 0
    """Bytes of all answers since the mood changed."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    hashing: threading.Lock = field(default_factory=threading.Lock)
    hub: str = ""
    cdn: str = ""

    def hash_of(self, path: Path) -> tuple[str, str]:
        """sha256, and git's hash."""
        found = path.stat()
        key = (str(path), found.st_size, found.st_mtime_ns)
        with self.hashing:
            if key not in self.hashes:
                sha256, git = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % found.st_size)
                with path.open("rb") as file:
                    while data := file.read(PIECE):
                        sha256.update(data)
                        git.update(data)
                self.hashes[key] = sha256.hexdigest(), git.hexdigest()
        return self.hashes[key]

    def files(self, repo: str) -> list[Path]:
        return sorted(path for path in (self.root / repo).rglob("*") if path.is_file())

    def commit(self, repo: str, revision: str = "main") -> str:
        text = "".join(f"{name} {self.hash_of(path)[0]}\n" for name, path in self.tree(repo, revision).items())
        return hashlib.sha1(text.encode()).hexdigest()

    def tree(self, repo: str, revision: str = "main") -> dict[str, Path]:
        """The files of a revision, each with where its contents are."""
        found = {path.relative_to(self.root / repo).as_posix(): path for path in self.files(repo)}
        return found | {name: found[other] for name, other in self.mood.branches.get(revision, {}).items()}

    def revision(self, repo: str, named: str) -> str | None:
        """The revision of this name, or with this commit."""
        known = {name: self.commit(repo, name) for name in ("main", *self.mood.branches)}
        return next((name for name, commit in known.items() if named in (name, commit)), None)


class Dead(OSError):
    """The hub has said all that it says; see `Mood.die_after`."""


class Voice(io.BufferedIOBase):
    """Writes an answer, and counts its bytes, until the hub is dead."""

    def __init__(self, out: io.BufferedIOBase, state: State) -> None:
        self._out, self._state = out, state

    def write(self, data: Any) -> int:
        with self._state.lock:
            left = self._state.mood.die_after - self._state.told if self._state.mood.die_after else len(data)
            self._state.told += len(data)
        self._out.write(bytes(data)[: max(left, 0)])
        if left < len(data):
            raise Dead
        return len(data)

    def flush(self) -> None:
        self._out.flush()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: State
    is_cdn: bool

    def setup(self) -> None:
        super().setup()
        self.wfile = Voice(self.wfile, self.state)

    def handle(self) -> None:
        with suppress(Dead):
            super().handle()

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        wanted = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))))
        known = {one.name for one in fields(Mood)}
        assert set(wanted) <= known, set(wanted) - known
        with self.state.lock:
            self.state.mood, self.state.told = Mood(**wanted), -(1 << 20)  # the answer to this does not count
        self._json(200, asdict(self.state.mood))
        self.wfile.flush()
        with self.state.lock:
            self.state.told = 0

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def _answer(self) -> None:
        self.close_connection = True
        url = urlsplit(self.path)
        if url.path == "/_stats":
            with self.state.lock:
                found, self.state.mood.die_after = list(self.state.requests), 0
            self._json(200, found)
            return
        entry: dict[str, object] = {
            "server": "cdn" if self.is_cdn else "hub",
            "method": self.command,
            "path": unquote(url.path),
            "host": self.headers.get("Host"),
            "range": self.headers.get("Range"),
            "authorization": self.headers.get("Authorization"),
            "sent": 0,
        }
        with self.state.lock:
            self.state.requests.append(entry)
            mood, kind = self.state.mood, "cdn" if self.is_cdn else "fail"
            times = getattr(mood, f"{kind}_times")
            setattr(mood, f"{kind}_times", max(times - 1, 0))
        try:
            if times > 0:
                self._json(getattr(mood, f"{kind}_status"), {"error": "no"}, retry_after=mood.retry_after)
            elif self.is_cdn:
                self._content(self.state.root / unquote(url.path).removeprefix("/content/"), mood, entry)
            else:
                self._hub(url.path, parse_qs(url.query), mood)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def _hub(self, path: str, query: dict[str, list[str]], mood: Mood) -> None:
        if path == "/api/models":
            words = query.get("search", [""])[0].lower().split()
            repos = sorted(f"{found.parent.name}/{found.name}" for found in self.state.root.glob("*/*"))
            hits = [repo for repo in repos if all(word in repo.lower() for word in words)]
            self._json(200, [{"id": repo, "downloads": 7, "likes": 1, "gated": mood.gated} for repo in hits])
            return
        if path == "/":
            self._json(200, {})
            return
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(refs|tree|revision)(?:/([^/]+))?", path)
        resolve = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([0-9a-f]{40})/(.+)", unquote(path))
        repo = api[1] if api else resolve[1] if resolve else ""
        allowed = self.headers.get("Authorization") == f"Bearer {mood.token}"
        if self.headers.get("Authorization") and not allowed:
            self._json(401, {}, error="", message="Invalid credentials in Authorization header")
        elif not repo or not (self.state.root / repo).is_dir() or (mood.private and not allowed):
            self._json(404 if allowed else 401, {}, error="RepoNotFound", message="Repository not found")
        elif api:
            self._api(repo, api[2], unquote(api[3] or "main"), query, mood)
        elif mood.gated and not allowed:
            self._json(401, {}, error="GatedRepo", message="Access to this model is restricted")
        elif resolve and resolve[2] != self.state.commit(repo):
            self._json(404, {}, error="RevisionNotFound", message="no such commit")
        elif resolve:
            self._resolve(self.state.root / repo / resolve[3], mood)

    def _api(self, repo: str, what: str, named: str, query: dict[str, list[str]], mood: Mood) -> None:
        revision = self.state.revision(repo, named)
        if revision is None:
            self._json(404, {}, error="RevisionNotFound", message="Invalid rev id")
            return
        commit = self.state.commit(repo, revision)
        if what == "revision":
            self._json(200, {"id": repo, "sha": commit})
            return
        if what == "refs":
            self._json(200, {"branches": [{"name": "main", "ref": "refs/heads/main", "targetCommit": commit}]})
            return
        tree: list[dict[str, object]] = [{"type": "directory", "path": "folder", "oid": "0" * 40, "size": 0}]
        for name, path in self.state.tree(repo, revision).items():
            sha256, git = self.state.hash_of(path)
            size = path.stat().st_size + mood.lie_size
            file: dict[str, object] = {"type": "file", "path": name}
            file |= {"oid": git} if mood.no_sizes else {"oid": git, "size": size}
            if path.suffix == ".gguf":
                file["lfs"] = {"oid": sha256} if mood.no_sizes else {"oid": sha256, "size": size, "pointerSize": 134}
            tree.append(file)
        if mood.evil_path:
            tree.append({"type": "file", "path": mood.evil_path, "oid": "a" * 40, "size": 5})
        start = int(query.get("cursor", ["0"])[0])
        more = start + mood.page < len(tree)
        link = f'<{self.state.hub}/api/models/{repo}/tree/{commit}?cursor={start + mood.page}>; rel="next"'
        self._json(200, tree[start : start + mood.page], link=link if more else "")

    def _resolve(self, path: Path, mood: Mood) -> None:
        if not path.is_file():
            self._json(404, {}, error="EntryNotFound", message="Entry not found")
        else:
            target = mood.redirect_to or f"{self.state.cdn}/content/"
            self.send_response(302)
            self.send_header("Location", target + path.relative_to(self.state.root).as_posix() + "?signature=a%2Fb%3D")
            self.send_header("X-Linked-Size", str(path.stat().st_size))
            self.send_header("X-Linked-Etag", f'"{self.state.hash_of(path)[0]}"')
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _content(self, path: Path, mood: Mood, entry: dict[str, object]) -> None:
        size = path.stat().st_size
        asked = None if mood.ignore_range else re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        start = int(asked[1]) if asked else 0
        if asked and (mood.unsatisfiable or start >= size):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{size}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if asked and mood.wrong_range and start:
            start -= 1
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        self.send_header("Content-Length", str(size - start))
        self.send_header("ETag", f'"{self.state.hash_of(path)[1]}{mood.etag}"')
        self.end_headers()
        if self.command == "GET":
            self._send(path, start, size, mood, entry)

    def _send(self, path: Path, start: int, size: int, mood: Mood, entry: dict[str, object]) -> None:
        """In small pieces, so that what counts as sent is what the other side can have taken."""
        sent, begun = 0, time.monotonic()
        with path.open("rb") as file:
            file.seek(start)
            while data := file.read(PIECE):
                for limit in (mood.drop_after, mood.stall_after):
                    data = data[: limit - sent] if limit else data
                with self.state.lock:
                    if mood.corrupt > 0 and start + sent + len(data) == size and data:
                        mood.corrupt -= 1
                        data = data[:-1] + bytes([data[-1] ^ 1])
                self.wfile.write(data)
                sent += len(data)
                entry["sent"] = sent
                if mood.drop_after and sent >= mood.drop_after:
                    return
                if mood.stall_after and sent >= mood.stall_after:
                    time.sleep(60)
                if mood.rate:
                    time.sleep(max(0.0, begun + sent / mood.rate - time.monotonic()))

    def _json(
        self, status: int, body: object, *, error: str = "", message: str = "", link: str = "", retry_after: str = ""
    ) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        pairs = {"X-Error-Code": error, "X-Error-Message": message, "Link": link, "Retry-After": retry_after}
        for name, value in pairs.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that left is no news."""


def serve(state: State, *, is_cdn: bool, certificate: str | None) -> int:
    """Begin to serve in a thread; the port."""
    handler = type("Handler", (Handler,), {"state": state, "is_cdn": is_cdn})
    server = Server(("127.0.0.1", 0), handler)
    if certificate:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--certificate", help="Serve https with this file, which holds the key, too.")
    options = parser.parse_args()
    state = State(options.root)
    scheme, host = ("https", "localhost") if options.certificate else ("http", "127.0.0.1")
    cdn = serve(state, is_cdn=True, certificate=options.certificate)
    hub = serve(state, is_cdn=False, certificate=options.certificate)
    state.hub, state.cdn = f"{scheme}://{host}:{hub}", f"{scheme}://localhost:{cdn}"
    print(json.dumps({"hub": state.hub, "cdn": state.cdn}), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
