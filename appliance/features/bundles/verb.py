"""``bundle``: carries models, engines, settings and the program to a machine without a network, and takes them in."""

from __future__ import annotations

import os
import secrets
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import click
import msgspec
import psutil
import trio
from msgspec import Struct

from appliance import __version__
from appliance.catalog.catalog import scan_models
from appliance.catalog.found import cache_directory
from appliance.catalog.sources import ModelFolders, default_models_dir
from appliance.cli.app import ground_of
from appliance.cli.options import models_dir_option
from appliance.cli.remote import go_home, side_options
from appliance.cli.serve import home_option, write_below
from appliance.cli.show import json_option, print_json, print_table
from appliance.core import signing
from appliance.core.lenient_json import decoded
from appliance.core.server_choice import Side
from appliance.errors import UsageError
from appliance.features.bundles import contents, show
from appliance.features.bundles.container import Bundle
from appliance.features.bundles.core.manifest import FORMAT, BundleItem, Inventory, Kind
from appliance.features.bundles.core.plan import BundleSigner, Trust, refuse_foreign, refuse_untrusted
from appliance.features.bundles.export import export
from appliance.features.bundles.importing import Homes, bring, exclusive, known, plan
from appliance.platform.console import PROGRAM, say
from appliance.platform.home import users_home
from appliance.platform.machine import this_platform
from appliance.start import ONE_FILE, in_shell, own_folder, programs_folder, refuse_packaged
from appliance.store.model_files import write_whole
from appliance.store.trusted_keys import trust, trusted_keys

JOURNAL = "bundles.jsonl"  # in the data folder: a line for each thing that a bundle has brought
bundle_argument = click.argument("file", metavar="FILE", type=click.Path(path_type=Path), envvar=ONE_FILE)
KEY_HELP = "The public key that it must be signed with. Default: a remembered one."
key_option = click.option("--key", type=show.a_file, metavar="FILE", help=KEY_HELP)


class BundleArrival(Struct, frozen=True, kw_only=True):
    """One thing that came, as the journal and ``bundle log --json`` have it."""

    at: str  # UTC
    kind: Kind
    name: str
    digest: str
    place: str
    file: str  # the bundle's file
    user: str  # the one who imported it: behind `sudo` the one who called that
    trust: Trust
    key: str  # the name of the key that signed the bundle; empty: it is not known, or there is none


@click.group()
def bundle() -> None:
    """Carry models, engines, settings and the program to a machine without a network.

    \b
    Examples:
      llama-appliance bundle export --models ggml-org/gemma-3-4b-it-GGUF --engines cpu,vulkan -o gemma.bundle
      llama-appliance bundle verify gemma.bundle --key mine.pub
      llama-appliance bundle import gemma.bundle --key mine.pub
    """


bundle.add_command(export)


@bundle.command()
@click.argument("file", metavar="FILE", type=show.a_file)
def keygen(file: Path) -> None:
    """Make a key that signs bundles. The public key, for those who import, is written to FILE.pub.

    The file is one as 'openssl genpkey -algorithm ed25519' writes it.

    \b
    Example:
      llama-appliance bundle keygen mine
    """
    public = file.with_name(f"{file.name}.pub")
    for path in (file, public):
        if path.exists():
            raise UsageError(f"{path} is there already; name another file")
    seed = secrets.token_bytes(signing.SEED_SIZE)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as private:
        private.write(signing.private_pem(seed))
    write_whole(public, signing.public_pem(signing.public_of(seed)))
    click.echo(str(public))
    say(f"the key is {signing.name_of(signing.public_of(seed))}: tell it those who import, so that they can compare it")


@bundle.command()
@bundle_argument
@key_option
@side_options
@json_option
async def verify(file: Path, key: Path | None, side: Side | None, as_json: bool) -> None:
    """Read a bundle from beginning to end, and compare it with its sums and its signature. Nothing is written.

    Without --key the remembered keys count: yours, or those of the service where it runs.

    \b
    Example:
      llama-appliance bundle verify /media/usb/office.bundle --key mine.pub
    """
    if key is None:
        go_home(side)  # as the service's user, since root trusts no list of keys that another user may change
    trusted = _trusted(key)
    with Bundle(file) as opened:
        signer = opened.signer(trusted)
        if key is not None:
            refuse_untrusted(signer, named=True, unsigned_is_fine=False)
        with show.progress("verifying", as_json, opened.manifest.size) as apply:
            await trio.to_thread.run_sync(opened.verify, trio.from_thread.check_cancelled, apply)
        rows = [show.carried(item) for item in opened.manifest.items]
        show.print_contents(opened.manifest, signer, [str(each) for each in opened.files], rows, as_json)


@bundle.command("import")
@bundle_argument
@key_option
@click.option("--unsigned", is_flag=True, help="Take the bundle from anybody: it is compared with its own sums only.")
@models_dir_option
@home_option
@side_options
@json_option
@click.pass_context
async def take(
    ctx: click.Context,
    file: Path,
    key: Path | None,
    unsigned: bool,
    models_dir: str | None,
    home: Path | None,
    side: Side | None,
    as_json: bool,
) -> None:
    """Take a bundle in. Interrupted in any way, the same command continues where it was.

    Nothing that is here changes. Settings and the program get folders of their own, and are not switched to. A key that
    has fitted once is remembered. A runnable bundle imports itself if no FILE is named.

    \b
    Examples:
      llama-appliance bundle import /media/usb/office.bundle --key mine.pub
      llama-appliance bundle import office.bundle --unsigned
      sudo llama-appliance bundle import office.bundle --key mine.pub     # for the service
    """
    user = os.environ.get("SUDO_USER") or psutil.Process().username()  # before root becomes the service's user
    _go_home(home, side)
    homes = _homes(ctx, show.sources_of(models_dir))
    trusted = _trusted(key)
    with Bundle(file) as opened, exclusive(homes):
        signer = opened.signer(trusted)
        refuse_untrusted(signer, named=key is not None, unsigned_is_fine=unsigned)
        refuse_foreign(opened.manifest, this_platform())
        reader = contents.SumReader(trio.from_thread.check_cancelled)
        standings, wanted = await trio.to_thread.run_sync(plan, opened, homes, reader)
        came = partial(_note, homes, file, user, signer)
        with show.progress("importing", as_json, opened.manifest.size) as apply:
            try:
                await bring(opened, homes, wanted, apply, came)
                await trio.to_thread.run_sync(opened.verify, trio.from_thread.check_cancelled, apply)
            except UsageError as cause:
                raise UsageError(f"{cause}; the parts that came whole are kept") from None
            except KeyboardInterrupt:
                say("stopped: the pieces that have come are kept, and the same command continues")
                raise
        signing_keys = [each for each in trusted if signing.name_of(each) == signer.key]
        if key is not None and trust(programs_folder(), signing_keys):
            say(f"the key {signer.key} is remembered: the next bundles that it has signed need no --key")
        rows = [show.row_of(one.item, "imported" if one in wanted else "here", one.place) for one in standings]
        show.print_contents(opened.manifest, signer, [str(each) for each in opened.files], rows, as_json)
    if not as_json:
        for standing in standings:
            for line in _next(standing.item, Path(standing.place)):
                say(line)


def introduce(file: Path) -> None:
    """Say what a runnable bundle holds, and what it would do."""
    with Bundle(file) as opened:
        rows = [show.carried(item) for item in opened.manifest.items]
        show.print_contents(opened.manifest, opened.signer(_trusted(None)), [str(file)], rows, as_json=False)
    say(f"'{PROGRAM} bundle import' brings these into the folders of this machine, and switches nothing")
    say(f"'{PROGRAM} serve' serves the models then")
    say(f"'{PROGRAM} --help' lists the other commands")


def _note(homes: Homes, file: Path, user: str, signer: BundleSigner, item: BundleItem) -> None:
    """Add a line to the journal, in a thread. The file is replaced as a whole; a torn line is kept. Raises OSError."""
    arrival = BundleArrival(
        at=show.utc_now(),
        kind=item.kind,
        name=item.name,
        digest=item.digest,
        place=str(homes.place_of(item)),
        file=str(file.absolute()),
        user=user,
        trust=signer.trust,
        key=signer.key,
    )
    journal = homes.data / JOURNAL
    before = journal.read_bytes() if journal.exists() else b""
    torn = b"\n" if before and not before.endswith(b"\n") else b""
    write_whole(journal, before + torn + msgspec.json.encode(arrival) + b"\n")


def _next(item: BundleItem, place: Path) -> list[str]:
    """Return the commands that use what an import has brought."""
    match item.kind:
        case "program":
            with suppress(UsageError):
                if contents.payload_in(refuse_packaged(own_folder()))[1] != item.digest:
                    return [f"'{PROGRAM} upgrade switch {item.name}' switches to this version"]
            command = place / (f"{PROGRAM}.exe" if sys.platform == "win32" else PROGRAM)
            return [f"'{in_shell([str(command), 'serve'])}' starts this version, also without the bundle's medium"]
        case "settings":
            configs = [f"--config {place / file.path}" for file in item.files if file.path.startswith("config/")]
            plugins = [f"--plugins {place / 'plugins'}"] if (place / "plugins").is_dir() else []
            return [f"'{PROGRAM} serve {' '.join([*configs, *plugins])}' uses these settings"]
        case "engine" | "model":
            return []


@bundle.command("log")
@home_option
@side_options
@json_option
async def list_arrivals(home: Path | None, side: Side | None, as_json: bool) -> None:
    """List what bundles have brought here: when, from which file, by whom, and signed with which key.

    \b
    Example:
      llama-appliance bundle log --json
    """
    _go_home(home, side, only_reads=True)
    journal = default_models_dir().parent / JOURNAL
    lines = journal.read_bytes().split(b"\n") if journal.exists() else []
    rows = [row for line in lines if (row := decoded(BundleArrival, line)) is not None]  # a torn line is skipped
    if as_json:
        print_json(rows)
    elif rows:
        cells = [(row.at, row.kind, row.name, Path(row.file).name, row.user, row.key or "-", row.trust) for row in rows]
        print_table(("WHEN", "KIND", "NAME", "FROM", "BY", "KEY", "TRUST"), cells)
    else:
        say("no bundle has brought anything here")


@bundle.command()
@click.option("-o", "out", type=show.a_file, metavar="FILE", help="Write it here instead of to standard output.")
@models_dir_option
@home_option
@side_options
@click.pass_context
async def inventory(
    ctx: click.Context, out: Path | None, models_dir: str | None, home: Path | None, side: Side | None
) -> None:
    """List what is on this machine, as JSON, for 'bundle export --against' on another one.

    \b
    Example:
      llama-appliance bundle inventory -o /media/usb/office.json
    """
    _go_home(home, side, only_reads=True)
    sources = show.sources_of(models_dir)
    homes, target = _homes(ctx, sources), this_platform()
    with show.progress("reading", False) as apply:
        snapshot = await trio.to_thread.run_sync(scan_models, sources)
        reader = contents.SumReader(trio.from_thread.check_cancelled, apply)
        items = await trio.to_thread.run_sync(known, homes, snapshot, target, reader)
    found = Inventory(format=FORMAT, version=__version__, target=target, items=tuple(items))
    if out is None:
        print_json(found)
    else:
        write_whole(out, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
        say(f"{len(items)} things are listed in {out}")


def _go_home(home: Path | None, side: Side | None, *, only_reads: bool = False) -> None:
    """Have the command work on the files below ``home``, else on those of the server that runs. Raises UsageError."""
    if home is None:
        go_home(side, only_reads=only_reads)
    elif side is not None:
        raise UsageError(f"--home names the files, and --{side} others; leave one out")
    write_below(home)


def _trusted(key: Path | None) -> tuple[bytes, ...]:
    """Return the public keys in the file that was named, else those that are remembered. Raises UsageError."""
    if key is None:
        return trusted_keys(programs_folder())
    return signing.public_keys_of(show.content_of(key), str(key))


def _homes(ctx: click.Context, sources: ModelFolders) -> Homes:
    return Homes(
        data=default_models_dir().parent,
        models=sources.models_dir or default_models_dir(),
        cache=sources.cache or cache_directory(os.environ, users_home()).absolute(),
        engines=ground_of(ctx).engines().carried(show.packaged()),
        programs=programs_folder(),
        packaged=show.packaged(),
    )
