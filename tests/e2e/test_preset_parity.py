"""Presets of llama-server's router: the same file, the same models in both programs, and a file that changes."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from gguf_files import WriteModel
from program import Server, StartServer, answer, http
from slow import one_of
from waiting import wait

from appliance.catalog.catalog import Catalog
from appliance.catalog.sources import ModelFolders
from appliance.core.llama import flags
from appliance.engines.named import ENGINE_VARIABLE
from appliance.errors import UsageError
from appliance.features.stand_in.core.preset_file import chosen
from appliance.features.stand_in.preset_models import open_presets

COMMIT = "0123456789abcdef0123456789abcdef01234567"
START_TIME = 20.0
ARGV = ("--offline", "--threads", "1", "--temp", "0.5", "--no-jinja", "--tags", "all")
FORCED = "log-colors = off\n"
"""What llama-server's router gives every model process; here it is not a choice."""

FILES = [
    "",
    "version = 1\nc = 7\n",
    "; about\n[*]\nc = 512 ; end\n[m1]\nmodel = /x/a.gguf\nalias = b, a,c\nctx-size=100\nngl=4# x\n",
    "[m1]\nm = /x\nno-warmup = false\nslots=off\nkv-unified=0\nno-kv-offload=1\nno-repack=disabled\nembedding=off\n",
    "[m1]\nm = /x/a.gguf\nctx-size = 1\nc = 2\nLLAMA_ARG_CTX_SIZE=3\ntemp = 9\njinja = true\n",
    "[*]\nmetrics=true\nembedding = on\n[m1]\nm=/x\nmetrics=false\n[m2]\nm=/y\n[m1]\nm=/z\nngl=2\n",
    "[a:q8_0]\nm=/x\n[a:Q8_0]\nm=/y\n[m:weird-tag]\nm=/z\n[n:]\nm=/z\n[ sp ace]\nm=/z\n",
    "[m1]\nm=/x\nmodels-max=3\napi-key=k\nssl-key-file=/s\nhost=0.0.0.0\nport=99\nlog-file=/l\nmmproj=/mm\n",
    "[*]\nload-on-startup=false\nstop-timeout=4\n[m1]\nc=1\n[m2]\nm=/x\nalias=q\n",
    "[plain]\nngl=3\nalias=zz\n[D]\nmmproj=/own\n[org/repo:q8_0]\nngl=4\n[org/repo]\nngl=5\n[new]\nm=/n\n",
    "[a]\nhf-repo=org/repo:q8_0\n[b]\nhf-repo=org/repo\n[c]\nhf-repo=org/missing\n",
    "[*]\ndedup-cache-models=true\n[a]\nhf-repo=org/repo\n",
    "[a]\ndedup-cache-models=true\nhf-repo=org/repo:Q8_0\nspec-draft-hf=org/draft\n",
    "[a]\ndedup-cache-models=true\nhf-repo=org/repo\nhf-file=model-Q8_0.gguf\n",
    "[m1]\nfoo-bar = 9\n",
    "[m1]\n  c = 9\n",
    "  [m1]\nc = 9\n",
    "[m1] x\nc = 9\n",
    "[]\n",
    "[m1]\njinja\n",
    "[m1]\nc : 3\n",
    "[m1]\nctx_size = 9\n",
    "[m1]\nm=/x\nalias = m2\n[m2]\nm=/y\n",
    "[m1]\nm=/x\nalias = z\n[m2]\nm=/y\nalias=z\n",
    "[m1]\nm=/x\ncontrol-vector-layer-range = 1 2\n",
]
"""Files that both programs take, or both refuse."""


class Disk:
    """A models folder and a cache with a few models."""

    def __init__(self, root: Path, write_model: WriteModel) -> None:
        self.models, self.cache, self.file = root / "models", root / "cache", root / "p.ini"
        write_model(self.models / "plain.gguf")
        write_model(self.models / "D" / "a-Q8_0.gguf")
        write_model(self.models / "D" / "mtp-x.gguf")
        for repo, names in (("repo", ("model-Q4_K_M.gguf", "model-Q8_0.gguf")), ("draft", ("d-F32.gguf",))):
            folder = self.cache / f"models--org--{repo}"
            (folder / "refs").mkdir(parents=True)
            (folder / "refs" / "main").write_text(COMMIT)
            for name in names:
                write_model(folder / "snapshots" / COMMIT / name)


@pytest.fixture
def disk(tmp_path: Path, write_model: WriteModel) -> Disk:
    return Disk(tmp_path, write_model)


Listing = dict[str, tuple[list[str], list[str], str, str]]


def theirs(engine: str, disk: Disk, port: int) -> Listing | None:
    """What llama-server's router lists; None when it refuses to start."""
    argv = ("--port", str(port), *ARGV, "--models-preset", str(disk.file), "--models-dir", str(disk.models))
    with Server(argv, disk.file.parent, {"LLAMA_CACHE": str(disk.cache)}, program=Path(engine)) as router:
        wait(lambda: "listening on http" in router.told() or router.process.poll() is not None, told=router.told)
        if router.process.poll() is not None:
            return None
        models = http(router.wait_listening(), "GET", "/models").json()["data"]
    return {
        model["id"]: (model["aliases"], model["tags"], model["source"], model["status"]["preset"].replace(FORCED, ""))
        for model in models
    }


def ours(disk: Disk) -> Listing | None:
    """The same of this program."""
    try:
        presets, _ = open_presets(disk.file, command=chosen(flags.split(ARGV)))
    except UsageError:
        return None
    catalog = Catalog(ModelFolders(models_dir=disk.models, cache=disk.cache, starter=None, presets=presets))
    return {
        model.id: (list(model.aliases), list(model.tags), model.source, model.preset)
        for model in catalog.scan().models
        if not model.hidden
    }


@pytest.mark.parametrize("text", one_of(FILES[2:] + FILES[:2]))
def test_a_file_means_what_it_means_to_llama_server(
    built_engine: str, disk: Disk, free_port: Callable[[], int], text: str
) -> None:
    disk.file.write_text(text)
    assert ours(disk) == theirs(built_engine, disk, free_port())


# ---- the program itself ----------------------------------------------------------------------------------------------


@pytest.fixture
def stand_in(start_server: StartServer, built_engine: str, disk: Disk):
    def start(text: str, *argv: str) -> Server:
        disk.file.write_text(text)
        env = {ENGINE_VARIABLE: built_engine, "LLAMA_CACHE": str(disk.cache)}
        words = ("llama-server", "--port", "0", "-t", "1", "--models-preset", str(disk.file), *argv)
        return start_server(*words, env=env)

    return start


def chat(server: Server, model: str) -> tuple[int, str]:
    body = {"model": model, "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 2}
    answer = http(server, "POST", "/v1/chat/completions", body)
    return answer.status, answer.json().get("model", "")


def command_of(server: Server, model: str) -> str:
    """The command line of a running model process, as the list of models has it."""
    models = http(server, "GET", "/models").json()["data"]
    return " ".join(next(entry["status"]["args"] for entry in models if entry["id"] == model))


def test_models_of_a_preset_are_served_by_name_and_alias(stand_in: Callable[..., Server], starter_model: Path) -> None:
    server = stand_in(
        f"[*]\nc = 512\n[one]\nmodel = {starter_model}\nalias = first\nn-predict = 7\n[two]\nmodel = {starter_model}\n",
        *("--temp", "0", "--cors-origins", "localhost"),
    )
    assert chat(server, "first") == (200, "one")
    assert chat(server, "two") == (200, "two")
    assert re.search(r"--ctx-size 512\b.*--n-predict 7\b.*", command_of(server, "one"))
    assert "--temperature 0 " in command_of(server, "two") + " "
    assert "--cors-origins" not in command_of(server, "two")
    assert "--n-predict" not in command_of(server, "two")


CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
VERBS = {
    "serve": ("serve", "--no-starter", "--no-stores", "--listen", "127.0.0.1:0"),
    "llama-server": ("llama-server", "--port", "0"),
}

Told = Callable[[Server], None]


def by_signal(server: Server) -> None:
    server.signal(signal.SIGHUP)


def by_request(server: Server) -> None:
    assert answer(server, "/api/config/reload")["success"] is True


def by_list(server: Server) -> None:
    assert http(server, "GET", "/models?reload=1").status == 200


def by_nothing(server: Server) -> None:
    """The file is watched."""


@pytest.fixture
def file(tmp_path: Path, starter_model: Path) -> Callable[..., Path]:
    """Write the preset file: sections ``a`` and ``b``, and more."""

    def write(more: str = "", *, b: int = 64) -> Path:
        path = tmp_path / "p.ini"
        path.write_text(f"[a]\nm = {starter_model}\nc = 64\n[b]\nm = {starter_model}\nc = {b}\n{more}")
        return path

    return write


@pytest.fixture
def presets(start_server: StartServer, fake_engine: Path, tmp_path: Path) -> StartServer:
    """A verb with that file."""

    def start(verb: str, *words: str) -> Server:
        argv = (*VERBS[verb], "--models-preset", str(tmp_path / "p.ini"), *words)
        return start_server(*argv, env={ENGINE_VARIABLE: str(fake_engine)})

    return start


def ids(server: Server) -> set[str]:
    return {entry["id"] for entry in http(server, "GET", "/models").json()["data"]}


def ask(server: Server, model: str) -> None:
    answer(server, "/v1/chat/completions", **CHAT, model=model)


@pytest.mark.parametrize(("verb", "tell"), [("serve", (by_request, by_signal)), ("llama-server", (by_list,))])
def test_what_has_not_changed_goes_on(
    presets: StartServer, file: Callable[..., Path], verb: str, tell: Sequence[Told]
) -> None:
    file()
    server = presets(verb)
    for context, each in enumerate(tell, 96):
        if each is not by_signal or sys.platform != "win32":
            check_spared(server, file, context, each)


def check_spared(server: Server, file: Callable[..., Path], context: int, tell: Told) -> None:
    """Change ``b`` and add a model: ``a`` goes on."""
    ask(server, "a")
    ask(server, "b")
    (before,) = [child.pid for child in server.children() if "a" in child.cmdline()]
    old = [child for child in server.children() if "b" in child.cmdline()]
    new = f"c{context}"
    file(f"[{new}]\nm = /x\n", b=context)
    tell(server)
    wait(lambda: {"a", "b", new} <= ids(server), told=server.told)
    wait(lambda: not any(child.is_running() for child in old), told=server.told)
    ask(server, "b")
    listed = http(server, "GET", "/models").json()["data"]
    assert str(context) in next(entry["status"]["args"] for entry in listed if entry["id"] == "b")
    assert [child.pid for child in server.children() if "a" in child.cmdline()] == [before]


def test_a_file_is_watched_and_a_mistake_is_told_and_changes_nothing(
    presets: StartServer, file: Callable[..., Path]
) -> None:
    file()
    server = presets("serve", "--watch-config")
    check_spared(server, file, 96, by_nothing)
    before = ids(server)
    file("[c]\nfoo-bar = 1\n")
    for method, target in (("POST", "/api/config/reload"), ("GET", "/models?reload=1")):
        refused = http(server, method, target)
        assert refused.status == 400
        assert "llama-server has no option 'foo-bar'" in refused.json()["error"]["message"]
    assert ids(server) == before
    wait(lambda: "the presets were not read again, the old ones stay" in server.told(), told=server.told)
    file("[c]\nm = /x\n")
    wait(lambda: "c" in ids(server), told=server.told)
