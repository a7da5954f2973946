"""The words, tables and files that the verbs of ``bundle`` share."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import click
from msgspec import Struct

from appliance.catalog.sources import ModelFolders
from appliance.cli.options import ModelOptions
from appliance.cli.show import human_size, print_json, print_table
from appliance.errors import UsageError
from appliance.features.bundles.container import Tell
from appliance.features.bundles.core.manifest import BundleItem, BundleManifest
from appliance.features.bundles.core.plan import BundleSigner, Trust
from appliance.platform.console import say
from appliance.start import is_packaged, own_folder

a_file = click.Path(path_type=Path, dir_okay=False)


class BundleRow(Struct, frozen=True, kw_only=True):
    """One item of a bundle, for ``--json``."""

    kind: str
    name: str
    digest: str
    size: int
    state: str  # ``carried`` or ``left out``; for an import ``here`` or ``imported``
    place: str | None = None


class BundleOutput(Struct, frozen=True, kw_only=True):
    """The output of ``bundle export``, ``verify`` and ``import`` with ``--json``."""

    version: str
    target: str
    made: str
    trust: Trust
    key: str  # the name of the key that signed it; empty: it is not known, or there is none
    files: list[str]
    items: list[BundleRow]


def carried(item: BundleItem) -> BundleRow:
    return row_of(item, "left out" if item.left_out else "carried")


def row_of(item: BundleItem, state: str, place: str | None = None) -> BundleRow:
    return BundleRow(kind=item.kind, name=item.name, digest=item.digest, size=item.size, state=state, place=place)


def print_contents(
    manifest: BundleManifest, signer: BundleSigner, files: list[str], rows: list[BundleRow], as_json: bool
) -> None:
    if as_json:
        print_json(
            BundleOutput(
                version=manifest.version,
                target=manifest.target,
                made=manifest.made,
                trust=signer.trust,
                key=signer.key,
                files=files,
                items=rows,
            )
        )
        return
    places = any(row.place for row in rows)
    cells = [(row.kind, row.name, human_size(row.size), row.state, *([row.place or ""] * places)) for row in rows]
    print_table(("KIND", "NAME", "SIZE", "STATE", *(["PLACE"] * places)), cells, right=("SIZE",))
    other = f"the key {signer.key}, which" if signer.key else "a key that"
    trust = {
        "signed": f"signed with the key {signer.key}",
        "unchecked": f"signed with {other} is not trusted here",
        "unsigned": "not signed",
    }
    say(f"for {manifest.target}, made by version {manifest.version} at {manifest.made}; {trust[signer.trust]}")


@contextmanager
def progress(what: str, quiet: bool, total: int | None = None) -> Generator[Tell]:
    """Show a bar on a terminal; the function that the block gets says how many bytes more are done, in any thread."""
    if quiet or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=total)
        yield lambda count: bars.advance(task, count)


def packaged() -> Path | None:
    """Return this program's folder, if a package manager keeps it."""
    own = own_folder()
    return own if own is not None and is_packaged(own) else None


def utc_now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def content_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as cause:
        raise UsageError(f"{path} cannot be read: {cause.strerror}") from None


def sources_of(models_dir: str | None) -> ModelFolders:
    return ModelOptions(models_dir=models_dir).sources()
