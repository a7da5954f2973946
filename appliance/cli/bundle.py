"""``bundle``: carries models, engines, settings and the program to a machine without a network, and takes them in."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click
import msgspec
import trio
from msgspec import Struct, structs

from appliance import __version__
from appliance.bundles import contents
from appliance.bundles.container import Bundle, Tell, refuse_existing, write_bundle
from appliance.bundles.importing import Homes, bring, exclusive, plan
from appliance.catalog.catalog import Catalog
from appliance.catalog.configuration import Files
from appliance.catalog.found import cache_directory
from appliance.catalog.sources import ModelFolders, default_models_dir
from appliance.cli.options import ModelOptions, Size, gathered, models_dir_option
from appliance.cli.remote import go_home, side_options
from appliance.cli.serve import home_option, write_below
from appliance.cli.show import human_size, json_option, print_json, print_table
from appliance.core.bundles import keys
from appliance.core.bundles.manifest import (
    FORMAT,
    SIGNATURE_SIZE,
    SMALLEST_PART,
    BundleItem,
    BundleManifest,
    Inventory,
    padded,
    read_inventory,
    read_manifest,
    without_known,
)
from appliance.core.bundles.plan import UNSIGNED, Trust, refuse_foreign, refuse_untrusted
from appliance.core.engines.builds import PLATFORMS
from appliance.core.server_choice import Side
from appliance.engines.found import EngineFolders, here, installed_folder
from appliance.engines.shelf import Shelf
from appliance.errors import UsageError
from appliance.platform.console import PROGRAM, say
from appliance.store.model_files import write_whole

TRUST = {"signed": "signed with this key", "unchecked": "signed, and no key was named", "unsigned": "not signed"}

a_file = click.Path(path_type=Path, dir_okay=False)
bundle_argument = click.argument("file", metavar="FILE", type=click.Path(path_type=Path))


class BundleRow(Struct, frozen=True, kw_only=True):
    """One item of a bundle, for ``--json``."""

    kind: str
    name: str
    digest: str
    size: int
    state: str
    """``carried`` or ``left out``; for an import ``here`` or ``imported``."""
    place: str | None = None


class BundleOutput(Struct, frozen=True, kw_only=True):
    """The output of ``bundle export``, ``verify`` and ``import`` with ``--json``."""

    version: str
    target: str
    made: str
    trust: Trust
    files: list[str]
    items: list[BundleRow]


@click.group()
def bundle() -> None:
    """Carry models, engines, settings and the program to a machine without a network.

    \b
    Examples:
      llama-appliance bundle export --models ggml-org/gemma-3-4b-it-GGUF --engines cpu,vulkan -o gemma.bundle
      llama-appliance bundle verify gemma.bundle --key mine.pub
      llama-appliance bundle import gemma.bundle --key mine.pub
    """


@bundle.command()
@click.argument("file", metavar="FILE", type=a_file)
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
    seed = secrets.token_bytes(keys.SEED_SIZE)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as private:
        private.write(keys.private_pem(seed))
    write_whole(public, keys.public_pem(seed))
    click.echo(str(public))


# ---- export ----------------------------------------------------------------------------------------------------------


def _words(_ctx: click.Context, _param: click.Parameter, text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


class BundleWish(Struct, frozen=True, kw_only=True):
    """The contents and the form of a bundle to be made."""

    models: tuple[str, ...]
    engines: tuple[str, ...]
    target: str
    program: Path | None
    no_program: bool
    configs: tuple[Path, ...]
    plugins: tuple[Path, ...]
    part: int


@bundle.command()
@gathered(
    "wish",
    BundleWish,
    click.option("--models", metavar="LIST", default="", callback=_words, help="Models by name, with commas."),
    click.option(
        "--engines", metavar="LIST", default="", callback=_words, help="Backends or builds that are here, with commas."
    ),
    click.option(
        "--target",
        type=click.Choice(PLATFORMS),
        default=here,
        help="Kind of the other machine. Default: like this one.",
    ),
    click.option(
        "--program",
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        metavar="DIR",
        help="The program's folder. Default: this one, if it is a frozen program of that kind.",
    ),
    click.option("--no-program", is_flag=True, help="Leave out the program."),
    click.option("--config", "configs", multiple=True, type=a_file, metavar="FILE", help="A configuration file."),
    click.option(
        "--plugins",
        multiple=True,
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        metavar="DIR",
        help="Folder with plugins. May be given several times.",
    ),
    click.option(
        "--split", "part", type=Size(), default=0, metavar="SIZE", help="Write files of at most this size, such as 4G."
    ),
)
@click.option(
    "--against", type=a_file, metavar="FILE", help="Leave out what this inventory of the other machine lists."
)
@click.option("--key", type=a_file, metavar="FILE", help="Sign with this private key; 'bundle keygen' makes one.")
@models_dir_option
@click.option("-o", "out", type=click.Path(path_type=Path), metavar="FILE", required=True, help="The bundle to write.")
@side_options
@json_option
async def export(
    wish: BundleWish,
    against: Path | None,
    key: Path | None,
    models_dir: str | None,
    out: Path,
    side: Side | None,
    as_json: bool,
) -> None:
    """Write a bundle: models, engines, configuration, plugins, the program, their licences.

    \b
    Examples:
      llama-appliance bundle export --models qwen3-8b,nomic-embed --engines cpu,vulkan -o office.bundle --key mine
      llama-appliance bundle export --models qwen3-8b -o office.bundle --split 4G --against office.json
    """
    go_home(side, only_reads=True)
    refuse_existing(out)
    for file in wish.configs:
        Files(config=file).read().require()
    known = read_inventory(_content(against), wish.target) if against is not None else None
    seed = keys.seed_of(_content(key), str(key)) if key is not None else None
    if 0 < wish.part < SMALLEST_PART:
        raise UsageError(f"--split takes at least {SMALLEST_PART >> 20}M")
    own = wish.program or (contents.running() if wish.target == here() else None)
    wish = structs.replace(wish, program=None if wish.no_program else own)
    with _progress("reading", as_json) as apply:
        reader = contents.SumReader(trio.from_thread.check_cancelled, apply)
        found = await trio.to_thread.run_sync(_items, wish, _sources(models_dir), reader)
    items = without_known(found, known)
    blobs = reader.blobs(items)
    manifest = BundleManifest(
        format=FORMAT,
        version=__version__,
        target=wish.target,
        made=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        part=wish.part,
        items=tuple(items),
        blobs=tuple(blob for blob, _ in blobs),
    )
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
    read_manifest(text)  # an import would refuse what this refuses
    if wish.part and wish.part < (least := padded(len(text)) + padded(SIGNATURE_SIZE)):
        raise UsageError(f"--split {wish.part} is too small for the list of its contents; it takes {least} bytes")
    signature = keys.sign(seed, text) if seed is not None else UNSIGNED
    with _progress("writing", as_json, sum(blob.size for blob, _ in blobs)) as apply:
        write = partial(write_bundle, out, text, signature, blobs, wish.part, trio.from_thread.check_cancelled, apply)
        files = await trio.to_thread.run_sync(write)
    if wish.program is None:
        say("the program itself is not in it: the other machine needs one (--program DIR adds it)")
    trust: Trust = "signed" if seed is not None else "unsigned"
    _print_contents(manifest, trust, [str(file) for file in files], [_carried(item) for item in items], as_json)
    if not as_json:
        for file in files:
            click.echo(str(file))


def _items(wish: BundleWish, sources: ModelFolders, reader: contents.SumReader) -> list[BundleItem]:
    """Find everything. Raises UsageError for what is not here."""
    items: list[BundleItem] = []
    if wish.program is not None:
        items.append(contents.program(wish.program, wish.target, reader))
    builds = contents.builds_for(EngineFolders.of_this_machine(), wish.target)
    items += [contents.engine(builds, word, wish.target, reader) for word in wish.engines]
    if wish.models:
        snapshot = Catalog(sources).scan()
        cache = sources.cache or Path()
        items += [contents.model(snapshot.require(name), cache, reader) for name in wish.models]
    settings = contents.settings(wish.configs, wish.plugins, reader)
    items += [settings] if settings is not None else []
    if not items:
        raise UsageError("the bundle would be empty: name --models, --engines, --config, --plugins or --program")
    return list(dict.fromkeys(items))  # two words may mean one engine


def _carried(item: BundleItem) -> BundleRow:
    return _row(item, "left out" if item.left_out else "carried")


def _row(item: BundleItem, state: str, place: str | None = None) -> BundleRow:
    return BundleRow(kind=item.kind, name=item.name, digest=item.digest, size=item.size, state=state, place=place)


# ---- the other side --------------------------------------------------------------------------------------------------

key_option = click.option("--key", type=a_file, metavar="FILE", help="The public key that it must be signed with.")


@bundle.command()
@bundle_argument
@key_option
@json_option
async def verify(file: Path, key: Path | None, as_json: bool) -> None:
    """Read a bundle from beginning to end, and compare it with its sums and its signature. Nothing is written.

    \b
    Example:
      llama-appliance bundle verify /media/usb/office.bundle --key mine.pub
    """
    public = _public(key)
    with Bundle(file) as opened:
        trust = opened.trust(public)
        if public is not None:
            refuse_untrusted(trust, named=True, unsigned_is_fine=False)
        size = sum(blob.size for blob in opened.manifest.blobs)
        with _progress("verifying", as_json, size) as apply:
            await trio.to_thread.run_sync(opened.verify, trio.from_thread.check_cancelled, apply)
        rows = [_carried(item) for item in opened.manifest.items]
        _print_contents(opened.manifest, trust, [str(each) for each in opened.files], rows, as_json)


@bundle.command("import")
@bundle_argument
@key_option
@click.option("--unsigned", is_flag=True, help="Take the bundle from anybody: it is compared with its own sums only.")
@models_dir_option
@home_option
@side_options
@json_option
async def take(
    file: Path,
    key: Path | None,
    unsigned: bool,
    models_dir: str | None,
    home: Path | None,
    side: Side | None,
    as_json: bool,
) -> None:
    """Take a bundle in. Interrupted in any way, the same command continues where it was.

    Nothing that is here changes. Settings and the program get folders of their own, and are not switched to.

    \b
    Examples:
      llama-appliance bundle import /media/usb/office.bundle --key mine.pub
      llama-appliance bundle import office.bundle --unsigned
      sudo llama-appliance bundle import office.bundle --key mine.pub     # for the service
    """
    _go_home(home, side)
    homes = _homes(_sources(models_dir))
    with Bundle(file) as opened, exclusive(homes):
        trust = opened.trust(_public(key))
        refuse_untrusted(trust, named=key is not None, unsigned_is_fine=unsigned)
        refuse_foreign(opened.manifest, here())
        reader = contents.SumReader(trio.from_thread.check_cancelled)
        standings, wanted = await trio.to_thread.run_sync(plan, opened, homes, reader)
        with _progress("importing", as_json, sum(standing.left for standing in wanted)) as apply:
            try:
                await bring(opened, homes, wanted, apply)
            except KeyboardInterrupt:
                say("stopped: the pieces that have come are kept, and the same command continues")
                raise
        rows = [
            _row(standing.item, "imported" if standing in wanted else "here", standing.place) for standing in standings
        ]
        _print_contents(opened.manifest, trust, [str(each) for each in opened.files], rows, as_json)
    if not as_json:
        for standing in standings:
            for line in _next(standing.item, Path(standing.place)):
                say(line)


def _next(item: BundleItem, place: Path) -> list[str]:
    """Return the commands that use what an import has brought."""
    match item.kind:
        case "program":
            return [f"'{PROGRAM} upgrade switch {item.name}' switches to this version"]
        case "settings":
            configs = [f"--config {place / file.path}" for file in item.files if file.path.startswith("config/")]
            plugins = [f"--plugins {place / 'plugins'}"] if (place / "plugins").is_dir() else []
            return [f"'{PROGRAM} serve {' '.join([*configs, *plugins])}' uses these settings"]
        case "engine" | "model":
            return []


@bundle.command()
@click.option("-o", "out", type=a_file, metavar="FILE", help="Write it here instead of to standard output.")
@models_dir_option
@home_option
@side_options
async def inventory(out: Path | None, models_dir: str | None, home: Path | None, side: Side | None) -> None:
    """List what is on this machine, as JSON, for 'bundle export --against' on another one.

    \b
    Example:
      llama-appliance bundle inventory -o /media/usb/office.json
    """
    _go_home(home, side, only_reads=True)
    sources = _sources(models_dir)
    homes, target = _homes(sources), here()
    with _progress("reading", False) as apply:
        snapshot = await trio.to_thread.run_sync(Catalog(sources).scan)
        reader = contents.SumReader(trio.from_thread.check_cancelled, apply)
        look = partial(contents.known, EngineFolders.of_this_machine(), homes.programs, snapshot, target, reader)
        items = await trio.to_thread.run_sync(look)
    found = Inventory(format=FORMAT, version=__version__, target=target, items=tuple(items))
    if out is None:
        print_json(found)
    else:
        write_whole(out, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
        say(f"{len(items)} things are listed in {out}")


# ---- what verbs share ------------------------------------------------------------------------------------------------


def _go_home(home: Path | None, side: Side | None, *, only_reads: bool = False) -> None:
    """Have the command work on the files below ``home``, else on those of the server that runs. Raises UsageError."""
    if home is None:
        go_home(side, only_reads=only_reads)
    elif side is not None:
        raise UsageError(f"--home names the files, and --{side} others; leave one out")
    write_below(home)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as cause:
        raise UsageError(f"{path} cannot be read: {cause.strerror}") from None


def _public(key: Path | None) -> bytes | None:
    return keys.public_key_of(_content(key), str(key)) if key is not None else None


def _sources(models_dir: str | None) -> ModelFolders:
    return ModelOptions(models_dir=models_dir).sources()


def _homes(sources: ModelFolders) -> Homes:
    models = sources.models_dir or default_models_dir()
    cache = sources.cache or cache_directory(os.environ, Path.home()).absolute()
    data = default_models_dir().parent
    return Homes(data=data, models=models, cache=cache, shelf=Shelf(installed_folder()))


def _print_contents(
    manifest: BundleManifest, trust: Trust, files: list[str], rows: list[BundleRow], as_json: bool
) -> None:
    if as_json:
        print_json(
            BundleOutput(
                version=manifest.version,
                target=manifest.target,
                made=manifest.made,
                trust=trust,
                files=files,
                items=rows,
            )
        )
        return
    places = any(row.place for row in rows)
    cells = [(row.kind, row.name, human_size(row.size), row.state, *([row.place or ""] * places)) for row in rows]
    print_table(("KIND", "NAME", "SIZE", "STATE", *(["PLACE"] * places)), cells, right=("SIZE",))
    say(f"for {manifest.target}, made by version {manifest.version} at {manifest.made}; {TRUST[trust]}")


@contextmanager
def _progress(what: str, quiet: bool, total: int | None = None) -> Generator[Tell]:
    """Show a bar on a terminal; the function that the block gets says how many bytes more are done, in any thread."""
    if quiet or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=total)
        yield lambda count: bars.advance(task, count)
