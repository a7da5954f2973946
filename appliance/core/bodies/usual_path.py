"""Paths as clients build them from a base address that has a slash, or a ``/v1``, too many.

A base address is typed by hand: ``http://box:8080/``, ``http://box:8080/v1`` for a client that adds ``/v1`` itself, or
one of Ollama's that adds ``/api``. The rest of the path is the client's own code, and so is right.
"""

from __future__ import annotations

import re

PASSED = ("/upstream/", "/comfyui/", "/ui/")
"""Below these a path belongs to another server or to the page, and stays as it is."""
_BASE = re.compile(r"/+(?:v1/+(?=(?:v1|api)(?:/|$)))?(?:(v1|api)/+(?=.))?")


def usual_path(raw: str) -> str:
    """Return the path that is meant: one slash where several begin it or its version, one version, none at the end."""
    base = _BASE.match(raw)
    if base is None:  # empty, or no path
        return raw
    path = f"/{base[1]}/{raw[base.end() :]}" if base[1] else f"/{raw[base.end() :]}"
    return path if path.startswith(PASSED) else path.rstrip("/") or "/"
