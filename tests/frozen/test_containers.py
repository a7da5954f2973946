"""The container image, loaded and run by podman as docs/install.md says: without root, its root read-only."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Generator
from pathlib import Path

import pytest
from booted import PACKAGES, in_sections
from frozen_harness import ROOT, commands_of_the_page

TOOLS = pytest.mark.needs("root", "podman", "podman-compose", "unshare", "curl", "ip")
pytestmark = [pytest.mark.frozen, pytest.mark.slow, TOOLS]

LOAD, RUN, *STEPS = commands_of_the_page()["Containers"][0]
[OPEN] = commands_of_the_page()["Containers"][1]
KEY, UP, DOWN = commands_of_the_page()["Containers"][2]

WORDS = """
set -u
section() { echo "@@ $1"; }
ask() { curl -sS --max-time 60 "$@" -d '{"model": "starter", "messages": [{"role": "user", "content": "Your name?"}]}' \
    http://127.0.0.1:8080/v1/chat/completions; echo; }
ready() {
    [ -n "$(podman ps --quiet)" ] || exit
    for _ in $(seq 600); do curl -s http://127.0.0.1:8080/health >/dev/null && return; sleep 0.1; done
}
ip link set lo up
"""
SEED = """
services:
  llamacpp-server:
    image: llama-appliance:server
    ports:
      - 8080:8080
    volumes:
      - ./models:/models
    environment:
      LLAMA_ARG_MODEL: /models/my_model.gguf
      LLAMA_ARG_CTX_SIZE: 512
      LLAMA_ARG_N_PARALLEL: 2
      LLAMA_ARG_ENDPOINT_METRICS: 1
      LLAMA_ARG_PORT: 8080
"""
"""The file of llama.cpp's manual, with another image."""


@pytest.fixture
def place(tmp_path: Path) -> Generator[Path]:
    """A folder with every package, and podman's files, which are its own here."""
    for path in PACKAGES.iterdir():
        (tmp_path / path.name).symlink_to(path)
    # podman's own limits are higher than what a virtual machine may give; crun does not know cgroups of two kinds;
    # and in a chroot the root, which is no mount point, cannot be exchanged
    (tmp_path / "containers.conf").write_text(f"""
        [containers]
        default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
        [engine]
        runtime = "runc"
        no_pivot_root = true
        [network]
        network_config_dir = "{tmp_path}/networks"
    """)
    storage = f'[storage]\ndriver = "overlay"\ngraphroot = "{tmp_path}/storage"\nrunroot = "{tmp_path}/running"\n'
    (tmp_path / "storage.conf").write_text(storage)
    yield tmp_path
    subprocess.run(["podman", "rm", "--all", "--force", "--time", "0"], env=environment(tmp_path), check=False)


def environment(place: Path) -> dict[str, str]:
    own = {"CONTAINERS_CONF": "containers.conf", "CONTAINERS_STORAGE_CONF": "storage.conf"}
    return {"PATH": os.environ["PATH"], "HOME": str(place)} | {key: str(place / name) for key, name in own.items()}


def run(place: Path, script: str) -> dict[str, str]:
    """Run the script in a network of its own, and return what it said in each section."""
    command = ["unshare", "--net", "bash", "-c", f"exec 2>&1\n{WORDS}{script}"]
    done = subprocess.run(command, cwd=place, env=environment(place), capture_output=True, text=True, timeout=240)
    print(done.stdout)  # pytest shows it if something fails
    return in_sections(done.stdout)


def answer(text: str) -> str:
    return str(json.loads(text.splitlines()[-1])["choices"][0]["message"]["content"]).lower()


def test_the_image_serves_without_root_and_with_a_read_only_root(place: Path) -> None:
    ps, stop, *away = STEPS
    said = run(
        place,
        f"""
        section load; {LOAD}
        section no-key; podman run --rm llama-appliance:latest; echo "status $?"
        section run; {RUN}
        ready
        section chat; ask -H 'Authorization: Bearer secret'
        section nobody; ask
        section ps; {ps}
        section health; podman healthcheck run appliance; echo "status $?"
        podman exec --env LLAMA_APPLIANCE_API_KEY=wrong appliance llama-appliance ps --url http://127.0.0.1:8080
        echo "status $?"
        section home; podman exec --env LLAMA_APPLIANCE_API_KEY= appliance llama-appliance ls -v
        podman exec --env LLAMA_APPLIANCE_API_KEY= appliance llama-appliance run starter 'What is your name?'
        section user; ps -o uid= -p "$(podman inspect --format '{{{{.State.Pid}}}}' appliance)"
        section writes; podman exec appliance /bin/sh -c 'echo >/x; echo >/var/lib/llama-appliance/x && echo yes'
        section tls; podman exec appliance /bin/sh -c 'read line </etc/ssl/certs/ca-certificates.crt; echo $line'
        section licences; podman exec appliance /bin/sh -c 'echo /licenses/*'
        section stop; {stop}; podman inspect --format '{{{{.State.ExitCode}}}}' appliance
        section open; {OPEN} &
        for _ in $(seq 600); do podman exec --latest llama-appliance ps 2>/dev/null && echo up && break; sleep 0.1; done
        podman stop --latest >/dev/null; wait
        section away
        {chr(10).join(away)}
        section left; podman ps --all --quiet; podman volume ls --quiet; podman images --quiet
        """,
    )
    for tag in ("0.2.0", "latest", "server"):
        assert f"localhost/llama-appliance:{tag}" in said["load"]
    assert "LLAMA_APPLIANCE_API_KEY" in said["no-key"]
    assert said["no-key"].endswith("status 2\n")
    assert "appliance" in answer(said["chat"])
    assert '"code":401' in said["nobody"].replace(" ", "")
    assert "starter" in said["ps"]
    assert said["health"].startswith("status 0\n")
    assert said["health"].endswith("status 2\n")
    assert "server: unix:/var/lib/llama-appliance/server.sock (your own server runs)" in said["home"]
    assert "appliance" in said["home"].splitlines()[-1].lower()
    assert said["user"].strip() == "10001"
    assert "/x: Read-only file system" in said["writes"]
    assert "yes" in said["writes"].splitlines()
    assert "BEGIN CERTIFICATE" in said["tls"]
    assert "/licenses/libc6" in said["licences"]
    assert said["stop"].splitlines()[-1] == "0"
    assert "up" in said["open"].splitlines()
    assert said["left"] == ""


def test_the_image_lists_every_file_and_carries_its_licences() -> None:
    [image] = PACKAGES.glob("*.oci.tar")
    with tarfile.open(image) as layout:

        def blob(name: str) -> bytes:
            found = layout.extractfile(name)
            return found.read()

        [serving, _] = json.loads(blob("manifest.json"))
        layer = blob(serving["Layers"][0])
    with tarfile.open(fileobj=io.BytesIO(layer), mode="r:gz") as tree:
        entries = {entry.name: entry for entry in tree}
        bill = json.loads((tree.extractfile("sbom.cdx.json") or io.BytesIO()).read())
    files = {name for name, entry in entries.items() if not entry.isdir()}
    listed = {each["name"] for each in bill["components"] if each["type"] == "file"}
    assert {name for name in files if not name.startswith("usr/lib/llama-appliance/")} == listed | {"sbom.cdx.json"}
    for each in bill["components"]:
        assert each["type"] == "file" or any(name.startswith(f"licenses/{each['name']}/") for name in files)
    assert [name for name, entry in entries.items() if entry.uid != 0] == ["var/lib/llama-appliance"]
    assert not [name for name, entry in entries.items() if entry.isfile() and entry.mode & 0o022]


def test_the_compose_files_work(place: Path) -> None:
    shutil.copy(ROOT / "docs" / "examples" / "compose.yaml", place)
    (place / "seed").mkdir()
    (place / "seed" / "compose.yaml").write_text(SEED)
    (place / "seed" / "models").mkdir()
    [starter] = (ROOT / "dist").glob("*/_internal/appliance/catalog/starter/*.gguf")
    shutil.copy(starter, place / "seed" / "models" / "my_model.gguf")
    said = run(
        place,
        f"""
        {LOAD} >/dev/null
        section up; {KEY}; {UP}
        ready
        section chat; ask -H 'Authorization: Bearer secret'
        section down; {DOWN}
        cd seed
        section seed; podman-compose up --detach
        ready
        section seed-chat; ask
        section seed-metrics; curl -s http://127.0.0.1:8080/metrics
        section seed-down; podman-compose down
        section left; podman ps --all --quiet
        """,
    )
    assert "appliance" in answer(said["chat"])
    assert "appliance" in answer(said["seed-chat"])
    assert "llamacpp:" in said["seed-metrics"]
    assert said["left"] == ""
