"""The meaning of a configuration: inherited values filled in, old places moved, every rule checked.

The order and the rules are llama-swap's. It drops or mangles some values silently. Here such a value is a warning if
the file still works as it does there, and an error if it cannot work as it is meant: a group member that is not a
model, a server address that is not a URL, sizes and patterns that cannot be read. Other deliberate differences:

- the model ``healthCheckTimeout`` counts (llama-swap overwrites it with the global one);
- a priority under an alias counts for the model (llama-swap never looks at it);
- a peer may leave out its models;
- ``engine``, ``gpu`` and ``rpc`` of a model, which are for a ``cmd`` that begins with the name of llama-server alone.

The rules of ``store.path`` need the disk; `store` checks them when it opens.

Models that may run together: old keys are moved to ``routing``, groups completed, matrix and queue checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import UNSET, structs

from appliance.core.command_words import split_command
from appliance.core.config.additions import ServerPool
from appliance.core.config.matrix import Matrix, check_matrix
from appliance.core.config.mcp_servers import read_mcp_servers
from appliance.core.config.names import (
    NameTable,
    check_aliases,
    check_peers,
    check_selectors,
    normal_aliases,
    normal_profiles,
)
from appliance.core.config.nodes import PathPlaces, Problem, ProblemReport
from appliance.core.config.scalars import (
    MAX_PATTERN,
    BadRegex,
    check_pattern,
    parse_duration,
    parse_size,
    why_no_base_url,
)
from appliance.core.config.shell_words import shell_words
from appliance.core.config.types import (
    DEFAULT_GROUP,
    Compat,
    Config,
    Group,
    HooksConfig,
    MatrixConfig,
    ModelConfig,
    OnStartup,
    RouterConfig,
    Routing,
    Ui,
    UpstreamConfig,
)
from appliance.core.near_names import did_you_mean
from appliance.core.rpc_workers import AUTO, MAX_WORKERS, NAMES, endpoint_of, stands_for_engine, workers_named
from appliance.core.scheduling.policy import policy_of
from appliance.core.tools.choice import chosen_tools
from appliance.errors import UsageError

LEAST_HEALTH_CHECK = 15
LEAST_PERFORMANCE_PAUSE = 5
UNLOAD_TIMEOUT = 10
METRICS = 1000
LAST_PORT = 65535
COMFYUI = "comfyui_auto"
"""The model behind /comfyui/: its page asks for much at once and keeps a websocket open."""
COMFYUI_LIMIT = 50
DEVICE_FLAGS = ("--device", "-dev")
SETTINGS = "routing.router.settings"
PRIORITY = "routing.scheduler.settings.fifo.priority"
LOG_LEVELS = ("debug", "info", "warn", "error")
TIME_FORMATS = (
    *("ansic", "unixdate", "rubydate", "rfc822", "rfc822z", "rfc850", "rfc1123", "rfc1123z", "rfc3339"),
    *("rfc3339nano", "kitchen", "stamp", "stampmilli", "stampmicro", "stampnano"),
)


def normalise(config: Config, places: PathPlaces, windows: bool) -> tuple[Config, list[Problem]]:
    """The configuration as the program uses it; to be used only when no problem is an error."""
    report = ProblemReport(places)
    config = _normal_globals(config, report)
    models = normal_aliases(config.models, report)
    models = {id: _normal_model(id, model, config, report, windows) for id, model in models.items()}
    config = structs.replace(config, models=models, macros={})
    names = NameTable(config)
    check_aliases(config, names, report)
    check_peers(config, names, report)
    check_selectors(config, names, report)
    routing = _normal_routing(config, names, report)
    config = structs.replace(
        config,
        groups=None,
        matrix=None,
        routing=routing,
        hooks=HooksConfig(on_startup=OnStartup(preload=_normal_preload(config, names, report))),
        profiles=normal_profiles(config, names, report),
    )
    if not any(problem.level == "error" for problem in report.problems):
        _check_side_by_side(config, names, report)
    return config, report.problems


def _normal_globals(config: Config, report: ProblemReport) -> Config:
    _check_keys(config.api_keys, report)
    _check_tools(config, report)
    if config.store is not None and not config.store.path.strip():
        report.error("store.path", "is empty; name a file, or remove 'store' to keep the activity log in memory")
    for keys in config.by_feature():
        keys.check(report.error)
    for key, port in (("startPort", config.start_port), ("ollamaPort", config.ollama_port)):
        if port > LAST_PORT:
            report.error(key, f"must be at most {LAST_PORT}, and is {port}")
    headers = structs.replace(config.ui.activity, session_id=_header_names(config.ui.activity.session_id))
    return structs.replace(
        config,
        health_check_timeout=_floor("healthCheckTimeout", config.health_check_timeout, report),
        log_level=_word("logLevel", config.log_level, LOG_LEVELS, "info", report),
        log_time_format=_word("logTimeFormat", config.log_time_format, TIME_FORMATS, "", report),
        metrics_max_in_memory=config.metrics_max_in_memory if config.metrics_max_in_memory > 0 else METRICS,
        ui=Ui(activity=headers),
        performance=structs.replace(config.performance, every=_normal_pause(config.performance.every, report)),
        unload_timeout=config.unload_timeout or UNLOAD_TIMEOUT,
        upstream=_normal_patterns(config.upstream, report),
        models_max=_models_max(config, report),
        server_pool=ServerPool(),
        memory=_normal_memory("memory", config.memory, report),
        # a Llama Smart Proxy file downloads the models that requests name, as that program does
        auto_download=config.auto_download or ("allow" if config.server_pool.num_servers is not None else "off"),
        auto_download_max=_normal_size("autoDownloadMax", config.auto_download_max, report),
    )


def _check_keys(keys: list[str], report: ProblemReport) -> None:
    """The messages never repeat a key."""
    for n, key in enumerate(keys):
        if not key:
            report.error(f"apiKeys[{n}]", "is empty, and would let nobody in; remove it, or set the variable behind it")
        elif " " in key:
            report.error(f"apiKeys[{n}]", "has a space in it, which no client can send; remove it")


def _check_tools(config: Config, report: ProblemReport) -> None:
    tools = config.tools
    try:
        chosen_tools(tools.enable, runtime=tools.runtime, root=tools.root)
    except UsageError as error:
        report.error("tools", str(error))
    try:
        servers = read_mcp_servers(config.mcp_servers, "mcp_servers")
    except UsageError as error:
        report.error("mcp_servers", str(error))
    else:
        for warning in servers.warnings:
            report.warn("mcp_servers", warning)


def _floor(path: str, seconds: int, report: ProblemReport) -> int:
    if seconds < LEAST_HEALTH_CHECK:
        report.warn(path, f"{seconds} is less than the minimum; {LEAST_HEALTH_CHECK} is used")
    return max(seconds, LEAST_HEALTH_CHECK)


def _word(path: str, text: str, words: tuple[str, ...], default: str, report: ProblemReport) -> str:
    word = text.strip().lower()
    if word in words or word == default:
        return word
    if word:
        report.warn(path, f"'{text}' is unknown, '{default}' is used; known are {', '.join(words)}")
    return default


def _header_names(names: list[str]) -> list[str]:
    """Trimmed, without blanks, each once however it is spelled."""
    first: dict[str, str] = {}
    for name in names:
        if stripped := name.strip():
            first.setdefault(stripped.lower(), stripped)
    return list(first.values())


def _normal_pause(every: str, report: ProblemReport) -> str:
    path = "performance.every"
    seconds = parse_duration(every)
    if seconds is None:
        advice = f"write {every}s for seconds" if every.strip().isdecimal() else "write it as in 5s or 1m30s"
        report.error(path, f"'{every}' is not a time with a unit; {advice}")
    elif seconds == 0:
        return "5s"
    elif seconds < LEAST_PERFORMANCE_PAUSE:
        report.error(path, f"{every} is too short; the least is {LEAST_PERFORMANCE_PAUSE}s")
    return every


def _normal_patterns(upstream: UpstreamConfig, report: ProblemReport) -> UpstreamConfig:
    usual = UpstreamConfig()
    if not upstream.ignore_paths or upstream.ignore_paths == usual.ignore_paths:
        return usual
    for n, pattern in enumerate(upstream.ignore_paths):
        try:
            check_pattern(pattern)
        except BadRegex as why:
            shown = f"'{pattern}'" if len(pattern) <= MAX_PATTERN else f"a text of {len(pattern)} characters"
            report.error(f"upstream.ignorePaths[{n}]", f"{shown} cannot be used as a regular expression: {why}")
    return upstream


def _models_max(config: Config, report: ProblemReport) -> int | None:
    servers = config.server_pool.num_servers
    if servers is None or config.models_max in (None, servers):
        return servers if config.models_max is None else config.models_max
    report.error(
        "server_pool.num_servers", f"is {servers}, and modelsMax is {config.models_max}; they mean the same, remove one"
    )
    return config.models_max


def _normal_memory(path: str, memory: Mapping[str, str | int], report: ProblemReport) -> dict[str, str | int]:
    sizes: dict[str, str | int] = {}
    for device, size in memory.items():
        here = f"{path}.{device}"
        if not re.fullmatch(r"ram|gpu\d+", device):
            report.error(here, f"'{device}' is not a device; devices are ram, gpu0, gpu1 and so on")
        sizes[device] = _normal_size(here, size, report)
    return sizes


def _normal_size(path: str, size: str | int, report: ProblemReport) -> int:
    value = parse_size(size)
    if value is None:
        report.error(path, f"'{size}' is not a size; write it as in 12GiB, 500MB, or in bytes")
    return value or 0


def _normal_model(id: str, model: ModelConfig, config: Config, report: ProblemReport, windows: bool) -> ModelConfig:
    path = f"models.{id}"
    model = structs.replace(model, argv=split_command(model.cmd, windows=windows))
    for key, text in (("cmd", model.cmd), ("cmdStop", model.cmd_stop)):
        for why in shell_words(text, windows=windows):
            report.warn(f"{path}.{key}", why)
    _check_model(path, id, model, report)
    model = _normal_engine(path, model, report)
    limit, compat = model.concurrency_limit, model.compat
    if id == COMFYUI:
        limit, compat = max(limit, COMFYUI_LIMIT), Compat(ignore_websockets=True)
    own_check = model.health_check_timeout
    return structs.replace(
        model,
        proxy=model.proxy if model.argv else model.proxy.replace("${PORT}", str(config.start_port)),
        check_endpoint=model.check_endpoint.strip(),
        ttl=config.global_ttl if model.ttl < 0 else model.ttl,
        unload_timeout=model.unload_timeout or config.unload_timeout,
        concurrency_limit=max(limit, 0),
        compat=compat,
        send_loading_state=config.send_loading_state if model.send_loading_state is UNSET else model.send_loading_state,
        repair_messages=config.repair_messages if model.repair_messages is UNSET else model.repair_messages,
        health_check_timeout=(
            _floor(f"{path}.healthCheckTimeout", own_check, report) if own_check else config.health_check_timeout
        ),
        memory=_normal_memory(f"{path}.memory", model.memory, report),
        patience=config.patience if model.patience < 0 else model.patience,
        min_loaded_time=config.min_loaded_time if model.min_loaded_time < 0 else model.min_loaded_time,
        macros={},
    )


def _check_model(path: str, id: str, model: ModelConfig, report: ProblemReport) -> None:
    if not id.strip():
        report.error(path, "a model needs a name")
    if not model.argv:
        report.warn(path, "has no cmd, and cannot be started")
    if "${PORT}" in model.proxy:
        if model.argv and "${" not in model.cmd:  # else a macro failed that may have had the port
            report.error(f"{path}.proxy", f"{_portless(path, report)}, as in proxy: http://127.0.0.1:8080")
    elif why := why_no_base_url(model.proxy):
        report.error(f"{path}.proxy", f"{why}; write where the server listens, as in http://127.0.0.1:8080")
    for n, text in enumerate(model.env):
        if "=" not in text.removeprefix("="):
            report.warn(f"{path}.env[{n}]", "is not of the form NAME=value, and has no effect")
    if "model" in model.filters.set_params:
        report.warn(f"{path}.filters.setParams.model", "is ignored; useModelName sets the model's name")


def _portless(path: str, report: ProblemReport) -> str:
    is_given = report.places.given(f"{path}.proxy")
    what = "uses ${PORT}, which only a model has" if is_given else "is absent, and its default is only for a model"
    return f"{what} whose cmd uses ${{PORT}}; write where the server listens"


def _normal_engine(path: str, model: ModelConfig, report: ProblemReport) -> ModelConfig:
    """The model with these keys as the program uses them. ``argv`` is known; its workers are then also in ``rpc``."""
    engine, cards = model.engine.strip(), model.cards
    if not engine and not cards and not model.rpc:
        return model
    if model.argv and not stands_for_engine(model.argv):
        key = "engine" if engine else "gpu" if cards else "rpc"
        report.error(
            f"{path}.{key}",
            f"is for a cmd that begins with {NAMES[0]}, which the program's own engine takes the place of; this one "
            f"begins with '{model.argv[0]}'. Write {NAMES[0]} there, or remove {key}",
        )
    if cards and (flag := next((word for word in model.argv if word in DEVICE_FLAGS), None)):
        report.error(f"{path}.gpu", f"is there, and cmd has {flag}; name the graphics cards in one place")
    return structs.replace(model, engine=engine or AUTO, gpu=list(cards), rpc=_workers(path, model, report))


def _workers(path: str, model: ModelConfig, report: ProblemReport) -> list[str]:
    workers: dict[str, None] = {}
    for n, text in enumerate(model.rpc):
        try:
            workers[endpoint_of(text)] = None
        except UsageError as error:
            report.error(f"{path}.rpc[{n}]", str(error))
    if len(workers) > MAX_WORKERS:
        report.error(f"{path}.rpc", f"names {len(workers)} workers; llama.cpp takes {MAX_WORKERS} at most")
    try:
        named = list(workers_named(model.argv[1:]))
    except UsageError as error:
        report.error(f"{path}.cmd", str(error))
        return list(workers)
    if named and model.rpc and named != list(workers):
        report.error(f"{path}.rpc", f"differs from the workers in cmd ({', '.join(named)}); name them in one place")
    return list(workers) or named


def _normal_routing(config: Config, names: NameTable, report: ProblemReport) -> Routing:
    """``routing`` with one policy that is checked against the models; the policy that is not in use stays as it is."""
    router, at = _one_place(config, report)
    settings = router.settings
    if router.use == "matrix":
        if settings.matrix is None:
            report.error("routing.router.use", f"is matrix, and there is no {SETTINGS}.matrix; add it, or use group")
        else:
            _check_matrix(settings.matrix, names, report, at)
    else:
        settings = structs.replace(settings, groups=_normal_groups(settings.groups, names, report, at))
    fifo = structs.replace(config.routing.scheduler.settings.fifo, priority=_normal_priority(config, names, report))
    queue = structs.replace(config.routing.scheduler.settings, fifo=fifo)
    return Routing(
        router=structs.replace(router, settings=settings),
        scheduler=structs.replace(config.routing.scheduler, settings=queue),
    )


def _one_place(config: Config, report: ProblemReport) -> tuple[RouterConfig, str]:
    """The router settings wherever the file has them, and the path under which it has them ('' for the old place)."""
    router = config.routing.router
    old = [key for key, is_used in (("groups", config.groups), ("matrix", config.matrix is not None)) if is_used]
    new = [
        f"routing.router.{key}"
        for key, is_used in (
            ("use", report.places.given("routing.router.use")),
            ("settings.groups", router.settings.groups),
            ("settings.matrix", router.settings.matrix is not None),
        )
        if is_used
    ]
    if not old:
        return router, f"{SETTINGS}."
    if len(old) == 2:
        report.error("matrix", "a configuration has groups or a matrix, not both; remove one of them")
    if new:
        report.error(old[0], f"there is also {new[0]}; move '{old[0]}' into {SETTINGS} and remove the old key")
        return router, f"{SETTINGS}."
    settings = structs.replace(router.settings, groups=config.groups or {}, matrix=config.matrix)
    return RouterConfig(use="matrix" if config.matrix is not None else "group", settings=settings), ""


def _check_matrix(matrix: MatrixConfig, names: NameTable, report: ProblemReport, at: str) -> None:
    for error in check_matrix(matrix, names.models):
        report.error(f"{at}matrix.{error.path}", error.message)


def _normal_groups(groups: Mapping[str, Group], names: NameTable, report: ProblemReport, at: str) -> dict[str, Group]:
    """Groups whose members exist and are in one group only, and the group of the rest."""
    home: dict[str, str] = {}
    for name, group in groups.items():
        if name == DEFAULT_GROUP:
            continue
        for n, member in enumerate(group.members):
            path = f"{at}groups.{name}.members[{n}]"
            if (other := home.get(member)) is not None:
                where = "twice in this group" if other == name else f"also in the group '{other}'"
                report.error(path, f"'{member}' is {where}; a model is in one group, once")
            home.setdefault(member, name)
            if member not in names.models:
                report.error(path, _no_member(member, names))
    rest = Group(members=sorted(id for id in names.models if id not in home))
    given = groups.get(DEFAULT_GROUP)
    if given is not None and structs.replace(given, members=sorted(given.members)) != rest:
        path = f"{at}groups.{DEFAULT_GROUP}"
        report.warn(path, "is made by the program for models in no other group; its entry in the file is ignored")
    return {**{name: group for name, group in groups.items() if name != DEFAULT_GROUP}, DEFAULT_GROUP: rest}


def _no_member(member: str, names: NameTable) -> str:
    if (id := names.aliases.get(member)) is not None:
        return f"'{member}' is an alias; groups take ids: write '{id}'"
    return f"there is no model '{member}'{did_you_mean(member, names.models)}"


def _normal_priority(config: Config, names: NameTable, report: ProblemReport) -> dict[str, int]:
    """By id. What is said under an id wins over what is said under an alias."""
    given = config.routing.scheduler.settings.fifo.priority
    by_id = {name: priority for name, priority in given.items() if name in names.models}
    for name, priority in given.items():
        if name in names.models:
            continue
        if (id := names.local(name)) is None:
            report.error(f"{PRIORITY}.{name}", f"there is no model '{name}'{did_you_mean(name, names.models)}")
        elif id in by_id:
            report.warn(f"{PRIORITY}.{name}", f"'{name}' is an alias of '{id}', which has a priority already; ignored")
        else:
            report.warn(f"{PRIORITY}.{name}", f"'{name}' is an alias; taken as the priority of '{id}'")
            by_id[id] = priority
    return by_id


def _normal_preload(config: Config, names: NameTable, report: ProblemReport) -> list[str]:
    ids: list[str] = []
    for n, entry in enumerate(config.hooks.on_startup.preload):
        path = f"hooks.on_startup.preload[{n}]"
        name = entry.strip()
        if (id := names.local(name)) is not None:
            ids.append(id)
        elif name:
            report.warn(path, f"there is no model '{name}', nothing is loaded for it{did_you_mean(name, names.models)}")
    return ids


def _check_side_by_side(config: Config, names: NameTable, report: ProblemReport) -> None:
    """The targets of a spillover must be able to run side by side, else it could never spill over.

    A stand-in that the first target evicts answers only until that one's load begins.
    """
    for id, selector in config.selectors.items():
        path = f"selectors.{id}.targets"
        ids = [real for target in selector.targets if (real := names.local(target)) is not None]
        if selector.strategy == "spillover" and (why := _why_not_together(config, ids)):
            report.error(path, f"cannot be loaded side by side: {why}")
        if selector.strategy == "meanwhile" and (evicted := policy_of(config).plan(ids[0], ids[1:]).evict):
            report.warn(
                path,
                f"the load of '{ids[0]}' unloads {', '.join(evicted)}, and nothing stands in for it then; let them run "
                "side by side: in a group with 'swap: false', in one that is 'persistent: true', or in a matrix's set",
            )


def _why_not_together(config: Config, ids: list[str]) -> str | None:
    """Why these models (ids) can not all be loaded at once, None when they can. ``config`` is normalised."""
    if len(ids) < 2:
        return None
    router = config.routing.router
    if router.use == "matrix":
        if router.settings.matrix is None:
            return None
        choice = Matrix(router.settings.matrix, config.models).solve(ids[0], ids[1:])
        return "no set of the matrix holds all of them; add one" if choice.evict else None
    groups = router.settings.groups
    group_of = {member: name for name, group in groups.items() for member in group.members}
    homes = {group_of.get(id, DEFAULT_GROUP) for id in ids}
    if len(homes) > 1:
        return f"they are in different groups ({', '.join(sorted(homes))}); put them into one group with 'swap: false'"
    home = homes.pop()
    if groups[home].swap:
        what = "they are in no group" if home == DEFAULT_GROUP else f"their group '{home}' swaps"
        return f"{what}; put them into one group with 'swap: false'"
    return None
