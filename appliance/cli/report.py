"""``doctor --report``: a support bundle that is shown before anything is written."""

from __future__ import annotations

import io
import os
import platform
import re
import sys
import zipfile
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path

import click
import msgspec
import trio

from appliance import __version__
from appliance.catalog.config_files import Files, config_paths
from appliance.cli.doctor import page
from appliance.cli.doctor_facts import Wish, examine
from appliance.cli.doctor_server import log_of
from appliance.cli.show import human_size, print_table
from appliance.cli.status import EXIT_OURS, say
from appliance.core.config.types import Config
from appliance.core.doctor.bundle import Packed, Part, Tree, clean_said, known_environment, pack, secret_values
from appliance.core.doctor.diagnose import diagnose
from appliance.core.doctor.facts import DoctorFacts
from appliance.core.doctor.findings import Finding
from appliance.core.redact import Private, Redactor, learn
from appliance.errors import ApplianceError, UsageError

MODEL_LOGS = 32
"""Number of models whose log is included; running or failed ones come first."""
LARGEST_CONFIG = 1 << 20
HOMES = ("home", "Users")
"""Folders in which a user's home is named after the user."""


async def write_report(wish: Wish, target: str, *, yes: bool) -> int:
    """Gather, show, ask, write. Raises UsageError if there is nobody to ask; nothing is written then."""
    path = free_path(target or f"llama-appliance-report-{datetime.now():%Y%m%d-%H%M%S}.zip")
    say("looking at the machine, the engines and the server ...")
    packed = await gather(wish)
    click.echo(f"The bundle would be {path} and contain:\n")
    _show(packed)
    click.echo("\nRemoved: keys, tokens and passwords, requests and answers, the names of user and machine.")
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("nothing was written: there is no terminal to ask on; --yes writes without asking")
        if not await trio.to_thread.run_sync(partial(click.confirm, f"Write {path}?"), abandon_on_cancel=True):
            say("nothing was written")
            return EXIT_OURS
    size = await trio.to_thread.run_sync(_write, path, packed)
    click.echo(f"written: {path} ({human_size(size)}); look into it before you send it")
    return 0


async def gather(wish: Wish) -> list[Packed]:
    """Return the bundle's files, in order, without private content."""
    facts = await examine(wish)
    logs = [part async for part in _Logs(wish, facts)]
    configuration = await trio.to_thread.run_sync(lambda: list(_configuration(wish)))
    private = await trio.to_thread.run_sync(_private, wish)
    # What is a secret in a configuration or a log may stand in the facts, too.
    known = learn(private, [part.text for part in (*logs, *configuration)])
    parts = [*_told(facts, Redactor(known)), *configuration, *logs]
    return await trio.to_thread.run_sync(pack, parts, known)


def _told(facts: DoctorFacts, redactor: Redactor) -> Iterator[Part]:
    """Return the doctor's page and all its facts."""

    def cleaned(tree: object) -> Tree:
        plain: Tree = msgspec.json.decode(msgspec.json.encode(tree))
        return clean_said(plain, redactor)

    def shown(tree: object) -> str:
        return msgspec.json.format(msgspec.json.encode(cleaned(tree)), indent=2).decode()

    findings = msgspec.convert(cleaned(diagnose(facts)), list[Finding])
    yield Part(name="doctor.txt", text=page(facts, findings, colours=False))
    yield Part(name="findings.json", text=shown(findings))
    yield Part(name="versions.json", text=shown(_versions(facts)))
    yield Part(name="machine.json", text=shown({"look": facts.look, "checkup": facts.checkup}))
    probes = {"engines": facts.engines, "ranked": facts.ranked, "book": facts.book}
    yield Part(name="engines.json", text=shown(probes))
    yield Part(name="models.json", text=shown(facts.models))
    yield Part(name="server.json", text=shown({"server": facts.server, "port": facts.port}))
    yield Part(name="environment.txt", text=known_environment(os.environ))


def _versions(facts: DoctorFacts) -> dict[str, object]:
    return {
        "program": __version__,
        "server": facts.server.version if facts.server is not None else "",
        "python": platform.python_version(),
        "platform": platform.platform(),
        "frozen": bool(getattr(sys, "frozen", False)),
    }


def _configuration(wish: Wish) -> Iterator[Part]:
    for number, path in enumerate(config_paths(wish.config, None) if wish.config is not None else ()):
        try:
            with path.open(encoding="utf-8-sig", errors="replace") as file:
                yield Part(name=f"configuration/{number}-{_plain(path.name)}", text=file.read(LARGEST_CONFIG))
        except OSError:
            continue  # findings.json says why


class _Logs:
    """The program's log, then those of models, if a server runs."""

    def __init__(self, wish: Wish, facts: DoctorFacts) -> None:
        self._server = wish.server
        running = facts.server.running if facts.server is not None else ()
        answers = facts.server is not None and facts.server.answer == "answers"
        busy = sorted(running, key=lambda one: (not one.error, one.state == "unloaded", one.id))
        self._left = [("proxy", "program")] if answers else []
        self._left += [(one.id, f"model-{number}-{_plain(one.id)}") for number, one in enumerate(busy[:MODEL_LOGS])]

    def __aiter__(self) -> _Logs:
        return self

    async def __anext__(self) -> Part:
        while self._left:
            source, name = self._left.pop(0)
            if text := await log_of(self._server, source):
                return Part(name=f"logs/{name}.log", text=text, log=True)
        raise StopAsyncIteration


def _private(wish: Wish) -> Private:
    """Return the known secrets, and the names of the user and the machine."""
    secrets = [*secret_values(os.environ), wish.server.address.key or "", *_configured(wish), _hub_token()]
    home = Path.home()
    named = [os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER")]
    users = [*named, home.name if home.parent.name in HOMES else ""]
    host = platform.node()
    return Private(
        secrets=tuple(dict.fromkeys(secret for secret in secrets if secret)),
        home=str(home),
        users=tuple(dict.fromkeys(user for user in users if user)),
        hosts=tuple(dict.fromkeys(name for name in (host, host.partition(".")[0]) if name)),
    )


def _hub_token() -> str:
    """Return the token that ``hf auth login`` has stored."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get("HF_HOME") or caches / "huggingface")
    try:
        return Path(os.environ.get("HF_TOKEN_PATH") or folder / "token").read_text("utf-8", "replace")[:1000].strip()
    except OSError:
        return ""


def _configured(wish: Wish) -> Iterator[str]:
    """Return the configuration's keys, with macros and variables filled in."""
    if wish.config is None:
        return
    try:
        config = Files(config=wish.config).read().config or Config()
    except ApplianceError:
        return
    yield from config.api_keys
    for peer in config.peers.values():
        yield peer.api_key
    for model in config.models.values():
        pairs = (line.partition("=") for line in model.env)
        yield from secret_values({name: value for name, _, value in pairs})


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:80] or "unnamed"


def _show(packed: list[Packed]) -> None:
    rows = [
        (file.name, human_size(len(file.data)), *(str(n or "-") for n in _numbers(file)))
        for file in packed
    ]  # fmt: skip
    columns = ("FILE", "SIZE", "SECRETS REMOVED", "TEXTS REMOVED", "NAMES REMOVED")
    print_table(columns, rows, right=columns[1:])


def _numbers(file: Packed) -> tuple[int, int, int]:
    return file.removed.secrets, file.removed.prompts, file.removed.names


def _write(path: Path, packed: list[Packed]) -> int:
    """Write the whole file, readable by this user only; return its size."""
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as bundle:
        for file in packed:
            bundle.writestr(file.name, file.data)
    path.touch(mode=0o600, exist_ok=False)
    return path.write_bytes(memory.getvalue())


def free_path(name: str) -> Path:
    """Return where the bundle can be written. Raises UsageError."""
    path = Path(name)
    if path.exists():
        raise UsageError(f"{path} exists already; name another file with --report FILE.zip")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}; create it, or name another file with --report FILE.zip")
    return path
