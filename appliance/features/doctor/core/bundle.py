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

import msgspec
from msgspec import Struct, structs

from appliance.core.config.secret_places import secrets_of
from appliance.core.config.types import Config
from appliance.core.examination import Known, ModelFact, ServedModel
from appliance.core.findings import Finding
from appliance.core.llama.flags import FLAGS, Flag, Kind, lookup, option_at
from appliance.core.machine_look import MachineLook
from appliance.core.records.history import Happening
from appliance.core.reported import SET, kept, part, seat_id
from appliance.core.secrets import WORDS, Secrets, is_secret_name, secret_variables, secrets_of_command
from appliance.errors import UsageError
from appliance.features.doctor.core.facts import Facts

REMOVED = "<removed>"
REPORTED = 200  # number of entries of the timeline in a report, the newest
MODEL_LOGS = 32  # number of models whose log is included; running or failed ones come first
MOST = 512 * 1024  # characters that are kept of one log, the last ones
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
STATE = re.compile(r"[a-z]{0,20}")
_REASON = re.compile(r"[a-z_]{0,40}")  # the words of errors (`ApplianceError.reason`)
_USER = re.compile(r"""([\\/](?:home|users)[\\/]+)(?:[^\\/"':*?<>|\r\n]+(?=\\)|[^\\/\s"':]+)""", re.IGNORECASE)
"""The folder of a user's files. Names with spaces are known by the backslash behind them."""
_OF_VARIABLES = {flag.env: flag for flag in FLAGS}
MACHINE = "platform system environment cpu cpu_level cpu_features cores memory_total memory_available"
GPU = "vendor name driver driver_version total free compute gfx integrated"
SYSTEM = "swap_used swap_total open_files cores memory ends_together"
MODEL = "source size architecture quantisation parameters context_length fit"
HAPPENING = "timestamp kind requests seconds"
"""The allow-list: the fields of `MachineLook`, `Gpu`, `Checkup`, `ModelFact` and `Happening` that are taken over. Each
feature names its own."""


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


Report = dict[str, object]


class ReportFile(Struct, frozen=True):
    """One file of the bundle. ``removed``: the number of secrets that were taken out of it."""

    name: str
    data: bytes
    removed: int = 0


def report_files(report: Report, logs: Iterable[tuple[str, str]], secrets: Collection[str]) -> list[ReportFile]:
    """Return the bundle's files: the report, and these logs by their names, but for empty ones."""
    files = [ReportFile("report.json", msgspec.json.format(msgspec.json.encode(report), indent=2))]
    for name, log in logs:
        text, removed = without_secrets(log, secrets)
        if text:
            files.append(ReportFile(name, without_users(text).encode("utf-8", "replace"), removed))
    return files


def log_names(known: Known) -> Iterator[tuple[str, str]]:
    """Return the models whose logs are included, and the names of these files."""
    numbers = {model: number for number, model in enumerate(numbered(known), 1)}
    busy = sorted(known.running, key=lambda one: (not one.error, one.state == "unloaded", one.id))
    for model in busy[:MODEL_LOGS]:
        yield model.id, f"logs/model-{numbers[model.id]}.log"


def report_of(
    facts: Facts,
    findings: Iterable[Finding],
    versions: Versions,
    environ: Mapping[str, str],
    history: Iterable[Happening] = (),
) -> Report:
    """Take the allowed facts out of all facts: the content of ``report.json``. Sizes in bytes; None means unknown."""
    known, system, server, config = facts.known, facts.known.checkup, facts.known.server, facts.known.config
    levels = [problem.level for problem in config.problems] if config is not None else []
    return {
        "versions": structs.replace(versions, server=part(versions.server)),
        "findings": [kept(one, "id severity") for one in findings],
        "machine": _machine(known.look) if known.look is not None else None,
        "system": kept(system, SYSTEM)
        | {
            "disks": [kept(one, "what free total") for one in system.disks],
            "cards": [kept(one, "pci vendor driver") for one in system.cards],
            "usable_device_files": sum(one.usable for one in system.device_files),
            "closed_device_files": sum(not one.usable for one in system.device_files),
        },
        **{name: told for own in facts.own for name, told in own.reported().items()},
        "models": list(_models(known)),
        "history": list(_history(known, history)),
        "server": server
        and {"answer": server.answer, "engine": seat_id(server.engine), "port_taken": known.port is not None},
        "config": config
        and {
            "files": len(config.files),
            "errors": levels.count("error"),
            "warnings": levels.count("warning"),
            "readable": not config.unreadable,
        },
        "not_examined": tuple(known.trouble),
        "environment": environment(environ),
    }


def _machine(seen: MachineLook) -> Report:
    """Loaders by their names, problems by their number."""
    return kept(seen, MACHINE) | {
        "gpus": [kept(gpu, GPU) for gpu in seen.gpus],
        "loaders": [part(name) for name, path in seen.loaders.items() if path],
        "hidden": {name: variable(name, value) for name, value in seen.hidden.items()},
        "problems": len(seen.problems),
    }


def _history(known: Known, history: Iterable[Happening]) -> Iterator[Report]:
    """Entries of the timeline, with models by the numbers of `numbered`; None: it is not among them."""
    numbers = {model: number for number, model in enumerate(numbered(known), 1)}
    for entry in history:
        yield kept(entry, HAPPENING) | {
            "model": numbers.get(entry.model),
            "engine": seat_id(entry.engine),
            "following": seat_id(entry.following),
            "rule": entry.cause and entry.cause.rule,
            "reason": entry.reason if _REASON.fullmatch(entry.reason) else SET,
        }


def _models(known: Known) -> Iterator[Report]:
    """The catalog's models with their state at the server, then those that only it knows, by numbers for names."""
    served = {one.id: one for one in known.running}
    for number, model in enumerate(numbered(known), 1):
        fact = next((one for one in known.models if one.id == model), ModelFact(id=model, source=""))
        running = served.get(model, ServedModel(id=model, state=""))
        yield (
            {"number": number, "usable": not fact.error}
            | kept(fact, MODEL)
            | {
                "state": running.state if STATE.fullmatch(running.state) else SET,
                "failed": bool(running.error),
                "seat": seat_id(running.seat),
                "layers": running.layers,
                "options": options(running.command),
            }
        )


def numbered(known: Known) -> list[str]:
    """Return the ids of all models in the order of their numbers, which begin at 1."""
    return list(dict.fromkeys(one.id for one in (*known.models, *known.running)))
