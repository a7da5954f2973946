"""The folders of this user. The system may know none, as in a container that runs under a number of its own."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from appliance.errors import UsageError
from appliance.platform.console import PROGRAM

ENGINES_VARIABLE = "LLAMA_APPLIANCE_ENGINES_DIR"


def users_home() -> Path:
    """Return the home folder. Raises UsageError."""
    return expanded("~")


def users_data() -> Path:
    """Return the program's folder for data; it may not exist yet. Raises UsageError."""
    import platformdirs  # `--help` does without

    with _known("~"):
        return platformdirs.user_data_path(PROGRAM, appauthor=False)


def users_cache() -> Path:
    """Return the program's folder for what it can make again; it may not exist yet. Raises UsageError."""
    import platformdirs

    with _known("~"):
        return platformdirs.user_cache_path(PROGRAM, appauthor=False)


def engines_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of installed builds: `ENGINES_VARIABLE`, else in the folder for data. Raises UsageError."""
    if named := environ.get(ENGINES_VARIABLE):
        return expanded(named).absolute()
    return users_data() / "engines"


def expanded(path: str) -> Path:
    """Replace ``~`` or ``~user`` at the beginning by that home folder. Raises UsageError."""
    with _known(path.partition("/")[0]):
        return Path(path).expanduser()


@contextmanager
def _known(sign: str) -> Generator[None]:
    try:
        yield
    except RuntimeError:  # the word of pathlib and platformdirs, who raise no other here
        fix = "set HOME" if sign == "~" else "write the path in full"
        raise UsageError(f"the system knows no home folder for {sign}; {fix}") from None
