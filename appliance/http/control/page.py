"""The page: its built document at ``/`` and ``/ui/``, hashed files below ``/ui/assets/`` (see ``web/build.mjs``), the
page for browsers without script at ``/ui/status``, and the files that browsers ask for beside it.

No file is compressed here; each has its brotli and gzip copies beside it. Browsers ask for brotli only over HTTPS.
llama-server's page leaves a service worker with the browser, which would go on showing that page when another server
has taken over its address. Browsers look for a newer worker there, and find one that only removes itself.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

import msgspec
import trio
from msgspec import Struct
from quart import Response, redirect, request
from quart_trio import QuartTrio
from werkzeug.wrappers import Response as Redirection

from appliance import __version__
from appliance.core.settings import Listen
from appliance.engines.found import Engine
from appliance.errors import RouteNotFound
from appliance.http.bytes.listening import shown
from appliance.http.control.listing import Object
from appliance.http.control.static_files import OTHER_TYPE, TYPES
from appliance.traffic.request import MANIFEST, PAGE_PREFIX, PAGE_VERSION, WORKER

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


def add_page_files(app: QuartTrio, *, page: bool) -> None:
    """Register them; without the page they are not there either."""

    async def answer(path: str) -> Response:
        if not page:
            raise RouteNotFound("GET", path)
        content_type, content = _FILES[path]
        response = Response(content, content_type=content_type)
        response.headers["Cache-Control"] = "no-cache"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    for path in _FILES:
        app.add_url_rule(path, f"page {path}", answer, defaults={"path": path})


CONTENT_TYPE = "text/html; charset=utf-8"

STYLE = """
:root { color-scheme: light dark; --ink: #1c1f23; --soft: #5d6570; --line: #dfe3e8; --card: #fff; --ground: #f5f6f8;
  --accent: #3156d3; --good: #19803c; --busy: #a15c00; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7e9ec; --soft: #9aa3ad; --line: #2c3138; --card: #1b1f24;
  --ground: #121519; --accent: #8fa8ff; --good: #5fcf86; --busy: #f0b357; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 54rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; margin: 0; letter-spacing: -.01em; }
h2 { font-size: 1.05rem; margin: 0 0 .75rem; }
p { margin: .4rem 0; }
.soft { color: var(--soft); }
section { background: var(--card); border: 1px solid var(--line); border-radius: .75rem; padding: 1.25rem 1.4rem;
  margin-top: 1.25rem; overflow-x: auto; }
code, pre { font: .875rem/1.5 ui-monospace, SFMono-Regular, Consolas, monospace; }
pre { background: var(--ground); border: 1px solid var(--line); border-radius: .5rem; padding: .8rem 1rem;
  overflow-x: auto; margin: .6rem 0 0; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .45rem .9rem .45rem 0; border-top: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; color: var(--soft); font-size: .85rem; border-top: 0; }
td.key { color: var(--soft); white-space: nowrap; width: 1%; }
.state::before { content: "\\25cf"; margin-right: .4em; color: var(--soft); }
.loaded::before, .sleeping::before { color: var(--good); }
.loading::before { color: var(--busy); }
.failed::before { color: var(--bad); }
.failed { color: var(--bad); }
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
<main>
<h1>Llama Appliance</h1>
<p class="soft">Version $version, engine $engine. Everything here stays on this machine.</p>
<section>
<h2>Addresses</h2>
<table>
$addresses
</table>
</section>
<section>
<h2>Models</h2>
$models
</section>
<section>
<h2>Try it</h2>
<pre>curl $base/v1/chat/completions \\
  -H "Content-Type: application/json" \\
  -d '{"model": "$example", "messages": [{"role": "user", "content": "Hello!"}]}'</pre>
</section>
<section>
<h2>Add a model</h2>
<p>Put a <code>.gguf</code> file into the models folder$folder, or name one when you start the server:
<code>llama-appliance serve --model FILE</code>. Models in the Hugging Face cache are found without
that.</p>
<p class="soft">A running server sees new files by itself.</p>
</section>
</main>
</body>
</html>
"""
)


class _Told(Struct):
    value: str
    error: str | None = None


class _Entry(Struct):
    id: str
    status: _Told
    source: str


class _List(Struct):
    data: list[_Entry]


def render(
    base: str, bound: Sequence[Listen], engine: Engine | None, models: Object | None, folder: Path | None
) -> str:
    """``base`` is the address the visitor used. Strangers see neither the ``models`` nor their folder."""
    entries = msgspec.convert(models, _List).data if models is not None else []
    loaded = [entry.id for entry in entries if entry.status.value == "loaded"]
    usable = [entry.id for entry in entries if entry.status.error is None]
    listening = ", ".join(map(shown, bound))
    addresses = {
        "This page": f"{base}/",
        "OpenAI base URL": f"{base}/v1",
        "Anthropic base URL": base,
        "llama.cpp base URL": base,
        "Listening on": listening,
    }
    return _PAGE.substitute(
        style=STYLE,
        version=escape(__version__),
        engine=escape(_engine(engine)),
        addresses="\n".join(map(_row, addresses.items())),
        models=_models(entries) if models is not None else _KEY_NEEDED,
        folder=f" <code>{escape(str(folder))}</code>" if folder else "",
        base=escape(base),
        example=escape((loaded or usable or ["MODEL"])[0]),
    )


def _engine(engine: Engine | None) -> str:
    if engine is None:
        return "none (models run by the configuration's commands)"
    return " ".join(part for part in (engine.name, engine.version, f"({engine.backend})") if part)


_KEY_NEEDED = '<p class="soft">This server needs an API key; with it, <code>GET /v1/models</code> lists the models.</p>'


def _row(item: tuple[str, str]) -> str:
    return f'<tr><td class="key">{escape(item[0])}</td><td><code>{escape(item[1])}</code></td></tr>'


def _models(entries: Sequence[_Entry]) -> str:
    if not entries:
        return '<p class="soft">There is no model yet.</p>'
    rows = "\n".join(map(_model, entries))
    return f"<table>\n<tr><th>Model</th><th>State</th><th>Found in</th></tr>\n{rows}\n</table>"


def _model(entry: _Entry) -> str:
    error = entry.status.error
    kind = "failed" if error else entry.status.value
    first_line = escape(error.splitlines()[0]) if error else escape(entry.status.value)
    return (
        f'<tr><td><code>{escape(entry.id)}</code></td><td class="state {escape(kind)}">{first_line}</td>'
        f'<td class="soft">{escape(entry.source.replace("_", " "))}</td></tr>'
    )


DIST = Path(__file__).parents[2] / "web" / "dist"
BUNDLE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src 'self' data: blob:; font-src 'self'; connect-src 'self'; frame-src 'self'; manifest-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""No inline script or style, and nothing from another origin: what a model writes can fetch nothing."""
HEADERS = {
    "Content-Security-Policy": BUNDLE_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-DNS-Prefetch-Control": "off",
}
_RECEIVER = """\
addEventListener("message", (event) => {
  if (event.source !== parent || parent === window) return;
  const received = new DOMParser().parseFromString(event.data, "text/html");
  document.replaceChild(document.adoptNode(received.documentElement), document.documentElement);
});
"""
SANDBOX = f'<!doctype html><meta charset="utf-8"><title>Preview</title><script>{_RECEIVER}</script>'.encode()
SANDBOX_HEADERS = {
    "Content-Security-Policy": "sandbox allow-scripts; default-src 'none'; script-src "
    f"'sha256-{base64.b64encode(hashlib.sha256(_RECEIVER.encode()).digest()).decode()}'; style-src 'unsafe-inline'; "
    "img-src data:; media-src data:; font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "Permissions-Policy": "microphone=(), camera=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-DNS-Prefetch-Control": "off",
}
"""The document in which the page shows HTML of a model: an origin of its own, in which no script runs but the one that
takes the HTML. A policy cannot keep a script from the network: WebRTC is outside of it, and Chromium connects for a
navigation before the policy refuses that.
"""
_ENCODINGS = (("br", ".br"), ("gzip", ".gz"))
_HASHED = re.compile(r".+-[\w-]{8}\.\w+")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


class PageBundle:
    """Every method is one route. ``present`` is False in a checkout whose page was never built."""

    def __init__(self, api_prefix: str) -> None:
        self._api_prefix = api_prefix
        self.present = (DIST / "index.html").is_file()

    async def root(self) -> Response | Redirection:
        """The document at ``/``. Its files are relative to it, so behind an API prefix it has one place only."""
        if self._api_prefix:
            return redirect(f"{self._api_prefix}{PAGE_PREFIX}")
        return await self._document(b"./ui/assets/", b"./ui/status")

    async def below(self) -> Response:
        return await self._document(b"./assets/", b"./status")

    async def asset(self, name: str) -> Response:
        """Raises RouteNotFound."""
        path = DIST / "assets" / name
        if not _NAME.fullmatch(name) or name.endswith((".br", ".gz")) or not path.is_file():
            raise RouteNotFound(request.method, request.path)
        kept = "public, max-age=31536000, immutable" if _HASHED.fullmatch(name) else "no-cache"
        for encoding, suffix in _ENCODINGS:
            packed = path.with_name(name + suffix)
            if request.accept_encodings[encoding] and packed.is_file():
                response = _answer(await _content(packed), name, kept)
                response.headers["Content-Encoding"] = encoding
                return response
        return _answer(await _content(path), name, kept)

    async def sandbox(self) -> Response:
        response = _answer(SANDBOX, "sandbox.html", "no-cache")
        response.headers.update(SANDBOX_HEADERS)
        return response

    async def _document(self, assets: bytes, status: bytes) -> Response:
        content = await _content(DIST / "index.html")
        content = content.replace(b"./assets/", assets).replace(b"./status", status)
        response = _answer(content, "index.html", "no-cache")
        response.headers.update(HEADERS)
        return response


async def _content(path: Path) -> bytes:
    return await trio.to_thread.run_sync(path.read_bytes)


def _answer(content: bytes, name: str, kept: str) -> Response:
    """``content``, or 304 for a client that has it."""
    tag = f'"{hashlib.sha256(content).hexdigest()[:24]}"'
    if request.if_none_match.contains_weak(tag.strip('"')):
        response = Response("", 304)
    else:
        response = Response(content, content_type=TYPES.get(Path(name).suffix, OTHER_TYPE))
    response.headers["ETag"] = tag
    response.headers["Cache-Control"] = kept
    response.headers["Vary"] = "Accept-Encoding"
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


def add_page_bundle(app: QuartTrio, bundle: PageBundle) -> None:
    """Register everything here on the program's application."""
    app.add_url_rule("/", "page /", bundle.root)
    app.add_url_rule(PAGE_PREFIX, "page /ui/", bundle.below)
    app.add_url_rule(f"{PAGE_PREFIX}assets/<name>", "page asset", bundle.asset)
    app.add_url_rule(f"{PAGE_PREFIX}sandbox", "page sandbox", bundle.sandbox)
