"""The memory about engines between runs: one JSON file, which `store.engine_book` writes completely or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from appliance.core.engines.choice import Seat
from appliance.core.engines.devices import Device
from appliance.core.engines.machine import Look
from appliance.core.engines.probation import Probation, eased, kept
from appliance.core.engines.proofs import Proof, ProofKey

MAX_PROOFS = 200
"""Number of proofs that are kept, the newest; a machine has a handful of builds and devices."""


class Listed(Struct, frozen=True, kw_only=True):
    """One build's list of its devices when it was last asked, on this system."""

    digest: str
    system: str
    drivers: str
    """`drivers_of` the machine at that time."""
    devices: tuple[Device, ...] = ()
    why: str = ""
    """The reason why it could not list them; empty: it could."""


class Book(Struct, frozen=True, kw_only=True):
    """The whole book. Each change makes a new one."""

    proofs: tuple[Proof, ...] = ()
    probations: tuple[Probation, ...] = ()
    listed: tuple[Listed, ...] = ()
    look: Look | None = None
    """The machine when it was last examined."""
    signature: str = ""
    """The machine's drivers and cards then: while this is unchanged, ``look`` and ``listed`` are valid."""
    use: str | None = None
    """`Wanted.word` for all models, set by ``engines use``."""
    pinned: bool = False
    """``use`` and nothing else (``engines pin``): no fallback, no update."""
    models: Mapping[str, str] = {}
    """The same by model id."""

    @property
    def system(self) -> str:
        """`Look.system` of the machine when it was last examined; empty: never."""
        return self.look.system if self.look is not None else ""

    @property
    def asked_for(self) -> tuple[str, ...]:
        """Return every word chosen by ``use`` and ``pin``, for all models or for one."""
        return tuple(word for word in (self.use, *self.models.values()) if word)

    def proofs_of(self, seat: Seat, system: str, now: float) -> tuple[Proof, ...]:
        """Return the proofs that are valid for the seat now, one for each device that has one."""
        known = {proof.key: proof for proof in self.proofs if proof.holds(now)}
        found = (known.get(key_of(seat, device, system)) for device in seat.devices)
        return tuple(proof for proof in found if proof is not None)

    def with_proof(self, proof: Proof) -> Book:
        """Add a proof; it replaces an older one with the same key."""
        others = [one for one in self.proofs if one.key != proof.key]
        return structs.replace(self, proofs=(*others, proof)[-MAX_PROOFS:])

    def with_probation(self, probation: Probation) -> Book:
        """Add a probation; it replaces the pair's last one, and expired ones are dropped."""
        left = kept(self.probations, probation.since)
        others = [one for one in left if (one.seat, one.model) != (probation.seat, probation.model)]
        return structs.replace(self, probations=(*others, probation))

    def with_look(self, look: Look, signature: str) -> Book:
        """Note that the machine was examined."""
        return structs.replace(self, look=look, signature=signature)

    def with_trust(self, seat: str) -> Book:
        """Note that the seat was proven on all its devices after the cause of its probation."""
        probations = tuple(eased(one) if one.seat == seat else one for one in self.probations)
        return structs.replace(self, probations=probations)

    def with_listed(self, listed: Listed) -> Book:
        others = [one for one in self.listed if one.digest != listed.digest]
        return structs.replace(self, listed=(*others, listed))

    def cleared(self, digests: Sequence[str] | None = None) -> Book:
        """Forget everything about builds with these digests, or about all; the user's choices stay."""

        def stays(digest: str) -> bool:
            return digests is not None and digest not in digests

        return structs.replace(
            self,
            proofs=tuple(one for one in self.proofs if stays(one.key.digest)),
            probations=tuple(one for one in self.probations if stays(one.digest)),
            listed=tuple(one for one in self.listed if stays(one.digest)),
        )


def key_of(seat: Seat, device: Device, system: str) -> ProofKey:
    """Return the key under which a proof of one device of a seat is remembered."""
    return ProofKey(digest=seat.digest, device=device.id, driver=device.driver, system=system)
