"""What clients are told of kept contexts, what they cannot reach, and names of slots that spoil no answer."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hollow_models import Hollow
from homes import Home
from kept_conversations import KINDS
from program import ANY_PORT, Answer, Server, StartServer, answer, http
from random_models import EXACT, random_dense, random_hybrid, write_random
from slow import one_of

from appliance.engines.named import ENGINE_VARIABLE
from appliance.fleet.hold import SHORT

CHAT = "/v1/chat/completions"


class Told:
    """A server with the model ``a``, whose contexts are kept on the disk."""

    def __init__(self, folder: Path, engine: str, *slots: str, kind: Hollow | None = None) -> None:
        home = Home(folder)
        model = write_random(folder / "a.gguf", kind or random_dense())
        options = ("--ctx-size", "8192", *slots)
        self.contexts = folder / "xdg_data_home" / "llama-appliance" / "contexts"
        self.server: Server = home.serve(
            "--engine", engine, "--no-starter", "--model", f"a={model}", "--keep-context", "disk", "--",
            *options,
        ).wait_listening()  # fmt: skip

    def ask(self, conversation: str, *texts: str, **more: object) -> Answer:
        messages = [{"role": "user" if at % 2 == 0 else "assistant", "content": text} for at, text in enumerate(texts)]
        # The name of the user makes it a request that is not short, although its context is too short to be kept.
        body = {
            "model": "a",
            "messages": messages,
            "max_tokens": 2,
            "prompt_cache_key": conversation,
            "user": "u" * SHORT,
            **more,
        }
        found = http(self.server, "POST", CHAT, body)
        assert found.status == 200, (found.body, self.server.told())
        return found

    def row(self) -> Any:
        """The latest request's row."""
        return http(self.server, "GET", "/api/metrics/activity").json()["data"][0]

    def why(self) -> tuple[str, str]:
        row = self.row()
        return row["cache_miss"], row["metadata"]["prompt_cache"].partition(": ")[2]


def text(name: str, words: int) -> str:
    """A word is one token, and five bytes."""
    return f"{name}:" + "".join(f"t{1000 + (ord(name[0]) * 31 + at * 7) % 700}" for at in range(words))


def test_a_row_says_who_took_the_slot_and_where_a_prompt_was_edited(tmp_path: Path, engine: str) -> None:
    told = Told(tmp_path, engine, "--parallel", "1", "--cache-ram", "0")
    with told.server:
        told.ask("x", text("one", 300), text("two", 30))
        told.ask("y", text("other", 320))
        assert told.why() == ("new", "its conversation is new here")
        told.ask("x", text("one", 300), text("two", 30), text("three", 5))
        assert told.why() == ("evicted", "conversation 'y' took its slot")
        told.ask("x", text("one", 300), text("two", 30), text("three", 5), text("four", 5))
        assert told.row()["metadata"]["prompt_cache"].endswith("prompt tokens came from the cache")
        told.ask("x", text("elsewhere", 300), text("two", 30), text("three", 5))
        assert told.why() == ("changed", "its prompt was edited at message 1")


@pytest.mark.slow
@pytest.mark.parametrize("between", ["unload", "swap"])
def test_the_answer_and_its_row_say_what_came_back(tmp_path: Path, engine: str, between: str) -> None:
    told = Told(tmp_path, engine, "--parallel", "1")
    with told.server as server:
        first = told.ask("x", text("one", 1200))
        assert "X-Appliance-Context" not in first.headers
        server.wait_for(lambda: http(server, "GET", "/api/cache").json()["kept"])
        if between == "unload":
            assert http(server, "POST", "/models/unload", {"model": "a"}).status == 200
        else:
            told.ask("y", text("other", 1200))
        again = told.ask("x", text("one", 1200), text("two", 5))
        restored, cached = again.headers["X-Appliance-Context"], again.json()["timings"]["cache_n"]
        assert re.fullmatch(r"restored=\d+; ms=\d+", restored)
        assert int(restored[len("restored=") :].partition(";")[0]) >= cached >= 1200
        row, prompt = told.row(), again.json()["usage"]["prompt_tokens"]
        said = rf"{cached} of {prompt} prompt tokens came back from a file \(\d+ MiB, \d\.\d s\)"
        assert re.fullmatch(said, row["metadata"]["prompt_cache"])
        assert row["cache_miss"] == ""
        assert "X-Appliance-Context" not in told.ask("x", text("one", 1200), text("two", 5)).headers


@pytest.mark.parametrize("own_folder", one_of([False, True]))
def test_nobody_reaches_the_files_of_contexts(tmp_path: Path, engine: str, own_folder: bool) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    told = Told(tmp_path, engine, *(("--slot-save-path", f"{theirs}/") if own_folder else ()))
    with told.server as server:
        told.ask("x", text("one", 700))
        for front in ("/slots/0", "/upstream/a/slots/0", "/upstream/a/%73lots/0"):
            for action in ("save", "restore", "erase"):
                for more in ("", "&autoload=false"):
                    path = f"{front}?action={action}&model=a{more}"
                    found = http(server, "POST", path, {"filename": "mine.bin"})
                    if own_folder:
                        assert found.status == 200, (path, found.body)
                    else:
                        words = "This server does not support slots action. Start it with `--slot-save-path`"
                        error = found.json()["error"]
                        assert (found.status, error["type"]) == (501, "not_supported_error"), path
                        assert error["message"].startswith(words)
        bare = http(server, "POST", "/slots/0", {"model": "a"})
        assert bare.status == (400 if own_folder else 501)
        assert (theirs / "mine.bin").exists() == own_folder
        assert not (told.contexts / "mine.bin").exists()


@pytest.mark.slow
def test_the_files_stay_closed_where_they_were_found_to_be_of_no_use(tmp_path: Path, built_engine: str) -> None:
    """As with a model whose memory is no sequence of tokens; the embedded engine reads its files."""
    told = Told(tmp_path, built_engine, "--parallel", "1", kind=random_hybrid())

    def kept(conversation: str) -> bool:
        found = http(told.server, "GET", "/api/cache").json()["kept"]
        return any(each["conversation"] == conversation for each in found)

    with told.server as server:
        for conversation in ("x", "y"):
            told.ask(conversation, text(conversation, 1200))
            server.wait_for(partial(kept, conversation))
            assert http(server, "POST", "/models/unload", {"model": "a"}).status == 200
            found = told.ask(conversation, text(conversation, 1200), text("more", 5))
            assert "X-Appliance-Context" in found.headers
            assert told.why() == ("loaded", "the model was loaded for it")
            assert told.row()["metadata"]["prompt_cache"].startswith("0 of ")
        server.wait_for(lambda: "contexts of lfm2 models are not kept" in server.told())
        assert http(server, "POST", "/slots/0?action=save&model=a", {"filename": "mine.bin"}).status == 501
        assert not (told.contexts / "mine.bin").exists()


LONG = {"prompt": "t1t2t3", "n_predict": 400, "temperature": 0, "ignore_eos": True}
NAMES = [
    *(f'"id_slot":{value}' for value in ("0", "1", "0.0", "1.0", "0.5", "1e0", "-0", "true", "false", "-2", "-3", "3")),
    *(f'"id_slot":{value}' for value in ("4294967297", "1e30", '"1"', "[1]", "null")),
    '"id_slot":-1,"id_slot":1', '"id_slot":1,"id_slot":0.0', '"\\u0069d_slot":1', '"id\\u005Fslot" : 0.9',
]  # fmt: skip
WAYS = [f"{prefix}/completion" for prefix in ("", "/worker/words", "/upstream/words")]
WAYS += ["/v1/completions", "/upstream/words/v1/completions"]


def bodies() -> list[bytes]:
    """With a byte order mark, and with what only one of two readers may bear."""
    plain = [f'{{"model":"words","prompt":"{at}","n_predict":1,{name}}}' for at, name in enumerate(NAMES)]
    odd = [f'{mark}{{"prompt":"x","n_predict":1,"id_slot":{at}{more}}}' for at in (0, 1) for mark, more in ODD]
    return [each.encode() for each in (*plain, *odd)]


ODD = [("\ufeff", ""), ("", ',"model":[]'), ("", ',"x":' + "[" * 2000 + "]" * 2000), ("", ',"stream":0')]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["serve", "llama-server"])
def test_an_answer_keeps_its_own_words(start_server: StartServer, engine: str, tmp_path: Path, mode: str) -> None:
    model = write_random(tmp_path / "words.gguf", *KINDS["dense"])
    options = ("--parallel", "2", "--ctx-size", "2048", *EXACT)
    if mode == "serve":
        words = (*ANY_PORT, "--engine", engine, "--model", f"words={model}", "--preload", "words", "--no-starter", "--")
    else:
        words = ("-m", str(model), "--port", "0")
    server = start_server(mode, *words, "--threads", "1", *options, env={ENGINE_VARIABLE: engine})
    server.wait_healthy()
    alone = answer(server, "/completion", **LONG)["content"]
    with ThreadPoolExecutor(9) as clients:  # where a slot is named that is in use, the engine lets its request wait
        for way in WAYS if mode == "serve" else ("/completion", "/v1/completions"):
            first = clients.submit(answer, server, "/completion", **LONG)
            statuses = clients.map(lambda body, way=way: http(server, "POST", way, body).status, bodies())
            assert {*statuses} <= {200, 400}
            assert first.result()["content"] == alone, way
