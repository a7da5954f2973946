"""packaging/manifests.py: sums, signatures, a repository that apt accepts, and what winget and Homebrew read.

The workflow that makes releases: what it starts exists, and it publishes only when all else has succeeded.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from payload_folders import openssl_key, openssl_verifies

from appliance import __version__

ROOT = Path(__file__).resolve().parents[1]
URL = "https://example.org/x/llama-appliance/releases/download/v1"
WINDOWS = (f"llama-appliance-{__version__}-windows-x64.exe", f"llama-appliance-{__version__}-windows-x64.msi")
MAC = f"llama-appliance-{__version__}-macos.pkg"
DEB = f"llama-appliance_{__version__}_amd64.deb"


def finish(folder: Path, *words: str, home: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "packaging" / "manifests.py"), str(folder), "--url", URL, *words]
    environment = os.environ | ({"GNUPGHOME": str(home)} if home is not None else {})
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.fixture
def release(tmp_path: Path) -> Path:
    folder = tmp_path / "release"
    folder.mkdir()
    for number, name in enumerate((*WINDOWS, MAC)):
        (folder / name).write_bytes(bytes([number]) * 1000)
    return folder


def sum_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.needs("openssl")
def test_every_file_is_in_the_sums_and_the_sums_are_signed(release: Path, tmp_path: Path) -> None:
    key, public = openssl_key(tmp_path)
    for _ in range(2):  # the second finds what the first wrote
        done = finish(release, "--sign", str(key))
        assert done.returncode == 0, done.stderr
    listed = {line.split()[1] for line in (release / "SHA256SUMS").read_text().splitlines()}
    assert listed == {path.name for path in release.iterdir()} - {"SHA256SUMS", "SHA256SUMS.sig"}
    assert subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=release).returncode == 0
    assert openssl_verifies(release / "SHA256SUMS", public)


def test_winget_and_homebrew_get_addresses_and_sums_of_the_files(release: Path) -> None:
    assert finish(release).returncode == 0
    parts = {}
    for path in release.glob("LlamaAppliance.*.yaml"):
        read = yaml.safe_load(path.read_text("utf-8"))
        assert (read["PackageIdentifier"], read["PackageVersion"]) == ("LlamaAppliance.LlamaAppliance", __version__)
        parts[read["ManifestType"]] = read
    assert set(parts) == {"version", "installer", "defaultLocale"}
    assert {each["InstallerUrl"]: each["InstallerSha256"] for each in parts["installer"]["Installers"]} == {
        f"{URL}/{name}": sum_of(release / name).upper() for name in WINDOWS
    }
    cask = dict(re.findall(r'^  (\w+) +"(.*)"$', (release / "llama-appliance.rb").read_text("utf-8"), re.MULTILINE))
    assert (cask["version"], cask["sha256"]) == (__version__, sum_of(release / MAC))
    assert (cask["url"], cask["pkg"]) == (f"{URL}/{MAC}", MAC)
    assert cask["homepage"] == "https://example.org/x/llama-appliance"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("llama-appliance-0.0.1-macos.pkg", "is not of version"),
        ("notes.txt", "of no kind that a release has"),
        (f"without-engine-{WINDOWS[0]}", "holds no engine"),
    ],
)
def test_a_file_that_does_not_belong_there_stops_the_release(release: Path, name: str, said: str) -> None:
    (release / name).write_text("x")
    done = finish(release)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {name} ")
    assert said in done.stderr
    assert not (release / "SHA256SUMS").exists()


def test_an_address_that_would_break_the_manifests_is_refused(release: Path) -> None:
    done = finish(release, "--url", 'https://example.org/"; system "x')
    assert done.returncode == 2
    assert "is not an address" in done.stderr


@pytest.fixture
def jobs() -> dict[str, dict[str, Any]]:
    return yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8"))["jobs"]


def test_a_release_is_published_only_when_every_other_job_succeeded(jobs: dict[str, dict[str, Any]]) -> None:
    needed: set[str] = set()
    waiting = ["publish"]
    while waiting:
        needs = jobs[waiting.pop()].get("needs", [])
        new = {*([needs] if isinstance(needs, str) else needs)} - needed
        needed |= new
        waiting += new
    assert needed == set(jobs) - {"publish"}
    assert [name for name, job in jobs.items() if job["permissions"].get("contents") == "write"] == ["publish"]
    assert not any("if" in job for name, job in jobs.items() if name != "publish")


def test_no_step_that_sees_a_secret_installs_anything(jobs: dict[str, dict[str, Any]]) -> None:
    """The scripts of a package that is being installed could take it."""
    seeing = 0
    for job in jobs.values():
        before = ""
        for step in job["steps"]:
            if "secrets." in str(step.get("env", {})):
                seeing += 1
                assert not re.findall(r"apt-get|\bpip\b|\bnpm\b|bootstrap\.py setup", step["run"]), step["name"]
                assert "bootstrap.py setup --dev" in before  # else any other verb of bootstrap.py does it first
            before += step.get("run", "")
    assert seeing == 2


def test_what_the_workflow_starts_exists_and_its_jobs_and_secrets_are_documented(
    jobs: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    verbs = importlib.import_module("bootstrap").VERBS
    page = (ROOT / "docs" / "platforms.md").read_text("utf-8")
    lines = "\n".join(step["run"] for job in jobs.values() for step in job["steps"] if "run" in step)
    assert set(re.findall(r"bootstrap\.py (\w+)", lines)) <= set(verbs)
    for path in re.findall(r"(?<![\w$/])(?:packaging|\.ci)/[\w.-]+", lines):
        assert (ROOT / path).is_file(), path
    assert set(re.findall(r"^\| `([\w-]+)` \|", page[page.index("\n## Releases\n") :], re.MULTILINE)) >= set(jobs)
    secrets = set(re.findall(r"secrets\.(\w+)", (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")))
    assert secrets <= set(re.findall(r"`([A-Z_]+)`", page))


@pytest.mark.needs("apt-ftparchive", "apt-get", "dpkg-deb", "gpg")
def test_apt_installs_from_the_folder_and_refuses_what_was_changed(release: Path, tmp_path: Path) -> None:
    tree, home = tmp_path / "tree", tmp_path / "gpg"
    (tree / "DEBIAN").mkdir(parents=True)
    fields = {"Package": "llama-appliance", "Version": __version__, "Architecture": "amd64", "Description": "x"}
    fields["Maintainer"] = "x <x@localhost>"
    (tree / "DEBIAN" / "control").write_text("".join(f"{name}: {value}\n" for name, value in fields.items()))
    subprocess.run(["dpkg-deb", "--build", "-Znone", tree, release / DEB], check=True, capture_output=True)
    home.mkdir(mode=0o700)
    gpg = ["gpg", "--homedir", home, "--batch", "--quiet"]
    make = ["--passphrase", "", "--quick-generate-key", "x@localhost", "ed25519", "sign"]
    subprocess.run([*gpg, *make], check=True, capture_output=True)
    try:
        done = finish(release, "--apt-key", "x@localhost", home=home)
        assert done.returncode == 0, done.stderr
        subprocess.run([*gpg, "--output", tmp_path / "key.gpg", "--export"], check=True)
    finally:
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=False)

    for name in ("etc", "state/lists/partial", "cache/archives/partial", "got"):
        (tmp_path / "apt" / name).mkdir(parents=True)
    (tmp_path / "apt" / "status").touch()
    sources = tmp_path / "apt" / "etc" / "sources.list"
    sources.write_text(f"deb [signed-by={tmp_path / 'key.gpg'}] file://{release} /\n")
    places = {"Dir::State": tmp_path / "apt" / "state", "Dir::Cache": tmp_path / "apt" / "cache",
              "Dir::Etc": tmp_path / "apt" / "etc", "Dir::State::status": tmp_path / "apt" / "status",
              "APT::Sandbox::User": "root", "APT::Architecture": "amd64", "Dir::Log": tmp_path / "apt"}  # fmt: skip
    apt = ["apt-get", "-q", *(word for name, value in places.items() for word in ("-o", f"{name}={value}"))]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*apt, *words], cwd=tmp_path / "apt" / "got", capture_output=True, text=True, check=False)

    updated = run("update", "--error-on=any")
    assert updated.returncode == 0, updated.stderr
    assert f"llama-appliance {__version__}" in re.sub(
        r"[()]", "", run("--simulate", "install", "llama-appliance").stdout
    )
    fetched = run("download", "llama-appliance")
    assert fetched.returncode == 0, fetched.stderr
    (release / "Packages").write_bytes(
        (release / "Packages").read_bytes().replace(b"Description: x", b"Description: y")
    )
    (release / "Packages.gz").unlink()
    shutil.rmtree(tmp_path / "apt" / "state" / "lists")
    (tmp_path / "apt" / "state" / "lists" / "partial").mkdir(parents=True)
    refused = run("update", "--error-on=any")
    assert refused.returncode != 0
    assert "Hash Sum mismatch" in refused.stderr or "unexpected size" in refused.stderr, refused.stderr
