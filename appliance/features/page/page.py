"""The page: its built document at ``/`` and ``/ui/``, hashed files below ``/ui/assets/`` (see ``web/build.mjs``), the
page for browsers without script at ``/ui/status``, and the files that browsers ask for beside it.

Files below ``/ui/assets/`` are compressed when a client first asks for them, and kept so: they do not change while the
program runs, and all of them together take 300 KiB.
llama-server's page leaves a service worker with the browser, which would go on showing that page when another server
has taken over its address. Browsers look for a newer worker there, and find one that only removes itself.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Callable, Sequence
from functools import cache
from html import escape
from pathlib import Path
from string import Template

import msgspec
import trio

from appliance import __version__
from appliance.core.bodies.codings import SMALLEST, accepts_gzip
from appliance.core.engine import Engine
from appliance.core.models.swap_listing import ListedModel, ListedModels
from appliance.core.settings import HttpSettings, Listen
from appliance.errors import RouteNotFound
from appliance.features.page.static_files import OTHER_TYPE, TYPES, is_known
from appliance.http.bytes.listening import shown
from appliance.http.way.context import RequestContext
from appliance.traffic.request import MANIFEST, PAGE_PREFIX, PAGE_VERSION, WORKER, Headers, Request, send_whole

_WORKER = """\
self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(leave()));
async function leave() {
  for (const name of await caches.keys()) await caches.delete(name);
  await self.registration.unregister();
  for (const page of await self.clients.matchAll({ type: "window" })) page.navigate(page.url);
}
"""
_FILES = {
    WORKER: ("text/javascript; charset=utf-8", _WORKER.encode()),
    PAGE_VERSION: ("application/json; charset=utf-8", msgspec.json.encode({"version": __version__})),
    MANIFEST: (
        "application/manifest+json; charset=utf-8",
        msgspec.json.encode(
            {
                "name": "Llama Appliance",
                "short_name": "Llama",
                "start_url": "./",
                "display": "browser",
                "icons": [{"src": "favicon.ico", "sizes": "any", "type": "image/svg+xml"}],
            }
        ),
    ),
}


STYLE = """
:root { color-scheme: light dark; }
body { margin: 2.5rem auto; max-width: 54rem; padding: 0 1.25rem; font: 16px/1.55 system-ui, sans-serif; }
th, td { text-align: left; padding: .3rem 1.5rem .3rem 0; vertical-align: top; }
"""

POLICY = (
    "default-src 'none'; style-src 'sha256-"
    + base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_PAGE = Template(
    """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Llama Appliance</title>
<style>$style</style>
</head>
<body>
<h1>Llama Appliance</h1>
<p>Version $version, engine $engine. Everything here stays on this machine.</p>
<h2>Addresses</h2>
<table>
$addresses
</table>
<h2>Models$folder</h2>
$models
</body>
</html>
"""
)
_KEY_NEEDED = "<p>This server needs an API key; with it, <code>GET /v1/models</code> lists the models.</p>"
DIST = Path(__file__).parents[2] / "web" / "dist"
BUNDLE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src 'self' data: blob:; font-src 'self'; connect-src 'self'; frame-src 'self'; manifest-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""No inline script or style, and nothing from another origin: a model's text can fetch nothing."""
HEADERS: Headers = (
    (b"Content-Security-Policy", BUNDLE_POLICY.encode()),
    (b"Cross-Origin-Opener-Policy", b"same-origin"),
    (b"Permissions-Policy", b"microphone=(self), camera=(), geolocation=()"),
    (b"Referrer-Policy", b"no-referrer"),
    (b"X-DNS-Prefetch-Control", b"off"),
)
_RECEIVER = """\
addEventListener("message", (event) => {
  if (event.source !== parent || parent === window) return;
  const received = new DOMParser().parseFromString(event.data, "text/html");
  document.replaceChild(document.adoptNode(received.documentElement), document.documentElement);
});
"""
SANDBOX = f'<!doctype html><meta charset="utf-8"><title>Preview</title><script>{_RECEIVER}</script>'.encode()
SANDBOX_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src "
    f"'sha256-{base64.b64encode(hashlib.sha256(_RECEIVER.encode()).digest()).decode()}'; style-src 'unsafe-inline'; "
    "img-src data:; media-src data:; font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
SANDBOX_HEADERS: Headers = (
    (b"Content-Security-Policy", SANDBOX_POLICY.encode()),
    (b"Permissions-Policy", b"microphone=(), camera=(), geolocation=()"),
    (b"Referrer-Policy", b"no-referrer"),
    (b"X-DNS-Prefetch-Control", b"off"),
)
"""The document in which the page shows HTML of a model: an origin of its own, in which no script runs but the one that
takes the HTML. A policy cannot keep a script from the network: WebRTC is outside of it, and Chromium connects for a
navigation before the policy refuses that.
"""
_HASHED = re.compile(r".+-[\w-]{8}\.\w+")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
NOSNIFF = (b"X-Content-Type-Options", b"nosniff")
STATUS_HEADERS: Headers = (
    (b"Content-Type", b"text/html; charset=utf-8"),
    (b"Content-Security-Policy", POLICY.encode()),
    (b"Cache-Control", b"no-store"),
    NOSNIFF,
    (b"Referrer-Policy", b"no-referrer"),
)


def render(
    base: str, bound: Sequence[Listen], engine: Engine | None, models: ListedModels | None, folder: Path | None
) -> str:
    """``base`` is the address the visitor used. Strangers see neither the ``models`` nor their folder."""
    addresses = {
        "This page": f"{base}/",
        "OpenAI base URL": f"{base}/v1",
        "Anthropic base URL": base,
        "llama.cpp base URL": base,
        "Listening on": ", ".join(map(shown, bound)),
    }
    return _PAGE.substitute(
        style=STYLE,
        version=escape(__version__),
        engine=escape(_engine(engine)),
        addresses="\n".join(map(_row, addresses.items())),
        models=_models(models.data) if models is not None else _KEY_NEEDED,
        folder=f" in <code>{escape(str(folder))}</code>" if folder else "",
    )


def _engine(engine: Engine | None) -> str:
    if engine is None:
        return "none (models run by the configuration's commands)"
    return " ".join(part for part in (engine.name, engine.version, f"({engine.backend})") if part)


def _models(entries: Sequence[ListedModel]) -> str:
    if not entries:
        return "<p>There is no model yet.</p>"
    facts = [(entry.status.error or entry.source.replace("_", " ")).partition("\n")[0] for entry in entries]
    rows = [_row((entry.id, entry.status.value, fact)) for entry, fact in zip(entries, facts, strict=True)]
    return "\n".join(("<table>", *rows, "</table>"))


def _row(cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


class PageRoutes:
    """Answers GET and HEAD of the page's routes. ``status`` renders the page for browsers without script.

    That one is also at ``/`` in a checkout whose page was never built.
    """

    def __init__(self, settings: HttpSettings, status: Callable[[Request], str]) -> None:
        self._is_on = settings.page
        self._api_prefix = settings.api_prefix
        self._status = status
        self._built = (DIST / "index.html").is_file()

    async def answer(self, context: RequestContext) -> None:
        """Raises RouteNotFound."""
        request, sink = context.request, context.sink
        if not self._is_on:
            raise RouteNotFound(request.method, request.path)
        path = request.path.removesuffix("/")
        folder, _, name = path.rpartition("/")
        if path == f"{PAGE_PREFIX}status" or (path == "" and not self._built):
            await send_whole(sink, 200, STATUS_HEADERS, self._status(request).encode())
        elif path in _FILES:
            content_type, content = _FILES[path]
            headers = (b"Content-Type", content_type.encode()), (b"Cache-Control", b"no-cache"), NOSNIFF
            await send_whole(sink, 200, headers, content)
        elif not self._built:
            raise RouteNotFound(request.method, request.path)
        elif path == "" and self._api_prefix:  # the document's files are relative to it: it has one place only
            await send_whole(sink, 302, ((b"Location", f"{self._api_prefix}{PAGE_PREFIX}".encode()),))
        elif path == "":
            await self._send_document(context, b"./ui/assets/", b"./ui/status")
        elif f"{path}/" == PAGE_PREFIX:
            await self._send_document(context, b"./assets/", b"./status")
        elif path == f"{PAGE_PREFIX}sandbox":
            await _send(context, SANDBOX, "sandbox.html", "no-cache", SANDBOX_HEADERS)
        elif folder == f"{PAGE_PREFIX}assets":
            await self._send_asset(context, name)
        else:
            raise RouteNotFound(request.method, request.path)

    async def _send_document(self, context: RequestContext, assets: bytes, status: bytes) -> None:
        content = await _content(DIST / "index.html")
        content = content.replace(b"./assets/", assets).replace(b"./status", status)
        await _send(context, content, "index.html", "no-cache", HEADERS)

    async def _send_asset(self, context: RequestContext, name: str) -> None:
        path = DIST / "assets" / name
        if not _NAME.fullmatch(name) or not path.is_file():
            raise RouteNotFound(context.request.method, context.request.path)
        kept = "public, max-age=31536000, immutable" if _HASHED.fullmatch(name) else "no-cache"
        if accepts_gzip(context.request.header(b"accept-encoding") or "") and path.stat().st_size >= SMALLEST:
            packed = await trio.to_thread.run_sync(_compressed, path)
            await _send(context, packed, name, kept, ((b"Content-Encoding", b"gzip"),))
        else:
            await _send(context, await _content(path), name, kept)


@cache
def _compressed(path: Path) -> bytes:
    return gzip.compress(path.read_bytes(), mtime=0)  # the same bytes at every start, because they make the ETag


async def _content(path: Path) -> bytes:
    return await trio.to_thread.run_sync(path.read_bytes)


async def _send(context: RequestContext, content: bytes, name: str, kept: str, more: Headers = ()) -> None:
    """Answer with ``content``, or with 304 for a client that has it."""
    tag = f'"{hashlib.sha256(content).hexdigest()[:24]}"'
    about = (
        (b"ETag", tag.encode()),
        (b"Cache-Control", kept.encode()),
        (b"Vary", b"Accept-Encoding"),
        NOSNIFF,
        *more,
    )
    if is_known(context.request.header(b"if-none-match"), tag):
        context.sink.start(304, about)
        await context.sink.end()
        return
    content_type = TYPES.get(Path(name).suffix, OTHER_TYPE).encode()
    await send_whole(context.sink, 200, ((b"Content-Type", content_type), *about), content)
