"""Texts that may leave the machine in a support bundle, and the secrets that are removed from logs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote

from appliance.core.llama.flags import FLAGS, Flag, Kind, lookup, option_at
from appliance.errors import UsageError

REMOVED = "<removed>"
MOST = 512 * 1024
"""Characters that are kept of one log, the last ones."""
LEAST = 3
"""A shorter value, or one of `WORDS`, is not treated as a secret: every log is full of it."""
ALONE = 6
"""Secrets shorter than this are removed only as whole words; they occur within other words."""
SET = "set"
"""Stands for a value that is not a number or one of `WORDS`."""
WORDS = frozenset((
    "on", "off", "auto", "all", "none", "true", "false", "yes", "no", "enabled", "disabled", "layer", "row", "tensor",
    "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1", "mmap", "mlock", "linear", "yarn",
    "distribute", "isolate", "numactl", "deepseek", "mean", "cls", "last", "rank",
))  # fmt: skip
"""Values of options and variables that mean the same everywhere."""
NUMERIC = (Kind.INTEGER, Kind.NUMBER, Kind.CHOICE)
ALSO_NUMERIC = ("--n-gpu-layers", "--n-gpu-layers-draft", "--tensor-split", "--fit-target")
"""Options whose values are shown, by kind and by name. The value of any other option may be a path or a key."""
VARIABLES = (
    "LLAMA_", "GGML_", "CUDA_", "HIP_", "ROCR_", "HSA_", "NVIDIA_", "VK_", "ONEAPI_", "ZES_", "MESA_", "OMP_", "HF_",
    "XDG_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "LD_LIBRARY_PATH", "CONTAINER",
    "KUBERNETES_SERVICE_HOST", "WSL_DISTRO_NAME",
)  # fmt: skip
"""Variables that engines, drivers and this program use, or their prefixes."""
SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "_PASS", "_PAT", "AUTH")

_NUMBERS = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?(?:,-?[0-9]{1,18}(?:\.[0-9]{1,18})?)*")
_BUILD = re.compile(r"[a-z0-9]+-[a-z0-9_]+-[a-z0-9_]+/[A-Za-z0-9._+-]{1,60}|embedded")
_DEVICE = re.compile(r"[A-Za-z]{1,12}[0-9]{0,3}")
STATE = re.compile(r"[a-z]{0,20}")
_PART = re.compile(r"[\w .,:()/@+~#*'-]{1,100}")
_OF_VARIABLES = {flag.env: flag for flag in FLAGS}


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that matter here. A value that is not a number or a word of `WORDS` is `SET`."""
    known = {name: value for name, value in environ.items() if _matters(name.upper())}
    return {name: variable(name, value) for name, value in sorted(known.items())}


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


def secret_values(named: Iterable[tuple[str, str]]) -> Iterable[str]:
    """Return the values of variables and options with names like secrets; for a list also each of its parts."""
    for name, value in named:
        if name.upper().endswith(tuple(ending for word in SECRET_WORDS for ending in (word, f"{word}S"))):
            yield value
            yield from (one.strip() for one in value.split(","))


def without_secrets(log: str, secrets: Iterable[str]) -> tuple[str, int]:
    """Return the end of a log without these secrets, as plain text, in JSON and in addresses, and their number."""
    forms: set[str] = set()
    for secret in (one for one in secrets if len(one) >= LEAST and one.lower() not in WORDS):
        inner = json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]
        forms |= {secret, *inner, quote(secret), quote(secret, safe="")}
    longest_first = sorted(forms - {REMOVED}, key=lambda form: (-len(form), form))
    if not longest_first:
        return _last(log), 0
    text, count = re.compile("|".join(map(_bounded, longest_first))).subn(REMOVED, log)
    return _last(text), count  # cut last: half a secret would not have been found


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


def _matters(name: str) -> bool:
    return name in VARIABLES or name.startswith(tuple(one for one in VARIABLES if one.endswith("_")))


def variable(name: str, value: str) -> str:
    """Return the value of a variable as `environment` shows it."""
    secret = any(word in name.upper() for word in SECRET_WORDS)
    return SET if secret else _value(_OF_VARIABLES.get(name), value)


def _value(flag: Flag | None, value: str) -> str:
    shown = flag is None or flag.kind in NUMERIC or flag.name in ALSO_NUMERIC
    return value if shown and (value.lower() in WORDS or _NUMBERS.fullmatch(value)) else SET


def _bounded(form: str) -> str:
    return re.escape(form) if len(form) >= ALONE else rf"(?<![A-Za-z0-9]){re.escape(form)}(?![A-Za-z0-9])"


def _last(text: str) -> str:
    if len(text) <= MOST:
        return text
    cut = text[len(text) - MOST :]
    return f"... {len(text) - len(cut)} characters left out ...\n{cut.partition(chr(10))[2]}"
