"""All facts of one examination, in Python and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Raw, Struct, defstruct, structs

from appliance.core.examination import Examiner, Known, OwnFacts
from appliance.core.findings import Finding
from appliance.core.lenient_json import decoded


class Facts(Struct, frozen=True):
    """``own`` are those of features, in the order of their examiners."""

    known: Known
    own: tuple[OwnFacts, ...] = ()

    def members(self) -> Mapping[str, object]:
        """Return all facts as the members of one JSON object."""
        return {name: fact for each in (self.known, *self.own) for name, fact in structs.asdict(each).items()}


class Examined(Struct, frozen=True, kw_only=True):
    """``ok`` means that there are only notes."""

    ok: bool
    findings: tuple[Finding, ...]
    facts: Facts

    def told(self) -> Mapping[str, object]:
        """Return the output of ``doctor --json``, and of ``GET /api/doctor``."""
        return structs.asdict(self) | {"facts": self.facts.members()}


class ToldByServer(Struct, frozen=True, kw_only=True):
    """`Examined.told` of a server, whose features may be others than those of the command."""

    ok: bool
    findings: tuple[Finding, ...]
    facts: Raw


def read_examined(raw: bytes, examiners: Iterable[Examiner]) -> Examined | None:
    """Return what a server has told. Facts that are missing or unreadable have their defaults; None: all are."""
    told = decoded(ToldByServer, raw)
    known = decoded(Known, told.facts) if told is not None else None
    if told is None or known is None:
        return None
    own = tuple(decoded(each.facts, told.facts) or each.facts() for each in examiners)
    return Examined(ok=told.ok, findings=told.findings, facts=Facts(known, own))


def shape_told(examiners: Iterable[Examiner]) -> type[Struct]:
    """Return the shape of `Examined.told` for ``/openapi.json``."""
    fields = [(field.encode_name, field.type) for each in examiners for field in structs.fields(each.facts)]
    facts = defstruct("DoctorFacts", fields, bases=(Known,), kw_only=True)
    return defstruct("Examined", [("ok", bool), ("findings", tuple[Finding, ...]), ("facts", facts)])
