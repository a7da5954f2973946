"""Sign, notarise and staple for macOS, with Apple's tools. Each step ends with an error that names the missing secret.

Secrets come from the environment, so that no command line shows them. The files of a payload change when they are
signed: their sums are stated anew, in its lists and in those of its engines.
"""

from __future__ import annotations

import base64
import os
import plistlib
import secrets
import struct
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import contents

sys.path.insert(0, str(contents.ROOT / "llama-builds"))
from layout import read_manifest, write_manifest

SECRETS = {
    "MACOS_CERTIFICATES": "a .p12 file with the Developer ID certificates for applications and installers, in base64",
    "MACOS_CERTIFICATES_PASSWORD": "the password of that file",
    "MACOS_NOTARY_KEY": "the .p8 file of an App Store Connect key",
    "MACOS_NOTARY_KEY_ID": "the number of that key",
    "MACOS_NOTARY_ISSUER": "the issuer of that key",
}
APPLICATION, INSTALLER = "Developer ID Application", "Developer ID Installer"
ENTITLEMENTS = {"com.apple.security.cs.allow-unsigned-executable-memory": True}
"""Of the programs, under the hardened runtime: Python's ctypes makes functions at run time. Engines need none."""
THIN = {0xFEEDFACF: "<", 0xFEEDFACE: "<", 0xCFFAEDFE: ">", 0xCEFAEDFE: ">"}
"""The first four bytes of a Mach-O file, read as little-endian, to its byte order."""
PROGRAM = 2
"""MH_EXECUTE, loader.h."""


def secret(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the secret; ends with an error that says what it is."""
    value = environ.get(name, "")
    if not value:
        sys.exit(f"error: the secret {name} is not set: {SECRETS[name]}; without it use --unsigned")
    return value


def check_secrets(environ: Mapping[str, str] = os.environ) -> None:
    """End with an error for the first missing secret, before an hour of work depends on it."""
    for name in SECRETS:
        secret(name, environ)


def kind_of(path: Path) -> str | None:
    """Return ``program`` or ``library`` for machine code of macOS, None for every other file."""
    with path.open("rb") as file:
        head = file.read(20)
        magic, slices = struct.unpack_from(">II", head.ljust(20, b"\0"))
        if magic == 0xCAFEBABE and 0 < slices < 20:  # files of Java begin alike, and have a version of 45 or more there
            file.seek(struct.unpack_from(">I", head.ljust(20, b"\0"), 16)[0])
            head = file.read(20)
    order = THIN.get(int.from_bytes(head[:4], "little")) if len(head) == 20 else None
    if order is None:
        return None
    return "program" if struct.unpack_from(f"{order}I", head, 12)[0] == PROGRAM else "library"


@contextmanager
def keychain() -> Generator[str]:
    """Import the certificates into a keychain that lives as long as the block; return its path."""
    with TemporaryDirectory() as folder:
        chain, file, password = f"{folder}/signing.keychain-db", Path(folder) / "certificates.p12", secrets.token_hex()
        file.touch(0o600)
        file.write_bytes(base64.b64decode(secret("MACOS_CERTIFICATES")))
        run("security", "create-keychain", "-p", password, chain)
        try:
            run("security", "unlock-keychain", "-p", password, chain)
            run("security", "import", str(file), "-k", chain, "-f", "pkcs12", "-P",
                secret("MACOS_CERTIFICATES_PASSWORD"), "-T", "/usr/bin/codesign", "-T", "/usr/bin/productsign",
                "-T", "/usr/bin/productbuild")  # fmt: skip
            run("security", "set-key-partition-list", "-S", "apple-tool:,apple:", "-s", "-k", password, chain)
            yield chain
        finally:
            run("security", "delete-keychain", chain)


def sign_files(folder: Path, chain: str, *, plain: str = "engines") -> list[Path]:
    """Sign all machine code below ``folder``, inner files first, and return it.

    Programs get the entitlements, but for those of the folder ``plain``.
    """
    found = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink() and kind_of(path)]
    with TemporaryDirectory() as temporary:
        entitlements = Path(temporary) / "entitlements.plist"
        entitlements.write_bytes(plistlib.dumps(ENTITLEMENTS))
        for path in sorted(found, key=lambda each: (-len(each.parts), str(each))):
            own = kind_of(path) == "program" and plain not in path.relative_to(folder).parts
            sign(path, chain, *(("--entitlements", str(entitlements)) if own else ()))
    return found


def sign(path: Path, chain: str, *words: str) -> None:
    """Sign a file or a bundle whose inside is signed already."""
    run("codesign", "--force", "--timestamp", "--options", "runtime", "--keychain", chain, *words,
        "--sign", APPLICATION, str(path))  # fmt: skip


def sign_payload(payload: Path, chain: str) -> None:
    """Sign the payload's machine code and state the new sums."""
    sign_files(payload, chain)
    restate(payload)


def restate(payload: Path) -> None:
    """State the sums of a payload's files anew: those of each engine, the bill of materials, the list."""
    for manifest in sorted((payload / "engines").glob("*/*/engine.json")):
        write_manifest(manifest.parent, read_manifest(manifest.parent))
    contents.renew_lists(payload)


def notarise(package: Path) -> None:
    """Let Apple look at the package, wait for the verdict, and attach it. Shows Apple's reasons if it refuses."""
    with TemporaryDirectory() as folder:
        key = Path(folder) / "key.p8"
        key.touch(0o600)
        key.write_text(secret("MACOS_NOTARY_KEY"))
        access = (
            "--key",
            str(key),
            "--key-id",
            secret("MACOS_NOTARY_KEY_ID"),
            "--issuer",
            secret("MACOS_NOTARY_ISSUER"),
        )
        told = plistlib.loads(run("xcrun", "notarytool", "submit", str(package), *access, "--wait",
                                  "--output-format", "plist"))  # fmt: skip
        if told.get("status") != "Accepted":
            reasons = run("xcrun", "notarytool", "log", str(told.get("id")), *access).decode(errors="replace")
            sys.exit(f"error: Apple does not notarise {package.name} ({told.get('status')}):\n{reasons}")
    run("xcrun", "stapler", "staple", str(package))
    run("spctl", "--assess", "--type", "install", "--verbose", str(package))


def run(*command: str) -> bytes:
    """Run one of Apple's tools and return its output; ends with an error, which never shows a password."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError as cause:
        sys.exit(f"error: {command[0]} is needed, which a Mac with Xcode's command line tools has: {cause.strerror}")
    if done.returncode != 0:
        sys.exit(f"error: '{' '.join(command[:2])}' failed:\n{(done.stdout + done.stderr).decode(errors='replace')}")
    return done.stdout
