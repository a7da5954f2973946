"""The text of the systemd unit (systemd.exec(5), systemd.service(5)), and what systemd says of it."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.core.installed import ENVIRONMENT, ENVIRONMENT_FILES, NAME, STATE
from appliance.core.whole_numbers import whole_number
from appliance.features.service.core.status import ServiceStatus

CACHE = f"/var/cache/{NAME}"
KEY_OPTIONS = ("--api-key", "--api-key-file", "--allow-unauthenticated")
HIDDEN = ("/home", "/root", "/run/user")  # folders that a service of the system does not see (``ProtectHome=``)
WATCHDOG = 60  # seconds without a sign of life after which systemd starts the program again
SHOWN = (
    *("LoadState", "UnitFileState", "ActiveState", "SubState", "MainPID", "NRestarts", "Result", "StatusText"),
    "FragmentPath",
)  # properties that `status_of` reads
STOP = 90  # seconds that the program may take to end: requests get their grace, models their time to stop
SYSUSERS = f"""\
g render -
g video -
u {NAME} - "Llama Appliance" {STATE}
m {NAME} render
m {NAME} video
"""
"""The user of the system's service in the words of sysusers.d(5); the groups own the devices of graphics cards."""

_HEAD = """\
[Unit]
Description=Llama Appliance, a private AI server
Documentation=man:llama-appliance(1)
"""
_SERVICE = f"""\
Type=notify
NotifyAccess=main
ExecReload=kill -HUP $MAINPID
Restart=on-failure
RestartPreventExitStatus=2
RestartSec=2
WatchdogSec={WATCHDOG}
TimeoutStartSec=180
TimeoutStopSec={STOP}
KillMode=mixed
LimitNOFILE=65536
OOMPolicy=continue
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
UMask=0077
"""
# A wrong option or a taken port ends the program with 2: it would end so again.
_ENVIRONMENT_FILES = "\n".join(f"EnvironmentFile=-{file}" for file in ENVIRONMENT_FILES)
_SYSTEM = f"""\
User={NAME}
Group={NAME}
StateDirectory={NAME}
StateDirectoryMode=0750
CacheDirectory={NAME}
CacheDirectoryMode=0750
WorkingDirectory={STATE}
Environment={" ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())}
{_ENVIRONMENT_FILES}
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
PrivateTmp=yes
RemoveIPC=yes
DevicePolicy=closed
DeviceAllow=char-drm rw
DeviceAllow=char-kfd rw
DeviceAllow=char-nvidia rw
DeviceAllow=char-nvidia-frontend rw
DeviceAllow=char-nvidia-uvm rw
DeviceAllow=char-nvidia-caps rw
"""
# What is left out on purpose: PrivateDevices= hides the devices of graphics cards, MemoryDenyWriteExecute= breaks CUDA
# and Vulkan drivers, which compile kernels in memory, and PrivateNetwork= would leave nobody to serve.


def names_key_policy(words: Sequence[str]) -> bool:
    """True for options of a server that name a key, or that want none: its service needs no key of its own then."""
    return any(word.partition("=")[0] in KEY_OPTIONS for word in words)


def system_unit(command: Sequence[str]) -> str:
    """Return the unit of the system's service: a user of its own, and nothing writable but its own folders.

    ``command`` is the program with its arguments. Raises ValueError for an argument that no unit can hold.
    """
    return (
        f"{_HEAD}After=network-online.target nvidia-persistenced.service\nWants=network-online.target\n"
        f"\n[Service]\nExecStart={exec_line(command)} $LLAMA_APPLIANCE_OPTIONS\n{_SERVICE}{_SYSTEM}"
        "\n[Install]\nWantedBy=multi-user.target\n"
    )


def user_unit(command: Sequence[str]) -> str:
    """Return the unit of a user's service: the user's own files, without privileges. Raises as `system_unit`."""
    return f"{_HEAD}\n[Service]\nExecStart={exec_line(command)}\n{_SERVICE}\n[Install]\nWantedBy=default.target\n"


def status_of(shown: str, unit: str) -> ServiceStatus:
    """Read what ``systemctl show`` prints of the properties `SHOWN`; ``unit`` is the file of a unit that it lacks."""
    words = {name: value for name, _, value in (line.partition("=") for line in shown.splitlines())}
    pid, restarts, result = (words.get(name, "") for name in ("MainPID", "NRestarts", "Result"))
    return ServiceStatus(
        installed=words.get("LoadState") == "loaded",
        enabled=words.get("UnitFileState") == "enabled",
        state=words.get("ActiveState", "unknown"),
        detail=words.get("SubState", "") if result in ("", "success") else result,
        pid=whole_number(pid) or None,
        restarts=whole_number(restarts) or 0,
        said=words.get("StatusText", ""),
        unit=words.get("FragmentPath") or unit,
    )


def exec_line(command: Sequence[str]) -> str:
    """Quote a command for ``ExecStart=``: every argument arrives as it is. Raises ValueError as `system_unit`."""
    return " ".join(_quoted(word, first=number == 0) for number, word in enumerate(command))


def _quoted(word: str, *, first: bool) -> str:
    """Quote one word: systemd undoes quotes and backslashes, then ``%``, then ``$``, the last not in the first word."""
    if not word or any(ord(char) < 32 or ord(char) == 127 for char in word):
        raise ValueError(f"{word!r} cannot stand in a systemd unit; leave out what cannot be printed")
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    if not first:
        text = text.replace("$", "$$")
    return text if text.replace("/", "").replace("-", "").replace("_", "").replace(".", "").isalnum() else f'"{text}"'
