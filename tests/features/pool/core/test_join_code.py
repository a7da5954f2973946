"""How a box gets in and is believed: codes and their tokens, keys and certificates by OpenSSL's own checks."""

from __future__ import annotations

import base64
import ssl

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey

from appliance.errors import BadRequest
from appliance.features.pool.core.join_code import LIFE, Codes, JoinCode, read_code
from appliance.features.pool.core.keys import BoxCertificate, PoolKeys, is_signed_by, server_name
from appliance.features.pool.pool_file import certificate_files

PLACES = st.ip_addresses().map(str) | st.from_regex(r"[a-z0-9][a-z0-9.-]{0,40}", fullmatch=True)
CODES = st.builds(
    JoinCode,
    addresses=st.lists(PLACES, min_size=1, max_size=6).map(tuple),
    port=st.integers(1, 65533),
    ca_public=st.binary(min_size=32, max_size=32),
    token=st.binary(min_size=16, max_size=16),
)
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


@given(code=CODES, every=st.integers(1, 40))
def test_a_code_survives_mails_and_lower_case(code: JoinCode, every: int) -> None:
    text = code.text()
    broken = "\n- ".join(text[at : at + every] for at in range(0, len(text), every))
    assert read_code(text) == read_code(f" {broken.lower()} ") == code


@given(code=CODES, data=st.data())
def test_one_wrong_character_is_a_typing_mistake(code: JoinCode, data: st.DataObject) -> None:
    text = code.text()
    at = data.draw(st.integers(5, len(text) - 2))  # bits of the last one may be padding
    wrong = data.draw(st.sampled_from([c for c in f"{ALPHABET}018!" if c != text[at]]))
    with pytest.raises(BadRequest, match="typing mistake"):
        read_code(text[:at] + wrong + text[at + 1 :])
    with pytest.raises(BadRequest, match="typing mistake"):
        read_code(text[:at])


@pytest.mark.parametrize(
    ("text", "why"),
    [("", "not a code"), ("hello", "not a code"), ("LAP2-ABCD", "another version"), ("LAP1-", "typing mistake")],
)
def test_another_text_is_told_apart(text: str, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        read_code(text)


NOWHERE = CODES.map(lambda code: msgspec.structs.replace(code, addresses=()).text())


@given(st.text() | NOWHERE)
def test_any_text_is_a_code_or_refused_with_words(text: str) -> None:
    try:
        read_code(text)
    except BadRequest:
        pass


@given(st.floats(0, LIFE, exclude_max=True))
def test_a_token_is_good_once_and_for_ten_minutes(later: float) -> None:
    codes = Codes()
    codes.add(b"a", 100.0)
    codes.add(b"b", 100.0)
    codes.take(b"a", 100.0 + later)
    with pytest.raises(BadRequest, match="used already"):
        codes.take(b"a", 100.0 + later)
    with pytest.raises(BadRequest, match="too old"):
        codes.take(b"b", 100.0 + LIFE)


def test_ten_wrong_tokens_void_all_codes_and_later_ones_are_good() -> None:
    codes = Codes()
    codes.add(b"a", 0.0)
    for number in range(10):
        with pytest.raises(BadRequest, match="does not know"):
            codes.take(b"wrong%d" % number, 1.0)
    with pytest.raises(BadRequest, match="does not know"):
        codes.take(b"a", 2.0)
    codes.add(b"c", 3.0)
    codes.take(b"c", 4.0)


KEYS = PoolKeys(bytes(range(32)))
OTHERS = PoolKeys(bytes(32))
ADDRESSES = ("10.77.0.2", "fd00::2", "127.0.0.1")
LEAF = KEYS.issue("b1", ADDRESSES, b"s" * 32)


def der(pem: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pem)


def context(server: bool, own: BoxCertificate, ca: str) -> ssl.SSLContext:
    """Both sides show a certificate and check the other's, with the strictest flags that OpenSSL has."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    made.load_verify_locations(cadata=ca)
    with certificate_files(own) as files:
        made.load_cert_chain(*files)
    return made


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> bytes:
    """Run one handshake in memory; return the certificate that the client got, as it gets it without any check."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client.wrap_bio(to_client, to_server, server_hostname=name)
    there = server.wrap_bio(to_server, to_client, server_side=True)
    left = [here, there]
    while left:
        for side in list(left):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            left.remove(side)
    shown = here.getpeercert(binary_form=True)
    assert shown is not None
    return shown


@pytest.mark.parametrize("name", [server_name("b1"), *ADDRESSES])
def test_a_box_is_believed_by_its_name_and_by_each_address(name: str) -> None:
    both = [context(server, LEAF, KEYS.ca_pem) for server in (False, True)]
    assert is_signed_by(KEYS.ca_public, shake_hands(both[0], both[1], name))


def test_another_name_and_another_pool_are_not_believed() -> None:
    server = context(True, LEAF, KEYS.ca_pem)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake_hands(context(False, LEAF, KEYS.ca_pem), server, server_name("b2"))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(context(False, LEAF, OTHERS.ca_pem), server, server_name("b1"))


@given(at=st.integers(0, len(der(LEAF.certificate)) - 1), bit=st.integers(0, 7))
def test_no_bit_of_a_certificate_can_be_changed(at: int, bit: int) -> None:
    changed = bytearray(der(LEAF.certificate))
    changed[at] ^= 1 << bit
    assert not is_signed_by(KEYS.ca_public, bytes(changed))


@given(st.binary(max_size=300))
def test_garbage_is_no_certificate(data: bytes) -> None:
    assert not is_signed_by(KEYS.ca_public, data)
    assert not is_signed_by(KEYS.ca_public, der(LEAF.certificate)[: len(data)])
    assert not is_signed_by(KEYS.ca_public, der(LEAF.certificate) + data[:1] + b"\0")


def test_only_the_own_authority_counts() -> None:
    assert is_signed_by(KEYS.ca_public, der(LEAF.certificate))
    assert is_signed_by(KEYS.ca_public, der(KEYS.ca_pem))
    assert not is_signed_by(OTHERS.ca_public, der(LEAF.certificate))


@given(one=st.binary(min_size=32, max_size=32), other=st.binary(min_size=32, max_size=32))
def test_each_purpose_of_each_secret_has_a_key_of_its_own(one: bytes, other: bytes) -> None:
    def all_of(keys: PoolKeys) -> set[str | bytes]:
        return {keys.ca_public, keys.door_key, keys.bus_seed.hex(), *map(keys.derived, ("route", "system"))}

    assert len(all_of(PoolKeys(one))) == 5
    assert all_of(PoolKeys(one)) == all_of(PoolKeys(one))
    assert one == other or not all_of(PoolKeys(one)) & all_of(PoolKeys(other))


def test_the_bus_user_is_written_as_nats_writes_it() -> None:
    text = KEYS.bus_user
    raw = base64.b32decode(text)
    assert text.startswith("U")
    assert len(text) == 56
    assert raw[1:33] == bytes(SigningKey(KEYS.bus_seed).verify_key)
