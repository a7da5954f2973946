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


def _top() -> click.Command:
    from appliance.features.top.verb import top

    return top


def _activity() -> click.Command:
    from appliance.cli.activity import activity

    return activity


def _logs() -> click.Command:
    from appliance.cli.control import logs

    return logs


def _run() -> click.Command:
    from appliance.features.terminal.verb import run_model

    return run_model


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


def _selftest() -> click.Command:
    from appliance.features.selftest.verb import selftest

    return selftest


def _version() -> click.Command:
    from appliance.cli.version import version

    return version


def _load_test() -> click.Command:
    from appliance.features.load_test.verb import load_test

    return load_test


KERNEL_VERBS = (
    Verb("serve", "server", "Run the server.", _serve),
    Verb("top", "server", "Show the requests under way, live.", _top, page="http.md#what-is-under-way"),
    Verb("activity", "server", "List the latest requests of the running server, or export all.", _activity),
    Verb("logs", "server", "Show the output of the model processes.", _logs),
    Verb("run", "models", "Chat with a model in the terminal, or ask it one question.", _run),
    Verb("ls", "models", "List the models on this machine.", _ls),
    Verb("ps", "models", "List the models that are running.", _ps),
    Verb("load", "models", "Load a model into the running server.", _load),
    Verb("unload", "models", "Unload a model from the running server.", _unload),
    Verb("selftest", "this machine", "Prove that the engine and the starter model work here.", _selftest),
    Verb("version", "this machine", "Show versions of the program, Python, platform and engine.", _version),
    Verb("load-test", "for developers", "Ask models many times at once, and show how fast each answers.", _load_test),
)
