"""Archives that claim what is not so: small files that want to become large."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterable
from functools import lru_cache
from io import BytesIO
from itertools import chain, repeat

BLOCK = bytes(1 << 20)
STORED, DEFLATED, BZIP2, LZMA = 0, 8, 12, 14
LINK = 0o120777 << 16


@lru_cache
def packed(size: int, method: int = DEFLATED, fill: bytes = b"\0") -> bytes:
    """So many equal bytes as the content of a file in a ZIP."""
    block = fill * (1 << 20)
    match method:
        case 8:
            packer = zlib.compressobj(1, zlib.DEFLATED, -15)
        case 12:
            packer = bz2.BZ2Compressor()
        case 14:
            packer = lzma.LZMACompressor(
                lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA1, "preset": 0, "lc": 3, "lp": 0, "pb": 2}]
            )
        case _:
            return fill * size
    head = struct.pack("<BBHBI", 9, 4, 5, 93, 8 << 20) if method == LZMA else b""
    return b"".join((head, *(packer.compress(block) for _ in range(size >> 20)), packer.flush()))


def sum_of(size: int, fill: bytes) -> int:
    found, block = 0, fill * (1 << 20)
    for _ in range(size >> 20):
        found = zlib.crc32(block, found)
    return found


def zip_of(
    content: bytes, *, name: bytes = b"a.jsonl", method: int = DEFLATED, claims: int = 100, crc: int = 0,
    flags: int = 0, attributes: int = 0, offset: int = 0, disk64: int | None = None, entries: int = 1,
) -> bytes:  # fmt: skip
    """A ZIP of one file, which says of itself what it is told to say. ``disk64``: its size, once more, in 64 bits."""
    extra = struct.pack("<HHQ", 1, 8, disk64) if disk64 is not None else b""
    size = 0xFFFFFFFF if disk64 is not None else claims
    local = struct.pack(
        "<4s5H3I2H", b"PK\3\4", 46, flags, method, 0, 33, crc, len(content), claims, len(name), 0
    ) + name  # fmt: skip
    entry = struct.pack(
        "<4s6H3I5H2I", b"PK\1\2", 46, 46, flags, method, 0, 33, crc, len(content), size, len(name), len(extra), 0, 0, 0,
        attributes, offset,
    ) + name + extra  # fmt: skip
    end = struct.pack(
        "<4s4H2IH", b"PK\5\6", 0, 0, min(entries, 65535), min(entries, 65535), len(entry) * entries,
        len(local) + len(content), 0,
    )  # fmt: skip
    return b"".join((local, content, entry * entries, end))


def tar_gz(*records: tuple[bytes, bytes], sizes: Iterable[int | None] = ()) -> bytes:
    """A tar file of heads as they are told: a type and the content. ``sizes``: what the first of them claim to have."""
    out = BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1, mtime=0) as file:
        for number, ((kind, content), size) in enumerate(zip(records, chain(sizes, repeat(None)), strict=False)):
            head = tarfile.TarInfo(f"x{number}")
            head.type, head.size, head.linkname = kind, len(content) if size is None else size, "x0"
            file.write(head.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512))
        file.write(bytes(1024))
    return out.getvalue()


def sparse(size: int, *holes: tuple[int, int]) -> tuple[tuple[bytes, bytes], ...]:
    """Two records: a file of so many bytes with holes, as PAX has it, and what of it is there."""
    said = {"GNU.sparse.major": 1, "GNU.sparse.minor": 0, "GNU.sparse.name": "s", "GNU.sparse.realsize": size}
    told = b"".join(
        b"%d%b" % (len(each) + (2 if len(each) < 98 else 3), each)
        for each in (f" {name}={value}\n".encode() for name, value in said.items())
    )
    places = "\n".join(map(str, (len(holes), *chain.from_iterable(holes), ""))).encode()
    return (tarfile.XHDTYPE, told), (tarfile.REGTYPE, places + bytes(-len(places) % 512))


NUMBERS = (0, 1, 100, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
LARGE = (*NUMBERS, -1, -512, 1 << 33, 1 << 40, 1 << 62)
KINDS = b"01234567xgLKSMDV?"


def any_zip(chance: random.Random) -> bytes:
    """Claims of all sorts about content of all sorts."""
    size, fill = chance.choice((1, 64, 250)) << 20, chance.choice((b"\0", b"\n", b"x", b"[", b"{}\n "))
    method = chance.choice((DEFLATED, DEFLATED, BZIP2, LZMA)) if size < 100 << 20 else DEFLATED
    honest = chance.random() < 0.3
    found = zip_of(
        packed(size, method, fill),
        name=chance.choice((b"a.jsonl", b"a.jsonl", b"engine.json", b"../a.jsonl", b"a.zip", b"\0", b"")),
        method=method if honest else chance.choice((STORED, DEFLATED, method, method, 9, 93, 99, 65535)),
        claims=size * len(fill) if honest else chance.choice((*NUMBERS, size)),
        crc=sum_of(size, fill) if honest else chance.choice(NUMBERS),
        flags=0 if honest else chance.choice((0, 0, 0, 1, 8, 0x20, 0x40, 0x800)),
        attributes=0 if honest else chance.choice((0, 0, LINK, 0o010777 << 16)),
        offset=0 if honest else chance.choice((0, 0, 0, *NUMBERS)),
        disk64=None if honest else chance.choice((None, None, 0, size, (1 << 63) + 1, (1 << 64) - 1)),
        entries=chance.choice((1, 1, 1, 3, 6000, 80_000)),
    )
    return zip_of(found, method=STORED, claims=len(found), crc=zlib.crc32(found)) if chance.random() < 0.2 else found


def any_tar(chance: random.Random) -> bytes:
    """Heads of all sorts, one behind the other."""
    records: list[tuple[bytes, bytes]] = []
    for _ in range(chance.choice((1, 2, 5, 40))):
        if chance.random() < 0.2:
            records += sparse(chance.choice(LARGE), *[(chance.choice(LARGE), chance.choice(LARGE)) for _ in range(3)])
        kind = bytes((chance.choice(KINDS),))
        records.append((kind, chance.choice((b"", b"x", attribute(1 << 20), attributes(20_000), bytes(1 << 20)))))
    return tar_gz(*records, sizes=[chance.choice((None, None, *LARGE)) for _ in records])


def attribute(size: int) -> bytes:
    """One attribute of a tar file's member, with a long value."""
    return b"%d comment=" % size + b"x" * (size - len(str(size)) - 10) + b"\n"


def attributes(count: int) -> bytes:
    """Many short ones."""
    found = (b" %x=\n" % number for number in range(count))
    return b"".join(b"%d%b" % (len(each) + (1 if len(each) < 9 else 2), each) for each in found)


CLAIMS: dict[str, Callable[[], bytes]] = {
    "bzip2": lambda: zip_of(packed(200 << 20, BZIP2), method=BZIP2),
    "lzma": lambda: zip_of(packed(200 << 20, LZMA), method=LZMA),
    "deflate": lambda: zip_of(packed(200 << 20)),
    "line ends": lambda: zip_of(packed(250 << 20, fill=b"\n"), claims=250 << 20, crc=sum_of(250 << 20, b"\n")),
    "one line": lambda: zip_of(packed(250 << 20, fill=b"x"), claims=250 << 20, crc=sum_of(250 << 20, b"x")),
    "a link": lambda: zip_of(packed(200 << 20), claims=10, attributes=LINK),
    "encrypted": lambda: zip_of(packed(200 << 20), flags=1),
    "zip64": lambda: zip_of(packed(200 << 20), disk64=(1 << 63) + 1),
    "zip64, none": lambda: zip_of(packed(200 << 20), disk64=0),
    "before the beginning": lambda: zip_of(packed(200 << 20), offset=1 << 31),
    "many names": lambda: zip_of(b"x", method=STORED, claims=1, entries=300_000),
    "a zip in it": lambda: zip_of(zip_of(packed(200 << 20)), method=STORED, name=b"a.zip"),
}
"""ZIPs of less than 16 MB."""
TARS: dict[str, Callable[[], bytes]] = {
    "long attributes": lambda: tar_gz(*[(tarfile.XHDTYPE, attribute(1 << 20)), (tarfile.REGTYPE, b"")] * 200),
    "attributes of all": lambda: tar_gz(*[(tarfile.XGLTYPE, attribute(1 << 20)), (tarfile.REGTYPE, b"")] * 200),
    "many attributes": lambda: tar_gz((tarfile.XGLTYPE, attributes(300_000)), *[(tarfile.REGTYPE, b"")] * 50),
    "a long name": lambda: tar_gz(*[(tarfile.GNUTYPE_LONGNAME, bytes(64 << 20))] * 3),
}


@lru_cache
def hostile(name: str) -> bytes:
    """One of these."""
    return (CLAIMS | TARS)[name]()
