"""The container image: a tar that docker, podman and skopeo load, made without any of them.

Needs objdump and readelf, and takes dash, glibc and other libraries from this machine's Debian packages.

The image begins from nothing. It holds the payload, the libraries that the payload expects of a system, a shell (which
starts engines), the authorities of TLS, their licences and their bill of materials. The program runs as user 10001. Its
one writable folder is a volume, so that the root can be read-only.

The tar is an image layout of OCI 1.0 (oci-layout, index.json, blobs/), with docker's own list, manifest.json, beside
it. It names two images of one layer: one serves, and the other takes the place of llama.cpp's image of that tag.
"""

from __future__ import annotations

import datetime
import gzip
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from payload import (
    MACHINES,
    NAME,
    OPTIONAL,
    PACKAGES,
    PAYLOAD,
    PLACE,
    ROOT,
    Payload,
    contents,
    copy_licenses,
    library,
    needed,
    needed_of_system,
    pack,
    run,
    settle,
    write,
)

USER = 10001
STATE = f"var/lib/{NAME}"
SHELL = Path("/bin/dash")
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
OWNED = Path("/usr/share/doc/ca-certificates/copyright")
"""A file of the package that makes the file of authorities, which no package owns."""
SERVING = ["{version}", "latest"], [f"/usr/bin/{NAME}"], ["serve", "--listen", "0.0.0.0:8080"]
STANDING_IN = ["server"], ["/usr/bin/llama-server"], list[str]()
"""The tags of an image, what a container of it always runs, and the words after that which the user may replace."""
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": f"/{STATE}",
    "XDG_DATA_HOME": "/var/lib",
    "XDG_CACHE_HOME": f"/{STATE}/cache",
    "XDG_CONFIG_HOME": "/etc",
    "HF_HOME": f"/{STATE}/huggingface",
    "LLAMA_ARG_HOST": "0.0.0.0",
    "LLAMA_ARG_PORT": "8080",  # the port that the image exposes, whatever its engine would choose
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
}
HEALTH = {"Test": ["CMD", f"/usr/bin/{NAME}", "ps"], "Interval": 60 * 10**9, "Timeout": 20 * 10**9, "Retries": 3}
"""Docker's; OCI has none. Times in nanoseconds."""


def make_oci(payload: Payload) -> Path:
    """Build the tar."""
    work = ROOT / "build" / "oci"
    shutil.rmtree(work, ignore_errors=True)
    tree, layout = work / "root", work / "layout"
    (layout / "blobs/sha256").mkdir(parents=True)
    fill(tree, payload)
    layer, digest = add_layer(layout, tree, payload)
    manifests: list[dict[str, object]] = []
    listed: list[dict[str, object]] = []
    for tags, entrypoint, words in (SERVING, STANDING_IN):
        config = add(layout, configuration(entrypoint, words, digest, payload), "config")
        content = {"schemaVersion": 2, "mediaType": media("manifest"), "config": config, "layers": [layer]}
        manifest = add(layout, json.dumps(content).encode(), "manifest")
        names = [f"{NAME}:{tag.format(version=payload.version)}" for tag in tags]
        for name in names:
            notes = {"org.opencontainers.image.ref.name": name, "io.containerd.image.name": f"docker.io/library/{name}"}
            manifests.append(manifest | {"annotations": notes})
        listed.append({"Config": blob(config), "RepoTags": names, "Layers": [blob(layer)]})
    write(layout / "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}))
    write(layout / "index.json", json.dumps({"schemaVersion": 2, "manifests": manifests}))
    write(layout / "manifest.json", json.dumps(listed))
    settle(layout, payload.time)
    made = PACKAGES / f"{NAME}-{payload.version}-{payload.platform}.oci.tar"
    with made.open("wb") as file:
        pack(file, layout, payload.time, lambda path: (str(path.relative_to(layout)), 0))
    return made


# ---- the files of a container ----------------------------------------------------------------------------------------


def fill(tree: Path, payload: Payload) -> None:
    """Lay out every file of a container below ``tree``."""
    libraries = [*system_files()]
    for path in (*libraries, AUTHORITIES):
        copy(path, tree / path.relative_to("/"))
    copy(SHELL, tree / "bin/sh")
    write(tree / "etc/passwd", f"root:x:0:0::/:/bin/sh\n{NAME}:x:{USER}:{USER}::/{STATE}:/bin/sh\n")
    write(tree / "etc/group", f"root:x:0:\n{NAME}:x:{USER}:\n")
    write(tree / "etc/nsswitch.conf", "hosts: files dns\n")
    for folder in (STATE, "dev", "proc", "run", "sys", "tmp", "usr/bin", "usr/lib"):
        (tree / folder).mkdir(parents=True, exist_ok=True)
    for name in (NAME, "llama-server"):
        (tree / "usr/bin" / name).symlink_to(f"../lib/{NAME}/{name}")
    parts = copy_licenses(tree / "licenses", [*libraries, SHELL, OWNED])
    image = contents.Component(f"{NAME}-image", payload.version, "container", licence="MIT")
    contents.write_sbom(tree, [image, *parts], contents.Commit("", payload.time, clean=True))
    shutil.copytree(PAYLOAD, tree / PLACE, symlinks=True)
    settle(tree, payload.time)
    (tree / "tmp").chmod(0o1777)


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def system_files() -> Iterator[Path]:
    """Return the libraries of this machine that the payload and the shell need, and the program that loads them."""
    yield Path(*re.findall(r"program interpreter: ([^]]+)", run(["readelf", "-l", str(SHELL)])))
    found: set[str] = set()
    wanted = {*needed_of_system()[0], *needed([SHELL])[0]}
    while wanted := wanted - found:
        for name in sorted(wanted):
            if (here := library(name)) is not None:
                yield here[1]
                wanted |= needed([here[1]])[0]
            elif name not in OPTIONAL:
                sys.exit(f"error: the payload needs {name}, and no Debian package here has it")
            found.add(name)


# ---- the image -------------------------------------------------------------------------------------------------------


def configuration(entrypoint: list[str], words: list[str], layer: str, payload: Payload) -> bytes:
    """Return the image's configuration."""
    created = datetime.datetime.fromtimestamp(payload.time, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    nothing: dict[str, object] = {}
    config: dict[str, object] = {
        "User": f"{USER}:{USER}",
        "Env": [f"{name}={value}" for name, value in ENVIRONMENT.items()],
        "Entrypoint": entrypoint,
        "Cmd": words,
        "ExposedPorts": {"8080/tcp": nothing},
        "Volumes": {f"/{STATE}": nothing},
        "WorkingDir": f"/{STATE}",
        "Healthcheck": HEALTH,
        "Labels": {"org.opencontainers.image.title": NAME, "org.opencontainers.image.version": payload.version},
    }
    content: dict[str, object] = {
        "created": created,
        "architecture": MACHINES[payload.platform][0],
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [layer]},
        "history": [{"created": created, "comment": "all of it"}],
    }
    return json.dumps(content).encode()


def add_layer(layout: Path, tree: Path, payload: Payload) -> tuple[dict[str, object], str]:
    """Pack the tree; return its descriptor, and the digest of the tar inside."""

    def place(path: Path) -> tuple[str, int]:
        name = str(path.relative_to(tree))
        return name, USER if name == STATE else 0

    plain = layout.with_name("layer.tar")
    with plain.open("wb") as file:
        pack(file, tree, payload.time, place)
    content = plain.read_bytes()
    return add(layout, gzip.compress(content, 6, mtime=0), "layer"), f"sha256:{hashlib.sha256(content).hexdigest()}"


def add(layout: Path, content: bytes, kind: str) -> dict[str, object]:
    """Put a blob into the layout; return its descriptor."""
    digest = hashlib.sha256(content).hexdigest()
    (layout / "blobs/sha256" / digest).write_bytes(content)
    return {"mediaType": media(kind), "digest": f"sha256:{digest}", "size": len(content)}


def media(kind: str) -> str:
    return f"application/vnd.oci.image.{kind}.v1" + (".tar+gzip" if kind == "layer" else "+json")


def blob(descriptor: dict[str, object]) -> str:
    return f"blobs/{descriptor['digest']}".replace(":", "/")
