"""argv -> cli; the only ``trio.run``."""

from __future__ import annotations

import gc
import io
import sys
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from appliance.settings import Program

COLLECTIONS = (20_000, 20, 50)
"""Objects made before the youngest are looked through for cycles, and so on. A request makes some hundred, few of them
in cycles; Python's 700 let the looking take a fifth of the time of a server under load."""


UNIFIED = "llama"
"""Under this name, that of a link to it, the program takes the place of llama.cpp's own."""


def main() -> None:
    """The installed command. Exit status: 0 done, 1 our fault, 2 the user's mistake, 70 a bug, 130 interrupted."""
    if PurePath(sys.argv[0]).stem.lower() == UNIFIED:
        sys.argv[1:] = [UNIFIED, *sys.argv[1:]]
    gc.disable()  # what modules consist of stays: looking for garbage in it was a quarter of the start
    from appliance.cli.app import run  # hence not before the line above
    from appliance.feature import all_verbs, config_type, examiners_of
    from appliance.features import FEATURES
    from appliance.platform.console import EXIT_BUG, call_as
    from appliance.platform.inside import bring_engine
    from appliance.start import called, ended, lead

    lead()
    call_as(called)
    bring_engine(next((feature.engine for feature in FEATURES if feature.engine is not None), None))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a model may say what the terminal cannot show
    if sys.platform == "win32":  # where the code page of the user's language is the encoding of pipes and files
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(encoding="utf-8")
    parts = all_verbs(FEATURES), partial(examiners_of, FEATURES), partial(config_type, FEATURES)
    status = run(sys.argv[1:], start, *parts)
    if status != EXIT_BUG:
        ended()
    sys.exit(status)


def stand_in() -> None:
    """The same command under the name of the program that it stands in for; every word is llama-server's."""
    sys.argv[1:] = ["llama-server", *sys.argv[1:]]
    main()


def on_desktop() -> None:
    """The same command as a desktop starts it, by a double click: with the page, and an icon."""
    sys.argv[1:] = ["desktop", *sys.argv[1:]]
    main()


def start(program: Program) -> int:
    """Run a server, or a command that needs the event loop, to its end."""
    import trio  # a tenth of a second that `--help` and `version` do without

    from appliance.settings import (
        AppSettings,
        Later,  # see `main`
    )

    if not isinstance(program, AppSettings | Later):
        gc.enable()

        async def command() -> int:
            return await program or 0

        return trio.run(command)
    from appliance.features import FEATURES
    from appliance.main import run_server

    gc.set_threshold(*COLLECTIONS)

    async def serve() -> int:
        settings = program
        if isinstance(settings, Later):
            gc.enable()  # what is fetched may take hours
            settings = await settings.prepare()
        return settings if isinstance(settings, int) else await run_server(settings, FEATURES)

    return trio.run(serve)


if __name__ == "__main__":
    main()
