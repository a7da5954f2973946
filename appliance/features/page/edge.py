"""The routes of the page, answered without Quart, by a module that only a server with a browser imports."""

from __future__ import annotations

from appliance.features.page.page import PageRoutes, render
from appliance.http.bytes.listening import shown
from appliance.http.control.listing import View, list_models
from appliance.http.kernel import Kernel
from appliance.http.way.context import RequestContext
from appliance.traffic.request import Request, send_whole

ICON = (
    b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" rx="4" fill="#3156d3"/>'
    b'<path d="M5 3v10h6" fill="none" stroke="#fff" stroke-width="2"/></svg>'
)


class PageEdge:
    """Made when it is first asked for: it has a template, and a table of HTML's names."""

    def __init__(self, kernel: Kernel) -> None:
        owners, edge = kernel.owners, kernel.edge
        self._view = View(owners.fleet, owners.catalog, owners.peers, edge.traffic.profile)
        self._edge = edge
        self._supply = owners.supply
        self._page = PageRoutes(edge.settings, self._status)

    async def answer(self, context: RequestContext) -> None:
        """Raises RouteNotFound and ClientLeft."""
        await self._page.answer(context)

    def _status(self, request: Request) -> str:
        models, folder, settings, bound = None, None, self._edge.settings, self._edge.bound
        if self._edge.guard.knows(request):
            models = list_models(self._view, self._supply.snapshot())
            folder = self._view.catalog.sources.models_dir
        scheme = "https" if settings.tls is not None else "http"
        base = f"{scheme}://{request.header(b'host') or shown(bound[0])}{settings.api_prefix}"
        return render(base, bound, self._view.fleet.launches.engine, models, folder)


async def show_icon(context: RequestContext) -> None:
    headers = (b"Content-Type", b"image/svg+xml"), (b"Cache-Control", b"max-age=86400")
    await send_whole(context.sink, 200, headers, ICON)


async def show_models(context: RequestContext) -> None:
    """The list of models is on the page. The place is relative, so that it also holds under a path prefix."""
    headers = (b"Content-Type", b"text/plain; charset=utf-8"), (b"Location", b"ui/")
    await send_whole(context.sink, 302, headers)
