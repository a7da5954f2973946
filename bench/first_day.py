"""The disk of a user after a year: many model files with real headers, and a long history."""

from __future__ import annotations

import http.client
import json
import os
import random
import sqlite3
import statistics
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ends import Figures
from processes import HOST, Failed, get, used, wait_accepting

if TYPE_CHECKING:
    from relays import Contestant
    from rows import Bench

FILES, SMALL_FILES, HISTORY_ROWS = 200, 5000, 100_000
TOKENS, MERGES = 152_000, 151_000
"""The counts of a Qwen vocabulary."""
CALM = 1.0
"""Seconds without work after which everything has been read."""
QUESTION = {"model": "files-7", "messages": [{"role": "user", "content": "Hi"}]}


def large_files(folder: Path) -> None:
    chance = random.Random(1)
    words = [bytes(chance.choices(b"abcdefghijklmnopqrstuvwxyz", k=chance.randint(1, 13))) for _ in range(TOKENS)]
    merges = [b"%b %b" % (chance.choice(words), chance.choice(words)) for _ in range(MERGES)]
    _write(folder, FILES, words, merges)


def small_files(folder: Path) -> None:
    _write(folder, SMALL_FILES, [b"a", b"b"], [b"a b"])


def _write(folder: Path, count: int, words: list[bytes], merges: list[bytes]) -> None:
    """Names of one file; each is a file of its own for whoever goes by names."""
    numbers = {"block_count": 28, "embedding_length": 1024, "context_length": 32768, "attention.head_count": 16}
    keys = [_text(b"general.architecture") + struct.pack("<I", 8) + _text(b"qwen2")]
    keys += [_text(f"qwen2.{key}".encode()) + struct.pack("<II", 4, value) for key, value in numbers.items()]
    for key, texts in ((b"tokens", words), (b"merges", merges)):
        keys.append(
            _text(b"tokenizer.ggml." + key) + struct.pack("<IIQ", 9, 8, len(texts)) + b"".join(map(_text, texts))
        )
    names = [
        "token_embd.weight",
        *(f"blk.{layer}.{part}.weight" for layer in range(28) for part in ("attn_q", "ffn_up")),
    ]
    tensors = [_text(name.encode()) + struct.pack("<IQQIQ", 2, 64, 64, 0, 16384 * at) for at, name in enumerate(names)]
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys)) + b"".join(keys + tensors)
    folder.mkdir(exist_ok=True)
    whole = folder / "whole"
    whole.write_bytes(head)
    os.truncate(whole, len(head) + 31 + 16384 * len(names))
    for number in range(count):
        (folder / f"files-{number}.gguf").unlink(missing_ok=True)
        (folder / f"files-{number}.gguf").hardlink_to(whole)
    whole.unlink()


def _text(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def files(contestant: Contestant, bench: Bench) -> Figures:
    """A first start, which has all headers to read, and later ones."""
    found: Figures = {}
    again: list[Figures] = []
    for number in range(bench.starts + 1):
        began = time.monotonic()
        with contestant.spawned(bench.ends) as (process, port):
            wait_accepting(process, port)
            told = {"listening_ms": (time.monotonic() - began) * 1000, "list_ms": timed(port, "GET", "/v1/models")}
            told["chat_ms"] = timed(port, "POST", "/v1/chat/completions", QUESTION)
            if number == 0:
                before = -CALM
                while (now := used(process.pid, bench.ends.engine).cpu) > before + 0.05 * CALM:
                    before = now
                    time.sleep(CALM)
                found = {f"first_{name}": value for name, value in told.items()} | {"first_cpu_s": now}
            else:
                again.append(told)
    return found | {name: statistics.median(each[name] for each in again) for name in again[0]}


def table(contestant: Contestant, bench: Bench) -> Figures:
    with contestant.spawned(bench.ends) as (process, port):
        wait_accepting(process, port)
        while b"until their headers are read" in get(port, "/api/ls")[1]:
            time.sleep(CALM)
        times = [timed(port, "GET", "/api/ls") for _ in range(6)]
        return {"table_ms": statistics.median(times), "list_ms": timed(port, "GET", "/v1/models")}


def export(contestant: Contestant, bench: Bench) -> Figures:
    store = bench.ends.folder / "history.db"
    with contestant.spawned(bench.ends) as (process, port):  # makes the tables
        wait_accepting(process, port)
        get(port, "/api/metrics/activity")
    with sqlite3.connect(store) as history:
        history.executemany(
            "INSERT INTO activity (ts_created, model_id, req_path, resp_content_type, resp_status_code, input_tokens,"
            " output_tokens, prompt_per_second, tokens_per_second, duration_ms, metadata_json, client)"
            " VALUES (?, 'a-model-of-some-name', '/v1/chat/completions', 'text/event-stream', 200, 512, 256, 812.5,"
            " 41.25, 6543, '{\"session\":\"a0b1c2d3e4f5\"}', 'python-openai 127.0.0.1')",
            ((1_700_000_000 + 60 * number,) for number in range(HISTORY_ROWS)),
        )
    history.close()
    with contestant.spawned(bench.ends) as (process, port):
        wait_accepting(process, port)
        get(port, "/api/metrics/activity")
        return {
            f"{kind}_ms": timed(port, "GET", f"/api/metrics/activity/export?format={kind}") for kind in ("csv", "jsonl")
        }


def timed(port: int, method: str, path: str, body: object = None) -> float:
    """Milliseconds of one request. Failed for another answer than a 200."""
    began = time.monotonic()
    connection = http.client.HTTPConnection(HOST, port, timeout=120)
    connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    if answer.status != 200:
        raise Failed(f"{method} {path} was answered with {answer.status}: {text[:200]!r}")
    return (time.monotonic() - began) * 1000
