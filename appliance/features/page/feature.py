"""The sign-in of the feature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from appliance.feature import Feature

if TYPE_CHECKING:
    from appliance.features.page.edge import PageEdge
    from appliance.http.kernel import EdgeRoute, FilesInPlace, Get, Kernel
    from appliance.http.route_facts import DescribedRoute


def _edge(kernel: Kernel) -> EdgeRoute:
    from appliance.http.late import LateRoute
    from appliance.traffic.request import PAGE_PATHS, PAGE_PREFIX, Request

    def is_page(request: Request) -> bool:
        plain = request.path.removesuffix("/")
        found = request.path in PAGE_PATHS or plain in PAGE_PATHS or f"{plain}/".startswith(PAGE_PREFIX)
        return found and request.method in ("GET", "HEAD")

    def make() -> PageEdge:
        from appliance.features.page.edge import PageEdge

        return PageEdge(kernel)

    return LateRoute(is_page, make)


def _icon(_: Kernel) -> Get:
    from appliance.features.page.edge import show_icon

    return show_icon


def _models(_: Kernel) -> Get:
    from appliance.features.page.edge import show_models

    return show_models


def _files(kernel: Kernel) -> FilesInPlace | None:
    if kernel.settings.static is None:
        return None
    from appliance.features.page.static_files import StaticFiles

    return StaticFiles(kernel.settings.static)


def _described() -> Sequence[DescribedRoute]:
    from appliance.http.route_facts import DescribedRoute
    from appliance.traffic.request import PAGE_PATHS, PAGE_PREFIX

    below = (PAGE_PREFIX, f"{PAGE_PREFIX}sandbox", f"{PAGE_PREFIX}status", f"{PAGE_PREFIX}assets/<name>")
    return [DescribedRoute("GET", path, says="A file of the page.") for path in (*sorted(PAGE_PATHS), *below)]


PAGE = Feature(
    name="page", edges=(_edge,), gets={"/favicon.ico": _icon, "/upstream": _models}, described=_described, files=_files
)
