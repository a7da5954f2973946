"""Models that are not on the hub: in a registry of container images, and at an address."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Generator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from command_line import run_here
from gguf_files import write_model
from program import Server, StartServer, answer, engine_argv, fresh_environment, http, path_after

from appliance.engines.named import ENGINE_VARIABLE
from appliance.features.downloads import owner as downloads

TOKEN = "for-anybody"
GGUF = "application/vnd.docker.ai.gguf.v3"
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
PROJECTOR = "application/vnd.docker.ai.mmproj"


class Shelf:
    """What the server has, and how it behaves. ``parts``: layers of an image by their type."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.images: dict[str, list[tuple[str, bytes]]] = {}
        self.drop_after = 0
        self.damage = False
        self.url = ""
        self.place = ""
        """Host and port, as the names of images begin."""
        self.realm = ""
        """Who gives out tokens, if not this server."""
        self.token = TOKEN
        self.asked: list[tuple[str, str, str | None]] = []

    def blob(self, digest: str) -> bytes | None:
        everything = (data for layers in self.images.values() for _, data in layers)
        return next((data for data in everything if hashlib.sha256(data).hexdigest() == digest), None)

    def manifest(self, name: str) -> bytes:
        layers = [
            {"mediaType": kind, "digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}
            for kind, data in self.images[name]
        ]
        return json.dumps({"schemaVersion": 2, "layers": layers}).encode()


class Handler(BaseHTTPRequestHandler):
    shelf: Shelf

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        shelf, path = self.shelf, self.path.partition("?")[0]
        shelf.asked.append((self.command, self.path, self.headers.get("Authorization")))
        allowed = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if path == "/token":
            self._send(json.dumps({"token": shelf.token}).encode())
        elif path.startswith("/v2/") and not allowed:
            realm = f'Bearer realm="{shelf.realm or shelf.url}/token",service="registry.test"'
            self._send(b"{}", 401, {"WWW-Authenticate": realm})
        elif path == "/v2/":
            self._send(b"{}")
        elif (match := re.fullmatch(r"/v2/(.+)/manifests/(.+)", path)) and f"{match[1]}:{match[2]}" in shelf.images:
            self._send(shelf.manifest(f"{match[1]}:{match[2]}"))
        elif (match := re.fullmatch(r"/v2/.+/blobs/sha256:(.+)", path)) and (data := shelf.blob(match[1])):
            self._send(data[:-1] + b"?" if shelf.damage else data)
        elif path.startswith("/files/") and (file := shelf.root / path.removeprefix("/files/")).is_file():
            self._send(file.read_bytes(), more={"ETag": '"one"'})
        else:
            self._send(b"{}", 404)

    def _send(self, data: bytes, status: int = 200, more: Mapping[str, str] | None = None) -> None:
        start = 0
        if status == 200 and (asked := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")):
            start, status = int(asked[1]), 206
        self.send_response(status)
        for name, value in (more or {}).items():
            self.send_header(name, value)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if self.command != "HEAD":
            limit, self.shelf.drop_after = self.shelf.drop_after, 0
            self.wfile.write(data[start : start + limit] if limit else data[start:])
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def shelf(tmp_path: Path) -> Generator[Shelf]:
    found = Shelf(tmp_path / "files")
    write_model(found.root / "tiny-Q8_0.gguf", weights=2000)
    for number in (1, 2):
        write_model(found.root / f"big-{number:05}-of-00002.gguf", weights=50, split__count=2, split__no=number - 1)
    model = (found.root / "tiny-Q8_0.gguf").read_bytes()
    seeing = write_model(tmp_path / "p.gguf", architecture="clip", clip__has_vision_encoder=True).read_bytes()
    found.images = {
        "ai/tiny:latest": [("text/plain", b"license"), (GGUF, model)],
        "ai/tiny:seeing": [(GGUF, model), (PROJECTOR, seeing)],
        "ai/tiny:parts": [(GGUF, model), (GGUF, seeing)],
        "ai/tiny:nothing": [("text/plain", b"license")],
    }
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"shelf": found}))
    found.place = f"127.0.0.1:{server.server_address[1]}"
    found.url = f"http://{found.place}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def environment(tmp_path: Path, fake_engine: Path) -> dict[str, str]:
    return {"HF_HUB_CACHE": str(tmp_path / "cache"), ENGINE_VARIABLE: str(fake_engine), "HF_TOKEN": "hf_secret"}


@pytest.fixture
def fetching(start_server: StartServer, environment: dict[str, str]) -> StartServer:
    """``llama-server`` with these words."""
    return lambda *words: start_server("llama-server", *words, "--port", "0", env=environment)


def end(server: Server) -> None:
    server.process.terminate()
    server.wait(10)


def test_an_image_is_fetched_once(fetching: StartServer, shelf: Shelf) -> None:
    name, counts = f"{shelf.place}/ai/tiny:seeing", list[int]()
    for _ in range(2):
        server = fetching("--docker-repo", name)
        argv = engine_argv(server)
        assert path_after(argv, "--model").read_bytes() == shelf.images["ai/tiny:seeing"][0][1]
        assert path_after(argv, "--mmproj").read_bytes() == shelf.images["ai/tiny:seeing"][1][1]
        assert "--docker-repo" not in argv
        (listed,) = http(server, "GET", "/v1/models").json()["data"]
        assert listed["id"] == name
        end(server)
        counts.append(len(shelf.asked))
    assert counts[0] == counts[1], "the second time nobody is asked"
    assert ("GET", "/token?service=registry.test&scope=repository%3Aai/tiny%3Apull", None) in shelf.asked
    assert not [asked for asked in shelf.asked if asked[2] and "hf_secret" in asked[2]]


REFUSALS: Sequence[tuple[tuple[str, ...], dict[str, object], str]] = [
    (("-dr", "PLACE/ai/none"), {}, "there is no public model"),
    (("-dr", "PLACE/ai/tiny:parts"), {}, "is a model in 2 parts"),
    (
        ("-dr", "PLACE/ai/tiny:nothing"),
        {},
        "is no GGUF file; look for the same model on Hugging Face, for --hf-repo",
    ),
    (("-dr", "PLACE/ai/tiny"), {"damage": True}, "it came with wrong contents twice"),
    (("-dr", "PLACE/ai/tiny"), {"token": "x\r\nX-Evil: 1"}, "its token cannot be used"),
    (("-dr", "PLACE/ai/tiny"), {"token": ""}, "its token cannot be used"),
    (
        ("-dr", "PLACE/ai/tiny"),
        {"realm": "file:///etc/passwd?"},
        "it redirected us to something that is not an address",
    ),
    (("-dr", "Bad Name"), {}, "does not name a model in a registry"),
    (("-dr", "tiny", "--offline"), {}, "ai/tiny:latest is not in the cache"),
    (("-mu", "http://PLACE/files/none.gguf?signature=SECRET"), {}, "has no such file, or requires a login (404)"),
    (("-mu", "http://user:SECRET@PLACE/files/tiny-Q8_0.gguf"), {}, "PLACE"),
    (("-mu", "ftp://x/y.gguf"), {}, "is not the address of a file"),
    (("-mu", "http://127.0.0.1:1/"), {}, "does not end in the name of a file"),
    (("-mu", "http://127.0.0.1:1/x.gguf"), {}, "the model hub at 127.0.0.1 failed"),
    (("-mu", "http://PLACE/files/tiny-Q8_0.gguf", "--offline"), {}, "is not in the cache"),
]


@pytest.mark.parametrize(("words", "shelf_has", "message"), REFUSALS)
def test_what_cannot_be_fetched_is_told(
    tmp_path: Path,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    shelf: Shelf,
    words: tuple[str, ...],
    shelf_has: dict[str, object],
    message: str,
) -> None:
    """And secrets of an address are not, nor does a registry that gives out nonsense get any."""
    vars(shelf).update(shelf_has)
    given = [word.replace("PLACE", shelf.place) for word in words]
    monkeypatch.setattr(downloads, "LISTING_ATTEMPTS", 2)
    done = run_here(("llama-server", *given), tmp_path, {**fresh_environment(tmp_path), **environment})
    assert done.returncode == 1
    assert message.replace("PLACE", shelf.place) in done.stderr
    assert "Traceback" not in done.stderr
    assert "SECRET" not in done.stderr + done.stdout
    assert {authorization for _, _, authorization in shelf.asked} <= {None, f"Bearer {TOKEN}"}


def test_an_address_is_fetched_once_and_goes_on(fetching: StartServer, shelf: Shelf, tmp_path: Path) -> None:
    shelf.drop_after = 3000
    counts: list[int] = []
    for _ in range(2):
        server = fetching("--model-url", f"{shelf.url}/files/tiny-Q8_0.gguf?download=true")
        argv = engine_argv(server)
        assert path_after(argv, "--model") == tmp_path / "cache" / "tiny-Q8_0.gguf"
        assert path_after(argv, "--model").read_bytes() == (shelf.root / "tiny-Q8_0.gguf").read_bytes()
        assert "--model-url" not in argv
        end(server)
        counts.append(len(shelf.asked))
    assert counts[0] == counts[1]
    assert {authorization for _, _, authorization in shelf.asked} == {None}


@pytest.mark.slow
def test_an_address_fills_the_file_that_is_named(fetching: StartServer, shelf: Shelf, tmp_path: Path) -> None:
    write_model(shelf.root / "see-F16.gguf", architecture="clip", clip__has_vision_encoder=True)
    words = ("-mu", f"{shelf.url}/files/big-00001-of-00002.gguf", "-m", "mine/x-00001-of-00002.gguf")
    argv = engine_argv(fetching(*words, "--mmproj-url", f"{shelf.url}/files/see-F16.gguf", "--mmproj", "mine/p.gguf"))
    assert path_after(argv, "--model") == tmp_path / "mine" / "big-00001-of-00002.gguf"
    assert path_after(argv, "--mmproj") == tmp_path / "mine" / "p.gguf"
    assert (argv.count("--mmproj"), argv.count("--mmproj-url")) == (1, 0)
    assert (tmp_path / "mine" / "p.gguf").read_bytes() == (shelf.root / "see-F16.gguf").read_bytes()
    assert (tmp_path / "mine" / "big-00002-of-00002.gguf").is_file()


def test_a_presets_model_comes_from_a_registry_or_an_address(
    fetching: StartServer, shelf: Shelf, tmp_path: Path
) -> None:
    (tmp_path / "p.ini").write_text(
        f"[image]\ndocker-repo = {shelf.place}/ai/tiny:seeing\n"
        f"[address]\nmodel-url = {shelf.url}/files/tiny-Q8_0.gguf\nmodel = mine/a.gguf\n"
        f"[nothing]\ndocker-repo = {shelf.place}/ai/tiny:nothing\n"
    )
    server = fetching("--models-preset", "p.ini")
    listed = http(server, "GET", "/models").json()["data"]
    states = {entry["id"]: entry["status"]["value"] for entry in listed}
    assert states == dict.fromkeys(("image", "address", "nothing"), "unloaded")
    assert shelf.asked == []
    for model in ("image", "address"):
        answer(server, "/v1/chat/completions", **CHAT, model=model)
    commands = [found for child in server.children() if "--alias" in (found := child.cmdline())]
    image, address = sorted(commands, key=lambda argv: argv[argv.index("--alias") + 1], reverse=True)
    assert path_after(image, "--model").read_bytes() == shelf.images["ai/tiny:seeing"][0][1]
    assert path_after(image, "--mmproj").read_bytes() == shelf.images["ai/tiny:seeing"][1][1]
    assert path_after(address, "--model") == tmp_path / "mine" / "a.gguf"
    assert not {"--docker-repo", "--model-url"} & {*image, *address}
    refused = http(server, "POST", "/v1/chat/completions", {**CHAT, "model": "nothing"})
    assert refused.status == 404
    assert "is no GGUF file" in refused.json()["error"]["message"]
