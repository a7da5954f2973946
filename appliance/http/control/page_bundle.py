"""The built page: its document at ``/`` and ``/ui/``, its hashed files below ``/ui/assets/``; see ``web/build.mjs``.

No file is compressed here; each has its brotli and gzip copies beside it. Browsers ask for brotli only over HTTPS.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import trio
from quart import Response, redirect, request
from quart_trio import QuartTrio
from werkzeug.wrappers import Response as Redirection

from appliance.errors import RouteNotFound
from appliance.http.control.static_files import OTHER_TYPE, TYPES
from appliance.traffic.request import PAGE_PREFIX

DIST = Path(__file__).parents[2] / "web" / "dist"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src 'self' data: blob:; font-src 'self'; connect-src 'self'; frame-src 'self'; manifest-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""No inline script or style, and nothing from another origin: what a model writes can fetch nothing."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_ENCODINGS = (("br", ".br"), ("gzip", ".gz"))
_HASHED = re.compile(r".+-[\w-]{8}\.\w+")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


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
