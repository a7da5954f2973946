"""Keys and signatures by ed25519, in the files that ``openssl genpkey`` and ``openssl pkey -pubout`` write.

So one key signs payloads (``bootstrap.py freeze --sign``) and bundles. libsodium does the work, in constant time.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

from appliance.errors import UsageError

SEED_SIZE = 32
_PRIVATE = bytes.fromhex("302e020100300506032b657004220420")
"""The bytes before the 32 of a key in DER (RFC 8410, section 7)."""
_PUBLIC = bytes.fromhex("302a300506032b6570032100")
"""The same for a public key (section 4)."""


def private_pem(seed: bytes) -> bytes:
    """Return the file of the private key that these 32 random bytes are."""
    return _pem("PRIVATE KEY", _PRIVATE + seed)


def public_of(seed: bytes) -> bytes:
    """Return its public key."""
    from nacl.signing import SigningKey  # libsodium, which few starts need

    return bytes(SigningKey(seed).verify_key)


def public_pem(key: bytes) -> bytes:
    """Return the file of a public key."""
    return _pem("PUBLIC KEY", _PUBLIC + key)


def name_of(key: bytes) -> str:
    """Return a public key as people compare it: the last 44 characters of the one line within its file."""
    return base64.b64encode(key).decode()


def key_named(name: str) -> bytes | None:
    """Return the public key of this name; None: it is the name of none."""
    try:
        key = base64.b64decode(name, validate=True)
    except ValueError:
        return None
    return key if len(key) == SEED_SIZE else None


def seed_of(pem: bytes, where: str) -> bytes:
    """Read a private key. Raises UsageError, which names ``where``."""
    return _content(pem, "PRIVATE KEY", _PRIVATE, f"{where} is not a private ed25519 key; 'bundle keygen' makes one")


def public_keys_of(pem: bytes, where: str) -> tuple[bytes, ...]:
    """Read a file of public keys, one or several. Raises UsageError, which names ``where``."""
    told = f"{where} is not a public ed25519 key; 'bundle keygen' writes one beside the private key"
    blocks = pem.split(b"-----BEGIN PUBLIC KEY-----")[1:] or [b""]
    return tuple(_content(b"-----BEGIN PUBLIC KEY-----" + block, "PUBLIC KEY", _PUBLIC, told) for block in blocks)


def sign(seed: bytes, message: bytes) -> bytes:
    """Return the signature, 64 bytes."""
    from nacl.signing import SigningKey

    return SigningKey(seed).sign(message).signature


def signer_of(public_keys: Iterable[bytes], message: bytes, signature: bytes) -> bytes | None:
    """Return the key whose holder has signed this very message; None: it is none of these."""
    return next((key for key in public_keys if _is_signed(key, message, signature)), None)


def _is_signed(public_key: bytes, message: bytes, signature: bytes) -> bool:
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
