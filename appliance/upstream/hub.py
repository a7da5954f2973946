"""A server of files, as the Hugging Face hub is one: requests that follow redirects, and the meaning of refusals.

huggingface_hub (2.4) finds the token, so that ``hf auth login`` works. The rest is ours: the library begins an
interrupted download anew, checks no hash, runs in a thread that cannot be cancelled, and costs the server 22 MB
(measured). A proxy of the network is used.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from urllib.parse import quote, urljoin, urlsplit

import trio
from msgspec import Struct

from appliance import __version__
from appliance.core.config.types import Timeouts
from appliance.core.models.hub_address import ENDPOINT, HubAccess
from appliance.core.models.transfer import asked_to_wait, is_passing, retry_after
from appliance.core.whole_numbers import whole_number
from appliance.errors import ApplianceError, Forbidden, NotFound, PeerFailed, UpstreamFailed, UsageError
from appliance.upstream.address import Address, address_of
from appliance.upstream.client import HttpAnswer, HttpCall

TIMEOUTS = Timeouts(connect=20, tls_handshake=20, response_header=60)
STALL = 60.0  # seconds after which a silent connection is given up
MAX_REDIRECTS = 8
MAX_ANSWER = 32 << 20
SAFE = "/%:@!$&'()*+,;=~-._?"
BUSY = (429, 503)
TRUE = ("1", "on", "yes", "true")

LOG_IN = "set HF_TOKEN to a token with access, or log in with 'hf auth login'"


class HubFailed(PeerFailed):
    """The hub, or a server that it sent us to, could not be reached or answered nonsense.

    ``passing``: the same request may succeed later, after ``retry_after`` seconds if the server said so. ``busy``: it
    answers that it has too much to do.
    """

    reason = "hub_failed"

    def __init__(self, host: str, why: str, *, passing: bool = True, retry_after: float | None = None) -> None:
        super().__init__(host, why)
        self.message, self.why = f"the model hub at {host} failed: {why}", why
        self.passing = passing
        self.retry_after = retry_after
        self.busy = False


class RepoChanged(HubFailed):
    """A listed file is not there any more: somebody has changed the repository. A new list will do."""

    reason = "repository_changed"

    def __init__(self, repo: str, host: str) -> None:
        super().__init__(host, f"{repo} has changed since its files were listed", passing=False)
        self.message = f"{self.why} by {host}; download it again"


class RepoNotFound(NotFound):
    """The repository is missing or private; the hub does not say which without a token."""

    reason = "repository_not_found"

    def __init__(self, repo: str, host: str, *, token: bool) -> None:
        private = "the token in use has no access" if token else LOG_IN
        super().__init__(
            f"there is no repository {repo} on {host}; check how it is written, and if it is private: {private}"
        )


class GatedRepo(Forbidden):
    """The repository's owner wants to know the users who download."""

    reason = "repository_gated"

    def __init__(self, repo: str, page: str, *, token: bool) -> None:
        then = "then download again" if token else LOG_IN
        super().__init__(f"{repo} is gated: open {page}, accept its terms, {then}")


class TokenRefused(Forbidden):
    """The hub does not accept the token."""

    reason = "hub_token_refused"

    def __init__(self, host: str) -> None:
        super().__init__(f"{host} does not accept the token in use; renew it with 'hf auth login', or correct HF_TOKEN")


class LoginUnusable(Forbidden):
    """huggingface_hub cannot make a token of a stored login."""

    reason = "hub_login_unusable"

    def __init__(self, why: str) -> None:
        super().__init__(f"the stored Hugging Face login cannot be used ({why}); log in again with 'hf auth login'")


class DownloadsOff(Forbidden):
    """Offline mode."""

    reason = "offline"

    def __init__(self) -> None:
        super().__init__("downloads are switched off (HF_HUB_OFFLINE, or --offline); switch them on, or copy the file")


def hub_access(environ: Mapping[str, str], *, token: str | None = None, offline: bool = False) -> HubAccess:
    """Read llama-server's and huggingface_hub's variables; ``token`` goes first. Raises UsageError for an endpoint."""
    endpoint = environ.get("MODEL_ENDPOINT") or environ.get("HF_ENDPOINT") or ENDPOINT
    _at(endpoint)
    off = (environ.get("HF_HUB_OFFLINE") or environ.get("TRANSFORMERS_OFFLINE") or "").lower() in TRUE
    return HubAccess(endpoint=endpoint.rstrip("/"), token=token, offline=offline or off)


async def find_token() -> str | None:
    """Return the user's token: HF_TOKEN, or the one that ``hf auth login`` has stored. None without one, or if none is
    wanted.

    Raises LoginUnusable for one that must be renewed and cannot be.
    """

    def find() -> str | None:
        from huggingface_hub.utils import get_token  # 11 MB and 90 ms that only a download needs

        try:
            return get_token()
        except Exception as error:  # it may ask servers, and its errors have no root in common
            raise LoginUnusable(str(error).partition("\n")[0]) from error

    if os.environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").lower() in TRUE:
        return None
    return await trio.to_thread.run_sync(find, abandon_on_cancel=True)


class HubAnswer(Struct, frozen=True):
    """An answer that is not a redirect. ``headers`` have lower-case names."""

    status: int
    host: str
    headers: dict[bytes, bytes]
    response: HttpAnswer
    failed: type[HubFailed] = HubFailed
    on_received: Callable[[int], None] = lambda _: None
    relay: str = ""  # the proxy that may have given the answer itself

    @property
    def size(self) -> int | None:
        """Bytes of the file that was asked for; None if the headers lack it."""
        text = self.headers.get(b"x-linked-size") or self.headers.get(b"content-length") or b""
        return whole_number(text)

    async def receive(self) -> bytes:
        """Return the next bytes, b"" at the end. Raises HubFailed."""
        try:
            with trio.fail_after(STALL):
                data = await self.response.receive()
        except trio.TooSlowError:
            raise self.failed(self.host, f"nothing came for {STALL:g} s") from None
        except UpstreamFailed as cause:
            raise self.failed(self.host, cause.why) from None
        self.on_received(len(data))
        return data


class Hub:
    """One hub for one user. All methods raise HubFailed, and the errors of `refusal`."""

    servers = 1

    def __init__(self, access: HubAccess) -> None:
        self._access = access
        self._origin = _origin(access.endpoint)
        self.host = self._origin[1]

    @asynccontextmanager
    async def open(
        self, method: str, url: str, headers: Sequence[tuple[bytes, bytes]] = (), *, stop_at_size: bool = False
    ) -> AsyncGenerator[HubAnswer]:
        """Send one request and follow redirects. With ``stop_at_size`` a redirect that reports the file's size is the
        answer.

        Statuses of 400 and more are also answers: see `refusal`.
        """
        for _ in range(MAX_REDIRECTS + 1):
            address, target = _at(url)
            own = [(b"User-Agent", f"llama-appliance/{__version__}".encode()), (b"Accept-Encoding", b"identity")]
            if self._access.token and _origin(url) == self._origin:
                own.append((b"Authorization", b"Bearer " + self._access.token.encode()))
            async with self._exchange(address, method, target, [*own, *headers]) as response:
                answer = HubAnswer(
                    response.status,
                    address.host,
                    {name.lower(): value for name, value in response.headers},
                    response,
                    relay=str(address.relayed or ""),
                )
                location = answer.headers.get(b"location")
                is_redirect = response.status in (301, 302, 303, 307, 308) and location is not None
                if not is_redirect or (stop_at_size and b"x-linked-size" in answer.headers):
                    yield answer
                    return
            url = self._redirected(url, location or b"")
        raise HubFailed(self.host, f"it redirected us more than {MAX_REDIRECTS} times", passing=False)

    @asynccontextmanager
    async def open_from(self, repo: str, url: str, have: int, size: int) -> AsyncGenerator[HubAnswer]:
        """Request the rest of a file behind its first ``have`` bytes; see `download_file.FileServer`."""
        async with self.open("GET", url, [(b"Range", b"bytes=%d-" % have)] if have else []) as answer:
            if answer.status not in (200, 206, 416):
                raise self.refusal(answer, repo)
            yield answer

    def doubt(self, url: str, times: int) -> bool:
        """Return whether to fetch a file again that came with wrong contents so many times: it may have changed."""
        return times < 2

    def refusal(self, answer: HubAnswer, repo: str) -> ApplianceError:
        """Return the meaning of a status of 400 and more, by the hub's own error codes if there are any."""
        code = answer.headers.get(b"x-error-code", b"").decode("latin-1")
        message = answer.headers.get(b"x-error-message", b"").decode("latin-1")
        token = self._access.token is not None
        own = answer.host == self._origin[1]
        if code == "GatedRepo":
            return GatedRepo(repo, f"{self._access.endpoint}/{repo}", token=token)
        if answer.status == 401 and token and "credential" in message.lower():
            return TokenRefused(answer.host)
        if code == "RepoNotFound" or (own and not code and answer.status in (401, 404)):
            return RepoNotFound(repo, self.host, token=token)
        if code in ("EntryNotFound", "RevisionNotFound") or (own and answer.status == 404):
            return RepoChanged(repo, self.host)
        if own and answer.status in (401, 403):
            return GatedRepo(repo, f"{self._access.endpoint}/{repo}", token=token)
        # A content server that refuses (an address that has expired) is asked again by a new address.
        passing = is_passing(answer.status) or not own
        why = f"it answered {answer.status}" + (f" ({message[:200]})" if message.isprintable() and message else "")
        why += f" through the proxy {answer.relay}" if answer.relay else ""
        now = time.time()
        asked = retry_after(answer.headers.get(b"retry-after"), now) if passing else None
        why += f", and {asked_to_wait(asked, now)}" if asked else ""
        failed = HubFailed(answer.host, why, passing=passing, retry_after=asked)
        failed.busy = answer.status in BUSY
        return failed

    async def _whole(self, answer: HubAnswer, repo: str) -> bytes:
        """Return the content of a good answer. Raises HubFailed, and the errors of `refusal`."""
        if answer.status != 200:
            raise self.refusal(answer, repo)
        body = bytearray()
        while data := await answer.receive():
            body += data
            if len(body) > MAX_ANSWER:
                raise HubFailed(answer.host, "its answer is too long", passing=False)
        return bytes(body)

    @asynccontextmanager
    async def _exchange(
        self, address: Address, method: str, target: str, headers: Sequence[tuple[bytes, bytes]]
    ) -> AsyncGenerator[HttpAnswer]:
        answered = False
        try:
            async with HttpCall(address, method, target, headers) as response:
                answered = True
                yield response
        except UpstreamFailed as cause:
            if answered:
                raise
            why = cause.why.replace("timeouts.responseHeader", "it is overloaded, or something on the way holds it up")
            raise HubFailed(address.host, why) from None

    def _redirected(self, url: str, location: bytes) -> str:
        try:
            found = urljoin(url, location.decode("ascii"))
            scheme = _origin(found)[0]
        except (UsageError, UnicodeDecodeError, ValueError):
            raise HubFailed(self.host, "it redirected us to something that is not an address", passing=False) from None
        if scheme != "https" and self._origin[0] == "https":
            raise HubFailed(self.host, f"it redirected us to {_origin(found)[1]} without encryption", passing=False)
        return found


def _origin(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port. Raises UsageError."""
    address, _ = _at(url)
    return "https" if address.tls else "http", address.host, address.port


def _at(url: str) -> tuple[Address, str]:
    """Return where to ask for a URL, and the request's target: path and query unchanged, as signatures cover them."""
    scheme, _, rest = url.partition("://")
    authority = rest.partition("/")[0].partition("?")[0]
    parts = urlsplit(url)
    target = quote(parts.path or "/", safe=SAFE) + (f"?{quote(parts.query, safe=SAFE)}" if parts.query else "")
    return address_of(f"{scheme}://{authority}", authority, timeouts=TIMEOUTS, proxied=True), target
