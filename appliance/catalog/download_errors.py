"""The errors of downloads, each with its advice."""

from __future__ import annotations

from appliance.errors import Conflict, Forbidden, ModelError, NotFound, PeerFailed

LOG_IN = "set HF_TOKEN to a token with access, or log in with 'hf auth login'"


class HubFailed(PeerFailed):
    """The hub, or a server that it sent us to, could not be reached or answered nonsense.

    ``passing``: the same request may succeed later, after ``retry_after`` seconds if the server said so.
    """

    reason = "hub_failed"

    def __init__(self, host: str, why: str, *, passing: bool = True, retry_after: float | None = None) -> None:
        super().__init__(host, why)
        self.passing = passing
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"the model hub at {self.peer} failed: {self.why}"


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


class UnderWay(Conflict):
    """Another process downloads one of the files."""

    reason = "download_under_way"

    def __init__(self, model: str) -> None:
        super().__init__(f"another program is downloading '{model}' now; wait until it has finished, or stop it")


class NotEnoughSpace(ModelError):
    """The disk has no room for the rest."""

    reason = "disk_full"

    def __init__(self, folder: str, needed: int, free: int) -> None:
        super().__init__(folder, needed, free)
        self.folder = folder
        self.needed = needed
        self.free = free

    def __str__(self) -> str:
        return (
            f"the download needs {self.needed / 1e9:.2f} GB in {self.folder}, where {self.free / 1e9:.2f} GB are free; "
            "make room, or name another cache with HF_HUB_CACHE"
        )


class DownloadFailed(ModelError):
    """A file arrived damaged. ``why`` gives the mistake."""

    reason = "download_failed"

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why)
        self.path = path
        self.why = why

    def __str__(self) -> str:
        return f"{self.path} was not downloaded: {self.why}"
