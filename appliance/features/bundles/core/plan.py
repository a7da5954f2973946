"""Decides what an import does: the things that are here, those to bring, the room for them; refusals, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from appliance.core import signing
from appliance.core.sizes import MIB
from appliance.errors import UsageError
from appliance.features.bundles.core.manifest import SIGNATURE_SIZE, BundleItem, BundleManifest

SPARE = 64 * MIB  # bytes of a disk that stay free
UNSIGNED = bytes(SIGNATURE_SIZE)  # the signature of a bundle that nobody signed

Trust = Literal["signed", "unchecked", "unsigned"]
"""By a key that was named or is remembered; by some other key; by none."""


class BundleSigner(Struct, frozen=True, kw_only=True):
    """The key that has signed a bundle, and whether it is a trusted one."""

    trust: Trust
    key: str = ""  # the key's name; empty: none signed it, or one that the bundle does not tell


class Standing(Struct, frozen=True, kw_only=True):
    """The state of an item of a bundle on this machine."""

    item: BundleItem
    state: Literal["here", "missing", "other"]  # ``other``: its place is taken by something with other contents
    left: int = 0  # bytes to write, without those that an earlier import has written
    disk: int = 0  # the file system of its place, as the system counts them
    place: str = ""


def signer_in(text: bytes, signature: bytes, stated: str, trusted: Sequence[bytes]) -> BundleSigner:
    """Say which key has signed the manifest ``text``. ``stated`` is the name of the key that it says itself."""
    if signature == UNSIGNED:
        return BundleSigner(trust="unsigned")
    if (key := signing.signer_of(trusted, text, signature)) is not None:
        return BundleSigner(trust="signed", key=signing.name_of(key))
    claimed = [key for key in [signing.key_named(stated)] if key is not None]
    key = signing.signer_of(claimed, text, signature)
    return BundleSigner(trust="unchecked", key=signing.name_of(key) if key is not None else "")


def refuse_untrusted(signer: BundleSigner, *, named: bool, unsigned_is_fine: bool) -> None:
    """Raise UsageError unless the bundle's signature is the one that was asked for. ``named``: a key was."""
    if signer.trust == "signed" or (unsigned_is_fine and not named):
        return
    if signer.trust == "unsigned":
        raise UsageError(
            "the bundle is not signed: export it with --key, or take it from anybody with --unsigned instead of --key"
        )
    if named:
        which = f"the key {signer.key}" if signer.key else "another one, or its manifest was changed"
        raise UsageError(f"the bundle is not signed with this key, but with {which}; ask the sender for the right key")
    which = f"the key {signer.key}" if signer.key else "an unknown key, or was changed since"
    raise UsageError(
        f"the bundle is signed with {which}, and no key that is trusted here fits: get the sender's public key in "
        "another way than the bundle, and import once with --key FILE, which is remembered; --unsigned takes a bundle "
        "from anybody"
    )


def refuse_foreign(manifest: BundleManifest, target: str) -> None:
    """Raise UsageError for a bundle of another kind of machine."""
    if manifest.target != target:
        raise UsageError(
            f"the bundle is for {manifest.target}, and this machine is {target}; export one with --target {target}"
        )


def to_bring(standings: Sequence[Standing], free: Mapping[int, int]) -> list[Standing]:
    """Return the items to write, in the bundle's order. ``free`` are bytes by file system. Raises UsageError."""
    for standing in standings:
        item = standing.item
        if standing.state == "other":
            how = {
                "model": f"'llama-appliance rm {item.name}'",
                "engine": f"'llama-appliance engines remove {item.name}'",
            }
            raise UsageError(
                f"{item.kind} {item.name} is here with other contents than in the bundle, in {standing.place}; remove "
                f"it ({how.get(item.kind, 'the folder')}), and import again"
            )
        if standing.state == "missing" and item.left_out:
            raise UsageError(
                f"the bundle leaves out {item.kind} {item.name}, because the inventory listed it, and it is not here; "
                "export again with a new inventory, or without --against"
            )
    wanted = [standing for standing in standings if standing.state == "missing"]
    needed: Counter[int] = Counter()
    for standing in wanted:
        needed[standing.disk] += standing.left
    for standing in wanted:
        need, has = needed[standing.disk] + SPARE, free[standing.disk]
        if standing.left and has < need:
            raise UsageError(
                f"the import needs {need / 1e6:.0f} MB where {standing.place} is to be, and {has / 1e6:.0f} MB are "
                f"free: make room for {(need - has) / 1e6:.0f} MB, and import again"
            )
    return wanted
