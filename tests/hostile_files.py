"""Archives that claim what is not so: small files that want to become large."""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
import tarfile
import zlib
from collections.abc import Callable
from functools import lru_cache
from io import BytesIO

BLOCK = bytes(1 << 20)
STORED, DEFLATED, BZIP2, LZMA = 0, 8, 12, 14
LINK = 0o120777 << 16


@lru_cache
def packed(size: int, method: int = DEFLATED, fill: bytes = b"\0") -> bytes:
    """So many equal bytes as the content of a file in a ZIP."""
    block = fill * (1 << 20)
    match method:
        case 8:
            packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        case 12:
            packer = bz2.BZ2Compressor()
        case 14:
            packer = lzma.LZMACompressor(
                lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA1, "lc": 3, "lp": 0, "pb": 2}]
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


def tar_gz(*records: tuple[bytes, bytes]) -> bytes:
    """A tar file of heads as they are told: a type and the content."""
    out = BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1, mtime=0) as file:
        for number, (kind, content) in enumerate(records):
            head = tarfile.TarInfo(f"x{number}")
            head.type, head.size = kind, len(content)
            file.write(head.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512))
        file.write(bytes(1024))
    return out.getvalue()


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
