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
from booted import package
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


BARE_BOX = """\
set -eu
run=$1
key=$2
"$run" bundle import --key "$key" --json >imported.json
"$run" serve --offline --ready-file ready --engine cpu >served.log 2>&1 &
server=$!
n=0
until test -s ready || test $n = 300; do sleep 0.1; n=$((n + 1)); done
"$run" run tiny "Hello! What can you do?" || { cat served.log; exit 1; }
kill $server
wait $server
imported=$(echo .local/share/llama-appliance/programs/*/llama-appliance)
"$imported" bundle import "$run" --json | grep -c '"state": *"here"'
"$imported" bundle log --json | grep -c '"trust": *"signed"'
"""


@pytest.fixture
def open_folder() -> Generator[Path]:
    """A folder that every user reaches: pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="air-gap-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def on_the_other_side(folder: Path, script: str, *words: Path) -> list[str]:
    """Run a script there as nobody, without a network: its last two lines, below what a model said."""
    os.chown(folder, NOBODY, NOBODY)
    done = subprocess.run(
        [
            *("unshare", "--net", sys.executable, str(LOOPBACK)),
            *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
            *("sh", "-c", script, "sh", *map(str, words)),
        ],
        cwd=folder, env={"PATH": os.defpath, "HOME": str(folder)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout, done.stderr)
    answer, *last = done.stdout.strip().rsplit("\n", 2)
    assert answer.strip()
    return last


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
    models = ("--models-dir", "models", "--models", "tiny")
    words = (*models, "--engines", "cpu", "--config", "ours.yaml", "--split", "32M")
    run("export", *words, "--key", "private", "-o", str(bundle))
    assert len(list(open_folder.glob("office.bundle.0*"))) > 2
    last = on_the_other_side(there, OTHER_SIDE, installed, bundle)
    assert last == [str(NOBODY), "0"], "nobody, with no route to anywhere"
    news = open_folder / "news.bundle"
    run("export", *words[:-2], "--against", str(there / "there.json"), "-o", str(news))
    assert news.stat().st_size < 1 << 20, "program, engine and model are there already"
    for path in (open_folder / "installed").rglob("*"):
        assert path.owner() == "root", "the other user changed nothing outside its own folder"


@pytest.mark.needs("namespaces")
@pytest.mark.skipif(sys.platform != "linux", reason="the one-file program is Linux's")
def test_one_file_is_the_whole_delivery(open_folder: Path) -> None:
    """It says what it is on a terminal; on a bare machine without a network it imports itself, serves, and may go."""
    import pty  # which Windows does not have

    here, there = open_folder / "here", open_folder / "there"
    for folder in (here, there):
        (folder / "models").mkdir(parents=True)
    shutil.copyfile(STARTER, here / "models" / "tiny.gguf")
    run = open_folder / "office.run"
    environment = {"PATH": os.defpath, "HOME": str(here)}
    for words in (
        ("keygen", "mine"),
        ("export", "--models-dir", "models", "--models", "tiny", "--engines", "cpu", "--runnable", "--key", "mine"),
    ):
        argv = [package("*.AppImage"), "bundle", *words, *(("-o", run) if words[0] == "export" else ())]
        done = subprocess.run(argv, cwd=here, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    shutil.copyfile(here / "mine.pub", open_folder / "mine.pub")
    terminal, end = pty.openpty()
    subprocess.run([run], env=environment, stdin=end, stdout=end, stderr=end, check=True)
    told = os.read(terminal, 1 << 16).decode()
    os.close(end)
    os.close(terminal)
    assert f"'{run} bundle import' brings these into the folders of this machine" in told, told
    counts = on_the_other_side(there, BARE_BOX, run, open_folder / "mine.pub")
    assert counts == ["3", "3"], "program, engine and model came, signed with the remembered key, and are here"
