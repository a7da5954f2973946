"""Shared by the verbs of ``engines``: the folder of builds, what is remembered, the server; where builds come from.

``--from`` and the word before it mean an entry of the list, an archive, an address, or a folder. Archives are
downloaded in the same way as models: resumable and checked.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import trio
from msgspec import structs

from appliance.catalog.sources import STARTER
from appliance.cli.remote import (
    NotRunning,
    RequestRefused,
    RunningServer,
    ServerFailed,
    ask,
    ask_raw,
)
from appliance.cli.show import human_size
from appliance.core.builds import Build
from appliance.core.models.hub_address import HubAccess
from appliance.core.models.transfer import Throttle
from appliance.core.versions import line_of
from appliance.engines.builds import EXECUTABLE
from appliance.engines.named import ENGINE_VARIABLE
from appliance.errors import UsageError
from appliance.features.engines.core.builds import (
    Archive,
    AvailableBuild,
    InstallWish,
    check_entry,
    find_entry,
    parse_asked,
    release_of,
    unmet,
)
from appliance.features.engines.core.choice import Ranked, Seat
from appliance.features.engines.core.offers import EngineOffer
from appliance.features.engines.core.proofs import Proof
from appliance.features.engines.found import EngineFolders, list_engines
from appliance.features.engines.installing import BuildSources, described, read_manifest, system_versions, versions
from appliance.features.engines.owner import Engines, open_engines
from appliance.features.engines.shelf import Shelf
from appliance.features.engines.table import Table, table
from appliance.platform.console import say
from appliance.platform.home import engines_folder, expanded
from appliance.store.shelf import CannotInstall
from appliance.store.unpacking import SUFFIXES, is_archive
from appliance.trio_parts import plain_nursery
from appliance.upstream.file_transfer import PlannedFile, Transfer, fetch
from appliance.upstream.hub import DownloadsOff, GatedRepo, Hub, HubFailed, RepoNotFound, hub_access

PROBE_TIME = 300.0
"""Seconds that a running server gets to look at all its builds again."""
STEP = 10
"""Percent between two lines of progress."""
FROM_HELP = "Install from a folder or an archive on this machine, or from an address (with --sha256)."


def own_shelf() -> Shelf:
    return Shelf(engines_folder())


@asynccontextmanager
async def opened(shelf: Shelf) -> AsyncGenerator[Engines]:
    """Return this machine's engines, after a look at them if drivers have changed or a build is new since the last."""
    try:
        await trio.to_thread.run_sync(shelf.recover)
    except OSError as cause:
        say(f"note: the remains of an update or an installation cannot be removed: {cause}")
    find = partial(list_engines, EngineFolders.of_this_machine())
    async with plain_nursery(), open_engines(find, shelf.state, starter=STARTER) as engines:
        if engines.look is None or engines.unlisted:
            await engines.probe()
        yield engines


async def own_table(engines: Engines) -> Table:
    """Return the engines' standing without a server."""
    await engines.sync()
    return table(engines.engines, engines.ranked(), engines.state, versions(), running={}, now=time.time())


async def server_table(server: RunningServer) -> Table | None:
    """Return a running server's view, or None if no server runs, or another program. A named server must answer."""
    try:
        answer = await ask(server, "GET", "/api/engines", Table)
    except (NotRunning, RequestRefused, ServerFailed):
        if server.named:
            raise
        return None
    return structs.replace(answer, server=server.url)


async def refresh_server(server: RunningServer) -> None:
    """Make a running server look at builds and state again. It is not an error if no server runs."""
    try:
        await ask_raw(server, "POST", "/api/engines/probe", patience=PROBE_TIME)
    except NotRunning:
        return
    except (RequestRefused, ServerFailed) as cause:
        say(f"note: the running server could not be notified: {cause}; restart it to use the change")


def seats_named(engines: Engines, names: tuple[str, ...]) -> list[Seat]:
    """Return the seats with these ids, of these builds, or of a backend. Raises UsageError."""
    found: dict[str, Seat] = {}
    for name in names:
        named = {seat.id: seat for seat in engines.seats if name in (seat.id, seat.build, seat.backend)}
        if not named:
            known = ", ".join(seat.id for seat in engines.seats) or "none"
            raise UsageError(f"there is no engine '{name}' here; there is {known}")
        found |= named
    return list(found.values())


def in_use(ranked: list[Ranked], line: str) -> Ranked | None:
    """Return the best usable seat of a line."""
    return next((one for one in ranked if one.usable and line_of(one.seat.build) == line), None)


def print_proof(proof: Proof) -> None:
    """Describe a proof in one line."""
    if not proof.ok:
        say(f"  {proof.build} on {proof.device}: FAILED: {proof.why}")
    elif proof.nominal_seconds:
        speeds = f"{proof.shown_speeds} tokens/s (prompt and answer)"
        say(f"  {proof.build} on {proof.device}: works, at {speeds}")
    else:
        say(f"  {proof.build} on {proof.device}: works")


def offer_in_words(offer: EngineOffer) -> str:
    """Describe what a card could have, in a sentence."""
    why = f" ({'; '.join(offer.problems)})" if offer.problems else ""
    if not offer.word:
        return f"{offer.card} computes nothing here, and no listed build can use it{why}"
    size = f", {human_size(offer.size)}" if offer.size else ""
    return f"{offer.card} computes nothing here: {offer.build} can use it{size}{why}; 'engines install {offer.word}'"


def note_named_engine(environ: dict[str, str]) -> None:
    """Warn that choices made here do not apply to servers with a named engine."""
    if named := environ.get(ENGINE_VARIABLE):
        say(f"note: {ENGINE_VARIABLE}={named} overrides every choice made here")


async def fetch_archive(archive: Archive, path: Path) -> None:
    """Make sure that the complete, checked archive is at ``path``. Raises CannotInstall, ApplianceError, OSError."""
    parts = urlsplit(archive.url)
    if hub_access(os.environ).offline:
        raise DownloadsOff
    if not archive.sha256:
        raise CannotInstall(
            f"no sum is known of {archive.url}, so the download could not be checked; give it with --sha256 SUM"
        )
    hub = Hub(HubAccess(endpoint=f"{parts.scheme}://{parts.netloc}"))
    try:
        known = archive if archive.size else structs.replace(archive, size=await _size_of(hub, archive))
        planned = PlannedFile(
            url=archive.url,
            path=archive.name,
            oid=archive.sha256,
            size=known.size,
            blob=path,
            entry=path,
            lock=path.with_name(f".{path.name}.lock"),
        )
        have = planned.begun()
        begun = f", {human_size(have)} already here" if have else ""
        say(f"downloading {archive.name}: {human_size(known.size)}{begun}")
        await fetch(
            Transfer(hub=hub, throttle=Throttle(None)), archive.name, archive.name, planned, _print_tenths(known)
        )
    except HubFailed as failure:
        raise CannotInstall(
            f"{archive.url} could not be fetched: {failure.why}; fetch it on another machine, and install it from "
            f"there with --from {archive.name}"
        ) from None
    except (RepoNotFound, GatedRepo):
        raise CannotInstall(f"{parts.netloc} has no {parts.path}, or requires a login") from None


async def _size_of(hub: Hub, archive: Archive) -> int:
    async with hub.open("HEAD", archive.url) as answer:
        if answer.status >= 400:
            raise hub.refusal(answer, archive.name)
        size = answer.headers.get(b"content-length", b"")
    if not size.isdigit() or int(size) == 0:
        raise CannotInstall(f"{hub.host} does not report the size of {archive.name}; download it, and use --from FILE")
    return int(size)


def _print_tenths(archive: Archive) -> Callable[[int], None]:
    """Print a line for every further tenth."""
    told = 0

    def report(done: int) -> None:
        nonlocal told
        percent = 100 * done // max(archive.size, 1)
        if percent >= told + STEP:
            told = percent - percent % STEP
            say(f"  {told} % of {human_size(archive.size)}")

    return report


def sources_of(word: str | None, source: str | None, platform: str, sha256: str | None) -> BuildSources:
    """Find out which build to install. ``word`` may be missing if the source names its build. Raises UsageError."""
    asked = parse_asked(word, platform) if word is not None else None
    if sha256 is not None and (len(sha256) != 64 or sha256.lower().strip("0123456789abcdef")):
        raise UsageError("--sha256 needs the 64 digits of a checksum")
    if source is None:
        if asked is None:
            listed = sorted({one.backend for one in read_manifest().entries if one.platform == platform})
            raise UsageError(f"say which build; for {platform} there is {', '.join(listed) or 'none'}, or --from")
        if sha256 is not None:
            raise UsageError("--sha256 works only with --from; the checksums of listed builds are known")
        return BuildSources(entry=find_entry(read_manifest(), asked))
    if "://" in source:
        return BuildSources(entry=_address(asked, source, platform, sha256))
    path = expanded(source).absolute()
    if path.is_dir():
        return _folder(asked, path, platform)
    if not path.is_file():
        raise UsageError(f"--from {source}: no such file or folder")
    if not is_archive(path):
        raise UsageError(f"--from {source}: this is not an archive of a build ({', '.join(SUFFIXES)})")
    listed = _listed(path.name, platform)
    sums = (
        {path.name: sha256 or next((one.sha256 for one in listed.archives if one.name == path.name), "")}
        if listed
        else {path.name: sha256 or ""}
    )
    entry = _named(asked, described(path), path.name, platform)
    return BuildSources(entry=entry, files=(path,), sums=sums)


def _address(asked: InstallWish | None, url: str, platform: str, sha256: str | None) -> AvailableBuild:
    parts = urlsplit(url)
    name = parts.path.rpartition("/")[2]
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_archive(Path(name or "x")):
        raise UsageError(f"--from {url}: this is not the address of an archive ({', '.join(SUFFIXES)})")
    listed = _listed(name, platform)
    known = next((one for one in listed.archives if one.name == name), None) if listed is not None else None
    archive = Archive(
        name=name,
        url=url,
        sha256=(sha256 or (known.sha256 if known is not None else "")).lower(),
        size=known.size if known is not None and sha256 is None else 0,
    )
    if not archive.sha256:
        raise UsageError(f"--from {url}: give its sum with --sha256; only listed archives need none")
    return structs.replace(_named(asked, None, name, platform), archives=(archive,))


def _folder(asked: InstallWish | None, path: Path, platform: str) -> BuildSources:
    """An unpacked build, or a folder with the archives of a listed build."""
    build = described(path)
    if build is not None or (path / EXECUTABLE).is_file():
        return BuildSources(entry=_named(asked, build, path.name, platform), folder=path)
    if asked is None:
        raise UsageError(f"--from {path}: say which build of this folder, such as 'vulkan'")
    entry = find_entry(read_manifest(), asked)
    files = tuple(path / archive.name for archive in entry.archives)
    if missing := [file.name for file in files if not file.is_file()]:
        raise UsageError(
            f"--from {path}: {', '.join(missing)} of {entry.id} is not in it, and it is not a build itself"
        )
    return BuildSources(entry=entry, files=files, sums={one.name: one.sha256 for one in entry.archives})


def _named(asked: InstallWish | None, build: Build | None, name: str, platform: str) -> AvailableBuild:
    """Return the entry of an unlisted build: from its own description, the request, and its name."""
    if build is not None and build.backend and build.build:
        place = build.platform or (asked.platform if asked is not None else platform)
        entry = AvailableBuild(platform=place, backend=build.backend, build=build.build, needs=build.needs)
        other = asked is not None and (asked.backend != entry.backend or asked.build not in (None, entry.build))
        if other:
            raise UsageError(f"{name} is {entry.id}, and you asked for something else")
    elif asked is None:
        raise UsageError(f"{name} does not say which build it is: name it, such as 'cpu' or 'cpu/b11434'")
    else:
        release = asked.build or release_of(name)
        if release is None:
            raise UsageError(f"{name} does not say which release it is: name that, such as '{asked.backend}/b11434'")
        listed = next(
            (
                one
                for one in read_manifest().entries
                if (one.platform, one.backend, one.build) == (asked.platform, asked.backend, release)
            ),
            None,
        )
        entry = listed or AvailableBuild(platform=asked.platform, backend=asked.backend, build=release)
    check_entry(entry)
    return entry


def _listed(name: str, platform: str) -> AvailableBuild | None:
    """Return the entry that has an archive of this name."""
    entries = read_manifest().entries
    found = [one for one in entries if any(archive.name == name for archive in one.archives)]
    return next((one for one in found if one.platform == platform), found[0] if found else None)


def check_needs(entry: AvailableBuild, owner: Engines, force: bool) -> None:
    """Raises UsageError for a build that cannot run here."""
    if owner.look is None or force:
        return
    problems = unmet(
        entry.needs,
        entry.backend,
        entry.platform,
        owner.look,
        **system_versions(),
    )
    if problems:
        raise UsageError(f"{entry.id} cannot run here: {'; '.join(problems)} (--force installs it anyway)")
