"""The repositories of a hub: three calls of its API, and the addresses of files."""

from __future__ import annotations

from typing import TypeVar
from urllib.parse import quote, urlencode, urljoin

from msgspec import Struct

from appliance.core.lenient_json import decoded
from appliance.core.models.download import RemoteFile, is_oid
from appliance.core.models.hub_address import MAIN
from appliance.core.models.names import is_commit
from appliance.errors import NotFound
from appliance.upstream.hub import Hub, HubFailed, RepoChanged

SEARCHED = 20  # repositories that a search lists
MAX_PAGES = 50  # of a list, of 1000 files each

T = TypeVar("T")


class Branch(Struct, frozen=True, rename="camel"):
    """One branch of a repository."""

    name: str
    target_commit: str


class Refs(Struct, frozen=True):
    """``GET /api/models/<repo>/refs``."""

    branches: tuple[Branch, ...] = ()


class Revision(Struct, frozen=True):
    """``GET /api/models/<repo>/revision/<branch, tag or commit>``."""

    sha: str


class Lfs(Struct, frozen=True):
    """For a file that is kept outside git: ``oid`` is the sha256 of its contents."""

    oid: str
    size: int | None = None


class TreeEntry(Struct, frozen=True):
    """One line of ``GET /api/models/<repo>/tree/<commit>?recursive=true``. ``oid`` is git's own hash."""

    type: str
    path: str
    oid: str = ""
    size: int | None = None
    lfs: Lfs | None = None


class HubModel(Struct, frozen=True):
    """One line of ``GET /api/models?search=``. ``gated``: its owner wants terms accepted, or to be asked."""

    id: str
    downloads: int = 0
    likes: int = 0
    gated: bool | str = False
    tags: tuple[str, ...] = ()


class ModelHub(Hub):
    """The repositories of one hub, for one user. All methods raise HubFailed, and the errors of `Hub.refusal`."""

    async def commit_of(self, repo: str, revision: str = MAIN) -> str:
        """Return the commit of a branch, a tag, or of itself. Raises NotFound for an unknown one."""
        if revision != MAIN:
            try:
                found, _ = await self._ask(repo, f"api/models/{repo}/revision/{quote(revision, safe='')}", Revision)
            except RepoChanged:
                raise NotFound(f"{repo} has no branch, tag or commit {revision!r} on {self.host}") from None
            if is_commit(found.sha):
                return found.sha
            raise HubFailed(self.host, "its answer is not that of a model hub", passing=False)
        refs, _ = await self._ask(repo, f"api/models/{repo}/refs", Refs)
        for branch in refs.branches:
            if branch.name == "main" and is_commit(branch.target_commit):
                return branch.target_commit
        raise HubFailed(self.host, f"{repo} has no main branch", passing=False)

    async def files_of(self, repo: str, commit: str) -> list[RemoteFile]:
        """Return every file of a commit; those whose hash cannot be checked are left out."""
        url: str | None = f"api/models/{repo}/tree/{commit}?recursive=true"
        files: list[RemoteFile] = []
        for _ in range(MAX_PAGES):
            entries, url = await self._ask(repo, url, list[TreeEntry])
            for entry in entries:
                oid, size = (entry.lfs.oid, entry.lfs.size or entry.size) if entry.lfs else (entry.oid, entry.size)
                oid = oid.removeprefix("sha256:").lower()
                if entry.type == "file" and is_oid(oid):
                    files.append(RemoteFile(entry.path, oid, size))
            if url is None:
                break
        return files

    async def search(self, text: str) -> list[HubModel]:
        """Return repositories with GGUF files, those that most people take first."""
        query = urlencode({"search": text, "filter": "gguf", "sort": "downloads", "limit": SEARCHED})
        found, _ = await self._ask(text, f"api/models?{query}", list[HubModel])
        return found

    async def size_of(self, repo: str, path: str) -> int | None:
        """Return its size from the headers alone, None if they lack it; this also proves that it may be read."""
        async with self.open("HEAD", self.url_of(repo, path), stop_at_size=True) as answer:
            if answer.status >= 400:
                raise self.refusal(answer, repo)
            return answer.size

    def url_of(self, repo: str, path: str) -> str:
        """``path`` begins with the commit."""
        return f"{self._access.endpoint}/{repo}/resolve/{quote(path)}"

    async def _ask(self, repo: str, url: str, kind: type[T]) -> tuple[T, str | None]:
        """Return the decoded answer, and the address of the next page."""
        url = urljoin(f"{self._access.endpoint}/", url)
        async with self.open("GET", url) as answer:
            page = decoded(kind, await self._whole(answer, repo))
            if page is None:
                raise HubFailed(answer.host, "its answer is not that of a model hub", passing=False)
        for link in answer.headers.get(b"link", b"").decode("latin-1").split(","):
            address, _, rest = link.partition(";")
            if 'rel="next"' in rest:
                return page, urljoin(url, address.strip().strip("<>"))
        return page, None
