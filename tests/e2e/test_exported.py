"""The files of ``pool export``, read by the programs that they are for: SMG, kubectl, a validator of Kubernetes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from needs import EXPORT_TOOLS
from port_blocks import port_block
from program import COMMAND, Answer, Server, fresh_environment, http
from waiting import wait

pytestmark = pytest.mark.needs("export-tools")
OLDEST, NEWEST = "1.30", "1.37"
"""Versions of Kubernetes: the first one that knows the sleep before a stop, and the validator's last one."""


def tool(*words: str) -> str:
    done = subprocess.run([EXPORT_TOOLS / words[0], *words[1:]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def export(server: Server, out: Path, *words: str) -> Path:
    """Run ``pool export`` for a server."""
    argv = [COMMAND, "pool", "export", *words, "--url", server.url, "--out", out]
    subprocess.run(argv, cwd=server.cwd, env=fresh_environment(server.cwd), check=True)
    return out


@contextmanager
def serving(folder: Path, *argv: str) -> Generator[Server]:
    """A box with a home of its own."""
    folder.mkdir(exist_ok=True)
    with Server(["serve", *argv], folder) as server:
        yield server.wait_listening()


class Router(Server):
    """SMG, started by the exported command."""

    def __init__(self, folder: Path) -> None:
        port = port_block(2)
        metrics = ("--prometheus-host", "127.0.0.1", "--prometheus-port", str(port + 1))
        path = {"PATH": f"{EXPORT_TOOLS}{os.pathsep}{os.environ['PATH']}"}
        super().__init__(("--port", str(port), *metrics), folder, path, program=folder / "smg.sh")
        self.host, self.port = "127.0.0.1", port

    def workers(self) -> dict[str, dict[str, Any]]:
        """The workers by URL; none as long as SMG does not answer."""
        try:
            return {each["url"]: each for each in http(self, "GET", "/workers").json()["workers"]}
        except OSError:
            return {}

    def chat(self, *, stream: bool = False) -> Answer:
        said = [{"role": "user", "content": "Hello"}]
        body = {"model": "starter", "messages": said, "max_tokens": 8, "stream": stream}
        return http(self, "POST", "/v1/chat/completions", body)


@pytest.mark.slow
def test_smg_in_front_of_two_boxes_answers_while_one_is_killed(tmp_path: Path):
    with (
        serving(tmp_path / "a", "--listen", "127.0.0.1:0") as a,
        serving(tmp_path / "b", "--listen", "127.0.0.1:0") as b,
    ):
        workers = list[object]()
        for box in (a, b):
            out = export(box, tmp_path / "smg", "smg", "--address", "127.0.0.1", "--port", str(box.port))
            listed = json.loads((out / "smg-workers.json").read_text())
            workers += [each | {"id": f"{each['id']}-{box.port}"} for each in listed["workers"]]
        (tmp_path / "smg/smg-workers.json").write_text(json.dumps({"version": 1, "workers": workers}))
        with Router(tmp_path / "smg") as router:
            own, other = f"{a.url}/worker/starter", f"{b.url}/worker/starter"

            def ready() -> bool:
                known = router.workers()
                is_up = all("engine_load" in each and each["status"] == "ready" for each in known.values())
                return known.keys() == {own, other} and is_up

            wait(ready, within=60, told=router.workers)  # until an engine of each is proven
            for each in router.workers().values():
                assert (each["model_id"], each["runtime_type"]) == ("starter", "generic")
            assert not [child for box in (a, b) for child in box.children() if "--model" in child.cmdline()]
            whole, streamed = router.chat(), router.chat(stream=True)
            assert whole.status == streamed.status == 200
            assert whole.json()["choices"][0]["message"]["content"]
            assert streamed.body.rstrip().endswith(b"data: [DONE]")
            psutil.Process(a.process.pid).send_signal(signal.SIGKILL)
            assert [router.chat().status for _ in range(12)] == [200] * 12
            wait(lambda: router.workers().get(own, {}).get("status") != "ready", within=60, told=router.workers)
            assert router.workers()[other]["status"] == "ready"
            with serving(tmp_path / "a", "--listen", f"127.0.0.1:{a.port}"):
                wait(lambda: router.workers().get(own, {}).get("status") == "ready", within=60, told=router.workers)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    with serving(folder / "home", "--listen", "127.0.0.1:0") as server:
        assert http(server, "GET", "/api/pool").json()["pool"] is None
        return export(server, folder / "k8s", "kubernetes", "--namespace", "models")


@pytest.mark.slow
@pytest.mark.parametrize("version", [NEWEST, OLDEST])
def test_kubernetes_accepts_every_object(exported: Path, version: str):
    applied = yaml.safe_load((exported / "kustomization.yaml").read_text())["resources"]
    for name in applied:
        tool("kubernetes-validate", "--strict", "--kubernetes-version", version, str(exported / name))


def test_kubectl_makes_one_text_of_them_in_the_namespace(exported: Path):
    documents = list(yaml.safe_load_all(tool("kubectl", "kustomize", str(exported))))
    assert [each["kind"] for each in documents] == [
        "Service",
        "Service",
        "StatefulSet",
        "PodDisruptionBudget",
        "HorizontalPodAutoscaler",
    ]
    assert {each["metadata"]["namespace"] for each in documents} == {"models"}
