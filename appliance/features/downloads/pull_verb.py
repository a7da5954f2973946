"""``pull``: downloads a model from the Hugging Face hub: by the server that runs, else into this user's cache."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

import click
import msgspec
import trio
from msgspec import structs

from appliance.catalog.found import cache_directory, in_cache
from appliance.catalog.supply import PARALLEL, DownloadSettings
from appliance.cli.options import Size
from appliance.cli.remote import ModelList, RunningServer, ask, ask_raw, files_options, is_running
from appliance.cli.show import human_size, print_table
from appliance.core.models.download import WantedModel, parse_wanted
from appliance.core.models.download_status import DownloadStatus, is_for
from appliance.errors import ApplianceError, UpstreamFailed, UsageError
from appliance.features.downloads.following import Begin, Stopped, followed, stopping
from appliance.features.downloads.owner import open_downloads
from appliance.features.downloads.plan import unfinished_in
from appliance.platform.console import EXIT_INTERRUPTED, EXIT_OURS, EXIT_USER, PROGRAM, say, say_error
from appliance.platform.home import users_home
from appliance.trio_parts import beside, every
from appliance.upstream.hub import HubFailed, hub_access

LOOK_EVERY = 0.3  # seconds between two looks at a download of the server's
JSON_EVERY = 0.5  # seconds between two lines of progress


class DownloadThere:
    """A download of the server's. To stop following it pauses it, so that the same command goes on where it was."""

    def __init__(self, server: RunningServer, status: DownloadStatus) -> None:
        self._server = server
        self.status = status
        self._following = trio.CancelScope()

    async def wait(self) -> DownloadStatus:
        with self._following:
            while not self.status.ended:
                await trio.sleep(LOOK_EVERY)
                self.status = await _status_there(self._server, self.status.model)
        if self._following.cancelled_caught:
            await ask_raw(self._server, "POST", "/models/pause", {"model": self.status.model})
            self.status = structs.replace(self.status, state="cancelled")
        return self.status

    def cancel(self) -> None:
        self._following.cancel()


async def begin_there(server: RunningServer, wanted: WantedModel) -> DownloadThere:
    """Have the server download a model. Raises RequestRefused, ServerFailed and NotRunning."""
    await ask_raw(server, "POST", "/models", {"model": str(wanted)})
    known = [one for one in await _downloads_of(server) if one.repo.casefold() == wanted.reference.repo.casefold()]
    asked = [one for one in known if is_for(one, wanted)]
    if not (asked or known):
        raise _forgotten(str(wanted))
    return DownloadThere(server, max(asked or known, key=lambda one: (not one.ended, one.number)))


async def _status_there(server: RunningServer, model: str) -> DownloadStatus:
    found = next((status for status in await _downloads_of(server) if status.model == model), None)
    if found is None:
        raise _forgotten(model)
    return found


async def _downloads_of(server: RunningServer) -> list[DownloadStatus]:
    return await ask(server, "GET", "/api/downloads", list[DownloadStatus])


def _forgotten(model: str) -> UpstreamFailed:
    return UpstreamFailed(model, "the server does not know its download any more: it was removed, or it restarted")


@click.command()
@click.argument("model", metavar="REPO[:TAG]|ADDRESS", required=False)
@click.option("--limit-rate", metavar="SIZE", type=Size(), help="Largest number of bytes per second, such as 10M.")
@click.option(
    "--parallel",
    metavar="N",
    type=click.IntRange(1, 16),
    default=PARALLEL,
    show_default=True,
    help="Number of files to download at once.",
)
@click.option("--offline", is_flag=True, help="Do not use the network (or HF_HUB_OFFLINE=1).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@files_options
async def pull(
    server: RunningServer, model: str | None, limit_rate: int | None, parallel: int, offline: bool, as_json: bool
) -> int:
    """Download a model from the Hugging Face hub, with all its parts and its projector.

    The server that runs does it, yours or the service, with its own account and settings; without one, this command
    downloads into your own cache.

    An ADDRESS of a file on the hub fetches that file. Without a TAG it takes Q4_K_M, else Q8_0, else the first.

    Stopped in any way, the same command goes on where it was.
    Without a REPO it lists unfinished downloads.

    \b
    Examples:
      llama-appliance pull ggml-org/gemma-3-4b-it-GGUF
      llama-appliance pull ggml-org/gemma-3-4b-it-GGUF:Q8_0 --limit-rate 5M

    \b
    Environment:
      HF_TOKEN                        for private and gated repositories ('hf auth login' works as well)
      HF_ENDPOINT                     a mirror of the hub
      HF_HUB_CACHE, HF_HOME           where models are kept
      HTTPS_PROXY, ALL_PROXY, NO_PROXY  the way to the network
    """
    cache = cache_directory(os.environ, users_home()).absolute()
    if model is None:
        begun = await _begun_there(server) if server.named else unfinished_in(cache)
        return _list_unfinished({one.model: (one.done, one.total) for one in begun}, as_json)
    hub = hub_access(os.environ, offline=offline)
    settings = DownloadSettings(cache=cache, hub=hub, parallel=parallel, rate=limit_rate, tell=say)
    wanted = parse_wanted(model, hub.endpoint)
    if await _is_for_server(server, slowed=offline or limit_rate is not None or parallel != PARALLEL):
        if await _is_there(server, wanted):
            return _print_here(str(wanted), as_json)
        outcome = await _download(partial(begin_there, server, wanted), as_json)
    else:
        async with open_downloads(settings) as downloads:
            outcome = await _download(partial(downloads.fetch, wanted), as_json)
    match outcome:
        case DownloadStatus():
            return _print_end(outcome, wanted, as_json)
        case HubFailed(busy=True) if (found := in_cache(cache, wanted)) is not None:
            say(f"{outcome}; {found.id} is in the cache, and stays as it is")
            return _print_here(found.id, as_json)
        case ApplianceError():
            if as_json:
                _print_line({"event": "failed", "model": str(wanted), "error": str(outcome), "reason": outcome.reason})
            raise outcome
        case None:
            say("stopped before anything was downloaded")
            return EXIT_INTERRUPTED


async def _begun_there(server: RunningServer) -> list[DownloadStatus]:
    return [one for one in await _downloads_of(server) if one.state != "finished"]


def _list_unfinished(begun: Mapping[str, tuple[int, int]], as_json: bool) -> int:
    if as_json:
        for model, (done, total) in begun.items():
            _print_line({"event": "unfinished", "model": model, "done": done, "total": total})
    elif begun:
        rows = [(model, human_size(done), human_size(total)) for model, (done, total) in begun.items()]
        print_table(("MODEL", "DONE", "OF"), rows)
    if not begun:
        say(f"no download is unfinished; '{PROGRAM} pull REPO' downloads a model")
    return 0


async def _is_for_server(server: RunningServer, *, slowed: bool) -> bool:
    """Return whether the server downloads. ``slowed``: there are options that only this command's own download has."""
    if server.kind == "usual" or (slowed and not server.named):
        return False
    if not await is_running(server):
        return False
    if slowed:
        raise UsageError(
            f"--limit-rate, --parallel and --offline are for downloads of this command, and the server at {server.url} "
            "downloads for itself; leave them out, or download into your own cache with --own"
        )
    return True


async def _is_there(server: RunningServer, wanted: WantedModel) -> bool:
    """True if the server has the model already. A file that it cannot use is fetched again."""
    name = str(wanted).casefold()
    models = (await ask(server, "GET", "/models", ModelList)).data
    known = (one for one in models if name in (each.casefold() for each in (one.id, *one.aliases)))
    return any(one.status.value != "downloading" and one.status.error is None for one in known)


def _print_here(model: str, as_json: bool) -> int:
    if as_json:
        _print_line({"event": "finished", "model": model, "done": 0, "total": 0})
    else:
        click.echo(model)
    return 0


async def _download(begin: Begin, as_json: bool) -> DownloadStatus | ApplianceError | None:
    """The download's result; None if it was stopped before the hub had answered."""
    try:
        if not as_json:
            return await followed(begin)
        async with stopping(begin) as download:
            _print_state("plan", download.status, model=download.status.model)
            async with beside(partial(every, JSON_EVERY, lambda: _print_state("progress", download.status), first=0)):
                await download.wait()
        return download.status
    except ApplianceError as error:
        return error
    except Stopped:
        return None


def _print_state(event: str, status: DownloadStatus, **more: str) -> None:
    _print_line({"event": event, **more, "done": status.done, "total": status.total, "files": status.files})


def _print_end(status: DownloadStatus, wanted: WantedModel, as_json: bool) -> int:
    if as_json:
        facts = {"model": status.model, "done": status.done, "total": status.total}
        failure = {"error": status.error, "reason": status.reason} if status.error else {}
        _print_line({"event": status.state, **facts, **failure})
    match status.state:
        case "finished":
            if not as_json:
                click.echo(status.model)
            return 0
        case "failed":
            return say_error(status.error or "the download failed", EXIT_USER if status.callers_fault else EXIT_OURS)
        case _:
            kept = f"{human_size(status.done)} of {human_size(status.total)} are kept"
            say(f"stopped: {kept}; '{PROGRAM} pull {wanted}' resumes from there")
            return EXIT_INTERRUPTED


def _print_line(facts: object) -> None:
    click.echo(msgspec.json.encode(facts).decode())
