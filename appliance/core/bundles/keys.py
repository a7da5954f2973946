"""Keys and signatures by ed25519, in the files that ``openssl genpkey`` and ``openssl pkey -pubout`` write.

So one key signs payloads (``bootstrap.py freeze --sign``) and bundles. libsodium does the work, in constant time.
"""

from __future__ import annotations

import base64
import binascii

from appliance.errors import UsageError

SEED_SIZE = 32
_PRIVATE = bytes.fromhex("302e020100300506032b657004220420")
"""The bytes before the 32 of a key in DER (RFC 8410, section 7)."""
_PUBLIC = bytes.fromhex("302a300506032b6570032100")
"""The same for a public key (section 4)."""


def private_pem(seed: bytes) -> bytes:
    """Return the file of the private key that these 32 random bytes are."""
    return _pem("PRIVATE KEY", _PRIVATE + seed)


def public_pem(seed: bytes) -> bytes:
    """Return the file of its public key."""
    from nacl.signing import SigningKey  # libsodium, which only bundles need

    return _pem("PUBLIC KEY", _PUBLIC + bytes(SigningKey(seed).verify_key))


def seed_of(pem: bytes, where: str) -> bytes:
    """Read a private key. Raises UsageError, which names ``where``."""
    return _content(pem, "PRIVATE KEY", _PRIVATE, f"{where} is not a private ed25519 key; 'bundle keygen' makes one")


def public_key_of(pem: bytes, where: str) -> bytes:
    """Read a public key. Raises UsageError, which names ``where``."""
    told = f"{where} is not a public ed25519 key; 'bundle keygen' writes one beside the private key"
    return _content(pem, "PUBLIC KEY", _PUBLIC, told)


def sign(seed: bytes, message: bytes) -> bytes:
    """Return the signature, 64 bytes."""
    from nacl.signing import SigningKey

    return SigningKey(seed).sign(message).signature


def is_signed(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """True if the holder of the private key has signed this very message."""
    from nacl.exceptions import BadSignatureError
    from nacl.signing import VerifyKey

    try:
        VerifyKey(public_key).verify(message, signature)
    except BadSignatureError:
        return False
    return True


def _pem(label: str, der: bytes) -> bytes:
    return f"-----BEGIN {label}-----\n{base64.b64encode(der).decode()}\n-----END {label}-----\n".encode()


def _content(pem: bytes, label: str, head: bytes, told: str) -> bytes:
    begin, end = f"-----BEGIN {label}-----".encode(), f"-----END {label}-----".encode()
    inside = pem.partition(begin)[2].partition(end)[0]
    try:
        der = base64.b64decode(b"".join(inside.split()), validate=True)
    except binascii.Error:
        raise UsageError(told) from None
    if not der.startswith(head) or len(der) != len(head) + SEED_SIZE:
        raise UsageError(told)
    return der[len(head) :]
