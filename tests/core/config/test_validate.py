"""What values mean: inherited, floored, moved, resolved; and every rule that can be broken."""

from __future__ import annotations

import pytest

from appliance.core.config.decode import decode
from appliance.core.config.nodes import MappingNode
from appliance.core.config.scalars import parse_duration, parse_size, why_no_base_url
from appliance.core.config.types import DEFAULT_LIMIT, Config, ModelConfig
from appliance.core.config.validate import normalise
from appliance.core.config.yaml import parse

MODELS = """
models:
  a: {cmd: run a, proxy: "http://127.0.0.1:1", aliases: [first]}
  b: {cmd: run b, proxy: "http://127.0.0.1:2"}
  c: {cmd: run c, proxy: "http://127.0.0.1:3"}
"""


def read(text: str) -> tuple[Config, list[str]]:
    root, problems = parse(text, "c.yaml")
    assert not problems, problems
    assert isinstance(root, MappingNode)
    decoded = decode(root)
    config, more = normalise(decoded.config, decoded.places, windows=False)
    return config, [str(problem) for problem in (*decoded.problems, *more)]


def good(text: str) -> Config:
    config, problems = read(text)
    assert problems == []
    return config


def mistake(text: str) -> str:
    _, (line,) = read(text)
    assert "error" in line
    return line


def model(text: str) -> ModelConfig:
    return good(f"models: {{m: {{cmd: run, proxy: 'http://h:1'{', ' if text else ''}{text}}}}}").models["m"]


def test_inherited_values() -> None:
    config = good(
        "healthCheckTimeout: 200\nglobalTTL: 30\nunloadTimeout: 20\nsendLoadingState: true\npatience: 4\n"
        "minLoadedTime: 7\nmodels:\n"
        "  inherits: {cmd: run, proxy: 'http://h:1'}\n"
        "  own: {cmd: run, proxy: 'http://h:1', ttl: 0, unloadTimeout: 3, sendLoadingState: false, patience: 0,\n"
        "        minLoadedTime: 0, healthCheckTimeout: 60}\n"
    )

    def told(name: str) -> tuple[object, ...]:
        m = config.models[name]
        return m.health_check_timeout, m.ttl, m.unload_timeout, m.send_loading_state, m.patience, m.min_loaded_time

    assert told("inherits") == (200, 30, 20, True, 4, 7)
    assert told("own") == (60, 0, 3, False, 0, 0)


def test_defaults_of_globals() -> None:
    config = good("unloadTimeout: 0\nmetricsMaxInMemory: -5\nupstream: {ignorePaths: []}\nperformance: {every: '0'}\n")
    assert config.unload_timeout == 10
    assert config.metrics_max_in_memory == good("metricsMaxInMemory: 0").metrics_max_in_memory == 1000
    assert good("metricsMaxInMemory: 1").metrics_max_in_memory == 1
    assert config.upstream.ignore_paths == [r".*\.(js|json|css|png|gif|jpg|jpeg|ico|txt)$"]
    assert config.performance.every == "5s"
    assert config.capture_buffer == 5
    assert config.patience == 10


def test_session_headers_are_trimmed_and_each_is_there_once() -> None:
    config = good("ui: {activity: {session_id: [' X-A ', '', x-a, X-B, x-A]}}")
    assert config.ui.activity.session_id == ["X-A", "X-B"]
    assert good("ui: {activity: {session_id: []}}").ui.activity.session_id == []
    assert good("logRequests: true").ui.activity.session_id == ["X-Session-ID", "X-Litellm-Session-Id"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("healthCheckTimeout: 3", "c.yaml:1:21: warning: healthCheckTimeout: 3 is less than the minimum; 15 is used"),
        ("logLevel: loud", "warning: logLevel: 'loud' is unknown, 'info' is used"),
        ("logTimeFormat: iso", "warning: logTimeFormat: 'iso' is unknown, '' is used"),
    ],
)
def test_tolerated_with_a_warning(text: str, message: str) -> None:
    _, (line,) = read(text)
    assert message in line


def test_words_are_read_in_any_case() -> None:
    config = good("logLevel: WARN\nlogTimeFormat: RFC3339Nano\n")
    assert (config.log_level, config.log_time_format) == ("warn", "rfc3339nano")
    assert read("healthCheckTimeout: 3")[0].health_check_timeout == 15


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("apiKeys: [good, '']", "apiKeys[1]: is empty"),
        ("apiKeys: [good, sk- 1]", "apiKeys[1]: has a space in it"),
        ("store: {path: ''}", "store.path: is empty"),
        ("store: {}", "store.path: is empty"),
        ("performance: {every: 5}", "performance.every: '5' is not a time with a unit; write 5s for seconds"),
        ("performance: {every: 4s}", "performance.every: 4s is too short; the least is 5s"),
        ("performance: {every: often}", "'often' is not a time with a unit; write it as in 5s or 1m30s"),
        (
            "upstream: {ignorePaths: ['a', '(']}",
            "ignorePaths[1]: '(' cannot be used as a regular expression: missing )",
        ),
        ("upstream: {ignorePaths: ['(?=a)']}", "cannot be used as a regular expression: invalid perl operator"),
        ("startPort: 70000", "startPort: must be at most 65535, and is 70000"),
        ("memory: {vram: 5}", "memory.vram: 'vram' is not a device; devices are ram, gpu0"),
        ("memory: {ram: much}", "memory.ram: 'much' is not a size"),
        ("{modelsMax: 3, server_pool: {num_servers: 2}}", "server_pool.num_servers: is 2, and modelsMax is 3"),
        ("models: {m: {cmd: run}}", "models.m.proxy: is absent, and its default is only for a model whose cmd uses"),
        ("models: {m: {cmd: run, proxy: 'http://h:${PORT}'}}", "models.m.proxy: uses ${PORT}, which only a model has"),
        ("models: {m: {cmd: run, proxy: 'localhost:80'}}", "does not begin with http:// or https://"),
        ("models: {m: {cmd: run, proxy: ''}}", "models.m.proxy: is empty; write where the server listens"),
        ("models: {m: {cmd: run, proxy: 'http://h:port'}}", "is not a URL"),
        ("models: {'': {cmd: run, proxy: 'http://h'}}", "a model needs a name"),
        ("models: {m: {cmd: run, proxy: 'http://h', patience: -2}}", "models.m.patience: must be -1 or more"),
        ("models: {m: {cmd: run, proxy: 'http://h', memory: {gpu0: x}}}", "models.m.memory.gpu0: 'x' is not a size"),
        (MODELS + "hooks: 1", "hooks: must be a mapping"),
    ],
)
def test_globals_and_models_that_cannot_be_used(text: str, message: str) -> None:
    assert message in mistake(text)


def test_a_key_is_never_repeated_in_a_message() -> None:
    for text in ("apiKeys: [secret key]", "apiKeys: secret", "peers: {p: {proxy: 'http://h', apiKey: [secret]}}"):
        _, (line,) = read(text)
        assert "secret" not in line


def test_a_command_is_split_and_may_be_empty() -> None:
    assert model("").argv == ["run"]
    assert good("models: {m: {cmd: \"run --a 'b c'\", proxy: 'http://h'}}").models["m"].argv == ["run", "--a", "b c"]
    config, (line,) = read("models: {m: {name: later}}")
    assert (config.models["m"].argv, config.models["m"].proxy) == ([], "http://localhost:5800")
    assert "warning: models.m: has no cmd, and cannot be started" in line


def test_comfyui_gets_what_its_page_needs() -> None:
    def comfy(limit: int) -> ModelConfig:
        text = f"models: {{comfyui_auto: {{cmd: run, proxy: 'http://h', concurrencyLimit: {limit}}}}}"
        return good(text).models["comfyui_auto"]

    assert [comfy(limit).concurrency_limit for limit in (0, 20, 80)] == [50, 50, 80]
    assert comfy(0).compat.ignore_websockets is True


@pytest.mark.parametrize(("said", "limit"), [(0, DEFAULT_LIMIT), (1, 1), (2, 2)])
def test_a_limit_of_nothing_is_the_usual_one(said: int, limit: int) -> None:
    assert good(f"models: {{m: {{cmd: run, proxy: 'http://h', concurrencyLimit: {said}}}}}").models["m"].limit == limit


def test_variants_become_aliases() -> None:
    text = (
        "models:\n  m:\n    cmd: run\n    proxy: http://h\n    aliases: [m:low]\n"
        "    filters: {setParamsByID: {m: {a: 1}, m:low: {a: 0}, m:high: {a: 2}, 'm:best': {}}}\n"
    )
    assert good(text).models["m"].aliases == ["m:low", "m:best", "m:high"]


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ("aliases: [x]", "aliases: [x]", "models.b.aliases[0]: 'x' is also an alias of 'a'"),
        ("aliases: [x, x]", "", "models.a.aliases[1]: 'x' is listed twice"),
        ("filters: {setParamsByID: {b: {}}}", "", "models.a.filters.setParamsByID.b: 'b' is the id of another model"),
        ("filters: {setParamsByID: {x: {}}}", "aliases: [x]", "setParamsByID.x: 'x' is already an alias of 'b'"),
    ],
)
def test_a_name_belongs_to_one_model(a: str, b: str, message: str) -> None:
    models = [
        f"  {id}: {{cmd: run, proxy: 'http://h'{', ' if more else ''}{more}}}" for id, more in (("a", a), ("b", b))
    ]
    assert message in mistake("models:\n" + "\n".join(models))


def test_an_alias_that_is_an_id_loses_with_a_warning() -> None:
    _, (line,) = read("models: {a: {cmd: run, proxy: 'http://h', aliases: [b]}, b: {cmd: run, proxy: 'http://h'}}")
    assert "warning: models.a.aliases[0]: 'b' is the id of a model, which wins" in line


def test_num_servers_is_models_max() -> None:
    config = good("server_pool: {num_servers: 2}\nplugins_dir: ./plugins\n")
    assert (config.models_max, config.server_pool.num_servers, config.plugins_dir) == (2, None, "./plugins")
    assert good("{modelsMax: 2, server_pool: {num_servers: 2}}").models_max == 2
    assert good("modelsMax: 0").models_max == 0


# ---- who runs beside whom --------------------------------------------------------------------------------------------


def test_models_in_no_group_are_in_the_default_one() -> None:
    for text in (
        "groups: {g: {members: [b], swap: false}}",
        "routing: {router: {settings: {groups: {g: {members: [b], swap: false}}}}}",
    ):
        config = good(MODELS + text)
        assert (config.groups, config.matrix, config.routing.router.use) == (None, None, "group")
        groups = config.routing.router.settings.groups
        assert groups["g"].swap is False
        assert groups["(default)"].members == ["a", "c"]
        assert (groups["(default)"].swap, groups["(default)"].exclusive) == (True, True)


def test_a_default_group_of_the_file_is_overwritten() -> None:
    config, (line,) = read(MODELS + "groups: {(default): {members: [a], swap: false}}")
    assert config.routing.router.settings.groups["(default)"].members == ["a", "b", "c"]
    assert "warning: groups.(default): is made by the program" in line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("groups: {g: {members: [a, a]}}", "groups.g.members[1]: 'a' is twice in this group"),
        ("groups: {g: {members: [a]}, h: {members: [a]}}", "groups.h.members[0]: 'a' is also in the group 'g'"),
        ("groups: {g: {members: [first]}}", "groups.g.members[0]: 'first' is an alias; groups take ids: write 'a'"),
        ("groups: {g: {members: [aa]}}", "groups.g.members[0]: there is no model 'aa'; did you mean 'a'?"),
        ("groups: {g: {}}\nmatrix: {sets: {s: a}}", "a configuration has groups or a matrix, not both"),
        ("groups: {g: {}}\nrouting: {router: {use: group}}", "groups: there is also routing.router.use; move"),
        ("routing: {router: {use: matrix}}", "routing.router.use: is matrix, and there is no routing.router.settings"),
        ("routing: {router: {settings: {groups: {g: {members: [x]}}}}}", "settings.groups.g.members[0]: there is no"),
        ("routing: {scheduler: {settings: {fifo: {priority: {x: 1}}}}}", "fifo.priority.x: there is no model 'x'"),
    ],
)
def test_routing_that_cannot_be_used(text: str, message: str) -> None:
    assert message in mistake(MODELS + text)


def test_an_empty_word_is_no_word() -> None:
    config = good(MODELS + "groups: {g: {members: [a]}}\nrouting: {router: {use: ''}, scheduler: {use: ''}}\n")
    assert "g" in config.routing.router.settings.groups


def test_the_policy_that_is_not_in_use_is_not_examined() -> None:
    settings = "settings: {groups: {g: {members: [nobody]}}, matrix: {sets: {s: nobody}}}"
    assert read(MODELS + f"routing: {{router: {{use: group, {settings}}}}}")[1] != []
    text = MODELS + "routing: {router: {use: group, settings: {matrix: {sets: {s: nobody}}}}}"
    assert good(text).routing.router.settings.matrix is not None
    text = (
        MODELS
        + "routing: {router: {use: matrix, settings: {groups: {g: {members: [nobody]}}, matrix: {sets: {s: a}}}}}"
    )
    assert good(text).routing.router.use == "matrix"


def test_a_matrix_moves_and_all_its_mistakes_have_a_place() -> None:
    config = good(MODELS + "matrix:\n  vars: {x: a}\n  sets: {s: x & b}\n")
    assert config.routing.router.use == "matrix"
    assert config.matrix is None
    _, lines = read(MODELS + "matrix:\n  vars: {x: nobody}\n  sets: {s: a &, t: +gone}\n")
    assert lines[0].startswith("c.yaml:7:13: error: matrix.vars.x")
    assert [line.split(": ")[2] for line in lines] == ["matrix.vars.x", "matrix.sets.s", "matrix.sets.t"]
    _, (line,) = read(MODELS + "routing: {router: {use: matrix, settings: {matrix: {sets: {s: a &}}}}}")
    assert "error: routing.router.settings.matrix.sets.s" in line


def test_priority_under_an_alias_counts_with_a_warning() -> None:
    config, (line,) = read(MODELS + "routing: {scheduler: {settings: {fifo: {priority: {first: 5, b: 2}}}}}")
    assert config.routing.scheduler.settings.fifo.priority == {"b": 2, "a": 5}
    assert "warning: routing.scheduler.settings.fifo.priority.first: 'first' is an alias" in line
    config, (line,) = read(MODELS + "routing: {scheduler: {settings: {fifo: {priority: {first: 5, a: 2}}}}}")
    assert config.routing.scheduler.settings.fifo.priority == {"a": 2}
    assert "has a priority already" in line


def test_preload_holds_ids() -> None:
    config, (line,) = read(MODELS + "hooks: {on_startup: {preload: [' first ', '', b, b, cc]}}")
    assert config.hooks.on_startup.preload == ["a", "b", "b"]
    assert "preload[4]: there is no model 'cc', nothing is loaded for it; did you mean" in line


# ---- names -----------------------------------------------------------------------------------------------------------

PEERS = "peers:\n  p: {proxy: 'http://p:1', models: [x, y/z]}\n  q: {proxy: 'http://q:1', models: [x, w]}\n"


def test_peers_selectors_and_profiles_that_fit_together() -> None:
    config = good(
        MODELS + PEERS + "selectors:\n  s: {strategy: warm, targets: [first, b]}\n  t: {targets: [p/x, w, a]}\n"
        "profiles:\n  day: {pins: {gpt: first, a: p/y/z, b: w, c: s, d: null, e: ''}}\n"
    )
    assert config.profiles["day"].pins == {"gpt": "first", "a": "p/y/z", "b": "w", "c": "s", "d": None, "e": None}
    good(MODELS + PEERS + "selectors: {s: {targets: [x]}}\nprofiles: {n: {pins: {gpt: x}}}\n")  # of several peers
    good("peers: {p: {proxy: 'https://p/v1'}}\nselectors: {s: {targets: [p/anything]}}\n")  # it lists no models


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("peers: {p: {models: [x]}}", "peers.p.proxy: is empty; write the peer's base URL"),
        ("peers: {p: {proxy: 'p:80', models: [x]}}", "peers.p.proxy: 'p:80' does not begin with http://"),
        ("peers: {p: {proxy: 'http://p', models: [x, x]}}", "peers.p.models[1]: 'p/x' is listed twice"),
        ("peers: {p: {proxy: 'http://p', models: ['']}}", "peers.p.models[0]: is empty"),
        (
            "peers: {p: {proxy: 'http://p', models: [q/x]}, p/q: {proxy: 'http://q', models: [x]}}",
            "peers.p/q.models[0]: 'p/q/x' is also a model of the peer 'p'",
        ),
        ("selectors: {s: {targets: []}}", "selectors.s.targets: is empty"),
        ("selectors: {s: {targets: [nobody]}}", "selectors.s.targets[0]: there is no model 'nobody'"),
        ("selectors: {s: {targets: [a]}, t: {targets: [s]}}", "selectors.t.targets[0]: 's' is a selector"),
        ("selectors: {a: {targets: [b]}}", "selectors.a: 'a' is also the id of a model"),
        ("selectors: {first: {targets: [b]}}", "selectors.first: 'first' is also an alias of 'a'"),
        ("selectors: {s: {targets: [a, first]}}", "selectors.s.targets[1]: 'a' and 'first': the same model twice"),
        ("selectors: {s: {strategy: fast, targets: [a]}}", "must be meanwhile, pin, spillover or warm, and is 'fast'"),
        ("selectors: {s: {strategy: spillover, settings: {spillover: 0}, targets: [a]}}", "must be 1 or more"),
        ("selectors: {s: {strategy: meanwhile, targets: [a]}}", "s.targets: has nothing that stands in for the first"),
        ("profiles: {p: {}}", "profiles.p.pins: is empty"),
        ("profiles: {' ': {pins: {x: a}}}", "a profile needs a name"),
        ("profiles: {p: {pins: {'': a}}}", "a pin needs the name that it replaces"),
        ("profiles: {p: {pins: {x: frist}}}", "profiles.p.pins.x: there is no model 'frist'; did you mean 'first'?"),
    ],
)
def test_names_that_cannot_be_used(text: str, message: str) -> None:
    assert message in mistake(MODELS + text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("selectors: {s: {strategy: warm, targets: [p/x]}}", "'p/x' is a peer's; the strategy warm knows models of"),
        ("selectors: {s: {strategy: meanwhile, targets: [x, a]}}", "s.targets[0]: 'x' is a peer's; the strategy mean"),
        ("selectors: {s: {targets: [z]}}", "there is no model 'z'"),
        ("selectors: {p/x: {targets: [a]}}", "the name 'p/x' belongs to this peer, and is also a selector"),
        ("profiles: {n: {pins: {p/x: a}}}", "'p/x' belongs to this peer, and is also a pin of the profile 'n'"),
    ],
)
def test_names_of_peers_are_theirs(text: str, message: str) -> None:
    assert message in mistake(MODELS + PEERS + text)


def test_names_of_peers_clash_with_ids_and_aliases() -> None:
    lines = read("models: {p/x: {cmd: run, proxy: 'http://h', aliases: [q/w]}}\n" + PEERS)[1]
    assert len(lines) == 2
    assert "is also the id of a model; rename one of them" in lines[0]
    assert "is also an alias of 'p/x'" in lines[1]


@pytest.mark.parametrize(
    ("routing", "apart", "evicts"),
    [
        ("", "they are in no group; put them into one group with 'swap: false'", True),
        ("groups: {g: {members: [a, b]}}", "their group 'g' swaps", True),
        ("groups: {g: {swap: false, members: [a]}, h: {members: [b]}}", "they are in different groups (g, h)", True),
        ("groups: {g: {swap: false, members: [a, b]}}", None, False),
        ("groups: {g: {members: [a]}, h: {persistent: true, members: [b]}}", "they are in different groups", False),
        ("matrix: {sets: {s: a | b}}", "no set of the matrix holds all of them", True),
        ("matrix: {sets: {s: a, t: (c | a) & b}}", None, False),
    ],
)
def test_targets_that_cannot_be_loaded_side_by_side_are_told(routing: str, apart: str | None, *, evicts: bool) -> None:
    """An error for a spillover. For the stand-ins of a meanwhile, a warning if the first target's load evicts one."""
    spillover = f"{MODELS}selectors: {{s: {{strategy: spillover, targets: [first, b]}}}}\n{routing}\n"
    if apart is None:
        good(spillover)
    else:
        _, (line,) = read(spillover)
        assert f"error: selectors.s.targets: cannot be loaded side by side: {apart}" in line
    text = f"{MODELS}{PEERS}selectors: {{s: {{strategy: meanwhile, targets: [first, b, p/x]}}}}\n{routing}\n"
    if not evicts:
        good(text)
        return
    config, (line,) = read(text)
    assert config is not None, "it is of some use all the same"
    assert "warning: selectors.s.targets: the load of 'a' unloads b, and nothing stands in for it then" in line


# ---- small things ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5s", 5), ("1m30s", 90), ("0", 0), ("1.5h", 5400), ("250ms", 0.25), ("5", None), ("", None), ("5 s", None)],
)
def test_durations(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *[("12GiB", 12 << 30), ("12Gi", 12 << 30), ("12g", 12 << 30), ("1 MB", 10**6), ("7", 7), ("5B", 5), (9, 9)],
        *[("1.5k", 1536), *((text, None) for text in ("", "GiB", "5i", "5ib", "-5", "5 5", "5PB", -5))],
    ],
)
def test_sizes(text: str | int, size: int | None) -> None:
    assert parse_size(text) == size
    if size is not None:
        assert good(f"memory: {{ram: {text}}}").memory == {"ram": size}


def test_base_urls() -> None:
    for url in ("http://h", "https://h:1/v1/", "http://[::1]:8080", "HTTP://h"):
        assert why_no_base_url(url) is None
    for url in ("h:80", "ftp://h", "http://", "http://h:0", "http://h:99999", "http://[", "http://a b"):
        assert why_no_base_url(url)


ENGINE = "models: {{m: {{cmd: '{cmd}', proxy: 'http://h:1', {keys}}}}}"


def on_engine(keys: str, cmd: str = "llama-server -m x") -> ModelConfig:
    return good(ENGINE.format(cmd=cmd, keys=keys)).models["m"]


def test_a_command_may_stand_for_an_engine_and_name_workers() -> None:
    plain = model("")
    assert (plain.engine, plain.rpc) == ("", [])
    assert on_engine("engine: ' vulkan '").engine == "vulkan"
    assert on_engine("engine: auto", "llama-server.exe -m x").engine == "auto"
    workers = on_engine("rpc: [10.0.0.2, 'Box.local:50060', '10.0.0.2:50052']")
    assert (workers.engine, workers.rpc) == ("auto", ["10.0.0.2:50052", "box.local:50060"])
    for told in ("gpu: ' RTX 4090 '", "gpu: [RTX 4090]", "gpu: [RTX 4090, '']"):
        read = on_engine(told)
        assert (read.engine, read.gpu, read.cards) == ("auto", ["RTX 4090"], ("RTX 4090",))
    assert on_engine("gpu: RTX 4090:2, engine: vulkan").cards == ("RTX 4090:2",)
    assert on_engine("engine: cpu", "llama-server --rpc a,b:1 -m x").rpc == ["a:50052", "b:1"]
    assert on_engine("rpc: [a]", "llama-server --rpc a:50052 -m x").rpc == ["a:50052"]
    assert model("macros: {w: 'a:1'}, env: [A=1]").engine == ""


@pytest.mark.parametrize(
    ("keys", "cmd", "words"),
    [
        ("engine: vulkan", "vllm serve x", "models.m.engine: is for a cmd that begins with llama-server"),
        ("engine: cpu", "/usr/bin/llama-server -m x", "this one begins with '/usr/bin/llama-server'"),
        ("rpc: [a]", "docker run llama-server", "models.m.rpc: is for a cmd"),
        ("gpu: RTX 4090", "docker run llama-server", "models.m.gpu: is for a cmd"),
        ("gpu: RTX 4090", "llama-server -dev CUDA0", "models.m.gpu: is there, and cmd has -dev"),
        ("rpc: [a, '[::1]:5']", "llama-server", "models.m.rpc[1]: '[::1]:5' is an IPv6 address"),
        ("rpc: ['a:0']", "llama-server", "models.m.rpc[0]: 'a:0' has no port"),
        ("rpc: [a]", "llama-server --rpc b", "models.m.rpc: differs from the workers in cmd (b:50052)"),
        ("engine: cpu", "llama-server --rpc [::1]", "models.m.cmd: '[::1]' is an IPv6 address"),
        (f"rpc: [{', '.join(f'h{n}' for n in range(17))}]", "llama-server", "names 17 workers; llama.cpp takes 16"),
    ],
)
def test_engines_and_workers_that_cannot_be(keys: str, cmd: str, words: str) -> None:
    _, problems = read(ENGINE.format(cmd=cmd, keys=keys))
    assert len(problems) == 1
    assert "c.yaml:1:" in problems[0]
    assert words in problems[0]
