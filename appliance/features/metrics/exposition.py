"""The program's numbers as Prometheus text (exposition format 0.0.4). Imported when it is first asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from appliance import __version__
from appliance.core.machine import GpuSample, Sample, SystemSample
from appliance.core.scheduling.effects import EVICTING
from appliance.core.sizes import MIB
from appliance.features.metrics.counts import BUCKETS, Counters, Durations, ModelCounts
from appliance.fleet.status import ChildStatus
from appliance.platform.machine import resident_bytes
from appliance.traffic.metrics import OTHER

STATES = ("queued", "loading", "loaded", "sleeping", "stopping")
OWN = "llama_appliance_"
SWAP = "llamaswap_"
"""The prefix of the families that llama-swap (0bdb3720) has; their names and labels are its."""
Labelled = Iterable[tuple[dict[str, str], float]]
NOTHING: Mapping[str, Mapping[str, int]] = {}
BOUNDS = (*(str(bound) for bound in BUCKETS), "+Inf")

COUNTERS: Sequence[tuple[str, str, Callable[[ModelCounts], int]]] = (
    ("prompt_tokens_total", "Tokens of prompts.", lambda counts: counts.prompt_tokens),
    ("generated_tokens_total", "Tokens generated.", lambda counts: counts.generated_tokens),
    ("cached_tokens_total", "Tokens of prompts that the prompt cache had.", lambda counts: counts.cached_tokens),
    ("load_failures_total", "Model processes that never became ready.", lambda counts: counts.load_failures),
    ("child_deaths_total", "Model processes that ended by themselves when ready.", lambda counts: counts.deaths),
    ("child_restarts_total", "Loads after such an end.", lambda counts: counts.restarts),
)
HISTOGRAMS: Sequence[tuple[str, str, Callable[[ModelCounts], Durations]]] = (
    ("request_seconds", "Time of requests, waiting for the model included.", lambda counts: counts.seconds),
    ("first_byte_seconds", "Time to the first byte of the answer's body.", lambda counts: counts.first_byte),
    ("first_token_seconds", "Time to the first token of the answer.", lambda counts: counts.first_token),
    ("queue_wait_seconds", "Time that requests waited for their model.", lambda counts: counts.waits),
    ("load_seconds", "Time from the start of a model process until it is ready.", lambda counts: counts.loads),
)
GPU: Sequence[tuple[str, str, Callable[[GpuSample], float | None]]] = (
    ("gpu_temperature_celsius", "Temperature of the GPU.", lambda gpu: gpu.temp_c),
    ("gpu_vram_temperature_celsius", "Temperature of the GPU's memory.", lambda gpu: gpu.vram_temp_c),
    ("gpu_util_percent", "How busy the GPU is.", lambda gpu: gpu.gpu_util_pct),
    ("gpu_memory_util_percent", "How busy the GPU's memory is.", lambda gpu: gpu.mem_util_pct),
    ("gpu_memory_used_bytes", "Memory of the GPU in use.", lambda gpu: _bytes(gpu.mem_used_mb)),
    ("gpu_memory_total_bytes", "Memory of the GPU.", lambda gpu: _bytes(gpu.mem_total_mb)),
    ("gpu_fan_speed_percent", "Speed of the GPU's fan.", lambda gpu: gpu.fan_speed_pct),
    ("gpu_power_draw_watts", "Power that the GPU draws.", lambda gpu: gpu.power_draw_w),
)


def exposition(
    counters: Counters,
    children: Sequence[ChildStatus],
    machine: Sample | None = None,
    *,
    taken: Mapping[str, Mapping[str, int]] = NOTHING,
    bodies_held: int = 0,
) -> str:
    """All families, each with its HELP and TYPE; without ``machine``, the gauges that llama-swap knows are left out.

    ``taken`` are the bytes that models take, by model and device; ``bodies_held`` those of request bodies in memory.
    May run in a thread while others count, and should: it asks the system for the children's memory, and at
    `MAX_MODELS` it takes a fifth of a second.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(counters, children, machine, taken, bodies_held))
    return generate_latest(registry).decode()


class _Families(Collector):
    """One reading of everything."""

    def __init__(
        self,
        counters: Counters,
        children: Sequence[ChildStatus],
        machine: Sample | None,
        taken: Mapping[str, Mapping[str, int]],
        bodies_held: int,
    ) -> None:
        self._metrics = counters.server
        self._counts = counters.models
        self._children = children
        self._machine = machine
        self._taken = taken
        self._bodies_held = bodies_held

    def collect(self) -> Iterator[Metric]:
        yield from self._server()
        yield from self._fleet()
        yield from self._models()
        if self._machine is not None:
            yield from _system(self._machine.system)
            yield from _gpus(self._machine.gpus)

    def _server(self) -> Iterator[Metric]:
        metrics = self._metrics  # its dicts are copied before they are walked: another thread may be counting
        requests = [
            ({"route": route, "status": str(code)}, n) for (route, code), n in sorted(dict(metrics.requests).items())
        ]
        yield _family(OWN, "build_info", "gauge", "The program's version.", [({"version": __version__}, 1)])
        yield _family(OWN, "requests_total", "counter", "Requests answered, by route and status.", requests)
        yield _one(OWN, "requests_under_way", "gauge", "Requests being answered now.", metrics.under_way)
        yield _one(OWN, "response_bytes_total", "counter", "Bytes of answers' bodies.", metrics.response_bytes)
        for own in tuple(metrics.own):
            labelled = [(dict(zip(own.labels, of, strict=True)), n) for of, n in sorted(dict(own.values).items())]
            yield _family(OWN, own.name, "counter", own.text, labelled if own.labels else [({}, own.value)])
        yield _one(OWN, "request_bodies_bytes", "gauge", "Request bodies held in memory.", self._bodies_held)

    def _fleet(self) -> Iterator[Metric]:
        states = Counter(child.state for child in self._children)
        yield _family(OWN, "models", "gauge", "Models by state.", [({"state": name}, states[name]) for name in STATES])
        leases = self._by_model(lambda child: child.leases)
        yield _family(OWN, "leases", "gauge", "Requests using a model.", leases)
        waiting = self._by_model(lambda child: child.waiting)
        yield _family(OWN, "waiting", "gauge", "Requests waiting for a model.", waiting)
        queued = self._by_model(lambda child: child.queued)
        text = "Requests waiting for a model, those included that wait inside its engine."
        yield _family(OWN, "requests_queued", "gauge", text, queued)
        running = self._by_model(lambda child: child.running)
        yield _family(OWN, "requests_running", "gauge", "Requests that an engine works on.", running)
        used = [
            ({"model": self._metrics.label(child.model)}, use)
            for child in self._children
            if (use := child.kv_use) is not None and self._metrics.label(child.model) != OTHER
        ]
        text = "Share of a model's context that its running requests need, 0 to 1."
        yield _family(OWN, "kv_use_ratio", "gauge", text, used)
        memory = self._by_model(lambda child: None if child.pid is None else resident_bytes(child.pid))
        yield _family(OWN, "child_resident_bytes", "gauge", "Main memory that a model process holds.", memory)
        devices: Counter[tuple[str, str]] = Counter()
        for model, taken in self._taken.items():
            devices.update({(self._metrics.label(model), device): size for device, size in taken.items()})
        text = "Memory of each device that a model takes, as measured, or as expected until then."
        by_device = [({"model": model, "device": device}, size) for (model, device), size in devices.items()]
        yield _family(OWN, "model_memory_bytes", "gauge", text, by_device)
        seats = {(self._metrics.label(child.model), child.seat) for child in self._children if child.pid is not None}
        text = "The engine that a model runs on, and its devices."
        engines = [({"model": model, "seat": seat}, 1) for model, seat in sorted(seats, key=str) if seat is not None]
        yield _family(OWN, "engine_info", "gauge", text, engines)

    def _by_model(self, value: Callable[[ChildStatus], int | None]) -> Labelled:
        sums: Counter[str] = Counter()
        for child in self._children:
            if (number := value(child)) is not None:
                sums[self._metrics.label(child.model)] += number
        return [({"model": model}, number) for model, number in sums.items()]

    def _models(self) -> Iterator[Metric]:
        models = sorted(dict(self._counts).items())
        requests = [
            ({"model": model, "route": route, "status": str(status)}, number)
            for model, counts in models
            for (route, status), number in sorted(dict(counts.requests).items())
        ]
        yield _family(OWN, "model_requests_total", "counter", "Requests by model, route and status.", requests)
        evictions = [
            ({"model": model, "reason": rule}, counts.evictions[rule]) for model, counts in models for rule in EVICTING
        ]
        yield _family(OWN, "evictions_total", "counter", "Model processes stopped to make room.", evictions)
        for name, text, count in COUNTERS:
            values = [({"model": model}, count(counts)) for model, counts in models]
            yield _family(OWN, name, "counter", text, values)
        for name, text, durations in HISTOGRAMS:
            yield _histogram(name, text, [(model, durations(counts)) for model, counts in models])


def _system(system: SystemSample) -> Iterator[Metric]:
    cores = [({"core": str(core)}, percent) for core, percent in enumerate(system.cpu_util_per_core)]
    yield _family(SWAP, "cpu_util_percent", "gauge", "How busy each core is.", cores)
    for name, text, mebibytes in (
        ("memory_total_bytes", "Main memory.", system.mem_total_mb),
        ("memory_used_bytes", "Main memory in use.", system.mem_used_mb),
        ("memory_free_bytes", "Main memory that nothing uses.", system.mem_free_mb),
        ("swap_total_bytes", "Swap space.", system.swap_total_mb),
        ("swap_used_bytes", "Swap space in use.", system.swap_used_mb),
    ):
        yield _one(SWAP, name, "gauge", text, mebibytes * MIB)
    averages = (("1m", system.load_avg_1), ("5m", system.load_avg_5), ("15m", system.load_avg_15))
    load = [({"interval": interval}, average) for interval, average in averages if average is not None]
    yield _family(SWAP, "load_average", "gauge", "Load average.", load)
    traffic = [
        ({"interface": io.name, "direction": direction}, number)
        for io in system.net_io
        for direction, number in (("recv", io.bytes_recv), ("sent", io.bytes_sent))
    ]
    yield _family(SWAP, "network_bytes_total", "counter", "Bytes over each network interface.", traffic)


def _gpus(gpus: Sequence[GpuSample]) -> Iterator[Metric]:
    for name, text, value in GPU:
        told = [(_gpu_labels(gpu), number) for gpu in gpus if (number := value(gpu)) is not None]
        if told:
            yield _family(SWAP, name, "gauge", text, told)


def _gpu_labels(gpu: GpuSample) -> dict[str, str]:
    labels = {"id": str(gpu.id), "name": gpu.name}
    return labels if gpu.uuid is None else {**labels, "uuid": gpu.uuid}


def _one(prefix: str, name: str, kind: str, text: str, value: float) -> Metric:
    return _family(prefix, name, kind, text, [({}, value)])


def _family(prefix: str, name: str, kind: str, text: str, samples: Labelled) -> Metric:
    metric = Metric((prefix + name).removesuffix("_total"), text, kind)
    for labels, value in samples:
        metric.add_sample(prefix + name, labels, value)
    return metric


def _histogram(name: str, text: str, models: Iterable[tuple[str, Durations]]) -> Metric:
    """Models without a single observation are left out."""
    metric = Metric(OWN + name, text, "histogram")
    for model, durations in models:
        *_, total = cumulative = list(accumulate(durations.counts))
        if total:
            for bound, number in zip(BOUNDS, cumulative, strict=True):
                metric.add_sample(f"{OWN}{name}_bucket", {"model": model, "le": bound}, number)
            metric.add_sample(f"{OWN}{name}_count", {"model": model}, total)
            metric.add_sample(f"{OWN}{name}_sum", {"model": model}, durations.sum)
    return metric


def _bytes(mebibytes: int | None) -> int | None:
    return None if mebibytes is None else mebibytes * MIB
