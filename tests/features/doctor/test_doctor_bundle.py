"""The allow-list: no text of a user, a model or an engine gets into a report, and no known secret into a log."""

from __future__ import annotations

import json
from urllib.parse import quote

import msgspec
import pytest
from doctor_cases import assembled
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from appliance.core.config.nodes import Problem
from appliance.core.config.types import Config, Json, ModelConfig, Peer
from appliance.core.examination import (
    Checkup,
    ConfigFact,
    DeviceFile,
    Disk,
    ModelFact,
    PortOwner,
    ServedModel,
    ServerFact,
)
from appliance.core.findings import Finding
from appliance.core.machine_look import Gpu, MachineLook
from appliance.core.records.history import Happening
from appliance.core.reported import SET
from appliance.core.scheduling.effects import Cause
from appliance.core.secrets import secret_variables
from appliance.core.versions import RefusedUpdate
from appliance.features.doctor.core import bundle
from appliance.features.doctor.core.facts import Facts
from appliance.features.engines.core.builds import Installed
from appliance.features.engines.core.choice import Ranked
from appliance.features.engines.core.listing import Device
from appliance.features.engines.core.standing import ListedDevices, Probation, Proof, ProofKey, Seat
from appliance.features.engines.core.state import EngineState

VERSIONS = bundle.Versions(program="1.0", server="1.0", python="3.11", platform="Linux", frozen=False)
SECRETS = st.text("abcdefghijkmnop0123456789-._~+/=:!@$%*() äß", min_size=10, max_size=30).map(
    lambda text: f"q{text}7Z"
)
LINE = 'the model loads on 127.0.0.1:8080 n_gpu_layers = 33 {} "a": 1,'
WORDS = st.lists(st.sampled_from(LINE.split())).map(" ".join)


def facts_with(text: str) -> Facts:
    """Facts with this text in every place where a user, a model or an engine may write something."""
    device = Device(name="CUDA0", description=text, total=1, free=1, uuid=text)
    seat = Seat(build=text, backend="cpu", digest="0", place=0, devices=(device,), damage=text, fault=text)
    return assembled(
        version="1.0",
        now=0.0,
        look=MachineLook(
            platform="linux-x64",
            system="Linux 6.1",
            environment="native",
            cpu="Some CPU @ 3.00GHz",
            gpus=(Gpu(vendor="NVIDIA", name="Card 9000", driver="nvidia", uuid=text),),
            loaders={"vulkan": text},
            hidden={"CUDA_VISIBLE_DEVICES": text},
            problems=(text,),
        ),
        ranked=(Ranked(seat=seat, standing="failed", why=text),),
        state=EngineState(
            listed=(ListedDevices(digest="0", system=text, drivers=text, devices=(device,), why=text),),
            probations=(Probation(seat=text, digest="0", model=text, failures=1, why=text, since=0, until=1),),
            models={text: text},
            use=text,
            proofs=(
                Proof(
                    key=ProofKey(digest=text, device=text, driver=text, system=text),
                    build=text,
                    device=text,
                    fault="garbage",
                    why=text,
                    pci=text,
                    at=1.0,
                ),
            ),
            withdrawn={text: text},
            refused=RefusedUpdate(build=text, old=text, why=text, at=1.0),
        ),
        engines=(Installed(id=f"/home/{text}/llama-server", backend="cpu", source=text, damage=text),),
        checkup=Checkup(
            disks=(Disk(what="models", path=text, free=1, total=2),),
            device_files=(DeviceFile(path="/dev/dri/renderD128", usable=False, group=text),),
        ),
        models=(
            ModelFact(id=text, source="models_dir", path=text, size=5, error=text, why=text, architecture="llama"),
        ),
        models_dir=text,
        config=ConfigFact(files=(text,), problems=(Problem(message=text, path=text),), unreadable=text),
        server=ServerFact(
            url=text,
            answer="answers",
            why=text,
            engine=f"{text}:{text}",
            running=(
                ServedModel(
                    id=text, state="loaded", error=text, command=("srv", "--api-key", text, "-c", "512"), seat=text
                ),
                ServedModel(
                    id=f"other {text}", state="unloaded", command=(text, f"--{text}", "--model", text, "-fa", text)
                ),
            ),
        ),
        port=PortOwner(port=1, pid=1, name=text),
        named_engine=text,
        named_fault=text,
        trouble={"the models": text},
    )


FINDING = "model-failed"


def report_with(text: str) -> bytes:
    finding = Finding(id=FINDING, severity="error", title=text, evidence=(text,), advice=text, commands=(text,))
    environ = {"LLAMA_ARG_ALIAS": text, "HF_TOKEN": text, "CUDA_VISIBLE_DEVICES": text, "DIARY": text}
    versions = msgspec.structs.replace(VERSIONS, server=f"{text}\n")
    told = Happening(
        kind="evicted", model=text, cause=Cause(rule="idle", by=text, set=text, note=text), engine=text, following=text,
        error=text, reason=text, what=text, changed=(text,),
    )  # fmt: skip
    return msgspec.json.encode(bundle.report_of(facts_with(text), [finding], versions, environ, [told]))


@given(text=SECRETS)
def test_no_free_text_gets_into_a_report(text: str) -> None:
    report = report_with(text)
    assert report == report_with("something quite different")
    assert text.encode() not in report


def test_a_report_has_the_facts_that_help() -> None:
    report = json.loads(report_with("a text"))
    assert report["machine"]["gpus"][0]["name"] == "Card 9000"
    assert report["machine"]["loaders"] == ["vulkan"]
    assert report["findings"][0]["id"] == FINDING
    assert report["engines"][0]["id"] == "a program"
    assert report["system"]["closed_device_files"] == 1
    first, second = report["models"]
    assert first["options"] == {"--api-key": SET, "--ctx-size": "512"}
    assert (first["architecture"], first["state"], first["failed"]) == ("llama", "loaded", True)
    assert second["options"] == {"--model": SET, "--flash-attn": SET}
    assert (report["config"]["errors"], report["config"]["readable"]) == (1, False)
    assert report["not_examined"] == ["the models"]
    assert report["trials"]["proofs"][0] | {"at": 1.0, "fault": "garbage"} == report["trials"]["proofs"][0]
    assert report["trials"]["refused"] == {"build": "a program", "old": "a program", "at": 1.0}
    (entry,) = report["history"]
    assert (entry["kind"], entry["rule"], entry["model"]) == ("evicted", "idle", 1)


def test_builds_and_devices_are_named() -> None:
    device = Device(name="Vulkan0", description="x", total=1, free=1)
    seat = Seat(build="linux-x64-vulkan/b11434", backend="vulkan", digest="0", place=0, devices=(device,))
    ranked = Ranked(seat=seat, standing="proven", why="", seconds=1.5)
    facts = assembled(version="1", now=0, ranked=(ranked,), engines=(Installed(id=seat.build, backend="x", source=""),))
    report = json.loads(msgspec.json.encode(bundle.report_of(facts, (), VERSIONS, {})))
    assert (report["seats"][0]["id"], report["engines"][0]["id"]) == ("linux-x64-vulkan/b11434:Vulkan0", seat.build)
    assert report["server"] is None


def test_models_have_numbers_that_logs_share() -> None:
    server = ServerFact(
        url="", answer="answers", running=(ServedModel(id="b", state=""), ServedModel(id="c", state=""))
    )
    models = (ModelFact(id="a", source=""), ModelFact(id="b", source=""))
    facts = assembled(version="1", now=0, models=models, server=server)
    assert bundle.numbered(facts.known) == ["a", "b", "c"]
    report = json.loads(msgspec.json.encode(bundle.report_of(facts, (), VERSIONS, {})))
    assert [model["number"] for model in report["models"]] == [1, 2, 3]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("llama-server -ngl 99 -c 4096", {"--n-gpu-layers": "99", "--ctx-size": "4096"}),
        ("x -fa auto -ctk q8_0 --no-mmap", {"--flash-attn": "auto", "--cache-type-k": "q8_0", "--load-mode": "none"}),
        ("x --no-kv-offload --swa-full", {"--kv-offload": "False", "--swa-full": "True"}),
        ("x --api-key 1234 --rpc 10.0.0.1:5", {"--api-key": SET, "--rpc": SET}),
        ("x --tensor-split 3,1.5 --alias 7", {"--tensor-split": "3,1.5", "--alias": SET}),
        ("docker run --name x image --temp", {}),
        ("", {}),
    ],
)
def test_options_of_a_command(command: str, expected: dict[str, str]) -> None:
    assert bundle.options(command.split()) == expected


def test_only_known_variables_are_taken_along() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "0,1", "LLAMA_ARG_CTX_SIZE": "1", "LLAMA_ARG_MODEL": "12", "HF_TOKEN": "12"}
    environ |= {"DIARY": "x", "container": "lxc", "PATHS": "y"}
    assert bundle.environment(environ) == {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "LLAMA_ARG_CTX_SIZE": "1",
        **dict.fromkeys(("HF_TOKEN", "LLAMA_ARG_MODEL", "container"), SET),
    }


def test_values_that_are_called_secrets() -> None:
    named = {"A_KEY": "one, two", "B_TOKENS": "three", "PASSWORD": "four", "LAYOUT": "us", "MAX_TOKENS_N": "5"}
    assert set(secret_variables(named)) == {"one, two", "one", "two", "three", "four"}


@given(secret=SECRETS, before=WORDS, after=WORDS)
def test_a_known_secret_is_removed_from_a_log_wherever_it_is_planted(secret: str, before: str, after: str) -> None:
    for form in (secret, json.dumps(secret), quote(secret, safe=""), f"x{secret}y"):
        cleaned, count = bundle.without_secrets(f"{before} {form} {after}\n{form}{after}", [secret, ""])
        assert count == 2
        assert secret not in cleaned
        assert quote(secret, safe="") not in cleaned
        assert cleaned.count("\n") == 1


@given(keys=st.lists(SECRETS, min_size=6, max_size=6), words=WORDS)
def test_no_key_is_in_any_file_of_a_bundle(keys: list[str], words: str) -> None:
    """The keys are those of configuration, models' commands and environment, program's environment, command line."""
    of_clients, of_peer, of_model, of_environment, of_tools, given_key = keys
    engine = ModelConfig(cmd=f"llama-server --api-key {'k' + of_model.replace(' ', '')}", env=[f"A_TOKEN={of_model}"])
    peer = Peer(proxy="http://10.0.0.1", api_key=of_peer)
    tools: dict[str, Json] = {"remote": {"url": "http://10.0.0.2", "headers": {"Authorization": f"Bearer {of_tools}"}}}
    config = Config(api_keys=[of_clients], models={"m": engine}, peers={"p": peer}, mcp_servers=tools)
    environ = {"LLAMA_API_KEY": of_environment, "HF_TOKEN": of_environment}
    log = ""
    for key in (*keys, f"k{of_model.replace(' ', '')}"):
        plain = json.dumps(key, ensure_ascii=False)
        for form in (key, json.dumps({"key": key}), plain, quote(key), quote(key, safe="")):
            log += f"{words} {form}\n"
    secrets = bundle.known_secrets(config, environ, [["llama-server", "--api-key", given_key]], [])
    facts = facts_with(of_clients)
    report = bundle.report_of(facts, (), VERSIONS, environ)
    files = bundle.report_files(report, [(name, log) for _, name in bundle.log_names(facts.known)], secrets)
    assert len(files) == 1 + len(facts.known.server.running if facts.known.server is not None else ())
    for file in files:
        text = file.data.decode()
        for key in keys:
            for form in (key, json.dumps(key)[1:-1], quote(key), quote(key, safe="")):
                assert form not in text, file.name


def test_models_that_failed_have_their_logs_first_and_then_those_that_run() -> None:
    names = [f"m{number:02}" for number in range(bundle.MODEL_LOGS + 2)]
    running = [ServedModel(id=name, state="loaded") for name in names[:-2]]
    running += [ServedModel(id=names[-2], state="unloaded"), ServedModel(id=names[-1], state="unloaded", error="x")]
    server = ServerFact(url="u", answer="answers", running=tuple(running))
    known = structs.replace(facts_with("x").known, server=server)
    told = [id for id, _ in bundle.log_names(known)]
    assert told == [names[-1], *names[: bundle.MODEL_LOGS - 1]]
    assert len({file for _, file in bundle.log_names(known)}) == bundle.MODEL_LOGS


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("load /home/alice/models/m.gguf", "load /home/<user>/models/m.gguf"),
        ('{"path": "C:\\\\Users\\\\Alice Ng\\\\m.gguf"}', '{"path": "C:\\\\Users\\\\<user>\\\\m.gguf"}'),
        (r"C:\Users\Alice Ng\m.gguf and /Users/bob: no", r"C:\Users\<user>\m.gguf and /Users/<user>: no"),
        ("the users are at home", "the users are at home"),
    ],
)
def test_names_of_users_leave_the_paths_of_logs(path: str, shown: str) -> None:
    assert bundle.without_users(path) == shown


def test_a_short_secret_is_removed_as_a_word_only() -> None:
    assert bundle.without_secrets("key abc, abcd abc", ["abc"]) == (f"key {bundle.REMOVED}, abcd {bundle.REMOVED}", 2)
    assert bundle.without_secrets("1 is true", ["1", "True", ""]) == ("1 is true", 0)


def test_a_secret_on_the_cut_is_gone_before_the_log_is_cut() -> None:
    secret = "qSecretOfTheTest7Z"
    log = f"first {secret} line\n" + f"{secret} and more words\n" * (bundle.MOST // 20)
    text, _ = bundle.without_secrets(log, [secret])
    assert len(text) < bundle.MOST + 100
    assert text.startswith("... ")
    assert not any(secret[-length:] in text for length in (6, 10, len(secret)))
