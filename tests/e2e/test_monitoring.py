"""The board and the alert rules in ``docs/examples``: every query finds something in what a real run exports."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from fake_nvml_library import build as build_nvml
from msgspec import Struct
from needs import ROOT
from port_blocks import port_block
from program import Server, StartServer, http
from prometheus_client.parser import text_string_to_metric_families
from waiting import wait

EXAMPLES = ROOT / "docs" / "examples"
MODELS = ("small", "other")
OF_THE_SCRAPE = {"instance", "job"}
"""Labels that Prometheus adds."""
UP = "up"
"""A metric that Prometheus adds."""
OF_GPUS = "llamaswap_gpu_"


class Query(Struct, frozen=True):
    """One query of a panel, or of an alert without its threshold. ``labels`` are those that its words name."""

    title: str
    text: str
    labels: frozenset[str] = frozenset()


def queries() -> Iterator[Query]:
    board = json.loads((EXAMPLES / "grafana-board.json").read_text("utf-8"))
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"].replace("$__rate_interval", "30s").replace("$model", ".*")
            assert "$" not in text
            yield Query(panel["title"], text, frozenset(re.findall(r"{{(\w+)}}", target["legendFormat"])))
    for group in yaml.safe_load((EXAMPLES / "alerts.yml").read_text("utf-8"))["groups"]:
        for rule in group["rules"]:
            said = " ".join(rule["annotations"].values())
            text, limits = re.subn(r" [<>] [\d.]+\s*$", "", rule["expr"])
            assert limits == 1, f"{rule['alert']} has no threshold"
            yield Query(rule["alert"], text, frozenset(re.findall(r"\$labels\.(\w+)", said)))


def parsed(query: Query) -> tuple[dict[str, set[str]], set[str]]:
    """The metrics of a query with the labels that it asks of each, and the labels that it sums by."""
    metrics: dict[str, set[str]] = {}
    groups: set[str] = set()

    def visit(node: promql.Expr) -> None:
        if isinstance(node, promql.VectorSelector):
            assert node.name is not None, f"{query.title} has a selector without a metric"
            metrics.setdefault(node.name, set()).update(each.name for each in node.matchers.matchers)
        elif isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            groups.update(node.modifier.labels)

    promql.walk(promql.parse(query.text), visit)
    return metrics, groups


def faults(query: Query, exported: Mapping[str, set[str]]) -> list[str]:
    """The metrics and labels that a query or its text names, and that nothing exports."""
    metrics, groups = parsed(query)
    known = set[str]().union(*(exported.get(name, set()) for name in metrics), OF_THE_SCRAPE)
    told = [f"nothing exports {name}" for name in metrics if name not in exported and name != UP]
    if not told:
        told += [
            f"{name} has no label {label}"
            for name, labels in metrics.items()
            for label in labels - exported.get(name, set()) - OF_THE_SCRAPE
        ]
        told += [f"nothing has the label {label}" for label in groups - known]
        left = groups or known
        words = "it is summed up, and names" if groups else "nothing has the label"
        told += [f"{words} {label}" for label in query.labels - left - OF_THE_SCRAPE]
    return [f"{query.title}: {each}" for each in told]


def ask(server: Server) -> None:
    """Both models in turn: each evicts the other. The second answer of each has its prompt in the cache; one fails."""
    for model in MODELS:
        for stream in (True, False, True):
            messages = [{"role": "user", "content": "Tell me of llamas."}]
            body = {"model": model, "messages": messages, "stream": stream}
            assert http(server, "POST", "/v1/chat/completions", body).status == 200
    failing = {"prompt": "", "model": MODELS[-1], "fake": {"status": 500}}
    assert http(server, "POST", "/v1/completions", failing).status == 500


@pytest.fixture
def run(serve_fake: StartServer, tmp_path: Path) -> StartServer:
    """A server of two models of which one may be loaded, with two graphics cards that a driver's library tells of."""

    def start(**env: str) -> Server:
        return serve_fake("--model", str(tmp_path / "other.gguf"), "--models-max", "1", **env)

    return start


def exported(server: Server) -> dict[str, set[str]]:
    """The labels of every metric that has samples."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(http(server, "GET", "/metrics").body.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_every_metric_and_label_of_board_and_alerts_is_exported(run: StartServer) -> None:
    """Those of graphics cards are checked where a driver's library can be made: below."""
    server = run()
    server.wait_for(lambda: http(server, "GET", "/health").status == 200)
    ask(server)
    found = server.wait_for(lambda: sampled if "llamaswap_memory_used_bytes" in (sampled := exported(server)) else {})
    told = [query for query in queries() if OF_GPUS not in query.text]
    assert len(told) > 30
    assert not [fault for query in told for fault in faults(query, found)]


@pytest.mark.slow
@pytest.mark.needs("promtool", "cc")
@pytest.mark.skipif(sys.platform != "linux", reason="the driver's library is made for Linux")
def test_every_query_of_board_and_alerts_finds_data_in_prometheus(run: StartServer, tmp_path: Path) -> None:
    """A real Prometheus scrapes a real run."""
    build_nvml(tmp_path / "lib")
    server = run(LD_LIBRARY_PATH=str(tmp_path / "lib"))
    server.wait_for(lambda: http(server, "GET", "/health").status == 200)
    ask(server)
    server.wait_for(lambda: f"{OF_GPUS}power_draw_watts" in exported(server))
    job = {"job_name": "llama-appliance", "static_configs": [{"targets": [server.url.removeprefix("http://")]}]}
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(EXAMPLES / "alerts.yml")],
        "scrape_configs": [job],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config), "utf-8")
    checked = subprocess.run(
        ["promtool", "check", "config", "prometheus.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    address = f"127.0.0.1:{port_block(1)}"
    words = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address={address}"]
    with (tmp_path / "prometheus.log").open("wb") as log, subprocess.Popen(
        ["prometheus", *words], cwd=tmp_path, stdout=log, stderr=log
    ) as prometheus:  # fmt: skip
        try:

            def found(query: str) -> list[dict[str, Any]]:
                where = f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
                try:
                    with urllib.request.urlopen(where, timeout=10) as said:
                        return json.load(said)["data"]["result"]
                except OSError:
                    return []  # it does not listen yet

            def dead() -> list[str]:
                ask(server)
                return [f"{query.title}: {query.text}" for query in queries() if not is_alive(query, found(query.text))]

            wait(lambda: found(UP), told=(tmp_path / "prometheus.log").read_text)
            wait(dead, lambda found: not found, within=60)
            with urllib.request.urlopen(f"http://{address}/api/v1/rules", timeout=10) as said:
                [group] = json.load(said)["data"]["groups"]
            assert {rule["health"] for rule in group["rules"]} == {"ok"}
        finally:
            prometheus.terminate()


def is_alive(query: Query, result: list[dict[str, Any]]) -> bool:
    """There is a number, and every result has the labels that the query's words name."""
    numbers = [each["value"][1] for each in result]
    return any(number != "NaN" for number in numbers) and all(query.labels <= set(each["metric"]) for each in result)


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        (Query("x", "rate(gone_total[1m])"), "nothing exports gone_total"),
        (Query("x", 'good_total{stat="a"}'), "good_total has no label stat"),
        (Query("x", "sum by (stat) (good_total)"), "nothing has the label stat"),
        (Query("x", "sum by (state) (good_total)", frozenset({"model"})), "it is summed up, and names model"),
        (Query("x", "good_total", frozenset({"stat"})), "nothing has the label stat"),
    ],
)
def test_a_dead_query_is_noticed(query: Query, fault: str) -> None:
    assert faults(query, {"good_total": {"state", "model"}}) == [f"x: {fault}"]
