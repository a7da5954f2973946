"""The public keys that upgrades and bundles were checked with, in the folder of versions of the program.

Everything here waits for the disk, and raises OSError.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from appliance.core.signing import public_keys_of, public_pem
from appliance.platform.strangers import stranger_at
from appliance.store.model_files import write_whole

TRUSTED = "trusted.pub"
"""The file of the keys; the next upgrades and bundles need no other."""


def trusted_keys(root: Path) -> tuple[bytes, ...]:
    """Return the remembered keys; none in a folder that another user could have filled. Raises UsageError, OSError."""
    if stranger_at(root):
        return ()
    try:
        return public_keys_of((root / TRUSTED).read_bytes(), str(root / TRUSTED))
    except FileNotFoundError:
        return ()


def trust(root: Path, keys: Iterable[bytes]) -> bool:
    """Remember keys, behind those that are remembered; False if that changes nothing. Raises UsageError, OSError."""
    known = trusted_keys(root)
    fresh = [key for key in keys if key not in known]
    if not fresh or stranger_at(root):
        return False
    write_whole(root / TRUSTED, b"".join(map(public_pem, (*known, *fresh))))
    return True
