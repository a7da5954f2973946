"""Payloads of the program: a real list of files, a real signature, and a program that is the one under test.

`make_payload` writes one. Its version is whatever its list says, so that one program can follow itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from nacl.signing import SigningKey

from appliance.core.machine_look import platform_of
from appliance.core.signing import public_of, public_pem

NAME = "llama-appliance"
SEED = bytes(range(32))
HERE = platform_of(sys.platform, platform.machine())
PROGRAM = f"""\
#!{sys.executable}
import os, sys
if "STARTED" in os.environ:
    open(os.environ["STARTED"], "a").write(__file__ + "\\n")
from appliance.__main__ import main
{{before}}
main()
"""
"""With ``STARTED``, every program that is started notes its path in that file."""


def make_payload(folder: Path, version: str, *, before: str = "", system: str = HERE, seed: bytes = SEED) -> Path:
    """Write a payload and return it. ``before``: Python that its program runs first."""
    folder.mkdir(parents=True)
    program = folder / NAME
    program.write_text(PROGRAM.format(before=before), "utf-8")
    program.chmod(0o755)
    (folder / "licenses").mkdir()
    (folder / "licenses" / "LICENSE").write_text(f"of {version}\n", "utf-8")
    (folder / "llama-server").symlink_to(NAME)
    sign(folder, version, system=system, seed=seed)
    return folder


def sign(folder: Path, version: str, *, system: str = HERE, seed: bytes = SEED) -> str:
    """Write the list of the folder's files, and its signature; the name of the version's folder."""
    files: list[dict[str, object]] = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            files.append({"path": name, "link": str(path.readlink())})
        elif path.is_file() and name not in ("payload.json", "payload.json.sig"):
            content = path.read_bytes()
            entry: dict[str, object] = {"path": name, "size": len(content)}
            entry["sha256"] = hashlib.sha256(content).hexdigest()
            files.append(entry | ({"executable": True} if os.access(path, os.X_OK) else {}))
    head = {"format": 1, "name": NAME, "version": version, "commit": "c0ffee", "made": "2026-01-01T00:00:00Z"}
    text = json.dumps({**head, "platform": system, "engines": [], "files": files}).encode()
    (folder / "payload.json").write_bytes(text)
    (folder / "payload.json.sig").write_bytes(SigningKey(seed).sign(text).signature)
    return name_of(folder)


def name_of(payload: Path) -> str:
    """The name of the version's folder."""
    text = (payload / "payload.json").read_bytes()
    return f"{json.loads(text)['version']}-{hashlib.sha256(text).hexdigest()[:12]}"


def write_key(file: Path, seed: bytes = SEED) -> Path:
    """Write the publisher's public key."""
    file.write_bytes(public_pem(public_of(seed)))
    return file


def openssl_key(folder: Path) -> tuple[Path, Path]:
    """A key as publishers make it, and its public part."""
    key, public = folder / "key.pem", folder / "key.pub"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True)
    subprocess.run(["openssl", "pkey", "-in", key, "-pubout", "-out", public], check=True)
    return key, public


def openssl_verifies(file: Path, public: Path) -> bool:
    """Whether the signature beside a file is its own."""
    command = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", public, "-rawin", "-in", file]
    return subprocess.run([*command, "-sigfile", f"{file}.sig"], capture_output=True).returncode == 0
