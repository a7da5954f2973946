"""Many machines, as docs/install.md has it: files that no package has, and a repository that apt and dnf read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import booted
import pytest
from booted import package
from frozen_harness import commands_of_the_page
from test_packages import newer, system_of

pytestmark = [
    pytest.mark.frozen,
    pytest.mark.slow,
    pytest.mark.needs(
        "root", "mmdebstrap", "systemd-nspawn", "unshare", "apt-ftparchive", "createrepo_c", "gpg", "rpmbuild"
    ),
]

[FILES, MAKE, APT, DNF] = ["\n".join(block) for block in commands_of_the_page()["Many machines"]]
HERE = "file:///repository"
"""In the machine without a network, in place of the address of a web server."""
WORDS = """
sudo() { "$@"; }
echo 'APT::Get::Assume-Yes "true";' >/etc/apt/apt.conf.d/90yes
echo 'assumeyes=1' >>/etc/dnf/dnf.conf
rm /etc/apt/sources.list*; mkdir /etc/yum.repos.d # which Fedora has
status() { curl -s -o /dev/null -w '%{http_code}\\n' http://127.0.0.1:8181/v1/models -H "Authorization: Bearer $1"; }
"""
FLEET = f"""
cd /; echo 'apiKeys: [fleet]' >fleet.yaml; echo 'LLAMA_APPLIANCE_OPTIONS="--listen 127.0.0.1:8181"' >options.env
install -D -m 644 fleet.yaml /etc/llama-appliance/conf.d/10-fleet.yaml
install -D -m 600 options.env /etc/llama-appliance/options.env
section apt; {APT.replace("https://HOST/repository", HERE)}
echo "status $?"
section serves; status fleet; status other
section files; {FILES}
echo "status $?"; status fleet
section reload; echo 'apiKeys: [second]' >/etc/llama-appliance/conf.d/20-more.yaml; systemctl reload llama-appliance
for _ in $(seq 100); do [ "$(status second)" = 200 ] && break; sleep 0.1; done; status second; status fleet
section doctor; uname -n; llama-appliance doctor --line
section upgrade; rm -r /repository; mv /next /repository; apt-get update >/dev/null
apt-get upgrade </dev/null; echo "status $?"
dpkg-query --show --showformat '${{Version}}\n' llama-appliance
status fleet; grep -c newer /etc/default/llama-appliance
section purge; apt-get purge llama-appliance >/dev/null; ls /etc/llama-appliance
section dnf; rpm --initdb; rpm -i --nodeps /system.rpm; {DNF.replace("https://HOST/repository", HERE)}
echo "status $?"; curl -s -o /dev/null -w '%{{http_code}}\\n' http://127.0.0.1:8080/
section changed; dnf remove llama-appliance >/dev/null; dnf clean all >/dev/null
echo >>/repository/repodata/repomd.xml
dnf install llama-appliance; echo "status $?"
"""
"""Shell: before, with and after the package, as the page has it."""


@contextmanager
def signing_key(home: Path) -> Generator[None]:
    """A key of gpg in ``home``, as the one that its commands use."""
    home.mkdir(mode=0o700)
    make = ["--passphrase", "", "--quick-generate-key", "x@localhost", "rsa3072", "sign"]
    subprocess.run(["gpg", "--homedir", home, "--batch", "--quiet", *make], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=False)


def publish(folder: Path, home: Path) -> None:
    """Make the repository as the page has it."""
    environment = os.environ | {"GNUPGHOME": str(home)}
    done = subprocess.run(
        ["bash", "-e", "-c", MAKE], cwd=folder.parent, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_fleet_brings_its_files_and_upgrades_from_a_repository_without_a_question(tmp_path: Path) -> None:
    deb, rpm = package("llama-appliance_*.deb"), package("llama-appliance-[0-9]*.rpm")
    root = booted.unpack_root(tmp_path)
    repository = tmp_path / "repository"
    repository.mkdir()
    for each in (deb, rpm):
        shutil.copyfile(each, repository / each.name)
    with signing_key(tmp_path / "gpg"):
        publish(repository, tmp_path / "gpg")
        shutil.copytree(repository, root / "repository")
        newer(deb, repository / "llama-appliance_99_amd64.deb", "# newer\n")
        publish(repository, tmp_path / "gpg")
    shutil.copytree(repository, root / "next")
    said = booted.boot(root, WORDS + FLEET, {"system.rpm": system_of(rpm, tmp_path)})
    assert said["apt"].endswith("status 0\n"), said["apt"]
    assert said["serves"] == "200\n401\n"
    assert said["files"].endswith("status 0\n200\n"), said["files"]
    assert said["reload"] == "200\n200\n"
    host, line = said["doctor"].splitlines()
    told = json.loads(line)
    assert (told["host"], told["errors"], "server-not-running" in told["findings"]) == (host, 0, False)
    upgraded = said["upgrade"].splitlines()
    assert upgraded[-4:-2] == ["status 0", f"99.{deb.name.split('_')[1]}"], said["upgrade"]
    assert upgraded[-2:] == ["200", "1"]
    assert "No such file" in said["purge"]
    assert said["dnf"].endswith("status 0\n200\n"), said["dnf"]
    assert said["changed"].endswith("status 1\n"), said["changed"]
    assert "repomd.xml GPG signature verification error" in said["changed"]
