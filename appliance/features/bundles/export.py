"""``bundle export``: finds what was asked for, and writes it into one file."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import click
import msgspec
import trio
from msgspec import Struct, structs

from appliance import __version__
from appliance.catalog.catalog import scan_models
from appliance.catalog.configuration import Files
from appliance.catalog.sources import ModelFolders
from appliance.cli.app import ground_of
from appliance.cli.options import Size, gathered, models_dir_option
from appliance.cli.remote import go_home, side_options
from appliance.cli.show import json_option
from appliance.core import signing
from appliance.core.machine_look import PLATFORMS
from appliance.core.server_choice import Side
from appliance.errors import UsageError
from appliance.features.bundles import contents, show
from appliance.features.bundles.container import program_size, refuse_existing, sums_of, write_bundle
from appliance.features.bundles.core.manifest import (
    FORMAT,
    SIGNATURE_SIZE,
    SMALLEST_PART,
    Blob,
    BundleItem,
    BundleManifest,
    padded,
    read_inventory,
    read_manifest,
    without_known,
)
from appliance.features.bundles.core.plan import UNSIGNED, BundleSigner
from appliance.platform.console import say
from appliance.platform.machine import this_platform
from appliance.start import ONE_FILE, own_folder
from appliance.store.carried import CarriedEngines

ONE_FILES = ("linux-x64", "linux-arm64")  # the kinds of machines that the one-file program is made for


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
    runnable: bool


@click.command()
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
        default=this_platform,
        help="Kind of the other machine. Default: like this one.",
    ),
    click.option(
        "--program",
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        metavar="DIR",
        help="The program's folder. Default: this one, if it is a frozen program of that kind.",
    ),
    click.option("--no-program", is_flag=True, help="Leave out the program."),
    click.option("--config", "configs", multiple=True, type=show.a_file, metavar="FILE", help="A configuration file."),
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
    click.option("--runnable", is_flag=True, help="Begin the file with this one-file program: it imports itself."),
)
@click.option(
    "--against", type=show.a_file, metavar="FILE", help="Leave out what this inventory of the other machine lists."
)
@click.option("--key", type=show.a_file, metavar="FILE", help="Sign with this private key; 'bundle keygen' makes one.")
@models_dir_option
@click.option("-o", "out", type=click.Path(path_type=Path), metavar="FILE", required=True, help="The bundle to write.")
@side_options
@json_option
@click.pass_context
async def export(
    ctx: click.Context,
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
      ./llama-appliance.AppImage bundle export --models qwen3-8b --runnable -o office.run --key mine
    """
    go_home(side, only_reads=True)
    refuse_existing(out)
    for file in wish.configs:
        Files(config=file, config_type=ground_of(ctx).config_type).read().require()
    there = read_inventory(show.content_of(against), wish.target) if against is not None else None
    seed = signing.seed_of(show.content_of(key), str(key)) if key is not None else None
    if 0 < wish.part < SMALLEST_PART:
        raise UsageError(f"--split takes at least {SMALLEST_PART >> 20}M")
    one_file = _one_file(wish) if wish.runnable else None
    own = wish.program or (own_folder() if wish.target == this_platform() else None)
    wish = structs.replace(wish, program=None if wish.no_program else own)
    check = trio.from_thread.check_cancelled
    with show.progress("reading", as_json) as apply:
        reader = contents.SumReader(check, apply)
        found = await trio.to_thread.run_sync(
            _items, wish, show.sources_of(models_dir), ground_of(ctx).engines().carried(show.packaged()), reader
        )
        front: tuple[Blob, Path] | None = None
        if one_file is not None:  # without a bundle that may be behind it
            sums = partial(sums_of, one_file, check, apply, program_size(one_file))
            front = await trio.to_thread.run_sync(sums), one_file
    items = without_known(found, there)
    blobs = reader.blobs(items)
    manifest = BundleManifest(
        format=FORMAT,
        version=__version__,
        target=wish.target,
        made=show.utc_now(),
        part=wish.part,
        signer=signing.name_of(signing.public_of(seed)) if seed is not None else "",
        front=front[0] if front is not None else None,
        items=tuple(items),
        blobs=tuple(blob for blob, _ in blobs),
    )
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
    read_manifest(text)  # an import would refuse what this refuses
    if wish.part and wish.part < (least := padded(len(text)) + padded(SIGNATURE_SIZE)):
        raise UsageError(f"--split {wish.part} is too small for the list of its contents; it takes {least} bytes")
    signature = signing.sign(seed, text) if seed is not None else UNSIGNED
    with show.progress("writing", as_json, manifest.size) as apply:
        write = partial(write_bundle, out, text, signature, blobs, wish.part, check, apply, front)
        files = await trio.to_thread.run_sync(write)
    if wish.program is None and one_file is None:
        say("the program itself is not in it: the other machine needs one (--program DIR adds it)")
    signer = BundleSigner(trust="signed" if seed is not None else "unsigned", key=manifest.signer)
    names = [str(file) for file in files]
    show.print_contents(manifest, signer, names, [show.carried(item) for item in items], as_json)
    if not as_json:
        click.echo("\n".join(names))


def _one_file(wish: BundleWish) -> Path:
    """Return the one-file program that this one was started from. Raises UsageError."""
    if wish.part:
        raise UsageError("--runnable makes one file that starts, and --split several; leave one out")
    if wish.target != this_platform() or wish.target not in ONE_FILES:
        raise UsageError(
            f"--runnable takes this very program, which is for {this_platform()}, and one-file programs are for "
            f"{' and '.join(ONE_FILES)}: export on a {wish.target} machine, or without --runnable"
        )
    named = Path(os.environ.get(ONE_FILE, ""))
    if not named.is_file() or not program_size(named):
        raise UsageError(
            "--runnable begins the file with the one-file program, and this program is not one: start the export with "
            "the llama-appliance .AppImage of this version, which sees the same models and engines"
        )
    return named


def _items(
    wish: BundleWish, sources: ModelFolders, engines: CarriedEngines, reader: contents.SumReader
) -> list[BundleItem]:
    """Find everything. Raises UsageError for what is not here."""
    items: list[BundleItem] = []
    if wish.program is not None:
        items.append(contents.program(wish.program, wish.target, reader))
    items += [contents.engine(engines.find(word, wish.target), reader) for word in wish.engines]
    if wish.models:
        snapshot = scan_models(sources)
        items += [contents.model(snapshot.require(name), sources.cache or Path(), reader) for name in wish.models]
    settings = contents.settings(wish.configs, wish.plugins, reader)
    items += [settings] if settings is not None else []
    if not items:
        raise UsageError("the bundle would be empty: name --models, --engines, --config, --plugins or --program")
    return list(dict.fromkeys(items))  # two words may mean one engine
