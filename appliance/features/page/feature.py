"""The sign-in of the feature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from appliance.feature import Feature

if TYPE_CHECKING:
    from appliance.http.kernel import EdgeRoute, FilesInPlace, Get, Kernel


def _edge(kernel: Kernel) -> EdgeRoute:
    from appliance.features.page.edge import PageEdge

    return PageEdge(kernel)


def _gets(_: Kernel) -> Mapping[str, Get]:
    from appliance.features.page.edge import show_icon, show_models

    return {"/favicon.ico": show_icon, "/upstream": show_models}


def _files(kernel: Kernel) -> FilesInPlace | None:
    if kernel.settings.static is None:
        return None
    from appliance.features.page.static_files import StaticFiles

    return StaticFiles(kernel.settings.static)


PAGE = Feature(name="page", edges=(_edge,), gets=_gets, files=_files)
