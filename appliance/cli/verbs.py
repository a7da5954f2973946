"""The verbs that no feature brings.

The module of a verb is imported when the verb is used, so that ``--help`` and ``version`` answer at once. The imports
are written out, so that a freezer and a type checker see them.
"""

from __future__ import annotations

import click

from appliance.cli.verb import Verb


def _serve() -> click.Command:
    from appliance.cli.serve import serve

    return serve


def _logs() -> click.Command:
    from appliance.cli.control import logs

    return logs


def _ls() -> click.Command:
    from appliance.cli.models import ls

    return ls


def _ps() -> click.Command:
    from appliance.cli.control import ps

    return ps


def _load() -> click.Command:
    from appliance.cli.control import load

    return load


def _unload() -> click.Command:
    from appliance.cli.control import unload

    return unload


def _version() -> click.Command:
    from appliance.cli.version import version

    return version


KERNEL_VERBS = (
    Verb("serve", "server", "Run the server.", _serve),
    Verb("logs", "server", "Show the output of the model processes.", _logs),
    Verb("ls", "models", "List the models on this machine.", _ls),
    Verb("ps", "models", "List the models that are running.", _ps),
    Verb("load", "models", "Load a model into the running server.", _load),
    Verb("unload", "models", "Unload a model from the running server.", _unload),
    Verb("version", "this machine", "Show versions of the program, Python, platform and engine.", _version),
)
