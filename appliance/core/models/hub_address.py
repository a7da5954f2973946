"""The meaning of a pasted text on the Hugging Face hub: a repository, and perhaps a revision, a folder, one file of it.

An address of a page that names a file means that file. One that names anything else is refused in words: a part of an
address that is passed over would fetch another file than the one that was copied.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qs, quote, unquote, urlsplit

from msgspec import Struct

from appliance.core.models.names import folder_of, repo_of, stem_of
from appliance.errors import BadRequest

HUB_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co", "www.hf.co")
ENDPOINT = "https://huggingface.co"
MAIN = "main"
OTHER_KINDS = ("datasets", "spaces", "collections", "papers", "docs", "blog", "api", "organizations", "posts")
"""First parts of pages that do not belong to a model."""
FILE_VIEWS = ("blob", "resolve", "raw", "blame", "edit")
"""Pages and downloads of one file: ``/ORG/REPO/<view>/REVISION/FILE``."""
SHOWN_FILE = "show_file_info"
"""The query by which the page of a repository shows one file."""
_HOST = re.compile(
    r"([A-Za-z0-9-]+\.)+[A-Za-z]{2,}(:[0-9]+)?|[0-9]+(\.[0-9]+){3}(:[0-9]+)?|localhost(:[0-9]+)?|\[.*\](:[0-9]+)?"
)
"""The beginning of a text that names a server; an organisation has no dots."""


class HubAddress(Struct, frozen=True):
    """A repository, the tag as it is written behind a colon, and the rest that an address names."""

    repo: str
    tag: str | None = None
    revision: str = MAIN
    file: str = ""
    folder: str = ""


class HubAccess(Struct, frozen=True, kw_only=True):
    """The hub and the user. The token goes to the endpoint's own host and port, and nowhere else."""

    endpoint: str = ENDPOINT
    token: str | None = None
    offline: bool = False


def read_address(text: str, endpoint: str = "") -> HubAddress:
    """Read ``org/repo``, ``org/repo:TAG``, ``org/repo/FILE.gguf`` or an address of the hub or of its mirror at
    ``endpoint``. Raises BadRequest.
    """
    rest = text.strip()
    scheme, there, behind = rest.partition("://")
    mirror = urlsplit(endpoint)
    first = rest.partition("/")[0].lower()
    if there and scheme.lower() not in ("http", "https"):
        raise _refused(text, f"begins with {scheme}://; an address begins with https://")
    if there or first.partition(":")[0] in HUB_HOSTS or (mirror.netloc and first == mirror.netloc.lower()):
        return _of_address(text, behind if there else rest, mirror.netloc.lower(), mirror.path)
    parts = rest.split("/")
    if len(parts) > 2 and _HOST.fullmatch(parts[0]):
        raise _elsewhere(text, parts[0])
    if len(parts) == 1 or any(part in ("", ".", "..") for part in parts):
        raise _refused(text, "does not name a repository")
    if len(parts) == 2:
        return _repository(text, rest)
    return _file(text, HubAddress("/".join(parts[:2])), "/".join(parts[2:]))


def address_of_page(found: HubAddress) -> str:
    """Return the address that `read_address` reads as this one; without its tag."""
    view = "resolve" if found.file else "tree"
    path = quote(found.file or found.folder)
    return f"https://{HUB_HOSTS[0]}/{found.repo}/{view}/{quote(found.revision, safe='')}{'/' if path else ''}{path}"


def _of_address(text: str, rest: str, mirror: str, below: str) -> HubAddress:
    try:
        url = urlsplit(f"https://{rest}")
        host, port = url.hostname or "", url.port
    except ValueError:
        raise _refused(text, "is not an address") from None
    if url.username is not None:
        raise BadRequest(
            "the address holds a user name or password, which is never sent; set HF_TOKEN, and leave it out",
            param="model",
        )
    path = url.path
    if url.netloc.lower() == mirror:
        path = path.removeprefix(below)
    elif host.removesuffix(".") not in HUB_HOSTS or port not in (None, 80, 443):
        raise _elsewhere(text, url.netloc)
    try:
        parts = [unquote(part, errors="strict") for part in path.split("/") if part]
    except UnicodeDecodeError:
        raise _refused(text, "holds bytes after a % that are not text") from None
    if parts and parts[0] == "models":
        parts = parts[1:]
    if parts and parts[0] in OTHER_KINDS:
        raise _refused(text, f"is a page of {parts[0]}, not of a model")
    if len(parts) < 2:
        raise _refused(text, "does not name a repository")
    found = _repository(text, "/".join(parts[:2]))
    if shown := parse_qs(url.query).get(SHOWN_FILE):
        found = _file(text, found, shown[-1])
    return _of_view(text, found, parts[2:]) if len(parts) > 2 else found


def _of_view(text: str, found: HubAddress, parts: list[str]) -> HubAddress:
    view, parts = parts[0], parts[1:]
    if view not in (*FILE_VIEWS, "tree"):
        raise _refused(text, f"is the page /{view} of {found.repo}; a file's page has /blob/ or /resolve/")
    if found.tag is not None:
        raise _refused(text, "names both a tag and a page of the repository")
    # A reference of three words is one part where its slashes are quoted, as the hub itself writes them.
    count = 3 if parts[0:1] == ["refs"] else 1
    if len(parts) < count or any(part in (".", "..") for part in parts):
        raise _refused(text, f"names no revision behind /{view}/")
    revision, path = "/".join(parts[:count]), "/".join(parts[count:])
    if view == "tree":
        return HubAddress(found.repo, None, revision, found.file, "" if found.file else path)
    if not path:
        raise _refused(text, f"names no file behind /{view}/{revision}/")
    return _file(text, HubAddress(found.repo, None, revision), path)


def _file(text: str, found: HubAddress, path: str) -> HubAddress:
    if stem_of(path.rpartition("/")[2]) is None or any(part in ("", ".", "..") for part in path.split("/")):
        raise _refused(text, f"names {path!r}, which is not a GGUF file")
    if found.tag is not None:
        raise _refused(text, "names both a tag and a file")
    return HubAddress(found.repo, None, found.revision, path)


def _repository(text: str, name: str) -> HubAddress:
    repo, colon, tag = name.partition(":")
    if repo_of(folder_of(repo)) != repo:
        raise _refused(text, "does not name a repository")
    return HubAddress(repo, tag if colon else None)


def _elsewhere(text: str, host: str) -> BadRequest:
    return _refused(
        text,
        f"is at {host.rpartition('@')[2]}, not on the Hugging Face hub (a mirror of it is named in HF_ENDPOINT; a file "
        "from elsewhere is downloaded by 'llama-appliance llama-server --model-url ADDRESS')",
    )


def _refused(text: str, why: str) -> BadRequest:
    shown = re.sub(r"//[^/@]*@", "//...@", text)[:300]
    return BadRequest(
        f"{shown!r} {why}; write org/repo or org/repo:TAG, such as ggml-org/gemma-3-4b-it-GGUF:Q4_K_M, "
        "or the address of a .gguf file on the hub",
        param="model",
    )
