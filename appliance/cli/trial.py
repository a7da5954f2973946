"""``serve --trial DIR``: a server beside the running one, with the user's settings and copies of the data.

An older version starts it so, to try this one. The two only agree on the option, on ``DIR/ready.json``, and on the
variable with the key.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

from msgspec import structs

from appliance.catalog.sources import default_models_dir
from appliance.core.config.types import Config
from appliance.core.programs import NAME
from appliance.core.settings import Embedding
from appliance.platform.home import ENGINES_VARIABLE, engines_folder, expanded, users_data
from appliance.platform.ports import LOOPBACK
from appliance.settings import AppSettings
from appliance.store.versions import keep

READY = "ready.json"
"""The file in the folder that gets the address."""


def as_trial(settings: AppSettings, folder: Path, environ: MutableMapping[str, str]) -> AppSettings:
    """Return the settings of a server that disturbs no other one: its data are copies in ``folder``.

    Each database is also copied beside itself (`store.versions`), for the way back. Sets variables of the environment,
    so that what this program would write into the user's data folder goes into ``folder``. Raises OSError, UsageError,
    sqlite3.Error.
    """
    folder.mkdir(parents=True, exist_ok=True)
    environ[ENGINES_VARIABLE] = str(engines_folder(environ))
    sources = settings.sources
    if sources.models_dir is None and settings.config is None:
        sources = structs.replace(sources, models_dir=default_models_dir())
    data, config = folder / "data", settings.config
    keep(users_data() / "conversations.db", data / NAME / "conversations.db")
    if config is not None:
        config = _apart(config, folder)
    for variable in ("XDG_DATA_HOME", "WIN_PD_OVERRIDE_LOCAL_APPDATA"):
        environ[variable] = str(data)
    http = structs.replace(settings.http, listen=((LOOPBACK, 0),), also=(), tls=None)
    embedding = Embedding(ready_file=str(folder / READY), parent_pid=os.getppid())
    return structs.replace(
        settings, http=http, sources=sources, config=config, embedding=embedding, trial=True, log_file=None
    )


def _apart(config: Config, folder: Path) -> Config:
    """The same configuration, with files of its own."""

    def copied(path: str, name: str) -> str:
        keep(expanded(path), folder / name)
        return str(folder / name)

    store = config.store
    if store is not None and store.path:
        keep(Path(store.path), folder / "activity.db")
        store = structs.replace(store, path=str(folder / "activity.db"))
    changed = structs.replace(config, store=store)
    for keys in config.by_feature():
        changed = structs.replace(changed, **structs.asdict(keys.for_trial(copied)))
    return changed
