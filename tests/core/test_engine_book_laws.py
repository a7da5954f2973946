"""The book: the last word on a key is the one that counts, and nothing is lost on the way to disk and back."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from appliance.core.engines.book import MAX_PROOFS, Book, Listed, key_of
from appliance.core.engines.choice import Seat
from appliance.core.engines.devices import Device
from appliance.core.engines.machine import Look
from appliance.core.engines.probation import FORGOTTEN, Probation, after_failure
from appliance.core.engines.proofs import FAILED_HOLDS, Fault, Proof, ProofKey

SYSTEM = "Linux 6.1.0"
LOOK = Look(platform="linux-x64", system=SYSTEM, environment="native", cpu="Test CPU")
FAULTS: list[Fault | None] = [None, None, "crash", "garbage"]
digests = st.sampled_from(["d1", "d2", "d3"])
cards = st.sampled_from(["0000:01:00.0", "0000:02:00.0", "Test CPU"])


@st.composite
def some_proof(draw: st.DrawFn) -> Proof:
    key = ProofKey(
        digest=draw(digests), device=draw(cards), driver=draw(st.sampled_from(["550", "560"])), system=SYSTEM
    )
    fault = draw(st.sampled_from(FAULTS))
    return Proof(
        key=key,
        build="linux-x64-cuda12/b1",
        device="CUDA0",
        fault=fault,
        why=draw(st.text(max_size=9)) if fault else "",
        prompt_speed=None if fault else draw(st.none() | st.floats(0.1, 1e5)),
        at=draw(st.floats(0, 4e9)),
    )


@st.composite
def some_probation(draw: st.DrawFn) -> Probation:
    return Probation(
        seat=draw(st.sampled_from(["a:CUDA0", "b:CPU"])),
        digest=draw(digests),
        model=draw(st.sampled_from(["m", "n"])),
        failures=draw(st.integers(1, 9)),
        why=draw(st.text(max_size=9)),
        since=draw(st.floats(0, 4e9)),
        until=draw(st.floats(0, 4e9)),
    )


@st.composite
def some_listing(draw: st.DrawFn) -> Listed:
    card = Device(name="CUDA0", description=draw(st.text(max_size=9)), total=1 << 33, free=0, pci=draw(cards))
    return Listed(digest=draw(digests), system=SYSTEM, drivers="nvidia 550", devices=(card,))


@st.composite
def books(draw: st.DrawFn) -> Book:
    book = Book(
        use=draw(st.sampled_from([None, "vulkan"])), models={"m": "cpu"}, look=draw(st.sampled_from([None, LOOK]))
    )
    for proof in draw(st.lists(some_proof(), max_size=5)):
        book = book.with_proof(proof)
    for probation in draw(st.lists(some_probation(), max_size=4)):
        book = book.with_probation(probation)
    for listed in draw(st.lists(some_listing(), max_size=3)):
        book = book.with_listed(listed)
    return book


@given(books(), some_proof())
def test_a_newer_proof_takes_the_place_of_the_one_with_its_key_and_of_no_other(book: Book, proof: Proof) -> None:
    after = book.with_proof(proof)
    assert [one for one in after.proofs if one.key == proof.key] == [proof]
    assert {one for one in after.proofs if one.key != proof.key} == {one for one in book.proofs if one.key != proof.key}
    assert structs.replace(after, proofs=book.proofs) == book
    assert after.with_proof(proof) == after


@given(books(), some_probation(), some_listing())
def test_a_pair_waits_once_and_a_build_is_listed_once(book: Book, probation: Probation, listed: Listed) -> None:
    after = book.with_probation(probation).with_listed(listed)
    pairs = [(one.seat, one.model) for one in after.probations]
    assert len(pairs) == len(set(pairs))
    assert probation in after.probations
    names = [one.digest for one in after.listed]
    assert len(names) == len(set(names))
    assert listed in after.listed


@given(books(), st.none() | st.lists(digests, max_size=2))
def test_clearing_forgets_just_that_and_keeps_what_the_user_chose(book: Book, chosen: list[str] | None) -> None:
    after = book.cleared(chosen)
    gone = {"d1", "d2", "d3"} if chosen is None else set(chosen)
    assert after.proofs == tuple(one for one in book.proofs if one.key.digest not in gone)
    assert after.probations == tuple(one for one in book.probations if one.digest not in gone)
    assert after.listed == tuple(one for one in book.listed if one.digest not in gone)
    assert (after.use, after.pinned, after.models, after.look) == (book.use, book.pinned, book.models, book.look)


@given(books())
def test_nothing_is_lost_on_the_way_to_json_and_back(book: Book) -> None:
    assert msgspec.json.decode(msgspec.json.encode(book), type=Book) == book


@given(books())
def test_what_a_newer_program_adds_is_passed_over(book: Book) -> None:
    plain = msgspec.to_builtins(book)
    plain["invented"] = {"later": [1, 2]}
    for each in (*plain["proofs"], *plain["probations"], *plain["listed"]):
        each["invented"] = "later"
    assert msgspec.convert(plain, Book) == book


@given(st.lists(some_proof(), max_size=6), st.floats(0, 4e9))
def test_proofs_are_found_for_exactly_this_build_card_driver_and_system(proofs: list[Proof], now: float) -> None:
    card = Device(name="CUDA0", description="Test Card", total=0, free=0, pci="0000:01:00.0", driver="550")
    seat = Seat(build="b", backend="cuda12", digest="d1", place=0, devices=(card,))
    book = Book()
    for proof in proofs:
        book = book.with_proof(proof)
    found = book.proofs_of(seat, SYSTEM, now)
    mine = [one for one in proofs if one.key == key_of(seat, card, SYSTEM)]
    assert list(found) == [one for one in mine[-1:] if one.ok or abs(now - one.at) < FAILED_HOLDS]
    assert book.proofs_of(seat, "Linux 6.2.0", now) == ()
    newer = structs.replace(card, driver="560.1")
    assert book.proofs_of(structs.replace(seat, devices=(newer,)), SYSTEM, now) == ()


def test_the_book_does_not_grow_for_ever() -> None:
    book = Book()
    for number in range(MAX_PROOFS + 50):
        key = ProofKey(digest=f"d{number}", device="c", driver="", system=SYSTEM)
        book = book.with_proof(Proof(key=key, build="b", device="c", fault=None))
    assert len(book.proofs) == MAX_PROOFS
    assert book.proofs[-1].key.digest == f"d{MAX_PROOFS + 49}"
    for week in range(50):
        now = week * 2 * FORGOTTEN
        book = book.with_probation(after_failure(None, seat=f"s{week}", digest="d", model="m", why="it died", now=now))
    assert [one.seat for one in book.probations] == ["s49"]
