"""packaging/contents.py: the lists of a payload, its licences and its signature."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from types import ModuleType

import pytest

from appliance import __version__
from appliance.core.payload import digest_of, read_payload
from appliance.engines.found import check_build

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def contents(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "packaging"))
    import contents

    return contents


@pytest.fixture
def freeze(contents: ModuleType) -> ModuleType:
    import freeze

    return freeze


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """A build with three variants for processors."""
    folder = tmp_path / "built"
    folder.mkdir()
    for name in ("llama-server", "libggml-cpu-x64.so", "libggml-cpu-haswell.so", "libggml-cpu-zen4.so"):
        (folder / name).write_text(name)
    entries = [
        {"path": path.name, "size": len(path.name), "sha256": sha256(path.name.encode()).hexdigest()}
        for path in folder.iterdir()
    ]
    facts = {"name": "x", "platform": "linux-x64", "backend": "cpu", "build": "b1", "files": entries}
    (folder / "engine.json").write_text(json.dumps(facts))
    return folder


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    folder = tmp_path / "payload"
    engine = folder / "engines" / "linux-x64-cpu" / "b1"
    engine.mkdir(parents=True)
    facts = {"name": "x", "platform": "linux-x64", "backend": "cpu", "build": "b1"}
    (engine / "engine.json").write_text(json.dumps(facts))
    (folder / "program").write_bytes(b"\x7fELF")
    (folder / "program").chmod(0o755)
    (folder / "text").write_text("words")
    (folder / "second").symlink_to("program")
    return folder


def finish(contents: ModuleType, payload: Path) -> str:
    made_from = contents.Commit("c0ffee", 1_700_000_000, True)
    parts = [contents.Component("llama-appliance", "1", "application", licence="MIT"), *contents.of_page()]
    contents.copy_licenses(payload / "licenses", parts)
    contents.write_sbom(payload, parts, made_from)
    digest = contents.write_list(payload, "linux-x64", made_from)
    contents.settle(payload, made_from.time)
    return str(digest)


def test_the_program_reads_the_list_and_finds_every_file_in_it(contents: ModuleType, payload: Path) -> None:
    digest = finish(contents, payload)
    content = (payload / "payload.json").read_bytes()
    listed = read_payload(content)
    assert digest_of(content) == digest
    assert (listed.version, listed.commit, listed.engines) == (__version__, "c0ffee", ("linux-x64-cpu/b1",))
    files = {file.path: file for file in listed.files}
    there = {path.relative_to(payload).as_posix() for path in payload.rglob("*") if not path.is_dir()}
    assert set(files) == there - {"payload.json"}
    assert files["program"].executable
    assert not files["text"].executable
    assert files["second"].link == "program"


def test_the_bill_of_materials_lists_every_file_and_engine(contents: ModuleType, payload: Path) -> None:
    finish(contents, payload)
    bill = json.loads((payload / "sbom.cdx.json").read_bytes())
    there = {path.relative_to(payload).as_posix() for path in payload.rglob("*") if not path.is_dir()}
    assert {each["name"] for each in bill["components"] if each["type"] == "file"} == there - {
        "payload.json",
        "sbom.cdx.json",
    }
    assert "linux-x64-cpu/b1" in {each["name"] for each in bill["components"]}
    references = [each["bom-ref"] for each in bill["components"]]
    assert len(references) == len(set(references))


def test_what_the_page_is_made_of_is_listed_with_its_licence(contents: ModuleType, payload: Path) -> None:
    finish(contents, payload)
    wanted = json.loads((ROOT / "appliance" / "web" / "package.json").read_bytes())["dependencies"]
    bill = json.loads((payload / "sbom.cdx.json").read_bytes())
    listed = {each["purl"] for each in bill["components"] if each.get("purl", "").startswith("pkg:npm/")}
    assert {f"pkg:npm/{name}@{version}" for name, version in wanted.items()} <= listed
    assert all(
        "Permission" in (payload / f"licenses/npm-{name}/LICENSE").read_text("utf-8") for name in ("svelte", "katex")
    )


def test_equal_files_give_equal_lists_whenever_they_were_written(contents: ModuleType, payload: Path) -> None:
    other = payload.with_name("other")
    shutil.copytree(payload, other, symlinks=True, copy_function=shutil.copyfile)
    (other / "program").chmod(0o700)
    first = finish(contents, payload)
    assert first == finish(contents, other)
    shutil.rmtree(other / "licenses")
    (other / "payload.json").unlink()
    (other / "sbom.cdx.json").unlink()
    (other / "text").write_text("Words")
    assert first != finish(contents, other)


@pytest.mark.needs("openssl")
def test_the_signature_holds_for_these_bytes_alone(contents: ModuleType, payload: Path, tmp_path: Path) -> None:
    finish(contents, payload)
    key, public = tmp_path / "key.pem", tmp_path / "key.pub"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True)
    subprocess.run(["openssl", "pkey", "-in", key, "-pubout", "-out", public], check=True)
    contents.sign(payload, key)
    listed, signature = payload / "payload.json", payload / "payload.json.sig"
    check = [
        "openssl",
        "pkeyutl",
        "-verify",
        "-pubin",
        "-inkey",
        public,
        "-rawin",
        "-in",
        listed,
        "-sigfile",
        signature,
    ]
    assert subprocess.run(check, capture_output=True).returncode == 0
    listed.write_bytes(listed.read_bytes().replace(b"words", b"Words") + b" ")
    assert subprocess.run(check, capture_output=True).returncode != 0


@pytest.mark.needs("openssl")
def test_a_key_that_cannot_sign_is_named_with_the_fix(contents: ModuleType, payload: Path, tmp_path: Path) -> None:
    finish(contents, payload)
    with pytest.raises(SystemExit, match="openssl genpkey -algorithm ed25519"):
        contents.sign(payload, tmp_path / "missing.pem")


def test_a_component_without_any_licence_is_not_shipped(contents: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="names no licence"):
        contents.copy_licenses(tmp_path / "licenses", [contents.Component("odd", "1")])


@pytest.mark.skipif(sys.platform != "linux", reason="reads Debian's lists of files")
def test_a_library_of_debian_has_its_copyright_file_and_the_texts_that_it_names(contents: ModuleType) -> None:
    library = Path("/usr/lib/x86_64-linux-gnu/libz.so.1")
    if shutil.which("dpkg-query") is None or not library.exists():
        pytest.skip("not on Debian for x86-64")
    [owner], nobodys = contents.of_debian([library, Path("/nobody/owns/this")])
    assert (owner.name, [text.name for text in owner.texts][:1]) == ("zlib1g", ["copyright"])
    assert nobodys == [Path("/nobody/owns/this")]


@pytest.mark.parametrize(
    ("wanted", "there"),
    [
        (None, ["haswell", "x64", "zen4"]),
        ({"haswell"}, ["haswell", "x64"]),
        (set[str](), ["x64"]),
    ],
)
def test_an_engine_has_the_variants_that_were_asked_for_and_the_one_that_runs_everywhere(
    freeze: ModuleType, contents: ModuleType, payload: Path, engine: Path, wanted: set[str] | None, there: list[str]
) -> None:
    shutil.rmtree(payload / "engines")
    freeze.copy_engine(engine, payload / "engines", freeze.unwanted(engine, wanted))
    shipped = payload / "engines" / "linux-x64-cpu" / "b1"
    assert {path.name for path in shipped.glob("libggml-cpu-*")} == {f"libggml-cpu-{name}.so" for name in there}
    assert check_build(shipped, read_all=True) == ""
    finish(contents, payload)
    assert json.loads((payload / "payload.json").read_bytes())["variants"] == {"linux-x64-cpu/b1": there}


def test_a_variant_that_is_not_there_is_an_error_before_anything_is_made(engine: Path) -> None:
    command = [sys.executable, ROOT / "packaging" / "freeze.py", "--engines", engine, "--variants", "x64,pentium"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "has no variant pentium for --variants; those that it has: haswell, x64, zen4" in done.stderr
