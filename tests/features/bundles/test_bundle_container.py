"""The file of a bundle: what is written is read, in one part or many, and no damage goes unnoticed."""

from __future__ import annotations

import io
import random
import re
import tarfile
from pathlib import Path

import msgspec
import pytest
from full_disk import full_disk, posix_only
from memory import peak
from msgspec import structs
from slow import one_of

from appliance.core import signing
from appliance.core.one_file import MAGIC, RECORD, RECORD_NAME
from appliance.core.payload import PayloadFile
from appliance.errors import UsageError
from appliance.features.bundles.container import (
    Bundle,
    is_runnable,
    part_of,
    program_size,
    refuse_existing,
    sums_of,
    write_bundle,
)
from appliance.features.bundles.core.manifest import (
    CHUNK,
    FORMAT,
    MAX_MANIFEST,
    Blob,
    BundleItem,
    BundleManifest,
    digest_of,
)
from appliance.features.bundles.core.plan import UNSIGNED, BundleSigner

SIZES = (0, 1, 511, 512, 513, 3 << 20, CHUNK + 1)
SMALL = (0, 513)
SEED = bytes(range(32))
PUBLIC = signing.public_of(SEED)


def nothing(count: int = 0) -> None:
    """Hears of progress."""


def make(
    folder: Path, part: int = 0, *, sign: bool = True, sizes: tuple[int, ...] = SIZES
) -> tuple[Path, list[Path], list[tuple[Blob, Path]]]:
    """Write a bundle of one engine with files of these sizes; its name, its files, its contents."""
    chance = random.Random(7)
    blobs: list[tuple[Blob, Path]] = []
    for number, size in enumerate(sizes):
        path = folder / f"file-{number}"
        path.write_bytes(chance.randbytes(size))
        blobs.append((sums_of(path, nothing, nothing), path))
    files = tuple(PayloadFile(path=path.name, size=blob.size, sha256=blob.sha256) for blob, path in blobs)
    item = BundleItem(kind="engine", name="linux-x64-cpu/b100", digest=digest_of(files), files=files)
    manifest = BundleManifest(
        format=FORMAT,
        version="0.2.0",
        target="linux-x64",
        made="2026-01-01T00:00:00Z",
        part=part,
        signer=signing.name_of(PUBLIC) if sign else "",
        items=(item,),
        blobs=tuple(blob for blob, _ in blobs),
    )
    text = msgspec.json.encode(manifest)
    name = folder / "x.bundle"
    signature = signing.sign(SEED, text) if sign else UNSIGNED
    return name, write_bundle(name, text, signature, blobs, part, nothing, nothing), blobs


def assert_whole(bundle: Bundle, blobs: list[tuple[Blob, Path]]) -> None:
    """The contents are those that were written."""
    for blob, source in blobs:
        assert b"".join(bundle.chunk(blob, number) for number in range(len(blob.chunks))) == source.read_bytes()


@pytest.mark.parametrize("part", [0, 1 << 20, (1 << 20) + 13, 64 << 20])
def test_what_is_written_is_read(tmp_path: Path, part: int) -> None:
    name, files, blobs = make(tmp_path, part)
    total = sum(file.stat().st_size for file in files)
    assert files == ([name] if not part else [part_of(name, number + 1) for number in range(-(-total // part))])
    for path in (name, files[0], files[-1]):
        with Bundle(path) as bundle:
            assert bundle.files == files
            assert bundle.signer([bytes(32), PUBLIC]) == BundleSigner(trust="signed", key=signing.name_of(PUBLIC))
            assert bundle.signer([bytes(32)]) == BundleSigner(trust="unchecked", key=signing.name_of(PUBLIC))
            bundle.verify(nothing, nothing)
            assert_whole(bundle, blobs)
    assert not list(tmp_path.glob(".*"))


def one_file(folder: Path, behind: bytes = b"") -> Path:
    """A file with the marks of a one-file program; no system starts it."""
    path = folder / "one.AppImage"
    beginning = b"\x7fELF" + bytes(4) + MAGIC + bytes(1000)
    image = random.Random(9).randbytes(CHUNK)
    record = RECORD.pack(RECORD_NAME, b"0.1", b"0" * 64, len(beginning) + RECORD.size, len(image))
    path.write_bytes(beginning + record + image + behind)
    return path


def test_a_bundle_behind_a_program_is_read_and_the_program_is_checked(tmp_path: Path) -> None:
    front = one_file(tmp_path, b"another bundle")
    size = program_size(front)
    blob = sums_of(front, nothing, nothing, size)
    plain, _, blobs = make(tmp_path)
    with Bundle(plain) as bundle:
        assert (program_size(plain), is_runnable(plain)) == (0, False)
        text = msgspec.json.encode(structs.replace(bundle.manifest, front=blob))
    run = tmp_path / "x.run"
    assert write_bundle(run, text, signing.sign(SEED, text), blobs, 0, nothing, nothing, (blob, front)) == [run]
    content = run.read_bytes()
    assert content[:size] == front.read_bytes()[:size]
    assert run.stat().st_mode & 0o100
    assert is_runnable(run)
    with Bundle(run) as bundle:
        assert bundle.signer([PUBLIC]).trust == "signed"
        assert_whole(bundle, blobs)
        bundle.verify(nothing, nothing)
    with tarfile.open(fileobj=io.BytesIO(content[size:])) as file:
        assert len(file.getmembers()) == len(blobs) + 2
    changed = bytearray(content)
    changed[size - 1] ^= 1
    run.write_bytes(changed)
    with Bundle(run) as bundle, pytest.raises(UsageError, match=r"x\.run is damaged .* the program at its beginning"):
        bundle.verify(nothing, nothing)
    for damaged, told in (
        (content[:size], "no bundle behind its program"),
        (content[: size - 1], "no bundle behind its program"),
        (content[: size + 100], "ends too early"),
        (content[:size] + plain.read_bytes(), "does not begin with the program that it was exported with"),
        (content[size:], "does not begin with the program that it was exported with"),
    ):
        run.write_bytes(damaged)
        with pytest.raises(UsageError, match=told):
            Bundle(run)


def test_tar_reads_it(tmp_path: Path) -> None:
    name, _, blobs = make(tmp_path)
    with tarfile.open(name, "r:") as file:
        members = file.getmembers()
        assert [member.name for member in members[:2]] == ["bundle.json", "bundle.json.sig"]
        assert [member.name for member in members[2:]] == [f"blobs/{blob.sha256}" for blob, _ in blobs]
        for member, (_, source) in zip(members[2:], blobs, strict=True):
            content = file.extractfile(member)
            assert content.read() == source.read_bytes()


def problem(bundle: Path, text: bytes, blobs: list[tuple[Blob, Path]]) -> str:
    """Return what is found to be wrong with it; empty: its contents are those that were written."""
    try:
        with Bundle(bundle) as found:
            found.verify(nothing, nothing)
            assert_whole(found, blobs)
            is_signed = found.text == text and found.signer([PUBLIC]).trust == "signed"
            return "" if is_signed else "x.bundle.001 is not signed"
    except UsageError as error:
        return str(error)


def test_a_flipped_bit_is_found_and_its_part_is_named(tmp_path: Path) -> None:
    _, files, blobs = make(tmp_path, 1 << 20)
    chance = random.Random(11)
    with Bundle(files[0]) as bundle:
        text = bundle.text
    places = [chance.randrange(sum(file.stat().st_size for file in files) - 1024) for _ in range(16)]
    found = 0
    for place in places:
        index, at = divmod(place, 1 << 20)
        content = files[index].read_bytes()
        files[index].write_bytes(content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :])
        told = problem(files[0], text, blobs)
        assert files[index].name in told or not told or index == 0, (place, told)
        found += bool(told)
        files[index].write_bytes(content)
    assert found > 12


def test_a_changed_manifest_is_not_signed_any_more(tmp_path: Path) -> None:
    name, _, _ = make(tmp_path, sizes=SMALL)
    content = name.read_bytes()
    name.write_bytes(content.replace(b'"version":"0.2.0"', b'"version":"0.2.1"', 1))
    with Bundle(name) as bundle:
        assert bundle.manifest.version == "0.2.1"
        assert bundle.signer([PUBLIC]) == BundleSigner(trust="unchecked"), "nor is the key that it states believed"
    with Bundle(make(tmp_path, 1 << 20, sign=False, sizes=SMALL)[1][0]) as bundle:
        assert bundle.signer([PUBLIC]) == BundleSigner(trust="unsigned")


def test_missing_and_short_parts_are_named(tmp_path: Path) -> None:
    name, files, _ = make(tmp_path, 1 << 20)
    short = files[5].read_bytes()
    files[5].write_bytes(short[:1000])
    for told in ("ends too early: copy it again", "is not here: put it beside"):
        with Bundle(name) as bundle, pytest.raises(UsageError, match=f"{re.escape(str(files[5]))} {told}"):
            bundle.verify(nothing, nothing)
        files[5].unlink(missing_ok=True)
    files[0].unlink()
    with pytest.raises(UsageError, match=r"there is no bundle .*x\.bundle.*x\.bundle\.001"):
        Bundle(name)


@pytest.mark.parametrize("content", [b"", b"x" * 5000, bytes(5000)])
def test_something_else_is_not_a_bundle(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"is not a bundle|ends too early"):
        Bundle(path)


def test_a_manifest_of_any_length_does_not_fill_the_memory(tmp_path: Path) -> None:
    head = tarfile.TarInfo("bundle.json")
    head.size = 1 << 40
    path = tmp_path / "x"
    path.write_bytes(head.tobuf(tarfile.GNU_FORMAT))
    with pytest.raises(UsageError, match="its manifest is too long"):
        Bundle(path)


@pytest.mark.parametrize("number", [-(1 << 63), -513, -1, 1, 513, (1 << 20) - 1, 1 << 62, (1 << 64) - 1])
@pytest.mark.parametrize("member", ["part", "size"])
def test_no_number_in_a_manifest_takes_memory(tmp_path: Path, member: str, number: int) -> None:
    """The file is large and has holes: a reader that believes such a number has all of it in memory."""
    name, _, _ = make(tmp_path, sign=False, sizes=SMALL)
    with Bundle(name) as bundle:
        manifest = msgspec.json.decode(bundle.text)
    for changed in [manifest] if member == "part" else [manifest["blobs"][-1], manifest["items"][0]["files"][-1]]:
        changed[member] = number
    text = msgspec.json.encode(manifest)
    with name.open("wb") as file:
        for each, content in (("bundle.json", text), ("bundle.json.sig", UNSIGNED)):
            head = tarfile.TarInfo(each)
            head.size = len(content)
            file.write(head.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512))
        file.truncate(1 << 30)
    before = peak(anew=True)
    with pytest.raises(UsageError, match=r"export it again|copy it again|is damaged"), Bundle(name) as bundle:
        bundle.verify(nothing, nothing)
    assert peak() - before < 64 << 20


LISTS = {
    "sums": lambda: (
        b'"items":[],"blobs":[{"sha256":"%b","size":0,"chunks":[%b"a"]}]' % (b"a" * 64, b'"a",' * ((2 << 20) - 100))
    ),
    "files": lambda: (
        b'"blobs":[],"items":[{"kind":"engine","name":"linux-x64-cpu/b1","digest":"a","files":[%b{"path":"x"}]}]'
        % b"".join(b'{"path":"%x"},' % number for number in range(480_000))
    ),
}


@pytest.mark.parametrize("name", one_of(LISTS))
def test_the_longest_manifest_takes_a_bounded_memory(tmp_path: Path, name: str) -> None:
    text = b'{"format":1,"version":"1","target":"linux-x64","made":"",%b}' % LISTS[name]()
    assert MAX_MANIFEST * 0.95 < len(text) <= MAX_MANIFEST
    head = tarfile.TarInfo("bundle.json")
    head.size = len(text)
    path = tmp_path / "x"
    path.write_bytes(head.tobuf(tarfile.GNU_FORMAT) + text + bytes(-len(text) % 512))
    head.name, head.size = "bundle.json.sig", 64
    with path.open("ab") as file:
        file.write(head.tobuf(tarfile.GNU_FORMAT) + bytes(512))
    before = peak(anew=True)
    with pytest.raises(UsageError, match="the bundle cannot be used"):
        Bundle(path)
    took = peak() - before
    print(f"manifest, {len(text)} bytes: {took >> 20} MiB")
    assert took < 256 << 20


def test_a_file_that_changes_while_it_is_written_ends_the_export(tmp_path: Path) -> None:
    _, files, blobs = make(tmp_path)
    files[0].unlink()
    blobs[-1][1].write_bytes(b"x" * blobs[-1][0].size)
    with pytest.raises(UsageError, match="changed while it was exported"):
        write_bundle(tmp_path / "y", b"{}", UNSIGNED, blobs, 0, nothing, nothing)
    assert not list(tmp_path.glob("*y*"))


@posix_only
def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    _, files, blobs = make(tmp_path)
    files[0].unlink()
    with full_disk(), pytest.raises(OSError, match="File too large"):
        write_bundle(tmp_path / "y", b"{}", UNSIGNED, blobs, 0, nothing, nothing)
    assert not list(tmp_path.glob("*y*")) + list(tmp_path.glob(".*"))


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    name, files, _ = make(tmp_path, 1 << 20)
    with pytest.raises(UsageError, match="is there already"):
        refuse_existing(name)
    for file in files:
        file.unlink()
    refuse_existing(name)
