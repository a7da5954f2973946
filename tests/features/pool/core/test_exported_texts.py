"""What is told of a pool: the files of an export, which can be read again, and remarks that no box alone could make."""

from __future__ import annotations

import json
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from appliance.features.pool.core.export import (
    PATIENCE,
    ExportBox,
    compose_files,
    export_box,
    kubernetes_files,
    smg_files,
)
from appliance.features.pool.core.remarks import apart_problems, keyless_problems, names_apart
from appliance.features.pool.core.shapes import PoolBox

ROOT = Path(__file__).resolve().parents[4]
Objects = dict[str, Any]  # the documents, by file name
IMAGE = "registry.example/llama-appliance:0.2.0"

Names = st.from_regex(r"[a-z][a-z0-9-]{0,10}[a-z0-9]", fullmatch=True)
Models = st.lists(st.text("abcXYZ019/:._-+ %#?äß", min_size=1, max_size=20), max_size=3, unique=True)
Boxes = st.lists(
    st.builds(
        ExportBox,
        name=Names,
        address=st.one_of(Names, st.ip_addresses().map(str)),
        port=st.integers(1, 65535),
        models=Models,
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda box: box.name,
)


@given(Boxes)
def test_each_model_of_each_box_is_a_worker_of_smg(boxes: list[ExportBox]):
    listed: Objects = json.loads(smg_files(boxes)["smg-workers.json"])
    assert listed["version"] == 1
    expected = [(f"{box.name}/{model}", box, model) for box in boxes for model in box.models]
    assert len({worker["id"] for worker in listed["workers"]}) == len(expected)
    for worker, (name, box, model) in zip(listed["workers"], expected, strict=True):
        url = urlsplit(str(worker["url"]))
        assert (worker["id"], url.hostname, url.port) == (name, box.address, box.port)
        assert unquote(url.path.removeprefix("/worker/")) == model
        assert url.path.count("/") == 2
        assert not url.query
        assert not url.fragment


def test_the_command_of_smg_gives_the_key_only_where_there_is_one(tmp_path: Path):
    script = tmp_path / "smg.sh"
    script.write_text(smg_files([])["smg.sh"])
    (tmp_path / "smg").write_text('#!/bin/sh\nfor word; do echo "$word"; done\n')
    (tmp_path / "smg").chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    for env, expected in (({}, False), ({"LLAMA_APPLIANCE_API_KEY": "a b"}, True)):
        ran = subprocess.run(
            ["/bin/sh", str(script), "--port", "1"],
            env={"PATH": path} | env,
            capture_output=True,
            text=True,
            check=True,
        )
        words = ran.stdout.splitlines()
        assert ("a b" in words) == ("--api-key" in words) == expected
        assert words[-2:] == ["--port", "1"]
        assert f"{tmp_path}/smg-workers.json" in words


@given(Boxes)
def test_compose_has_one_service_and_one_volume_for_each_box(boxes: list[ExportBox]):
    tree = yaml.safe_load(compose_files(boxes, IMAGE)["compose.yaml"])
    assert list(tree["services"]) == list(tree["volumes"]) == [box.name for box in boxes]
    ports = [service["ports"][0] for service in tree["services"].values()]
    assert len(set(ports)) == len(boxes)
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_compose_differs_from_the_example_in_what_several_boxes_need():
    (service,) = yaml.safe_load(compose_files([ExportBox(name="a", address="a")], IMAGE)["compose.yaml"])[
        "services"
    ].values()
    example = yaml.safe_load((ROOT / "docs/examples/compose.yaml").read_text("utf-8"))["services"]["llama-appliance"]
    differs = {"image", "hostname", "command", "environment", "volumes", "stop_grace_period"}
    assert {key: value for key, value in service.items() if key not in differs} == {
        key: value for key, value in example.items() if key not in differs
    }


@pytest.fixture(scope="module")
def objects() -> Objects:
    files = kubernetes_files(3, IMAGE, "models", ["ai.example"])
    return {name: yaml.safe_load(text) for name, text in files.items()}


def test_the_labels_of_the_pods_are_what_the_others_select(objects: Objects):
    pods = objects["statefulset.yaml"]["spec"]["template"]["metadata"]["labels"]
    for name in ("services", "boxes"):
        assert objects[f"{name}.yaml"]["spec"]["selector"] == pods
    for name in ("statefulset", "disruption", "inference-pool"):
        assert objects[f"{name}.yaml"]["spec"]["selector"]["matchLabels"] == pods
    assert objects["statefulset.yaml"]["spec"]["serviceName"] == objects["boxes.yaml"]["metadata"]["name"]
    assert (
        objects["autoscaler.yaml"]["spec"]["scaleTargetRef"]["name"] == objects["statefulset.yaml"]["metadata"]["name"]
    )


def test_a_pod_ends_in_time_and_listens_to_the_names_of_its_service(objects: Objects):
    pod = objects["statefulset.yaml"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    args = container["args"]
    grace = float(args[args.index("--grace") + 1])
    settling = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert settling + grace + 5 < pod["terminationGracePeriodSeconds"] == PATIENCE  # + 5: the program's own watchdog
    hosts = [word for before, word in pairwise(args) if before == "--allow-host"]
    assert {"llama-appliance", "llama-appliance.models.svc", "ai.example"} <= set(hosts)
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert container["readinessProbe"]["failureThreshold"] == 1 < container["livenessProbe"]["failureThreshold"]


def test_a_pod_may_do_no_more_than_it_has_to(objects: Objects):
    pod = objects["statefulset.yaml"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_image_and_the_objects_agree_on_user_and_state(objects: Objects):
    source = (ROOT / "installer/oci.py").read_text("utf-8")
    pod = objects["statefulset.yaml"]["spec"]["template"]["spec"]
    assert f"USER = {pod['securityContext']['runAsUser']}\n" in source
    (mount,) = [each["mountPath"] for each in pod["containers"][0]["volumeMounts"] if each["name"] == "data"]
    assert mount == "/var/lib/llama-appliance"
    assert 'STATE = f"var/lib/{NAME}"' in source


def test_the_metrics_that_are_named_are_ours(objects: Objects):
    source = (ROOT / "appliance/features/metrics/exposition.py").read_text("utf-8")
    comment = kubernetes_files(1, IMAGE, "models")["inference-pool.yaml"]
    named = [word for line in comment.splitlines() for word in line.split() if word.startswith("llama_appliance_")]
    named += [objects["autoscaler.yaml"]["spec"]["metrics"][0]["pods"]["metric"]["name"]]
    assert len(named) == 4
    for name in named:
        assert f'"{name.removeprefix("llama_appliance_")}"' in source


def test_the_kustomization_names_files_that_are_there(objects: Objects):
    assert set(objects["kustomization.yaml"]["resources"]) < objects.keys()


def test_commands_in_comments_are_this_programs():
    text = kubernetes_files(1, IMAGE, "models")["statefulset.yaml"]
    command = text.partition("-- ")[2].partition("\n")[0]
    assert shlex.split(command)[:2] == ["llama-appliance", "pull"]


LISTENS = ("", "http://127.0.0.1:8080", "http://0.0.0.0:81", "https://[::]:8443/api", "http://10.0.0.1:80")
BOXES = st.lists(
    st.builds(
        PoolBox,
        name=st.sampled_from(("a1", "b2", "c3", "d4")),
        addresses=st.just(("10.0.0.9",)),
        port=st.just(4280),
        me=st.just(False),
        up=st.just(True),
        listen=st.sampled_from(LISTENS),
        keyless=st.sampled_from((True, False, None)),
    ),
    unique_by=lambda box: box.name,
)


@given(boxes=BOXES)
def test_each_box_that_lets_everybody_in_is_named_where_another_one_does_not(boxes: list[PoolBox]):
    keyed = [box.name for box in boxes if box.keyless is False]
    told = {problem.text.partition(" ")[0]: problem.text for problem in keyless_problems(boxes)}
    assert [*told] == ([box.name for box in boxes if box.keyless] if keyed else [])
    for box in boxes:
        is_local = box.listen in LISTENS[:2]
        assert box.name not in told or ("every program on its machine" in told[box.name]) == is_local


@given(boxes=BOXES, port=st.sampled_from((None, 99)))
def test_an_exported_address_is_one_that_the_box_tells(boxes: list[PoolBox], port: int | None):
    for box in boxes:
        found = export_box(box.name, box.addresses[0], box.listen, port, ())
        assert found.closed == ("127.0.0.1" in box.listen)
        told = {
            "": "http://10.0.0.9:8080",
            LISTENS[2]: "http://10.0.0.9:81",
            LISTENS[3]: "https://10.0.0.9:8443/api",
        }.get(box.listen, box.listen)
        if port is None:
            assert found.url == told
        else:
            assert found.url.endswith((":99", ":99/api"))


@given(
    boxes=st.dictionaries(
        st.sampled_from("abc"), st.dictionaries(st.sampled_from("mn"), st.sampled_from((None, "", "x", "y")))
    )
)
def test_every_name_of_several_models_and_every_silent_box_is_named(boxes: dict[str, dict[str, str | None]]):
    apart = names_apart(boxes)
    told = {problem.id: problem.text for problem in apart_problems(apart)}
    for name in "mn":
        known = {models.get(name) for models in boxes.values()} - {None, ""}
        assert (f"'{name}':" in told.get("names", "")) == (len(known) > 1)
    silent = {one.box for groups in apart.values() for group in groups for one in group if one.identity is None}
    assert set(told.get("names-unknown", "").partition(" does")[0].split(", ")) - {""} == silent
