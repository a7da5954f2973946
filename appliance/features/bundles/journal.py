"""The journal of bundles: a file of JSON lines in the data folder, one for each thing that a bundle has brought.

A line is written when its thing is in place. The file is replaced as a whole; a line that cannot be read is kept and
skipped. Everything here waits for the disk.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from appliance.core.lenient_json import decoded
from appliance.features.bundles.core.manifest import Kind
from appliance.features.bundles.core.plan import Trust
from appliance.store.model_files import write_whole

JOURNAL = "bundles.jsonl"


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


def note(journal: Path, arrival: BundleArrival) -> None:
    """Add a line. The caller lets nobody else import meanwhile. Raises OSError."""
    before = journal.read_bytes() if journal.exists() else b""
    torn = b"\n" if before and not before.endswith(b"\n") else b""
    write_whole(journal, before + torn + msgspec.json.encode(arrival) + b"\n")


def arrivals(journal: Path) -> list[BundleArrival]:
    """Return what came, oldest first. Raises OSError."""
    lines = journal.read_bytes().split(b"\n") if journal.exists() else []
    return [arrival for line in lines if (arrival := decoded(BundleArrival, line)) is not None]
