"""Files that browsers ask for beside the page: manifest, version, and a service worker that only removes itself.

llama-server's own page has the same addresses and leaves a service worker with the browser, which would go on showing
that page when another server has taken over its address. Browsers look for a newer worker there; they find this one.
"""

from __future__ import annotations

import msgspec
from quart import Response
from quart_trio import QuartTrio

from appliance import __version__
from appliance.errors import RouteNotFound
from appliance.traffic.request import MANIFEST, PAGE_VERSION, WORKER

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
