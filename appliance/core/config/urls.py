"""The value of ``proxy``: an absolute http or https URL without query."""

from __future__ import annotations

from urllib.parse import urlsplit


def why_no_base_url(text: str) -> str | None:
    """Return the mistake in a base URL; None if requests can be sent there."""
    if not text:
        return "is empty"
    if any(char.isspace() or ord(char) < 32 for char in text):
        return f"'{text}' has a space in it"
    try:
        url = urlsplit(text)
        host, port = url.hostname, url.port
    except ValueError as error:
        return f"'{text}' is not a URL ({error})"
    if url.scheme not in ("http", "https"):
        return f"'{text}' does not begin with http:// or https://"
    if not host or port == 0:
        return f"'{text}' names no {'port' if host else 'host'}"
    return None
