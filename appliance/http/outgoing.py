"""What of a request reaches a model's server: its path, its headers, its body with the configuration's edits."""

from __future__ import annotations

from msgspec import structs

from appliance.core import head as heads
from appliance.core.filters import Edits
from appliance.core.form_edit import rewrite_field, rewrite_urlencoded
from appliance.core.model import Model
from appliance.http.request import Request
from appliance.upstream.client import Address, forwardable

FORM = "application/x-www-form-urlencoded"
CREDENTIALS = (b"authorization", b"x-api-key")


def edited(request: Request, body: bytes, edits: Edits, requested: str, model: str | None = None) -> bytes:
    """The body to send; the very same bytes where nothing is to be changed. ``model``: see `Edits`."""
    if not body:
        return body
    content_type = request.header(b"content-type") or ""
    boundary = heads.multipart_boundary(content_type)
    if boundary is None and not content_type.lower().startswith(FORM):
        return edits.apply(body, requested, model=model) if edits.touches(requested, model=model) else body
    name = edits.sent_model(model)
    if name is None:
        return body
    return rewrite_urlencoded(body, "model", name) if boundary is None else rewrite_field(body, boundary, "model", name)


def reached(address: Address, model: Model, request: Request) -> Address:
    """A configured server is told the Host that the client asked for, as llama-swap does; an engine its own."""
    host = request.header(b"host")
    if model.config is None or host is None:
        return address
    return structs.replace(address, host_header=host.encode("latin-1"))


def sent_headers(request: Request, model: Model, *, keys_are_ours: bool) -> list[tuple[bytes, bytes]]:
    """Headers for a model's process.

    A configured server also learns who asks, and gets the client's credentials where this program asks for none: they
    can then only be meant for it.
    """
    headers = forwardable(request.headers)
    if model.config is None:
        return headers
    chain = [value for name, value in headers if name.lower() == b"x-forwarded-for"]
    headers = [(name, value) for name, value in headers if name.lower() != b"x-forwarded-for"]
    if request.peer:
        chain.append(request.peer.encode("latin-1"))
    if chain:
        headers.append((b"X-Forwarded-For", b", ".join(chain)))
    if not keys_are_ours:
        headers += [(name, value) for name, value in request.headers if name.lower() in CREDENTIALS]
    return headers
