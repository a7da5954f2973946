"""The service that is installed on this machine: its name, its users, and where its files lie.

A package or ``service install`` puts it there. Every other command reads only these places: it looks for the service,
and becomes its user.
"""

from __future__ import annotations

import shlex

NAME = "llama-appliance"
UNIT = f"{NAME}.service"
UNITS = (f"/usr/lib/systemd/system/{UNIT}", f"/etc/systemd/system/{UNIT}")
"""The units of a package, which installs and removes it, and of ``service install``."""
STATE = f"/var/lib/{NAME}"
MODELS = f"{STATE}/models"
CONFIG_ROOT = f"/etc/{NAME}"
"""The folder of ``config.yaml`` and ``conf.d`` of the system's service."""
KEY_FILE = f"{CONFIG_ROOT}/key.env"
"""The key of the system's service, as an assignment that shells also read; made at its installation."""
ENVIRONMENT_FILES = (KEY_FILE, f"/etc/default/{NAME}", f"{CONFIG_ROOT}/options.env")
"""Files with variables for the system's service; a later one counts before an earlier one. No package has the last one,
so an upgrade never asks about it.
"""
ENVIRONMENT = {
    "HOME": STATE,
    "XDG_DATA_HOME": "/var/lib",
    "XDG_CACHE_HOME": "/var/cache",
    "XDG_CONFIG_HOME": "/etc",
    "HF_HOME": f"{STATE}/huggingface",
}
"""The places of the files of the system's service."""
MAC_ACCOUNT = "_llamaappliance"
"""User and group of the machine's service on macOS, where accounts of services begin with an underscore."""


def assignments(text: str) -> dict[str, str]:
    """Return what a file of ``EnvironmentFile=`` sets. Any other line is passed over, as systemd does."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith(("#", ";")):
            try:
                found[name.strip()] = "".join(shlex.split(value)[:1])
            except ValueError:  # a quote without its other half
                continue
    return found
