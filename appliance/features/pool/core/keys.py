"""The keys of a pool: everything that a box needs follows from one secret of 32 bytes.

So a joiner has to be given nothing else, and a new secret replaces everything at once. The certificates are X.509 by
hand, because the only library of keys that is here (libsodium) knows no certificates. They are as small as Go, OpenSSL
and Python's strict check allow: Ed25519, the key identifiers, the basic constraints. They are valid from 1970 to 9999,
because a box whose clock has no battery has to be let in as well. A lost box is kept out by a new secret.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from ipaddress import ip_address

from msgspec import Struct

from appliance.core.signing import SEED_SIZE, private_pem, public_of, sign, signer_of

SECRET_SIZE = 32
DOMAIN = "llama-pool"  # the certificates' issuer, and the domain of the boxes' names in them

_SEQUENCE, _SET, _OCTETS, _BITS, _INTEGER, _OID = 0x30, 0x31, 0x04, 0x03, 0x02, 0x06
_TRUE = b"\x01\x01\xff"
_USER = 20 << 3  # the first byte of a user's public key in the text form of NATS; it makes the text begin with a U


class PoolKeys(Struct, frozen=True):
    """The keys of the pool with this secret. Two boxes with one secret have the same ones."""

    secret: bytes

    def derived(self, purpose: str) -> bytes:
        """Return the 32 bytes for one purpose; none of them tells anything of another, or of the secret."""
        return hmac.new(self.secret, f"llama-pool/{purpose}".encode(), hashlib.sha256).digest()

    @property
    def ca_public(self) -> bytes:
        """The public key of the pool's authority, 32 bytes. A join code carries it."""
        return public_of(self.derived("ca"))

    @property
    def ca_pem(self) -> str:
        """The authority's certificate, which signs itself."""
        key_usage = _extension(15, b"\x03\x02\x01\x06", critical=True)  # it signs certificates and revocations
        return self._certificate(DOMAIN, self.ca_public, _TRUE, key_usage)

    @property
    def door_key(self) -> str:
        """The key that members show at each other's door, as ``Authorization: Bearer``."""
        return self.derived("door").hex()

    @property
    def bus_seed(self) -> bytes:
        """The private key of the bus's only user, 32 bytes."""
        return self.derived("user")

    @property
    def bus_user(self) -> str:
        """Its public key in the text form of NATS, ``U...``: base32 with a check sum."""
        head = bytes([_USER]) + public_of(self.bus_seed)
        return base64.b32encode(head + binascii.crc_hqx(head, 0).to_bytes(2, "little")).decode()

    def issue(self, box: str, addresses: Sequence[str], seed: bytes) -> BoxCertificate:
        """Make a box's certificate for ``addresses`` and for its name; ``seed`` is 32 random bytes, its private key."""
        names = _der(_SEQUENCE, *(_alternative(name) for name in (*addresses, server_name(box))))
        # serverAuth and clientAuth: a box is both, and the bus asks for both
        uses = (_der(_OID, b"\x2b\x06\x01\x05\x05\x07\x03" + bytes([use])) for use in (1, 2))
        more = _extension(17, names) + _extension(37, _der(_SEQUENCE, *uses))
        return BoxCertificate(
            ca=self.ca_pem,
            certificate=self._certificate(box, public_of(seed), b"", more),
            key=private_pem(seed).decode(),
        )

    def _certificate(self, subject: str, public: bytes, is_ca: bytes, more: bytes) -> str:
        """Return a certificate, signed (RFC 5280, section 4.1). Its number follows from its key: nobody counts them."""
        key_id = _extension(14, _der(_OCTETS, _key_id(public)))
        signer_id = _extension(35, _der(_SEQUENCE, _der(0x80, _key_id(self.ca_public))))
        constraints = _extension(19, _der(_SEQUENCE, is_ca), critical=True)
        content = _der(
            _SEQUENCE,
            _der(0xA0, _der(_INTEGER, b"\x02")),  # version 3
            _der(_INTEGER, b"\x01" + hashlib.sha256(public).digest()[:15]),
            _ED25519,
            _name(DOMAIN),
            _der(_SEQUENCE, _der(0x17, b"700101000000Z"), _der(0x18, b"99991231235959Z")),
            _name(subject),
            _der(_SEQUENCE, _ED25519, _der(_BITS, b"\0" + public)),
            _der(0xA3, _der(_SEQUENCE, constraints, key_id, signer_id, more)),
        )
        signature = sign(self.derived("ca"), content)
        der = _der(_SEQUENCE, content, _ED25519, _der(_BITS, b"\0" + signature))
        return f"-----BEGIN CERTIFICATE-----\n{base64.encodebytes(der).decode()}-----END CERTIFICATE-----\n"


class BoxCertificate(Struct, frozen=True, kw_only=True):
    """One box's certificate with its private key and its authority, each as a PEM text."""

    ca: str
    certificate: str
    key: str


def server_name(box: str) -> str:
    """Return the name of a box in its certificate. TLS clients ask for it, whatever address they dial."""
    return f"{box}.{DOMAIN}"


def is_signed_by(ca_public: bytes, certificate: bytes) -> bool:
    """True if the holder of this key signed the certificate (DER). False also for what is not a certificate.

    Python cannot show the chain that a server sent, and a joiner does not have the authority's certificate yet, only
    its key. So the signature is checked by hand, after a handshake that proved the certificate's own key.
    """
    try:
        content, _, left = _opened(_SEQUENCE, certificate)
        _, signed, content = _opened(_SEQUENCE, content)
        _, algorithm, content = _opened(_SEQUENCE, content)
        bits, _, content = _opened(_BITS, content)
    except ValueError:
        return False
    if left or content or algorithm != _ED25519 or len(bits) != 1 + 2 * SEED_SIZE or bits[0]:
        return False
    return signer_of((ca_public,), signed, bits[1:]) is not None


def _der(tag: int, *parts: bytes) -> bytes:
    """Return one value: its tag, its length, its bytes."""
    content = b"".join(parts)
    if len(content) < 0x80:
        return bytes([tag, len(content)]) + content
    size = len(content).to_bytes((len(content).bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(size)]) + size + content


def _opened(tag: int, data: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the first value's content, the whole value, and the rest. Raises ValueError if it is not whole."""
    if len(data) < 2 or data[0] != tag:
        raise ValueError(f"expected a value with tag {tag}")
    start, size = 2, data[1]
    if size >= 0x80:
        start += size - 0x80
        size = int.from_bytes(data[2:start], "big")
    end = start + size
    if not 2 <= start <= 4 or end > len(data):
        raise ValueError("the value is cut off")
    return data[start:end], data[:end], data[end:]


_ED25519 = _der(_SEQUENCE, _der(_OID, b"\x2b\x65\x70"))


def _name(common: str) -> bytes:
    attribute = _der(_SEQUENCE, _der(_OID, b"\x55\x04\x03"), _der(0x0C, common.encode()))
    return _der(_SEQUENCE, _der(_SET, attribute))


def _extension(number: int, value: bytes, *, critical: bool = False) -> bytes:
    return _der(_SEQUENCE, _der(_OID, b"\x55\x1d" + bytes([number])), _TRUE if critical else b"", _der(_OCTETS, value))


def _alternative(name: str) -> bytes:
    try:
        return _der(0x87, ip_address(name).packed)
    except ValueError:
        return _der(0x82, name.encode())


def _key_id(public: bytes) -> bytes:
    return hashlib.sha1(public, usedforsecurity=False).digest()
