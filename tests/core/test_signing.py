"""Keys and signatures are those of openssl; a signature holds for one message and one key."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core import signing
from appliance.errors import UsageError


@pytest.mark.needs("openssl")
def test_keys_are_those_of_openssl(tmp_path: Path) -> None:
    def run(*words: str | Path) -> None:
        subprocess.run(["openssl", *map(str, words)], cwd=tmp_path, check=True, capture_output=True)

    run("genpkey", "-algorithm", "ed25519", "-out", "theirs")
    run("pkey", "-in", "theirs", "-pubout", "-out", "theirs.pub")
    seed = signing.seed_of((tmp_path / "theirs").read_bytes(), "theirs")
    assert signing.private_pem(seed) == (tmp_path / "theirs").read_bytes()
    assert signing.public_pem(signing.public_of(seed)) == (tmp_path / "theirs.pub").read_bytes()
    (tmp_path / "message").write_bytes(b"hello")
    (tmp_path / "signature").write_bytes(signing.sign(seed, b"hello"))
    assert signing.name_of(signing.public_of(seed)) == (tmp_path / "theirs.pub").read_text().splitlines()[1][-44:]
    run("pkeyutl", "-verify", "-pubin", "-inkey", "theirs.pub", "-rawin", "-in", "message", "-sigfile", "signature")


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=100), st.integers(0, 63), st.integers(0, 7))
def test_a_signature_holds_for_one_message_and_one_key(seed: bytes, message: bytes, at: int, bit: int) -> None:
    other = bytes([seed[0] ^ 1]) + seed[1:]
    both = [signing.public_of(other), public := signing.public_of(seed)]
    assert signing.public_keys_of(b"".join(map(signing.public_pem, both)), "public") == tuple(both)
    assert [signing.key_named(signing.name_of(key)) for key in both] == both
    signature = signing.sign(seed, message)
    assert signing.signer_of(both, message, signature) == public
    assert signing.signer_of(both[:1], message, signature) is None
    changed = bytearray(signature)
    changed[at] ^= 1 << bit
    assert signing.signer_of(both, message, bytes(changed)) is None
    assert signing.signer_of(both, message + b"x", signature) is None


@pytest.mark.parametrize("name", ["", "x", "AAAA", "A" * 43 + "\xe9", "=" * 44])
def test_a_name_of_no_key_is_none(name: str) -> None:
    assert signing.key_named(name) is None


@pytest.mark.parametrize(
    "text",
    [b"", b"-----BEGIN PUBLIC KEY-----"]
    + [b"-----BEGIN PUBLIC KEY-----\n%s\n-----END PUBLIC KEY-----\n" % inside for inside in (b"AAAA", b"A", b"?")],
)
def test_other_files_are_not_keys(text: bytes) -> None:
    for content in (text, signing.public_pem(bytes(32)) + (text or b"-----BEGIN PUBLIC KEY-----")):
        with pytest.raises(UsageError, match=r"mine\.pub is not a public ed25519 key; 'bundle keygen'"):
            signing.public_keys_of(content, "mine.pub")
    with pytest.raises(UsageError, match="is not a private ed25519 key"):
        signing.seed_of(signing.public_pem(bytes(32)), "mine.pub")
