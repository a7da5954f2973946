"""The address where looks for newer versions are taken: a file in the folder of versions; without it there are none."""

from __future__ import annotations

from pathlib import Path

from appliance.errors import UsageError
from appliance.platform.strangers import stranger_at
from appliance.store.model_files import write_whole

ADDRESS = "look"  # the file, beside the versions


def look_address(root: Path) -> str | None:
    """Return the address; None: looks are switched off, or another user could have named one."""
    try:
        return None if stranger_at(root) else (root / ADDRESS).read_text("utf-8").strip() or None
    except OSError:
        return None


def switch_looks(root: Path, address: str | None) -> None:
    """Switch looks on, or with None off. Raises UsageError, OSError."""
    if address is None:
        (root / ADDRESS).unlink(missing_ok=True)
        return
    if not address.startswith(("https://", "http://")):
        raise UsageError(f"--at {address}: expected an address such as https://example.org/llama-appliance")
    write_whole(root / ADDRESS, address.rstrip("/").encode() + b"\n")
