"""The exposition, read back with Prometheus' own parser."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import psutil
import pytest
import trio
from ended_requests import ended
from prometheus_client.parser import text_string_to_metric_families

from appliance import __version__
from appliance.core.machine import GpuSample, NetworkCounters, Sample, SystemSample
from appliance.core.records.accounting import Usage
from appliance.core.records.activity import Tokens
from appliance.core.records.ended import EndedRequest
from appliance.core.records.history import Happening
from appliance.core.scheduling.effects import Cause
from appliance.features.metrics.counts import BUCKETS, Counters
from appliance.features.metrics.exposition import exposition
from appliance.fleet.status import ChildStatus
from appliance.traffic.metrics import MAX_MODELS, OTHER, Metrics

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
GIB = 1 << 30
Read = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def metrics() -> Counters:
    return Counters(Metrics())


def read(metrics: Counters, children: Sequence[ChildStatus] = (), machine: Sample | None = None) -> Read:
    """Every sample by name and labels; none may be there twice."""
    found: Read = {}
    for family in text_string_to_metric_families(exposition(metrics, children, machine)):
        assert family.documentation
        assert family.type != "unknown"
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


def key(name: str, /, by: str = "llama_appliance", **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return (f"{by}_{name}", tuple(sorted(labels.items())))


swap = partial(key, by="llamaswap")


def test_a_new_server(metrics: Counters):
    metrics.server.under_way += 3
    found = read(metrics)
    assert found[key("build_info", version=__version__)] == 1
    assert found[key("requests_under_way")] == 3
    assert found[key("request_bodies_bytes")] == 0
    assert found[key("models", state="loaded")] == 0
    assert not any(name.startswith("llamaswap_") for name, _ in found)


def test_a_model_tells_its_engine_and_its_memory(metrics: Counters):
    children = [
        ChildStatus(model="a", state="loaded", pid=os.getpid(), seat="linux-x64-cpu/b1:CPU", leases=2),
        ChildStatus(model="b", state="loading", waiting=4),
        ChildStatus(model="c", state="unloaded", pid=2**31 - 1),
        ChildStatus(model="d", state="unloaded", seat="linux-x64-cpu/b1:CPU"),
    ]
    text = exposition(metrics, children, taken={"a": {"gpu0": 5, "ram": 6}})
    found = [line for line in text.splitlines() if "engine_info{" in line or "model_memory_bytes{" in line]
    assert found == [
        'llama_appliance_model_memory_bytes{device="gpu0",model="a"} 5.0',
        'llama_appliance_model_memory_bytes{device="ram",model="a"} 6.0',
        'llama_appliance_engine_info{model="a",seat="linux-x64-cpu/b1:CPU"} 1.0',
    ]
    samples = read(metrics, children)
    assert samples[key("leases", model="a")] == 2
    assert samples[key("waiting", model="b")] == 4
    assert samples[key("models", state="loading")] == 1
    assert [model for model in "abc" if key("child_resident_bytes", model=model) in samples] == ["a"]
    assert 0 < samples[key("child_resident_bytes", model="a")] < psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("leases", "waiting", "slots", "queued", "running"),
    [(0, 0, 4, 0, 0), (3, 2, 4, 2, 3), (6, 1, 4, 3, 4), (6, 1, 0, 1, 6)],
)
def test_what_waits_inside_an_engine_is_queued(
    metrics: Counters, leases: int, waiting: int, slots: int, queued: int, running: int
):
    child = ChildStatus(model="a", state="loaded", leases=leases, waiting=waiting, slots=slots, context=8192, held=2048)
    found = read(metrics, [child, ChildStatus(model="b", state="loaded", held=9), ChildStatus(model="c", state="x")])
    assert found[key("requests_queued", model="a")] == queued
    assert found[key("requests_running", model="a")] == running
    assert found[key("kv_use_ratio", model="a")] == 0.25
    assert key("kv_use_ratio", model="b") not in found
    assert key("kv_use_ratio", model="c") not in found


CHAT = "/v1/chat/completions"


def loaded(model: str, seconds: float = 1.0) -> Happening:
    return Happening(kind="loaded", model=model, seconds=seconds)


def done(model: str, *, tokens: tuple[int, int, int] | None = None, **more: object) -> EndedRequest:
    """A finished request; ``tokens`` are those of prompt, answer and cache."""
    of = zip(("input_tokens", "output_tokens", "cache_tokens"), tokens or (), strict=False)
    usage = Usage(tokens=Tokens(**dict(of))) if tokens is not None else None
    return ended(**({"model": model, "route": "chat", "usage": usage} | more))


@pytest.mark.parametrize(
    ("counted", "expected"),
    [
        (
            [("count", CHAT, 200, 1000), ("count", CHAT, 200, 24), ("count", "own", 404, 0)],
            {
                key("requests_total", route=CHAT, status="200"): 2,
                key("requests_total", route="own", status="404"): 1,
                key("response_bytes_total"): 1024,
            },
        ),
        (
            [
                ("on_request_ended", done("a", tokens=(100, 20, 80))),
                ("on_request_ended", done("a", tokens=(10, 5, -1))),
                ("on_request_ended", done("a", tokens=(-1, -1, -1))),
                ("on_request_ended", done("a", tokens=(9, 9, 9), status=502)),
            ],
            {
                key("prompt_tokens_total", model="a"): 110,
                key("generated_tokens_total", model="a"): 25,
                key("cached_tokens_total", model="a"): 80,
            },
        ),
        (
            [
                ("on_wait", "a", 1.5),
                ("on_entry", loaded("a", 12.0)),
                ("on_entry", loaded("a", 8.0)),
                ("on_entry", Happening(kind="evicted", model="a", cause=Cause(rule="memory"))),
                ("on_entry", Happening(kind="unloaded", model="a", cause=Cause(rule="idle"))),
                ("on_entry", Happening(kind="fallback", model="b")),
                ("on_entry", Happening(kind="failed", model="b")),
                ("on_request_ended", done("a", tokens=(1, 1, 0), first_token=0.5)),
                ("on_request_ended", done("a", first_token=0.5)),
                ("on_request_ended", done("nobody's", known=False)),
            ],
            {
                key("queue_wait_seconds_sum", model="a"): 1.5,
                key("first_token_seconds_sum", model="a"): 0.5,
                key("load_seconds_count", model="a"): 2,
                key("load_seconds_sum", model="a"): 20,
                key("evictions_total", model="a", reason="memory"): 1,
                key("evictions_total", model="a", reason="group"): 0,
                key("load_failures_total", model="b"): 1,
                key("child_deaths_total", model="a"): 0,
                key("child_restarts_total", model="a"): 0,
                key("load_seconds_count", model="b"): None,
                key("prompt_tokens_total", model="nobody's"): None,
            },
        ),
        *(
            (
                [("on_entry", death), *[("on_entry", loaded("a"))] * loads],
                {key("child_deaths_total", model="a"): 1, key("child_restarts_total", model="a"): int(loads > 0)},
            )
            for death in (
                Happening(kind="crashed", model="a"),
                Happening(kind="hung", model="a", cause=Cause(rule="hung")),
                Happening(kind="unloaded", model="a", cause=Cause(rule="condemned")),
            )
            for loads in (0, 2)
        ),
        (
            [
                ("on_request_ended", done("a", ended=0.3, first_byte=0.02)),
                ("on_request_ended", done("a", ended=0.5, first_byte=0.1)),
                ("on_request_ended", done("a", ended=700.0, status=503)),
                ("on_request_ended", done("b", ended=0.001, first_byte=0.001, route="embeddings")),
            ],
            {
                key("model_requests_total", model="a", route="chat", status="200"): 2,
                key("model_requests_total", model="a", route="chat", status="503"): 1,
                key("model_requests_total", model="b", route="embeddings", status="200"): 1,
                key("request_seconds_count", model="a"): 3,
                key("request_seconds_sum", model="a"): pytest.approx(700.8),
                key("first_byte_seconds_count", model="a"): 2,
                key("request_seconds_bucket", model="a", le="+Inf"): 3,
                **{  # 0.5 is a bound, and belongs to its own bucket
                    key("request_seconds_bucket", model="a", le=str(bound)): (bound >= 0.3) + (bound >= 0.5)
                    for bound in BUCKETS
                },
            },
        ),
    ],
)
def test_what_is_counted_is_told(
    metrics: Counters, counted: list[tuple[str, Any]], expected: dict[tuple[str, Any], float | None]
):
    for name, *facts in counted:
        getattr(metrics.server if name == "count" else metrics, name)(*facts)
    found = read(metrics)
    assert {each: found.get(each) for each in expected} == expected


def test_a_feature_has_counters_of_its_own(metrics: Counters):
    counter = metrics.server.counter("lost_total", "What was lost.")
    counter.value += 3
    assert (
        "# HELP llama_appliance_lost_total What was lost.\n# TYPE llama_appliance_lost_total counter\n"
        in exposition(metrics, ())
    )
    assert read(metrics)[key("lost_total")] == 3


def test_models_beyond_the_limit_share_a_label(metrics: Counters):
    for number in range(MAX_MODELS + 7):
        metrics.on_request_ended(done(f"model-{number}", tokens=(1, 0, 0)))
    metrics.on_request_ended(done("model-0", tokens=(1, 0, 0)))
    late = [ChildStatus(model=f"late-{number}", state="loaded", leases=2) for number in range(3)]
    found = read(metrics, [*late, ChildStatus(model="model-3", state="loaded", leases=5)])
    tokens = {dict(labels)["model"]: n for (name, labels), n in found.items() if name.endswith("prompt_tokens_total")}
    assert len(tokens) == MAX_MODELS + 1
    assert tokens["model-0"] == 2
    assert tokens[OTHER] == 7
    assert found[key("leases", model=OTHER)] == 6
    assert found[key("leases", model="model-3")] == 5


def test_labels_may_hold_anything(metrics: Counters):
    names = ['quo"te', "back\\slash", "new\nline", "größe:7b/é", "{}=,"]
    for name in names:
        metrics.on_entry(loaded(name))
    found = read(metrics)
    assert {dict(labels)["model"] for key_, labels in found if key_.endswith("load_seconds_count")} == set(names)


def machine(*gpus: GpuSample) -> Sample:
    system = SystemSample(
        timestamp=NOW, cpu_util_per_core=(12.5, 99.0), mem_total_mb=24576, mem_used_mb=1024, mem_free_mb=2048,
        swap_total_mb=512, swap_used_mb=1, load_avg_1=0.5, load_avg_5=0.25, load_avg_15=0.1,
        net_io=(NetworkCounters(name="eth0", bytes_recv=123456789012, bytes_sent=7),),
    )  # fmt: skip
    return Sample(system=system, gpus=gpus)


def test_the_families_of_llama_swap(metrics: Counters):
    full = GpuSample(
        timestamp=NOW, id=0, name="NVIDIA H200", uuid="GPU-1", temp_c=41, vram_temp_c=47, gpu_util_pct=87,
        mem_util_pct=35, mem_used_mb=1024, mem_total_mb=143360, fan_speed_pct=30, power_draw_w=123.5,
    )  # fmt: skip
    found = read(metrics, (), machine(full, GpuSample(timestamp=NOW, id=1, name="Intel GPU e20b", temp_c=44)))
    nvidia = {"id": "0", "name": "NVIDIA H200", "uuid": "GPU-1"}
    assert {name: value for name, value in found.items() if name[0].startswith("llamaswap_")} == {
        swap("cpu_util_percent", core="0"): 12.5,
        swap("cpu_util_percent", core="1"): 99,
        swap("memory_total_bytes"): 24 * GIB,
        swap("memory_used_bytes"): GIB,
        swap("memory_free_bytes"): 2 * GIB,
        swap("swap_total_bytes"): GIB / 2,
        swap("swap_used_bytes"): 1 << 20,
        swap("load_average", interval="1m"): 0.5,
        swap("load_average", interval="5m"): 0.25,
        swap("load_average", interval="15m"): 0.1,
        swap("network_bytes_total", interface="eth0", direction="recv"): 123456789012,
        swap("network_bytes_total", interface="eth0", direction="sent"): 7,
        swap("gpu_temperature_celsius", **nvidia): 41,
        swap("gpu_temperature_celsius", id="1", name="Intel GPU e20b"): 44,
        swap("gpu_vram_temperature_celsius", **nvidia): 47,
        swap("gpu_util_percent", **nvidia): 87,
        swap("gpu_memory_util_percent", **nvidia): 35,
        swap("gpu_memory_used_bytes", **nvidia): GIB,
        swap("gpu_memory_total_bytes", **nvidia): 140 * GIB,
        swap("gpu_fan_speed_percent", **nvidia): 30,
        swap("gpu_power_draw_watts", **nvidia): 123.5,
    }


@pytest.mark.slow
async def test_rendering_in_a_thread_while_counting(metrics: Counters):
    """No count is lost, and no reading breaks on a model or status that is new."""
    until = time.monotonic() + 0.3
    texts: list[str] = []

    async def render_often() -> None:
        while time.monotonic() < until:
            texts.append(await trio.to_thread.run_sync(exposition, metrics, ()))

    rounds = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(render_often)
        while time.monotonic() < until:
            one = done(f"m{rounds % MAX_MODELS}", route=f"route {rounds % 40}", status=rounds % 700, ended=0.1)
            metrics.on_request_ended(one)
            metrics.server.count(f"route {rounds % 40}", rounds % 700, 1)
            rounds += 1
            if rounds % 20 == 0:
                await trio.lowlevel.checkpoint()
    assert texts
    total = sum(value for (name, _), value in read(metrics).items() if name == "llama_appliance_model_requests_total")
    assert total == rounds


def test_counters_and_histograms_say_what_they_are(metrics: Counters):
    metrics.on_request_ended(done("a"))
    text = exposition(metrics, (), machine())
    for line in (
        "# TYPE llama_appliance_requests_total counter",
        "# TYPE llama_appliance_requests_under_way gauge",
        "# TYPE llama_appliance_request_seconds histogram",
        "# TYPE llamaswap_network_bytes_total counter",
        "# TYPE llamaswap_memory_total_bytes gauge",
    ):
        assert f"{line}\n" in text
    assert "# EOF" not in text
    assert "_created" not in text
    assert "python_gc" not in text
