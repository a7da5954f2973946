"""Finish a release: sums of its files, their signature, and what package managers read, all in the release's folder.

    python3 packaging/manifests.py FOLDER --url BASE [--sign KEY.pem] [--apt-key ID]

BASE is the address below which the files will lie. The folder gets

    SHA256SUMS, SHA256SUMS.sig           --sign: an ed25519 key, as openssl genpkey makes it
    Packages, Release, InRelease         a flat repository of apt: "deb [signed-by=KEY] BASE /"; --apt-key: gpg's name
    llama-appliance.rb                   a Homebrew cask
    LlamaAppliance.LlamaAppliance.*      the three manifests of winget

each only if the release has files for it. Needs apt-ftparchive for .deb files, and gpg for --apt-key.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import contents
import yaml

SUMS = "SHA256SUMS"
WINGET = "LlamaAppliance.LlamaAppliance"
WINGET_FORMAT = "1.6.0"
SUFFIXES = (".deb", ".rpm", ".tar.gz", ".pkg", ".exe", ".msi")
SUMMARY = "Private AI server: runs language models with llama.cpp"
HOMEPAGE = re.compile(r"https?://[\w.-]+(?::\d+)?(?:/[\w.-]+)*|file:///[\w./-]+")
WINDOWS = {".exe": "nullsoft", ".msi": "wix"}
"""Suffix of an installer to winget's word for its kind."""
CASK = """\
cask "llama-appliance" do
  version "@VERSION@"
  sha256 "@SUM@"

  url "@URL@/@FILE@"
  name "Llama Appliance"
  desc "@SUMMARY@"
  homepage "@HOMEPAGE@"

  depends_on macos: ">= :ventura"

  pkg "@FILE@"

  uninstall launchctl: "io.llama-appliance",
            pkgutil:   ["io.llama-appliance.program", "io.llama-appliance.service"]

  zap trash: [
    "/Library/Application Support/llama-appliance",
    "/Library/Logs/llama-appliance",
    "~/Library/Application Support/llama-appliance",
    "~/Library/Caches/llama-appliance",
    "~/Library/LaunchAgents/io.llama-appliance.plist",
    "~/Library/Logs/llama-appliance",
  ]
end
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url", required=True, metavar="BASE", help="the address below which the files will lie")
    parser.add_argument("--sign", type=Path, metavar="KEY.pem", help="an ed25519 key, as openssl genpkey makes it")
    parser.add_argument("--apt-key", metavar="ID", help="the key of gpg that signs the repository of apt")
    args = parser.parse_args()
    url: str = args.url.rstrip("/")
    if not HOMEPAGE.fullmatch(url):
        parser.error(f"--url {args.url} is not an address; give one such as https://example.org/releases/v1.2.3")
    finish(args.folder, url, args.sign, args.apt_key)


def finish(folder: Path, url: str, key: Path | None, apt_key: str | None) -> None:
    """Write everything into the folder; ends with an error for a file that no release has."""
    version = contents.program_version()
    sums = read_sums(folder, version)
    written = {f"{WINGET}{part}.yaml": text for part, text in winget(sums, version, url).items()}
    if packages := [name for name in sums if name.endswith(".pkg")]:
        written["llama-appliance.rb"] = cask(packages[0], sums[packages[0]], version, url)
    for name, text in written.items():
        (folder / name).write_text(text, "utf-8", newline="\n")
    if any(name.endswith(".deb") for name in sums):
        write_repository(folder, apt_key)
    listed = {path.name: digest(path) for path in sorted(folder.iterdir()) if not path.name.startswith(SUMS)}
    (folder / SUMS).write_text("".join(f"{each}  {name}\n" for name, each in listed.items()), "utf-8", newline="\n")
    if key is not None:
        contents.sign_file(folder / SUMS, folder / f"{SUMS}.sig", key)
    print(f"{len(listed)} files, sums in {folder / SUMS}{'' if key is None else ', signed'}")


def read_sums(folder: Path, version: str) -> dict[str, str]:
    """Return the release's files with their sums; ends with an error unless all are of this version."""
    if not folder.is_dir():
        sys.exit(f"error: there is no folder {folder}; put the release's files into one")
    for path in folder.iterdir():  # of an earlier call
        if path.name.startswith((SUMS, WINGET, "Packages", "Release", "InRelease", "llama-appliance.rb")):
            path.unlink()
    found = {path.name: digest(path) for path in sorted(folder.iterdir())}
    if not found:
        sys.exit(f"error: {folder} is empty; put the release's files into it")
    for name in found:
        if name.startswith(contents.WITHOUT_ENGINE):
            sys.exit(
                f"error: {name} holds no engine, so it starts no model; take it out of {folder}, and package a payload "
                "that 'bootstrap.py freeze --engines LIST' made"
            )
        if not name.endswith(SUFFIXES):
            sys.exit(f"error: {name} is of no kind that a release has: {', '.join(SUFFIXES)}; take it out of {folder}")
        if not re.search(rf"[_-]{re.escape(version)}[_-]", name):
            sys.exit(f"error: {name} is not of version {version}; take it out of {folder}, or build it again")
    return found


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cask(name: str, digest: str, version: str, url: str) -> str:
    """Return the cask of Homebrew (docs.brew.sh, Cask Cookbook)."""
    words = {"VERSION": version, "SUM": digest, "URL": url, "FILE": name, "SUMMARY": SUMMARY, "HOMEPAGE": homepage(url)}
    return re.sub(r"@(\w+)@", lambda found: words[found[1]], CASK)


def homepage(url: str) -> str:
    """Return the address of the repository on GitHub that the files are released in, else the one that they lie at."""
    return url.partition("/releases/")[0]


def winget(sums: Mapping[str, str], version: str, url: str) -> dict[str, str]:
    """Return winget's manifests by the ends of their names; empty without an installer for Windows."""
    installers = [
        {
            "Architecture": "arm64" if "arm64" in name else "x64",
            "InstallerType": WINDOWS[Path(name).suffix],
            "Scope": "machine",
            "InstallerUrl": f"{url}/{name}",
            "InstallerSha256": digest.upper(),
        }
        for name, digest in sums.items()
        if Path(name).suffix in WINDOWS
    ]
    if not installers:
        return {}
    locale = {
        "PackageLocale": "en-US",
        "Publisher": "Llama Appliance",
        "PackageName": "Llama Appliance",
        "PackageUrl": homepage(url),
        "License": "MIT",
        "ShortDescription": SUMMARY,
    }
    parts: dict[str, tuple[str, dict[str, object]]] = {
        "": ("version", {"DefaultLocale": "en-US"}),
        ".installer": ("installer", {"MinimumOSVersion": "10.0.17763.0", "Installers": installers}),
        ".locale.en-US": ("defaultLocale", dict(locale)),
    }
    written: dict[str, str] = {}
    for part, (kind, more) in parts.items():
        head: dict[str, object] = {"PackageIdentifier": WINGET, "PackageVersion": version}
        tree = {**head, **more, "ManifestType": kind, "ManifestVersion": WINGET_FORMAT}
        written[part] = yaml.safe_dump(tree, sort_keys=False)
    return written


def write_repository(folder: Path, key: str | None) -> None:
    """Make the folder a flat repository of apt; without a key, apt takes it with ``[trusted=yes]`` alone."""
    packages = run(folder, "apt-ftparchive", "packages", ".").replace(b"\nFilename: ./", b"\nFilename: ")  # an address
    (folder / "Packages").write_bytes(packages)
    (folder / "Packages.gz").write_bytes(gzip.compress(packages, 9, mtime=0))
    names = {"Origin": "Llama Appliance", "Label": "Llama Appliance", "Suite": "stable"}
    words = [word for name, value in names.items() for word in ("-o", f"APT::FTPArchive::Release::{name}={value}")]
    (folder / "Release").write_bytes(run(folder, "apt-ftparchive", *words, "release", "."))
    if key is not None:
        run(folder, "gpg", "--batch", "--yes", "--local-user", key, "--output", "InRelease", "--clearsign", "Release")


def run(folder: Path, *command: str) -> bytes:
    try:
        done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError as cause:
        sys.exit(
            f"error: {command[0]} is needed ('apt-get install apt-utils gpg gpg-agent' brings it): {cause.strerror}"
        )
    if done.returncode != 0:
        sys.exit(f"error: {command[0]} failed: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


if __name__ == "__main__":
    main()
