"""The boxes of a pool, or one alone, as files for SMG, Kubernetes and compose. Facts in, texts by file name out.

Beyond about ten machines, or beside vLLM and SGLang, another program has to share out requests. These files start the
same servers under it. Each box stays a whole server. So the files hold no secret and no model: a server reads its key
from its environment, and its models from its volume.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Struct

from appliance.core.config.show import yaml_text
from appliance.core.settings import in_url, is_loopback

NAME = "llama-appliance"
KEY = "LLAMA_APPLIANCE_API_KEY"
PORT = 8080
EVERYWHERE = ("", "0.0.0.0", "::")  # hosts that stand for every address of a machine
USER = 10001  # the user that the container image runs as, and its group
STATE = f"/var/lib/{NAME}"  # the image's one writable folder
PATIENCE = 120  # seconds from the stop signal to the kill: answers of slow models may finish
GRACE = 105  # Seconds of these that the server gives requests. The rest is for `SETTLING`, and for the end of engines.
SETTLING = 5  # seconds before the stop signal in which routers learn that a box goes: a closed port refuses requests
PICKER = "llama-appliance-picker"  # the Service of the endpoint picker, which its own chart installs
WAITING = 2  # requests in a box's queue, on average, from which on one more box is started
MOST = 10  # boxes up to which Kubernetes starts more by itself
Node = dict[str, object]


class ExportBox(Struct, frozen=True, kw_only=True):
    """One box. ``address`` is a name or an address of its own, ``port`` the one for clients."""

    name: str
    address: str
    port: int = PORT
    models: Sequence[str] = ()  # the models that are on its disk
    listen: str = ""  # the URL of its API with the address that it listens on; empty: it does not tell

    @property
    def closed(self) -> bool:
        """Only programs of its own machine reach its API."""
        return bool(self.listen) and is_loopback(self.address)

    @property
    def url(self) -> str:
        told = urlsplit(self.listen)
        return f"{told.scheme or 'http'}://{in_url(self.address)}:{self.port}{told.path}"


def export_box(
    name: str, address: str, listen: str, port: int | None, models: Sequence[str], *, is_fixed: bool = False
) -> ExportBox:
    """Return a box with the host and port that it listens on, as far as it tells; ``port`` replaces that one.

    ``address`` is for a box that listens on all of its addresses, or is the one to use (``is_fixed``).
    """
    told = urlsplit(listen)
    host = told.hostname or ""
    return ExportBox(
        name=name,
        address=address if is_fixed or host in EVERYWHERE else host,
        port=port or told.port or PORT,
        models=models,
        listen=listen,
    )


def smg_files(boxes: Sequence[ExportBox]) -> dict[str, str]:
    """Return the list of workers, which SMG 1.13 reads again whenever it changes, and the command that starts SMG.

    SMG routes only the first model that a worker lists. So each model of each box is a worker, below ``/worker/MODEL``.
    """
    workers = [
        {"id": f"{box.name}/{model}", "url": f"{box.url}/worker/{quote(model, safe='')}"}
        for box in boxes
        for model in box.models
    ]
    listed = json.dumps({"version": 1, "workers": workers}, indent=2)
    return {"smg-workers.json": f"{listed}\n", "smg.sh": SMG}


SMG = f"""\
#!/bin/sh
# Starts SMG ('pip install smg') in front of the boxes, on port 30000 of this machine.
# Set {KEY} to the key of the boxes, if they have one.
# SMG shows the key to everybody who may list the processes of this machine.
cd "$(dirname "$0")" || exit 1
exec smg launch --host 127.0.0.1 --port 30000 --policy cache_aware \\
  --discovery-provider file --discovery-file "$PWD/smg-workers.json" --discovery-check-interval-secs 5 \\
  --health-check-endpoint /ready --health-check-interval-secs 5 \\
  ${{{KEY}:+--api-key "${KEY}"}} "$@"
"""


def compose_files(boxes: Sequence[ExportBox], image: str) -> dict[str, str]:
    """Return a file for ``docker compose``: a service for each box. The first one is at port 8080 of the machine."""
    services: Node = {box.name: _composed(box.name, PORT + at, image) for at, box in enumerate(boxes)}
    tree: Node = {"name": NAME, "services": services, "volumes": {box.name: Node() for box in boxes}}
    said = f"Start it with `docker compose up`, after loading the image and setting {KEY} to a key of your own."
    return {"compose.yaml": _document(tree, said)}


def _composed(name: str, port: int, image: str) -> Node:
    return {
        "image": image,
        "hostname": name,
        "command": ["serve", "--listen", f"0.0.0.0:{PORT}", "--grace", str(GRACE)],
        "ports": [f"127.0.0.1:{port}:{PORT}"],
        "environment": {KEY: f"${{{KEY}:?}}"},
        "volumes": [f"{name}:{STATE}"],
        "read_only": True,
        "tmpfs": ["/tmp"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "init": True,
        "stop_grace_period": f"{PATIENCE}s",
        "restart": "unless-stopped",
    }


def kubernetes_files(count: int, image: str, namespace: str, hosts: Sequence[str] = ()) -> dict[str, str]:
    """Return the objects of ``count`` boxes, and what ``kubectl apply -k`` needs. ``hosts`` are names of gateways."""
    boxes = _service(f"{NAME}-boxes", clusterIP="None", publishNotReadyAddresses=True)
    budget = _object("policy/v1", "PodDisruptionBudget", NAME, {"maxUnavailable": 1, **SELECTOR})
    files = {
        "services.yaml": _document(_service(NAME), "For clients: any box that is ready."),
        "boxes.yaml": _document(boxes, "Gives each box a name of its own."),
        "statefulset.yaml": _document(_stateful_set(count, image, namespace, hosts), SECRET),
        "disruption.yaml": _document(budget, "Nodes are emptied one box after the other."),
        "autoscaler.yaml": _document(_autoscaler(count), ADAPTER),
    }
    api = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    return files | {
        "kustomization.yaml": _document({**api, "namespace": namespace, "resources": [*files]}, "kubectl apply -k ."),
        "inference-pool.yaml": _document(_inference_pool(namespace), GATEWAY),
        "prometheus.yaml": _document({"scrape_configs": [_scraping(namespace)]}, SCRAPING),
    }


SECRET = f"""\
Make the key first: kubectl create secret generic {NAME} --from-literal=api-key=KEY
A fresh volume has no models: kubectl exec {NAME}-0 -- {NAME} pull ORG/REPO:TAG
For cards of NVIDIA add resources.limits of nvidia.com/gpu, and an image that has a cuda engine."""
ADAPTER = """\
Needs an adapter that serves Prometheus' metrics to Kubernetes, such as prometheus-adapter. Without one it does nothing.
Remove it where a fixed number of boxes is to run."""
GATEWAY = f"""\
For clusters with the Gateway API Inference Extension (v1): kubectl apply -f inference-pool.yaml
Install the endpoint picker as {PICKER}, and tell it the names of these metrics:
  queued requests: {NAME.replace("-", "_")}_requests_queued
  running requests: {NAME.replace("-", "_")}_requests_running
  use of the KV cache: {NAME.replace("-", "_")}_kv_use_ratio"""
SCRAPING = """\
Put this into the configuration of Prometheus. The key is in a file there, since /metrics needs it as well."""


LABELS: Node = {"app.kubernetes.io/name": NAME}
SELECTOR: Node = {"selector": {"matchLabels": LABELS}}


def _object(api: str, kind: str, name: str, spec: Node, **where: str) -> Node:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, **where, "labels": LABELS}, "spec": spec}


def _service(name: str, **more: object) -> Node:
    ports = [{"name": "http", "port": PORT, "targetPort": "http"}]
    return _object("v1", "Service", name, {**more, "selector": LABELS, "ports": ports})


def _stateful_set(count: int, image: str, namespace: str, hosts: Sequence[str]) -> Node:
    pod: Node = {
        "terminationGracePeriodSeconds": PATIENCE,
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(image, namespace, hosts)],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "100Gi"}}}
    spec: Node = {
        "serviceName": f"{NAME}-boxes",
        "replicas": count,
        "podManagementPolicy": "Parallel",
        **SELECTOR,
        "template": {"metadata": {"labels": LABELS}, "spec": pod},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
    }
    return _object("apps/v1", "StatefulSet", NAME, spec)


def _container(image: str, namespace: str, hosts: Sequence[str]) -> Node:
    # Callers write one of these names into their Host header. An address needs no permission, so probes need none.
    services = (NAME, f"{NAME}.{namespace}", f"{NAME}.{namespace}.svc", f"{NAME}.{namespace}.svc.cluster.local")
    args = ["serve", "--listen", f"0.0.0.0:{PORT}", "--grace", str(GRACE)]
    key = {"secretKeyRef": {"name": NAME, "key": "api-key"}}
    return {
        "name": NAME,
        "image": image,
        "args": [*args, *(word for host in (*services, *hosts) for word in ("--allow-host", host))],
        "env": [{"name": KEY, "valueFrom": key}],
        "ports": [{"name": "http", "containerPort": PORT}],
        "startupProbe": _probe("/health", every=2, failures=60),
        "livenessProbe": _probe("/health", every=10, failures=6),
        "readinessProbe": _probe("/ready", every=5, failures=1),
        "lifecycle": {"preStop": {"sleep": {"seconds": SETTLING}}},
        "resources": {"requests": {"cpu": "1", "memory": "4Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "data", "mountPath": STATE}, {"name": "tmp", "mountPath": "/tmp"}],
    }


def _probe(path: str, *, every: int, failures: int) -> Node:
    asked = {"path": path, "port": "http"}
    return {"httpGet": asked, "periodSeconds": every, "timeoutSeconds": 5, "failureThreshold": failures}


def _autoscaler(count: int) -> Node:
    target = {"type": "AverageValue", "averageValue": str(WAITING)}
    metric: Node = {"type": "Pods", "pods": {"metric": {"name": "llama_appliance_waiting"}, "target": target}}
    spec: Node = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": NAME},
        "minReplicas": count,
        "maxReplicas": max(count, MOST),
        "metrics": [metric],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 600}},
    }
    return _object("autoscaling/v2", "HorizontalPodAutoscaler", NAME, spec)


def _inference_pool(namespace: str) -> Node:
    spec: Node = {
        **SELECTOR,
        "targetPorts": [{"number": PORT}],
        "endpointPickerRef": {"name": PICKER, "port": {"number": 9002}, "failureMode": "FailOpen"},
    }
    return _object("inference.networking.k8s.io/v1", "InferencePool", NAME, spec, namespace=namespace)


def _scraping(namespace: str) -> Node:
    pod = "__meta_kubernetes_pod"
    return {
        "job_name": NAME,
        "authorization": {"credentials_file": f"/etc/prometheus/{NAME}.key"},
        "kubernetes_sd_configs": [{"role": "pod", "namespaces": {"names": [namespace]}}],
        "relabel_configs": [
            {"source_labels": [f"{pod}_label_app_kubernetes_io_name"], "regex": NAME, "action": "keep"},
            {"source_labels": [f"{pod}_container_port_name"], "regex": "http", "action": "keep"},
            {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
            {"source_labels": [f"{pod}_name"], "target_label": "pod"},
        ],
    }


def _document(tree: Node, said: str) -> str:
    comments = "".join(f"# {line}\n" for line in said.splitlines())
    return comments + yaml_text(msgspec.to_builtins(tree))
