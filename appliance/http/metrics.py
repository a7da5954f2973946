"""What the program counts of itself, as Prometheus text (exposition format 0.0.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from appliance import __version__
from appliance.fleet.owner import ChildStatus
from appliance.http.body import Bodies

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STATES = ("queued", "loading", "loaded", "sleeping", "stopping")
Sample = tuple[dict[str, str], float]


class Metrics:
    """Counters of one server; the fleet's gauges are read when asked for."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._requests: Counter[tuple[str, int]] = Counter()
        self._bytes = 0
        self.under_way = 0

    def count(self, route: str, status: int, sent: int) -> None:
        """One finished request; ``status`` 499 stands for a client that left before it was answered."""
        self._requests[route, status] += 1
        self._bytes += sent

    def render(self, children: Iterable[ChildStatus]) -> str:
        """The whole exposition."""
        known = list(children)
        requests = [({"route": r, "status": str(s)}, n) for (r, s), n in sorted(self._requests.items())]
        states = [({"state": s}, sum(child.state == s for child in known)) for s in STATES]
        return "".join(
            (
                _family("build_info", "gauge", "The program's version.", [({"version": __version__}, 1)]),
                _family("requests_total", "counter", "Requests answered, by route and status.", requests),
                _family("requests_under_way", "gauge", "Requests being answered now.", [({}, self.under_way)]),
                _family("response_bytes_total", "counter", "Bytes of answers' bodies.", [({}, self._bytes)]),
                _family("request_bodies_bytes", "gauge", "Request bodies held in memory.", [({}, self._bodies.held)]),
                _family("models", "gauge", "Models by state.", states),
                _family("leases", "gauge", "Requests using a model.", [({"model": c.model}, c.leases) for c in known]),
                _family(
                    "waiting",
                    "gauge",
                    "Requests waiting for a model.",
                    [({"model": c.model}, c.waiting) for c in known],
                ),
            )
        )


def _family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> str:
    full = f"llama_appliance_{name}"
    lines = [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
    for labels, value in samples:
        inner = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
        lines.append(f"{full}{{{inner}}} {value}" if inner else f"{full} {value}")
    return "\n".join(lines) + "\n"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
