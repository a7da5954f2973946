"""The content of a support bundle: a report of structured facts from an allow-list, and logs without secrets.

A free text can hold anything: a prompt in an error message, a name in a path, a key in a command. No rule finds all of
that, so the report holds no text that a user, a model or an engine wrote. What is taken over is named below: sizes,
counts, switches, words from fixed lists, and the names of parts (cards, drivers, builds, models' architectures). A fact
that is not named here is not in the report.

Logs are text, and are only added when somebody wants them. The secrets that the program knows are taken out of them,
and the names of users out of paths.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import cast

import msgspec
from msgspec import Struct, structs

from appliance.core.config.secret_places import secrets_of
from appliance.core.config.types import Config
from appliance.core.engines.state import EngineState
from appliance.core.examination import DoctorFacts, ModelFact, ServedModel
from appliance.core.findings import Finding
from appliance.core.llama.flags import FLAGS, Flag, Kind, lookup, option_at
from appliance.core.machine_look import MachineLook
from appliance.core.records.history import Happening
from appliance.core.secrets import WORDS, Secrets, is_secret_name, secret_variables, secrets_of_command
from appliance.errors import UsageError

REMOVED = "<removed>"
REPORTED = 200  # number of entries of the timeline in a report, the newest
MODEL_LOGS = 32  # number of models whose log is included; running or failed ones come first
MOST = 512 * 1024  # characters that are kept of one log, the last ones
SET = "set"  # stands for a value that is not a number or one of `WORDS`
NUMERIC = (Kind.INTEGER, Kind.NUMBER, Kind.CHOICE)
ALSO_NUMERIC = ("--n-gpu-layers", "--n-gpu-layers-draft", "--tensor-split", "--fit-target")
"""Options whose values are shown, by kind and by name. The value of any other option may be a path or a key."""
VARIABLES = (
    "LLAMA_", "GGML_", "CUDA_", "HIP_", "ROCR_", "HSA_", "NVIDIA_", "VK_", "ONEAPI_", "ZES_", "MESA_", "OMP_", "HF_",
    "XDG_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "LD_LIBRARY_PATH", "CONTAINER",
    "KUBERNETES_SERVICE_HOST", "WSL_DISTRO_NAME",
)  # fmt: skip
"""Variables that engines, drivers and this program use, or their prefixes."""

_NUMBERS = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?(?:,-?[0-9]{1,18}(?:\.[0-9]{1,18})?)*")
_BUILD = re.compile(r"[a-z0-9]+-[a-z0-9_]+-[a-z0-9_]+/[A-Za-z0-9._+-]{1,60}|embedded")
_DEVICE = re.compile(r"[A-Za-z]{1,12}[0-9]{0,3}")
STATE = re.compile(r"[a-z]{0,20}")
_REASON = re.compile(r"[a-z_]{0,40}")  # the words of errors (`ApplianceError.reason`)
_USER = re.compile(r"""([\\/](?:home|users)[\\/]+)(?:[^\\/"':*?<>|\r\n]+(?=\\)|[^\\/\s"':]+)""", re.IGNORECASE)
"""The folder of a user's files. Names with spaces are known by the backslash behind them."""
_PART = re.compile(r"[\w .,:()/@+~#*'-]{1,100}")
_OF_VARIABLES = {flag.env: flag for flag in FLAGS}
MACHINE = "platform system environment cpu cpu_level cpu_features cores memory_total memory_available"
GPU = "vendor name driver driver_version total free compute gfx integrated"
SYSTEM = "swap_used swap_total open_files cores memory ends_together"
MODEL = "source size architecture quantisation parameters context_length fit"
PROOF = "fault prompt_speed generation_speed seconds at"
PROBATION = "failures since until"
HAPPENING = "timestamp kind requests seconds"
"""The allow-list: the fields of `MachineLook`, `Gpu`, `Checkup`, `ModelFact`, `Proof`, `Probation` and `Happening` that
are taken over."""


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that matter here. A value that is not a number or a word of `WORDS` is `SET`."""
    prefixes = tuple(one for one in VARIABLES if one.endswith("_"))
    known = (name for name in environ if name.upper() in VARIABLES or name.upper().startswith(prefixes))
    return {name: variable(name, environ[name]) for name in sorted(known)}


def options(command: Sequence[str]) -> dict[str, str]:
    """Return llama-server's options on a command line by their usual names, with values as in `environment`.

    Other words are skipped, so that the rest of a command that is not llama-server's does no harm.
    """
    found: dict[str, str] = {}
    at = 0
    while at < len(command):
        try:
            option = option_at(command, at)
        except UsageError:
            at += 1
            continue
        flag = lookup(option.canonical)
        found[option.canonical] = ",".join(_value(flag, value) for value in option.values) or str(option.on)
        at += len(option.words)
    return found


def known_secrets(
    config: Config, environ: Mapping[str, str], commands: Iterable[Sequence[str]], keys: Iterable[str]
) -> set[str]:
    """Return every key and token in the configuration, the environment and commands, beside the ``keys``."""
    of_commands = (secret for command in commands for secret in secrets_of_command(command))
    return {*keys, *secrets_of(config), *of_commands, *secret_variables(environ)}


def without_secrets(log: str, secrets: Iterable[str]) -> tuple[str, int]:
    """Return the end of a log without these secrets, as plain text, in JSON and in addresses, and their number."""
    text, count = Secrets(secrets).counted(log, REMOVED)
    if (left_out := len(text) - MOST) > 0:  # cut last: half a secret would not have been found
        text = f"... {left_out} characters left out ...\n{text[left_out:].partition(chr(10))[2]}"
    return text, count


def without_users(log: str) -> str:
    """Return a log without the names of users in the paths of their files."""
    return _USER.sub(r"\1<user>", log)


def part(text: str) -> str:
    """Return the name of a part of the machine, if it looks like one."""
    return text if not text or _PART.fullmatch(text) else SET


def build_id(build: str) -> str:
    """Return a build's id; the path of a program that is not a build stays here."""
    return build if not build or _BUILD.fullmatch(build) else "a program"


def seat_id(seat: str) -> str:
    """Return the id of a build's seat; of another seat only that it is one."""
    build, _, devices = seat.rpartition(":")
    known = all(map(_DEVICE.fullmatch, devices.split("+")))
    return f"{build_id(build)}:{devices}" if build and known else build_id(seat)


def variable(name: str, value: str) -> str:
    """Return the value of a variable as `environment` shows it."""
    return SET if is_secret_name(name) else _value(_OF_VARIABLES.get(name), value)


def _value(flag: Flag | None, value: str) -> str:
    shown = flag is None or flag.kind in NUMERIC or flag.name in ALSO_NUMERIC
    return value if shown and (value.lower() in WORDS or _NUMBERS.fullmatch(value)) else SET


class Versions(Struct, frozen=True, kw_only=True):
    program: str
    server: str
    python: str
    platform: str
    frozen: bool


Facts = dict[str, object]


class ReportFile(Struct, frozen=True):
    """One file of the bundle. ``removed``: the number of secrets that were taken out of it."""

    name: str
    data: bytes
    removed: int = 0


def report_files(report: Facts, logs: Iterable[tuple[str, str]], secrets: Collection[str]) -> list[ReportFile]:
    """Return the bundle's files: the report, and these logs by their names, but for empty ones."""
    files = [ReportFile("report.json", msgspec.json.format(msgspec.json.encode(report), indent=2))]
    for name, log in logs:
        text, removed = without_secrets(log, secrets)
        if text:
            files.append(ReportFile(name, without_users(text).encode("utf-8", "replace"), removed))
    return files


def log_names(facts: DoctorFacts) -> Iterator[tuple[str, str]]:
    """Return the models whose logs are included, and the names of these files."""
    numbers = {model: number for number, model in enumerate(numbered(facts), 1)}
    busy = sorted(facts.running, key=lambda one: (not one.error, one.state == "unloaded", one.id))
    for model in busy[:MODEL_LOGS]:
        yield model.id, f"logs/model-{numbers[model.id]}.log"


def report_of(
    facts: DoctorFacts,
    findings: Iterable[Finding],
    versions: Versions,
    environ: Mapping[str, str],
    history: Iterable[Happening] = (),
) -> Facts:
    """Take the allowed facts out of all facts: the content of ``report.json``. Sizes in bytes; None means unknown."""
    system, server, config = facts.checkup, facts.server, facts.config
    levels = [problem.level for problem in config.problems] if config is not None else []
    return {
        "versions": structs.replace(versions, server=part(versions.server)),
        "findings": [_kept(one, "id severity") for one in findings],
        "machine": _machine(facts.look) if facts.look is not None else None,
        "system": _kept(system, SYSTEM)
        | {
            "disks": [_kept(one, "what free total") for one in system.disks],
            "cards": [_kept(one, "pci vendor driver") for one in system.cards],
            "usable_device_files": sum(one.usable for one in system.device_files),
            "closed_device_files": sum(not one.usable for one in system.device_files),
        },
        "engines": [
            {"id": build_id(one.id), "damaged": bool(one.damage)}
            | _kept(one, "backend digest")
            | _kept(one.needs, "driver compute cpu")
            for one in facts.engines
        ],
        "seats": [
            {"id": seat_id(one.seat.id)} | _kept(one, "standing wanted seconds") | _kept(one.seat, "spare software")
            for one in facts.ranked
        ],
        "trials": _trials(facts.state),
        "models": list(_models(facts)),
        "history": list(_history(facts, history)),
        "server": server
        and {"answer": server.answer, "engine": seat_id(server.engine), "port_taken": facts.port is not None},
        "config": config
        and {
            "files": len(config.files),
            "errors": levels.count("error"),
            "warnings": levels.count("warning"),
            "readable": not config.unreadable,
        },
        "not_examined": tuple(facts.trouble),
        "environment": environment(environ),
    }


def _kept(fact: Struct, fields: str) -> Facts:
    """The named fields. Of words only those that look like the name of a part."""
    kept: Facts = {}
    for name in fields.split():
        value = getattr(fact, name)
        if isinstance(value, tuple):
            value = [part(word) for word in cast("tuple[str, ...]", value)]
        kept[name] = part(value) if isinstance(value, str) else value
    return kept


def _machine(seen: MachineLook) -> Facts:
    """Loaders by their names, problems by their number."""
    return _kept(seen, MACHINE) | {
        "gpus": [_kept(gpu, GPU) for gpu in seen.gpus],
        "loaders": [part(name) for name, path in seen.loaders.items() if path],
        "hidden": {name: variable(name, value) for name, value in seen.hidden.items()},
        "problems": len(seen.problems),
    }


def _trials(state: EngineState) -> Facts:
    """The memory of engines; of choices only that there are some."""
    refused = state.refused
    return {
        "chosen": bool(state.use),
        "pinned": state.pinned,
        "channel": state.channel,
        "proofs": [{"build": build_id(one.build)} | _kept(one, PROOF) for one in state.proofs],
        "probations": [{"seat": seat_id(one.seat)} | _kept(one, PROBATION) for one in state.probations],
        "withdrawn": [build_id(build) for build in state.withdrawn],
        "refused": refused and {"build": build_id(refused.build), "old": build_id(refused.old), "at": refused.at},
    }


def _history(facts: DoctorFacts, history: Iterable[Happening]) -> Iterator[Facts]:
    """Entries of the timeline, with models by the numbers of `numbered`; None: it is not among them."""
    numbers = {model: number for number, model in enumerate(numbered(facts), 1)}
    for entry in history:
        yield _kept(entry, HAPPENING) | {
            "model": numbers.get(entry.model),
            "engine": seat_id(entry.engine),
            "following": seat_id(entry.following),
            "rule": entry.cause and entry.cause.rule,
            "reason": entry.reason if _REASON.fullmatch(entry.reason) else SET,
        }


def _models(facts: DoctorFacts) -> Iterator[Facts]:
    """The catalog's models with their state at the server, then those that only it knows, by numbers for names."""
    served = {one.id: one for one in facts.running}
    for number, model in enumerate(numbered(facts), 1):
        fact = next((one for one in facts.models if one.id == model), ModelFact(id=model, source=""))
        running = served.get(model, ServedModel(id=model, state=""))
        yield (
            {"number": number, "usable": not fact.error}
            | _kept(fact, MODEL)
            | {
                "state": running.state if STATE.fullmatch(running.state) else SET,
                "failed": bool(running.error),
                "seat": seat_id(running.seat),
                "layers": running.layers,
                "options": options(running.command),
            }
        )


def numbered(facts: DoctorFacts) -> list[str]:
    """Return the ids of all models in the order of their numbers, which begin at 1."""
    return list(dict.fromkeys(one.id for one in (*facts.models, *facts.running)))
