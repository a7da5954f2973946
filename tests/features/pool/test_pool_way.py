"""A program whose models other boxes of its pool have too: which box answers, and what happens when one goes away."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from fleet_harness import InOrder, fake_engine
from http_harness import CHAT, Answer, Appliance, OpenServer, chat, model
from msgspec import structs
from random_models import random_dense, write_random
from test_fallback import DIES, STORY, marks, text
from waiting import until

from appliance.core.engine import EMBEDDED
from appliance.core.settings import FleetSettings
from appliance.errors import NotPlaced
from appliance.features.engines.found import find_engine
from appliance.features.pool import remote_peer as owner
from appliance.features.pool.at_boxes import admit
from appliance.features.pool.core.placing import BoxChoice
from appliance.features.pool.peers import PoolSide
from appliance.traffic.targets import Target
from appliance.upstream.client import Address, address_of

SLOW = {"token_delay": 0.05}


class Cable:
    """The way to one box. A box whose cable is pulled is one that died: nobody answers, and connections break."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._scope = trio.CancelScope()
        self._passes = trio.Event()
        self._passes.set()
        self.requests = 0
        self.passes_of_answers = 1 << 60
        """Bytes of answers that still pass; behind them it freezes."""

    async def lie(self, *, task_status: trio.TaskStatus[int]) -> None:
        with self._scope:
            async with trio.open_nursery() as nursery:
                serve = partial(trio.serve_tcp, self._pass, 0, host="127.0.0.1", handler_nursery=nursery)
                [listener] = await nursery.start(serve)
                task_status.started(listener.socket.getsockname()[1])

    def pull(self) -> None:
        self._scope.cancel()

    def freeze(self) -> None:
        """Nothing passes any more, and connections stay open."""
        self._passes = trio.Event()

    async def _pass(self, client: trio.SocketStream) -> None:
        async with client, await trio.open_tcp_stream("127.0.0.1", self._to) as box, trio.open_nursery() as nursery:
            nursery.start_soon(self._copy, client, box)
            await self._copy(box, client, answers=True)
            nursery.cancel_scope.cancel()

    async def _copy(self, source: trio.SocketStream, to: trio.SocketStream, *, answers: bool = False) -> None:
        try:
            async for data in source:
                self.requests += data.startswith(b"POST")
                await self._passes.wait()
                if answers and len(data) > self.passes_of_answers:
                    await to.send_all(data[: self.passes_of_answers])
                    self.freeze()
                    await self._passes.wait()
                self.passes_of_answers -= len(data) * answers
                await to.send_all(data)
            await to.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass


@asynccontextmanager
async def pooled(entry: Appliance, **boxes: Appliance) -> AsyncGenerator[dict[str, Cable]]:
    """Make these the other boxes of the pool of ``entry``, which is called b1, once it knows their models."""
    async with trio.open_nursery() as nursery:
        cables = {name: Cable(box.port) for name, box in boxes.items()}
        members = dict[str, Address]()
        for name, cable in cables.items():
            port = await nursery.start(cable.lie)
            members[name] = address_of(f"http://127.0.0.1:{port}", name)
        peers = entry.owners.peers
        peers.adopt_members(members, PoolSide(me="b1"))
        await until(peers.names, lambda names: all(models for _, models in names), changed=peers.wait_changed)
        yield cables
        peers.adopt_members({})
        nursery.cancel_scope.cancel()


async def loaded(entry: Appliance, box: Appliance, name: str, model_id: str = "alpha") -> None:
    """Load the model at that box, and wait until the entry box knows."""
    assert (await box.ask("POST", CHAT, chat(model_id) | {"max_tokens": 1})).status == 200

    def there() -> bool:
        return any(one.state_of(model_id).loaded for one in entry.owners.peers.members() if one.id == name)

    await until(there, bool, changed=entry.owners.peers.wait_changed)


def box_of(answer: Answer) -> str | None:
    return answer.header("X-Appliance-Box")


async def test_the_box_that_has_it_loaded_answers(open_server: OpenServer, fake_model: Path):
    more = [model(fake_model, "alpha"), model(fake_model, "gamma")]
    async with open_server() as entry, open_server(models=more) as other, pooled(entry, b2=other):
        await loaded(entry, other, "b2")
        answer = await entry.ask("POST", CHAT, chat())
        assert (answer.status, box_of(answer), entry.state("alpha")) == (200, "b2", "unknown")
        assert (await entry.rows())[0]["metadata"]["box"] == "b2"
        listed = {one["id"]: one for one in (await entry.ask("GET", "/v1/models")).json["data"]}
        assert sorted(listed) == ["alpha", "beta", "gamma"]
        assert listed["gamma"]["meta"]["llamaswap"]["boxes"] == ["b2"]
        for name in ("gamma", "b2/alpha", "b2/gamma"):  # one that is only there, and names that mean that box
            assert box_of(await entry.good("POST", CHAT, chat(name))) == "b2"
        answer = await entry.good("POST", CHAT, chat("beta"))  # the other box has none of this name
        assert (box_of(answer), entry.state("beta")) == (None, "loaded")


async def test_where_both_have_it_the_idle_box_answers_and_the_fast_path_steps_aside(open_server: OpenServer):
    async with open_server() as entry, open_server() as other, pooled(entry, b2=other):
        await entry.fleet.load(entry.catalog.snapshot.require("alpha"))
        await loaded(entry, other, "b2")
        first = box_of(await entry.ask("POST", CHAT, chat()))
        assert first == box_of(await entry.ask("POST", CHAT, chat()))
        entry.owners.peers.side = PoolSide(me="b1", drained=("b1",))
        assert box_of(await entry.ask("POST", CHAT, chat())) == "b2"
        entry.owners.peers.side = PoolSide(me="b1", drained=("b2",))
        assert box_of(await entry.ask("POST", CHAT, chat())) == "b1"


async def test_a_box_that_cannot_be_reached_is_followed_by_the_next(open_server: OpenServer):
    async with open_server() as entry, open_server() as other, pooled(entry, b2=other) as cables:
        await loaded(entry, other, "b2")
        cables["b2"].pull()
        assert box_of(await entry.good("POST", CHAT, chat())) == "b1"
        assert "fallback" not in (await entry.rows())[0]["metadata"], "no byte had left"


async def test_a_box_that_refuses_is_followed_by_the_next_and_the_last_refusal_passes(
    open_server: OpenServer, fake_model: Path
):
    """Box b2 has lost the models that it still lists."""
    only = [model(fake_model, "alpha")]
    async with open_server(models=only) as entry, open_server() as other, pooled(entry, b2=other) as cables:
        await loaded(entry, other, "b2")
        other.catalog.snapshot = type(other.catalog.snapshot)([])
        answer = await entry.ask("POST", CHAT, chat())
        assert (answer.status, box_of(answer), cables["b2"].requests) == (200, "b1", 1)
        await entry.refuses(404, "model_not_found", "POST", CHAT, chat("b2/beta"))


@pytest.mark.parametrize("streams", [False, True])
async def test_a_box_that_dies_before_the_first_byte_is_followed_by_another_once(
    open_server: OpenServer, *, streams: bool
):
    async with open_server() as entry, open_server() as other, pooled(entry, b2=other) as cables:
        await loaded(entry, other, "b2")
        async with entry.asking(chat(stream=streams, slow_prompt=1.5)) as found:
            await until(lambda: cables["b2"].requests, bool)
            await until(lambda: any(one.leases for one in other.fleet.status()), bool)
            cables["b2"].pull()
        [answer] = found
        assert (answer.status, box_of(answer), answer.cut) == (200, "b1", False)
        assert answer.header("X-Appliance-Fallback") == "replayed; from=b2; on=b1"
        assert cables["b2"].requests == 1
        assert [one.up for one in entry.owners.peers.members()] == [False]
        noted = (await entry.rows())[0]["metadata"]
        assert (noted["box"], noted["fallback"]) == ("b1", "replayed; from=b2; on=b1")


async def test_the_header_forbids_a_second_box(open_server: OpenServer):
    async with open_server() as entry, open_server() as other, pooled(entry, b2=other) as cables:
        await loaded(entry, other, "b2")
        async with entry.begun(chat(stream=True, **SLOW), headers=[("X-Appliance-Fallback", "none")]) as client:
            await client.until(b"data: ", 2)
            cables["b2"].pull()
            rest = await client.rest()
        assert (b"peer_failed" in rest, b"b2" in rest) == (True, True)
        assert entry.state("alpha") == "unknown"


@pytest.mark.parametrize("freezes", [False, True])
async def test_a_stream_that_breaks_is_continued_on_another_box_and_stays_resumable_here(
    open_server: OpenServer, monkeypatch: pytest.MonkeyPatch, *, freezes: bool
):
    monkeypatch.setattr(owner, "LOOK_TIME", 1.0)
    there = InOrder(fake_engine("there"))
    async with open_server() as entry, open_server(chooser=there) as other, pooled(entry, b2=other) as cables:
        await loaded(entry, other, "b2")
        body = chat(stream=True, **SLOW) | {"max_tokens": 8}
        async with entry.begun(body, headers=[("X-Conversation-Id", "talk")]) as client:
            got = await client.until(b"data: ", 3)
            if freezes:
                cables["b2"].freeze()
                entry.owners.peers.seen("b2", False, "it has sent no sign of life for 4 s")
            else:
                cables["b2"].pull()
            got += await client.rest()
        answer = Answer(200, [], got, cut=False)
        assert text(answer) == STORY
        [mark] = marks(answer)
        assert (mark["from"], mark["on"]) == ("b2", "b1")
        assert text(await entry.ask("GET", "/v1/stream/talk?from=0")) == STORY


async def test_an_engine_of_this_box_that_dies_is_followed_by_another_box(open_server: OpenServer):
    here = InOrder(fake_engine("here", *DIES))
    async with open_server(chooser=here) as entry, open_server() as other, pooled(entry, b2=other):
        await loaded(entry, other, "b2")
        entry.owners.peers.side = PoolSide(me="b1", drained=("b2",))
        entry.fleet.load_soon(entry.catalog.snapshot.require("alpha"))
        await until(lambda: entry.state("alpha"), lambda state: state == "loaded")
        answer = await entry.ask("POST", CHAT, chat(stream=True) | {"max_tokens": 8})
        assert text(answer) == STORY
        [mark] = marks(answer)
        assert (mark["after"], mark["from"], mark["on"]) == (3, "here", "b2")
        assert (await entry.rows())[0]["metadata"]["box"] == "b2"


async def test_a_model_that_does_not_start_here_is_asked_of_another_box(open_server: OpenServer):
    here = InOrder(fake_engine("here", "--fail-to-load"))
    async with open_server(chooser=here) as entry, open_server() as other, pooled(entry, b2=other):
        entry.owners.peers.side = PoolSide(me="b1", drained=("b2",))
        assert box_of(await entry.good("POST", CHAT, chat())) == "b2"


async def test_the_door_lets_in_what_takes_nothing_from_others(open_server: OpenServer):
    async with open_server(fleet=FleetSettings(models_max=1, stop_timeout=2.0)) as box:
        targets = {name: Target(model=box.catalog.snapshot.require(name), requested=name) for name in ("alpha", "beta")}
        admit(box.fleet, targets["alpha"])
        assert (await box.ask("POST", CHAT, chat("alpha"))).status == 200
        admit(box.fleet, targets["alpha"])
        with pytest.raises(NotPlaced, match="would unload another model"):
            admit(box.fleet, targets["beta"])
        with pytest.raises(NotPlaced, match="does not have it"):
            admit(box.fleet, Target(peers=(("b2", "x"),), boxes=(("b2", "x"),), requested="x"))


class Orders:
    """An agreement of the pool: box b2 loads whatever is to be loaded, or nobody knows."""

    def __init__(self, told: str | None, load: Callable[[], Awaitable[object]]) -> None:
        self.told = told
        self.load = load
        self.asked: list[tuple[str, BoxChoice | None]] = []

    async def place(self, model_id: str, decide: Callable[[], BoxChoice | None]) -> str | None:
        self.asked.append((model_id, decide()))
        await self.load()
        return self.told


@pytest.mark.parametrize("told", ["b2", None])
async def test_a_load_is_ordered_and_an_answer_is_not(open_server: OpenServer, told: str | None):
    async with open_server() as entry, open_server() as other, pooled(entry, b2=other):
        peers = entry.owners.peers
        orders = Orders(told, trio.lowlevel.checkpoint)
        peers.side = PoolSide(me="b1", orders=orders)
        answer = await entry.ask("POST", CHAT, chat())
        [(asked, choice)] = orders.asked
        assert (answer.status, asked) == (200, "alpha")
        assert choice.need == "load"
        assert box_of(answer) == (told or choice.box)
        loaded_at = box_of(answer)
        await until(lambda: entry.state("alpha") == "loaded" or peers.decides([("b2", "alpha")]), changed=None)
        assert box_of(await entry.ask("POST", CHAT, chat())) in (loaded_at, None)
        assert len(orders.asked) == 1


LENGTH = 200
WORDS = "box pool model prefix cache token slot queue lease"


@pytest.fixture
def real() -> InOrder:
    """The embedded engine with one thread."""
    return InOrder(structs.replace(find_engine(EMBEDDED), seat="cpu", args=("--threads", "1")))


async def test_greedy_text_is_the_same_where_a_box_dies_in_mid_answer(
    open_server: OpenServer, real: InOrder, starter_model: Path
):
    opened = partial(open_server, chooser=real, models=[model(starter_model, "alpha")])
    body = {"model": "alpha", "prompt": "Once upon a time", "max_tokens": LENGTH, "temperature": 0, "stream": True}
    async with opened() as entry, opened() as other, pooled(entry, b2=other) as cables:
        await loaded(entry, other, "b2")
        undisturbed = await entry.ask("POST", "/v1/completions", body, patience=60)
        assert box_of(undisturbed) == "b2"
        cables["b2"].passes_of_answers = len(undisturbed.body) // 2
        async with entry.begun(body, "/v1/completions") as client:
            got = await client.until(b"data: ", 20)
            cables["b2"].pull()
            got += await client.rest()
        broken = Answer(200, [], got, cut=False)
        [mark] = marks(broken)
        assert (mark["from"], mark["on"]) == ("b2", "b1")
        assert text(broken) == text(undisturbed)


@pytest.mark.slow
async def test_a_conversation_stays_with_the_box_that_has_read_it(
    open_server: OpenServer, real: InOrder, tmp_path: Path
):
    file = tmp_path / "random.gguf"
    write_random(file, random_dense(width=256, layers=2))
    opened = partial(open_server, chooser=real, models=[model(file, "alpha", args=("--parallel", "4"))])
    async with opened() as entry, opened() as other, pooled(entry, b2=other):
        await entry.fleet.load(entry.catalog.snapshot.require("alpha"))
        await loaded(entry, other, "b2")
        talks = [[{"role": "user", "content": f"{number} {WORDS} " * 20}] for number in range(6)]
        homes: dict[int, set[str | None]] = {}
        read = whole = 0
        for turn in range(3):
            for number, talk in enumerate(talks):
                body = {"model": "alpha", "messages": talk, "max_tokens": 8, "temperature": 0}
                answer = await entry.ask("POST", CHAT, body, patience=60)
                homes.setdefault(number, set()).add(box_of(answer))
                timings = answer.json["timings"]
                if turn:
                    read, whole = read + timings["cache_n"], whole + timings["cache_n"] + timings["prompt_n"]
                said = answer.json["choices"][0]["message"]["content"]
                talk += [{"role": "assistant", "content": said}, {"role": "user", "content": f"{turn} {WORDS}"}]
        assert all(len(boxes) == 1 for boxes in homes.values()), homes
        assert set[str | None]().union(*homes.values()) == {"b1", "b2"}, homes
        assert read >= 0.7 * whole, (read, whole)


def other_file(file: Path) -> Path:
    """Another model than the one in this file."""
    made = file.with_name("other.gguf")
    made.write_bytes(file.read_bytes() + b"x")
    return made


@pytest.mark.parametrize("fault", ["pulled", "frozen", "engine", "replaced"])
async def test_no_answer_is_continued_by_another_model_of_its_name(
    open_server: OpenServer, fake_model: Path, monkeypatch: pytest.MonkeyPatch, fault: str
):
    """Box b2 answers. The other boxes have another model of its name; or b3 has one from the fault on."""
    monkeypatch.setattr(owner, "LOOK_TIME", 1.0)
    mine, others = [model(fake_model, "alpha")], [model(other_file(fake_model), "alpha")]
    dies = DIES if fault == "engine" else ()
    async with (
        open_server(models=[] if fault == "replaced" else others) as entry,
        open_server(models=mine, chooser=InOrder(fake_engine("there", *dies))) as other,
        open_server(models=mine if fault == "replaced" else others) as third,
        pooled(entry, b2=other, b3=third) as cables,
    ):
        name = "alpha" if fault == "replaced" else "b2/alpha"
        await loaded(entry, other, "b2")
        if fault != "replaced":
            assert box_of(await entry.ask("POST", CHAT, chat())) != "b2", "the plain name is the own model"
        async with entry.begun(chat(name, stream=True, **SLOW) | {"max_tokens": 8}) as client:
            got = await client.until(b"data: ", 3)
            if fault == "frozen":
                cables["b2"].freeze()
                entry.owners.peers.seen("b2", False, "it has sent no sign of life for 4 s")
            elif fault != "engine":
                third.catalog.snapshot = type(third.catalog.snapshot)(others)
                cables["b2"].pull()
            got += await client.rest()
        broken = Answer(200, [], got, cut=False)
        assert b"error" in broken.body
        assert not marks(broken)
        assert STORY.startswith(text(broken))
        assert text(broken) != STORY


async def test_boxes_with_two_models_of_a_name_are_named_instead_of_a_guess(open_server: OpenServer, fake_model: Path):
    mine, others = [model(fake_model, "same")], [model(other_file(fake_model), "same")]
    async with (
        open_server() as entry,
        open_server(models=mine) as one,
        open_server(models=others) as other,
        pooled(entry, b2=one, b3=other),
    ):
        refused = await entry.ask("POST", CHAT, chat("same"))
        assert (refused.status, refused.error["reason"]) == (404, "model_not_found")
        assert "'b2/same' or 'b3/same'" in refused.error["message"]
        listed = [one["id"] for one in (await entry.ask("GET", "/v1/models")).json["data"]]
        assert listed == ["alpha", "b2/same", "b3/same", "beta"]
        for box in ("b2", "b3"):
            assert box_of(await entry.ask("POST", CHAT, chat(f"{box}/same"))) == box
        assert (await entry.ask("POST", CHAT, chat("b1/alpha"))).status == 200
        assert (await entry.ask("POST", "/upstream/b1/alpha/v1/chat/completions", chat())).status == 200
