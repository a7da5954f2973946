"""``engines install``: a build from the list, an archive, an address, or a folder, beside the others.

Archives are downloaded in the same way as models: resumable and checked.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import click
import trio
from msgspec import structs

from appliance.cli.remote import RunningServer, home_options
from appliance.cli.show import human_size
from appliance.core.builds import Build
from appliance.core.models.hub_address import HubAccess
from appliance.core.models.transfer import Throttle
from appliance.core.whole_numbers import whole_number
from appliance.engines.builds import EXECUTABLE, check_build
from appliance.errors import UsageError
from appliance.features.engines.core.builds import (
    Archive,
    AvailableBuild,
    InstallWish,
    check_entry,
    find_entry,
    parse_asked,
    release_of,
)
from appliance.features.engines.installing import BuildSources, check_sums, described, offers_here, read_manifest
from appliance.features.engines.installing import install as put
from appliance.features.engines.shelf import Shelf
from appliance.features.engines.verbs.here import (
    check_needs,
    offer_in_words,
    opened,
    print_proof,
    refresh_server,
)
from appliance.platform.console import EXIT_OURS, can_ask, say, say_error
from appliance.platform.home import engines_folder, expanded
from appliance.platform.machine import this_platform
from appliance.store.shelf import CannotInstall, alone
from appliance.store.unpacking import SUFFIXES, is_archive
from appliance.upstream.file_transfer import PlannedFile, Transfer, fetch
from appliance.upstream.hub import DownloadsOff, GatedRepo, Hub, HubFailed, RepoNotFound, hub_access

STEP = 10  # percent between two lines of progress
FROM_HELP = "Install from a folder or an archive on this machine, or from an address (with --sha256)."


@click.command()
@click.argument("word", metavar="[BACKEND|BUILD]", required=False)
@click.option("--from", "source", metavar="DIR|ARCHIVE|URL", help=FROM_HELP)
@click.option("--sha256", metavar="SUM", help="The SHA-256 of the file that --from names.")
@click.option(
    "--platform",
    "for_platform",
    metavar="PLATFORM",
    default=this_platform,
    help="For another machine, such as windows-x64.",
)
@click.option(
    "--force", is_flag=True, help="Install even if this machine does not meet the build's stated requirements."
)
@home_options
async def install(
    server: RunningServer,
    word: str | None,
    source: str | None,
    sha256: str | None,
    for_platform: str,
    force: bool,
) -> int:
    """Install a build of llama.cpp beside the others, and try it. Without a word: the best one for a card without.

    It is used when it is the best, or after 'engines use'. An interrupted download resumes where it stopped. Nothing
    else changes.

    \b
    Examples:
      llama-appliance engines install vulkan
      llama-appliance engines install cuda12 --from /media/usb/builds
      llama-appliance engines install cpu --from llama-b11434-bin-ubuntu-x64.tar.gz
    """
    shelf = Shelf(engines_folder())
    if word is None and source is None and for_platform == this_platform():
        word = await _offered(shelf)
    try:
        sources = await trio.to_thread.run_sync(sources_of, word, source, for_platform, sha256)
        entry, is_for_here = sources.entry, sources.entry.platform == this_platform()
        if entry.platform != for_platform:
            raise UsageError(f"this build is for {entry.platform}; --platform {entry.platform} installs it anyway")
        async with alone(shelf), opened(shelf) as owner:
            if await _is_here(shelf, entry) and not force:
                await trio.to_thread.run_sync(check_sums, sources, sources.files, trio.from_thread.check_cancelled)
                given = source is not None and "://" in source
                say(f"{entry.id} is installed already, and complete{f'; {source} was not fetched' if given else ''}")
                standings = {one.standing for one in owner.ranked() if one.seat.build == entry.id}
                if "proven" in standings:
                    return 0
                if standings and "untried" not in standings:
                    return _does_not_work(entry)
            else:
                if is_for_here:
                    check_needs(entry, owner, force)
                place = await put(shelf, sources, fetch_archive)
                say(f"{entry.id} is in {place}")
            if not is_for_here:
                return 0
            await owner.probe()
            say("trying it:")
            proofs = await owner.prove([seat for seat in owner.seats if seat.build == entry.id], print_proof)
    except CannotInstall as cause:
        return say_error(str(cause), EXIT_OURS)
    await refresh_server(server)
    click.echo(entry.id)
    return 0 if any(proof.ok for proof in proofs) else _does_not_work(entry)  # on any device


async def _offered(shelf: Shelf) -> str | None:
    """Return the build that a card here needs, if somebody at a terminal wants it; None where no card needs one."""
    async with opened(shelf) as owner:
        found = offers_here(owner.look, owner.engines)
    for offer in found:
        say(offer_in_words(offer))
    offer = next((one for one in found if one.word), None)
    if offer is None or not can_ask():
        return None
    confirm = partial(click.confirm, f"Install {offer.build}?", default=True, abort=True)
    await trio.to_thread.run_sync(confirm, abandon_on_cancel=True)
    return offer.word


def _does_not_work(entry: AvailableBuild) -> int:
    what = f"{entry.id} does not work on this machine and is not used; 'engines remove' removes it"
    return say_error(what, EXIT_OURS)


async def _is_here(shelf: Shelf, entry: AvailableBuild) -> bool:
    folder = shelf.place_of(entry.id)
    if not folder.is_dir():
        return False
    damage = await trio.to_thread.run_sync(check_build, folder)
    if damage:
        say(f"{entry.id} is installed, but {damage}; it is installed again")
    return not damage


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
        size = whole_number(answer.headers.get(b"content-length", b""))
    if not size:
        raise CannotInstall(f"{hub.host} does not report the size of {archive.name}; download it, and use --from FILE")
    return size


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
    entry = _named(asked, described(path), path.name, platform)
    return BuildSources(entry=entry, files=(path,), sums={path.name: _archive(path.name, sha256).sha256})


def _archive(name: str, sha256: str | None, url: str = "") -> Archive:
    """Return what is known of an archive of this name: the given sum, else what the list of builds has."""
    if sha256 is not None:
        return Archive(name=name, url=url, sha256=sha256.lower())
    listed = (archive for one in read_manifest().entries for archive in one.archives if archive.name == name)
    return structs.replace(next(listed, Archive(name=name)), url=url)


def _address(asked: InstallWish | None, url: str, platform: str, sha256: str | None) -> AvailableBuild:
    parts = urlsplit(url)
    name = parts.path.rpartition("/")[2]
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_archive(Path(name or "x")):
        raise UsageError(f"--from {url}: this is not the address of an archive ({', '.join(SUFFIXES)})")
    archive = _archive(name, sha256, url)
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
        entry = AvailableBuild(platform=asked.platform, backend=asked.backend, build=release)
        entry = next((one for one in read_manifest().entries if one.id == entry.id), entry)
    check_entry(entry)
    return entry
