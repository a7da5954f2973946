"""Keys and certificates of a pool, for tests of its bus: Ed25519 X.509 written by hand, as the program makes them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
import secrets
import ssl
import tempfile
from pathlib import Path

from msgspec import Struct
from nacl.signing import SigningKey

ED25519 = b"\x30\x05\x06\x03\x2b\x65\x70"


class PoolKeys(Struct, frozen=True):
    """One pool's authority, and the one user of its bus."""

    authority: bytes
    user: bytes

    @property
    def ca(self) -> str:
        key = SigningKey(self.authority)
        return _certificate(key, "llama-pool", bytes(key.verify_key), ())

    @property
    def nkey(self) -> str:
        head = bytes([20 << 3]) + bytes(SigningKey(self.user).verify_key)
        return base64.b32encode(head + binascii.crc_hqx(head, 0).to_bytes(2, "little")).decode()


class BoxFiles(Struct, frozen=True):
    """The PEM texts of one box."""

    ca: str
    certificate: str
    key: str

    def client(self, *, trusted: str = "", certified: bool = True) -> ssl.SSLContext:
        """The context of a client with this certificate."""
        context = ssl.create_default_context(cadata=trusted or self.ca)
        if certified:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "both.pem")
                path.write_text(self.certificate + self.key, "utf-8")
                context.load_cert_chain(path)
        return context


def new_pool() -> PoolKeys:
    return PoolKeys(secrets.token_bytes(32), secrets.token_bytes(32))


def box_files(pool: PoolKeys, box: str) -> BoxFiles:
    own = SigningKey.generate()
    names = ("127.0.0.1", f"{box}.llama-pool")
    certificate = _certificate(SigningKey(pool.authority), box, bytes(own.verify_key), names)
    key = _pem("PRIVATE KEY", _tlv(0x30, _tlv(2, b"\0"), ED25519, _tlv(4, _tlv(4, bytes(own)))))
    return BoxFiles(pool.ca, certificate, key)


def _tlv(tag: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    if len(body) < 128:
        return bytes([tag, len(body)]) + body
    length = len(body).to_bytes((len(body).bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + body


def _pem(kind: str, der: bytes) -> str:
    return f"-----BEGIN {kind}-----\n{base64.encodebytes(der).decode()}-----END {kind}-----\n"


def _name(text: str) -> bytes:
    return _tlv(0x30, _tlv(0x31, _tlv(0x30, _tlv(6, b"\x55\x04\x03"), _tlv(12, text.encode()))))


def _extension(number: int, value: bytes, *, critical: bool = False) -> bytes:
    return _tlv(0x30, _tlv(6, bytes([0x55, 0x1D, number])), _tlv(1, b"\xff") if critical else b"", _tlv(4, value))


def _subject(name: str) -> bytes:
    return _tlv(0x87, ipaddress.ip_address(name).packed) if name[-1].isdigit() else _tlv(0x82, name.encode())


def _certificate(authority: SigningKey, name: str, public: bytes, names: tuple[str, ...]) -> str:
    """Without names: the authority's own."""
    ids = [hashlib.sha1(key, usedforsecurity=False).digest() for key in (public, bytes(authority.verify_key))]
    if names:
        purposes = [_tlv(6, b"\x2b\x06\x01\x05\x05\x07\x03" + bytes([number])) for number in (1, 2)]
        uses = _extension(17, _tlv(0x30, *map(_subject, names))) + _extension(37, _tlv(0x30, *purposes))
    else:
        uses = _extension(15, b"\x03\x02\x01\x06", critical=True)
    is_authority = b"" if names else _tlv(1, b"\xff")
    extensions = _extension(19, _tlv(0x30, is_authority), critical=True) + _extension(14, _tlv(4, ids[0]))
    extensions += _extension(35, _tlv(0x30, _tlv(0x80, ids[1]))) + uses
    body = _tlv(
        0x30,
        _tlv(0xA0, _tlv(2, b"\2")),
        _tlv(2, b"\1" + secrets.token_bytes(15)),
        ED25519,
        _name("llama-pool"),
        _tlv(0x30, _tlv(0x17, b"700101000000Z"), _tlv(0x18, b"99991231235959Z")),
        _name(name),
        _tlv(0x30, ED25519, _tlv(3, b"\0" + public)),
        _tlv(0xA3, _tlv(0x30, extensions)),
    )
    return _pem("CERTIFICATE", _tlv(0x30, body, ED25519, _tlv(3, b"\0" + authority.sign(body).signature)))
