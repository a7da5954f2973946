"""packaging/contents.py, builder_paths.py: a payload's lists, licences and signature; that it names no builder."""

from __future__ import annotations

import importlib
import json
import marshal
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import ModuleType

import pytest
from payload_folders import openssl_key, openssl_verifies

from appliance import __version__
from appliance.core.payload import digest_of, read_payload
from appliance.engines.builds import check_build

ROOT = Path(__file__).resolve().parents[1]


def script(name: str) -> Callable[..., ModuleType]:
    def imported(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
        monkeypatch.syspath_prepend(str(ROOT / "packaging"))
        return importlib.import_module(name)

    return pytest.fixture(imported, name=name)


contents, freeze, builder_paths = map(script, ("contents", "freeze", "builder_paths"))


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


def test_the_list_and_the_bill_of_materials_have_every_file_and_engine(contents: ModuleType, payload: Path) -> None:
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
    bill = json.loads((payload / "sbom.cdx.json").read_bytes())
    named = {each["name"] for each in bill["components"] if each["type"] == "file"}
    assert named == there - {"payload.json", "sbom.cdx.json"}
    assert "linux-x64-cpu/b1" in {each["name"] for each in bill["components"]}
    references = [each["bom-ref"] for each in bill["components"]]
    assert len(references) == len(set(references))
    wanted = json.loads((ROOT / "appliance" / "web" / "package.json").read_bytes())["dependencies"]
    of_page = {each["purl"] for each in bill["components"] if each.get("purl", "").startswith("pkg:npm/")}
    assert {f"pkg:npm/{name}@{version}" for name, version in wanted.items()} <= of_page
    assert all(
        "Permission" in (payload / f"licenses/npm-{name}/LICENSE").read_text("utf-8") for name in ("svelte", "temml")
    )


def test_licences_have_spdxs_names_and_what_is_no_name_of_it_stays_as_stated(
    contents: ModuleType, payload: Path
) -> None:
    stated = {"a": "MIT License", "b": "mit OR apache-2.0", "c": "BSD License", "d": "Apache-2.0"}
    parts = [contents.Component(name, "1", licence=licence) for name, licence in stated.items()]
    contents.write_sbom(payload, parts, contents.Commit("c0ffee", 1_700_000_000, True))
    bill = json.loads((payload / "sbom.cdx.json").read_bytes())
    things = [bill["metadata"]["component"], *bill["components"]]
    assert {each["name"]: each["licenses"] for each in things if each["name"] in stated} == {
        "a": [{"license": {"id": "MIT"}}],
        "b": [{"expression": "MIT OR Apache-2.0"}],
        "c": [{"license": {"name": "BSD License"}}],
        "d": [{"license": {"id": "Apache-2.0"}}],
    }


def test_the_bill_says_which_part_needs_which_and_leads_to_every_part(contents: ModuleType, payload: Path) -> None:
    def part(name: str, *needs: str) -> object:
        return contents.Component(name, "1", purl=f"pkg:{name}", needs=frozenset(needs))

    parts = [part("whole", "asked"), part("asked", "deep", "of another system"), part("deep"), part("brought")]
    contents.write_sbom(payload, parts, contents.Commit("c0ffee", 1_700_000_000, True))
    bill = json.loads((payload / "sbom.cdx.json").read_bytes())
    assert {each["ref"]: each["dependsOn"] for each in bill["dependencies"]} == {
        "pkg:whole": ["pkg:asked", "pkg:brought", "pkg:github/ggml-org/llama.cpp@b1"],
        "pkg:asked": ["pkg:deep"],
        "pkg:deep": [],
        "pkg:brought": [],
        "pkg:github/ggml-org/llama.cpp@b1": [],
    }


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
def test_the_signature_holds_for_these_bytes_alone_and_a_key_that_cannot_sign_is_named(
    contents: ModuleType, payload: Path, tmp_path: Path
) -> None:
    finish(contents, payload)
    key, public = openssl_key(tmp_path)
    contents.sign(payload, key)
    listed = payload / "payload.json"
    assert openssl_verifies(listed, public)
    listed.write_bytes(listed.read_bytes().replace(b"words", b"Words") + b" ")
    assert not openssl_verifies(listed, public)
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


HOME = Path("/home/ann")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"\0/home/ann/cache/src/llama.cpp\0", True),
        (b'{"url": "file:///home/ann/llama"}', True),
        (b"/home/ann", False),
        (b"/home/anna/x /srv/home/ann/x", False),
        (b"./src/llama.cpp", False),
    ],
)
def test_a_file_that_names_a_folder_of_the_builder_is_found(
    builder_paths: ModuleType, payload: Path, content: bytes, found: bool
) -> None:
    (payload / "text").write_bytes(content)
    assert list(builder_paths.traces(payload, [HOME], ())) == ([("text", str(HOME))] if found else [])
    assert not list(builder_paths.traces(payload, [HOME], {"text"}))
    assert not list(builder_paths.traces(payload, [Path("/"), Path("/checkout")], ())), "a builder without a home"


def test_so_is_one_whose_packed_module_does(builder_paths: ModuleType, payload: Path) -> None:
    """Python notes the source file in a module; the archive compresses it."""
    with zipfile.ZipFile(payload / "library.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mine.pyc", marshal.dumps(compile("def f(): pass", "/home/ann/mine.py", "exec")))
    assert list(builder_paths.traces(payload, [HOME], ())) == [("library.zip: mine.pyc", str(HOME))]


def test_an_engine_that_was_fetched_may_name_its_makers_and_one_that_was_built_here_may_not(
    builder_paths: ModuleType, payload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(HOME))
    (tmp_path / "COLLECT-00.toc").write_text("([('lib/wheel.so', '/somewhere', 'EXTENSION')],)")
    engine = payload / "engines" / "linux-x64-cpu" / "b1"
    for file in (engine / "libllama.so", payload / "_internal" / "lib" / "wheel.so"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"/home/ann/llama.cpp")
    builder_paths.refuse_builder_paths(payload, tmp_path)
    facts = json.loads((engine / "engine.json").read_bytes())
    (engine / "engine.json").write_text(json.dumps(facts | {"options": ["-DX=ON"]}))
    with pytest.raises(SystemExit, match=r"(?s)engines/linux-x64-cpu/b1/libllama.so \(/home/ann\)\n.*build.py"):
        builder_paths.refuse_builder_paths(payload, tmp_path)


def test_a_package_says_by_its_name_that_a_payload_in_it_has_no_engine(contents: ModuleType, payload: Path) -> None:
    finish(contents, payload)
    empty = payload.with_name("empty")
    empty.mkdir()
    contents.write_list(empty, "linux-x64", contents.Commit("c0ffee", 1_700_000_000, True))
    package = payload.with_name("x_1_amd64.deb")
    package.touch()
    assert contents.named(package, [payload]) == package
    assert contents.named(package, [payload, empty]) == package.with_name("without-engine-x_1_amd64.deb")
    assert package.with_name("without-engine-x_1_amd64.deb").is_file()
    assert not package.exists()
