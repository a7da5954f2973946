"""Models that may run together: old keys moved to ``routing``, groups completed, matrix and queue checked."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from appliance.core.config.names import Names
from appliance.core.config.nodes import Report
from appliance.core.config.types import GROUP_OF_THE_REST, Config, Group, MatrixConfig, RouterConfig, Routing
from appliance.core.scheduling.matrix import Matrix, check_matrix
from appliance.core.words import did_you_mean

SETTINGS = "routing.router.settings"
PRIORITY = "routing.scheduler.settings.fifo.priority"


def normal_routing(config: Config, names: Names, report: Report) -> Routing:
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


def why_not_together(config: Config, ids: list[str]) -> str | None:
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
    homes = {group_of.get(id, GROUP_OF_THE_REST) for id in ids}
    if len(homes) > 1:
        return f"they are in different groups ({', '.join(sorted(homes))}); put them into one group with 'swap: false'"
    home = homes.pop()
    if groups[home].swap:
        what = "they are in no group" if home == GROUP_OF_THE_REST else f"their group '{home}' swaps"
        return f"{what}; put them into one group with 'swap: false'"
    return None


def _one_place(config: Config, report: Report) -> tuple[RouterConfig, str]:
    """The router settings wherever the file has them, and the path under which it has them ('' for the old place)."""
    router = config.routing.router
    old = [key for key, told in (("groups", config.groups), ("matrix", config.matrix is not None)) if told]
    new = [
        f"routing.router.{key}"
        for key, told in (
            ("use", report.places.given("routing.router.use")),
            ("settings.groups", router.settings.groups),
            ("settings.matrix", router.settings.matrix is not None),
        )
        if told
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


def _check_matrix(matrix: MatrixConfig, names: Names, report: Report, at: str) -> None:
    for error in check_matrix(matrix, names.models):
        path = error.path.removeprefix("matrix").removeprefix(".")
        report.error(f"{at}matrix" + (f".{path}" if path else ""), error.message)


def _normal_groups(groups: Mapping[str, Group], names: Names, report: Report, at: str) -> dict[str, Group]:
    """Groups whose members exist and are in one group only, and the group of the rest."""
    home: dict[str, str] = {}
    for name, group in groups.items():
        if name == GROUP_OF_THE_REST:
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
    told = groups.get(GROUP_OF_THE_REST)
    if told is not None and (sorted(told.members), told.swap, told.exclusive, told.persistent) != (
        rest.members,
        rest.swap,
        rest.exclusive,
        rest.persistent,
    ):
        path = f"{at}groups.{GROUP_OF_THE_REST}"
        report.warn(path, "is made by the program for models in no other group; what the file says there is ignored")
    return {**{name: group for name, group in groups.items() if name != GROUP_OF_THE_REST}, GROUP_OF_THE_REST: rest}


def _no_member(member: str, names: Names) -> str:
    if (id := names.aliases.get(member)) is not None:
        return f"'{member}' is an alias; groups take ids: write '{id}'"
    return f"there is no model '{member}'{did_you_mean(member, names.models)}"


def _normal_priority(config: Config, names: Names, report: Report) -> dict[str, int]:
    """By id. What is said under an id wins over what is said under an alias."""
    told = config.routing.scheduler.settings.fifo.priority
    by_id = {name: priority for name, priority in told.items() if name in names.models}
    for name, priority in told.items():
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
