"""The frozen program crosses an air gap: exported here, taken in and served by another user without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from frozen_harness import DIST, bare_environment

pytestmark = pytest.mark.frozen

LOOPBACK = Path(__file__).parents[1] / "loopback.py"
NOBODY = 65534
STARTER = DIST / "_internal" / "appliance" / "catalog" / "starter" / "llama-appliance-starter-Q8_0.gguf"
OTHER_SIDE = """\
set -eu
installed=$1
bundle=$2
"$installed" bundle verify "$bundle" --key "$bundle.pub" --json >verified.json
"$installed" bundle import "$bundle" --key "$bundle.pub" --home "$PWD/home" --json >imported.json
if grep '"state": *"here"' imported.json; then exit 1; fi  # the same version runs, but it may be from a stick
imported=$(echo home/data/llama-appliance/programs/*/llama-appliance)
settings=$(echo home/data/llama-appliance/settings/*/config/ours.yaml)
"$imported" serve --offline --home "$PWD/home" --ready-file ready --config "$settings" --models-dir \\
    home/data/llama-appliance/models --engine cpu >served.log 2>&1 &
server=$!
n=0
until test -s ready || test $n = 300; do sleep 0.1; n=$((n + 1)); done
"$imported" run tiny "Hello! What can you do?" --url http://127.0.0.1:8080 || { cat served.log; exit 1; }
"$imported" bundle inventory --home "$PWD/home" -o there.json
kill $server
wait $server
id -u
tail -n +2 /proc/net/route | wc -l
"""


@pytest.fixture
def open_folder() -> Generator[Path]:
    """A folder that every user reaches: pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="air-gap-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.needs("namespaces")
def test_across_an_air_gap(program: Path, open_folder: Path) -> None:
    here, there = open_folder / "here", open_folder / "there"
    installed = shutil.copytree(DIST, open_folder / "installed", symlinks=True) / "llama-appliance"
    (here / "models").mkdir(parents=True)
    there.mkdir()
    shutil.copyfile(STARTER, here / "models" / "tiny.gguf")
    (here / "ours.yaml").write_text("# carried\nmodels: {}\n")
    environment = {**bare_environment(), "HOME": str(here)}

    def run(*words: str) -> None:
        done = subprocess.run(
            [program, "bundle", *words], cwd=here, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    bundle = open_folder / "office.bundle"
    run("keygen", str(bundle))
    bundle.rename(here / "private")
    words = (
        "--models-dir",
        "models",
        "--models",
        "tiny",
        "--engines",
        "cpu",
        "--config",
        "ours.yaml",
        "--split",
        "32M",
    )
    run("export", *words, "--key", "private", "-o", str(bundle))
    assert len(list(open_folder.glob("office.bundle.0*"))) > 2
    os.chown(there, NOBODY, NOBODY)
    done = subprocess.run(
        [
            *("unshare", "--net", sys.executable, str(LOOPBACK)),
            *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
            *("sh", "-c", OTHER_SIDE, "sh", str(installed), str(bundle)),
        ],
        cwd=there,
        env={**bare_environment(), "HOME": str(there), "PATH": os.defpath},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    answer, *last = done.stdout.strip().rsplit("\n", 2)
    assert answer.strip()
    assert last == [str(NOBODY), "0"], "nobody, with no route to anywhere"
    news = open_folder / "news.bundle"
    run("export", *words[:-2], "--against", str(there / "there.json"), "-o", str(news))
    assert news.stat().st_size < 1 << 20, "program, engine and model are there already"
    for path in (open_folder / "installed").rglob("*"):
        assert path.owner() == "root", "the other user changed nothing outside its own folder"
