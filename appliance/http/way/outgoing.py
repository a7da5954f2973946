"""The request as a model's server gets it: path, headers, and body with the configuration's edits."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct, structs

from appliance.core.bodies import head as heads
from appliance.core.bodies.filters import Edits, rewrite_field, rewrite_urlencoded
from appliance.core.bodies.head import RequestHead
from appliance.core.headers import without
from appliance.core.models.model import Model
from appliance.traffic.request import Headers, Request
from appliance.upstream.address import OWN_TO_THIS_HOP, Address

FORM = "application/x-www-form-urlencoded"
CREDENTIALS = (b"authorization", b"x-api-key")
FORWARDED_FOR = b"x-forwarded-for"
CONVERSATION = b"x-conversation-id"
IDENTITY = b"x-appliance-identity"
"""Identity of the one model that may answer (`core.models.identity`), from another box of the pool."""
_NOT_FOR_MODELS = OWN_TO_THIS_HOP | {CONVERSATION, IDENTITY}
"""With the id of a conversation, llama-server would go on when this program hangs up."""


_UNTELLABLE, _MOST = re.compile("[^ -~]"), 4000


class Format(Struct, frozen=True):
    """The format of a body: JSON, unless it is a form."""

    boundary: bytes | None = None
    """The boundary of a multipart form; None for any other body."""
    urlencoded: bool = False


JSON = Format()


def format_of(request: Request, body: bytes) -> Format:
    """A JSON object or array is one, whatever its type says: ``curl -d`` calls it a form. Raises BadRequest."""
    content_type = request.header(b"content-type")
    if content_type is None or content_type == "application/json":
        return JSON
    boundary = heads.multipart_boundary(content_type)
    if boundary is not None:
        return Format(boundary)
    return Format(urlencoded=content_type.lower().startswith(FORM) and not heads.is_container(body))


def head_of(form: Format, body: bytes) -> RequestHead:
    """Raises BadRequest."""
    if form.boundary is not None:
        return heads.read_multipart(body, form.boundary)
    return heads.read_form(body) if form.urlencoded else heads.read_json(body)


def edited(form: Format, body: bytes, edits: Edits, requested: str, model: str | None = None) -> bytes:
    """The body to send; the very same bytes where nothing is to be changed. ``model``: see `Edits`."""
    if not body:
        return body
    if form.boundary is None and not form.urlencoded:
        return edits.apply(body, requested, model=model) if edits.touches(requested, model=model) else body
    name = edits.sent_model(model)
    if name is None:
        return body
    if form.boundary is not None:
        return rewrite_field(body, form.boundary, "model", name)
    return rewrite_urlencoded(body, "model", name)


def renamed(path: str, name: str | None) -> str:
    """A path and query whose ``model``, where it has one, is this name, if there is one to send."""
    raw, _, query = path.partition("?")
    if name is None or not query or heads.read_query(query.encode()).get("model", name) == name:
        return path
    return f"{raw}?{rewrite_urlencoded(query.encode(), 'model', name).decode()}"


def reached(address: Address, model: Model, request: Request) -> Address:
    """A configured server gets the Host that the client asked for, as llama-swap does; an engine gets its own."""
    if model.config is None or (host := request.header(b"host")) is None:
        return address
    return structs.replace(address, host_header=host.encode("latin-1"))


def sent_headers(request: Request, model: Model, *, keys_are_ours: bool) -> list[tuple[bytes, bytes]]:
    """Headers for a model's process.

    A configured server also learns who asks, gets back the cookies that it gave out (it may have pages of its own),
    and gets the client's credentials where this program asks for none: they can then only be meant for it.
    """
    if model.config is None:
        return without(request.headers, _NOT_FOR_MODELS)
    wanted = (b"cookie",) if keys_are_ours else (*CREDENTIALS, b"cookie")
    headers: list[tuple[bytes, bytes]] = []
    given: list[tuple[bytes, bytes]] = []
    chain: list[bytes] = []
    for header in request.headers:
        name = header[0].lower()
        if name == FORWARDED_FOR:
            chain.append(header[1])
        elif name not in _NOT_FOR_MODELS:
            headers.append(header)
        elif name in wanted:
            given.append(header)
    if request.peer:
        chain.append(request.peer.encode("latin-1"))
    if chain:
        headers.append((b"X-Forwarded-For", b", ".join(chain)))
    return headers + given


def ignored(names: Sequence[str]) -> Headers:
    """Return the header that tells a client which parts of its request have no effect; none where all have one.

    The client has written some of the names.
    """
    told = _UNTELLABLE.sub("?", ", ".join(names))[:_MOST]
    return ((b"X-Appliance-Ignored", told.encode()),) if told else ()
