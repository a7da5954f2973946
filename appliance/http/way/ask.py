"""The models of this program, as requests ask them: what each request needs of the fleet, the edits and the slots."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.core.answers.going_on import Continues
from appliance.core.bodies.head import NO_SLOT, RequestHead, is_object
from appliance.core.exchange import RelayOptions
from appliance.core.models.model import Model
from appliance.errors import ModelLoading, ModelNotLoaded, SlotFilesClosed
from appliance.fleet.hold import SHORT, Unnamed
from appliance.fleet.lease import Lease
from appliance.fleet.owner import Fleet
from appliance.http.way.context import ModelRequest
from appliance.http.way.edge import Edge
from appliance.http.way.hooks import EngineTranslate, Repair
from appliance.http.way.outgoing import reached, sent_headers
from appliance.http.way.progress import Pings
from appliance.http.way.routes import Route, reaches_slot_files
from appliance.traffic.request import Request
from appliance.traffic.targets import Target
from appliance.upstream.address import Address
from appliance.upstream.client import Outgoing, relay, split_head
from appliance.upstream.pool import Pool


class Ask:
    """Asks the processes of one server's models."""

    def __init__(
        self,
        edge: Edge,
        fleet: Fleet,
        pool: Pool,
        pings: Pings,
        translates: Sequence[EngineTranslate] = (),
        repair: Repair | None = None,
        continues: Continues | None = None,
    ) -> None:
        self.settings = edge.settings
        self.guard = edge.guard
        self.targets = edge.traffic.targets
        self._recorder = edge.traffic.recorder
        self.fleet = fleet
        self.pool = pool
        self.pings = pings
        self.translates = translates
        self.continues = continues
        self.repair = repair if not edge.settings.single else None

    def plain_head(
        self, request: Request, path: str, target: Target, model: Model, address: Address
    ) -> tuple[bytes, bytes] | None:
        """The head that the model's process gets with every body, in two parts: before and behind the body's length.

        None where bodies are edited, or asking takes more than sending that and reading the answer.
        """
        timeouts = address.tls or address.header_timeout is not None
        is_checked, edits = reaches_slot_files(request.method, path), self.targets.edits(model)
        if timeouts or is_checked or edits.touches(target.requested, model=self.targets.sent_name(target)):
            return None
        headers = sent_headers(request, model, keys_are_ours=self.guard.asks_for_key)
        return split_head(reached(address, model, request), request.method, path, headers)

    def place(self, lease: Lease, route: Route, request: Request, head: RequestHead, body: bytes) -> None:
        """Give a request for a loaded model its slot, until its lease ends; or its process chooses by itself."""
        if head.slot != NO_SLOT and is_object(body) and not self.fleet.may_name_slot(lease.model.id, head.slot):
            lease.placed = Unnamed()
            return
        slots = self.fleet.hold.of(lease.model.id) if route.slot else None
        if slots is None or head.several or not is_object(body):
            return
        names_slot, owner = route.slot == "named", self.guard.holder(request).encode()
        if len(body) < SHORT and head.slot == NO_SLOT:
            placed = slots.place_short(body, owner, names_slot=names_slot)
            if placed is not False:
                lease.placed = placed
                return
        session = self._recorder.conversation(request, head)
        prompt = b"" if head.uncached else body  # then nothing that was read before is of use
        lease.placed = slots.place(lease.ticket, session, prompt, owner, head.slot, names_slot=names_slot)

    async def ask_running(self, model: Model, job: ModelRequest) -> None:
        """Ask a model as it runs now. Never loads one, never counts as a use of it.

        Raises ModelNotLoaded, or ModelLoading where there is only one, UpstreamFailed and SlotFilesClosed.
        """
        address = self.fleet.address(model.id)
        if address is None:
            raise ModelLoading if self.settings.single else ModelNotLoaded(model.id)
        await self.fleet.wait_quiet(model.id)
        request = job.request
        self.check_slots(model, request.method, job.path)
        headers = sent_headers(request, model, keys_are_ours=self.guard.asks_for_key)
        there = reached(address, model, request)
        outgoing = Outgoing(there, request.method, job.path, headers, job.body, self.pool)
        for each in self.translates:
            if await each.answer_running(outgoing, request, job.sink, self.fleet.known(model.id)):
                return
        await relay(outgoing, RelayOptions(label=there.label, method=request.method), job.sink)

    def check_slots(self, model: Model, method: str, path: str) -> None:
        """Raises SlotFilesClosed for a request that could write a kept context or read one into a slot."""
        if reaches_slot_files(method, path) and self.fleet.owns_slot_files(model.id):
            raise SlotFilesClosed(model.id)
