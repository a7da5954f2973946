"""The page in a real browser, against the installed program: `tests/web/scenarios` says what is done there."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
import trio
from config_files import ConfigFile
from engine_folders import HERE, Lie, Listed, make_build
from fake_nvml_library import build as build_nvml
from gguf_files import write_model
from hub_process import FakeHub
from kept_conversations import seats
from kept_files import kept_one, opened
from page_fixtures import SIZE, Play
from page_texts import ENDS, FOLDED, GROWING, HOSTILE, PREVIEWED, RIGHT_TO_LEFT, SPOKEN, TABLE
from plugin_folders import write_plugin
from program import ANY_PORT, Server, StartServer, answer, http
from waiting import wait

from appliance.core.engine import EMBEDDED
from appliance.core.records.activity import Row, Tokens
from appliance.core.versions import StepDone, UpdateBegun
from appliance.features.embedded import available
from appliance.features.engines.shelf import StateFile
from appliance.store.activity_schema import open_file
from appliance.store.activity_table import ActivityTable
from appliance.store.model_files import taken_in

ROOT = Path(__file__).resolve().parents[2]
FAKE_MCP = {"s": {"command": sys.executable, "args": [str(ROOT / "tests" / "fakes" / "mcp_server.py")]}}
COUNTING = {"FAKE_TOKENS": "4000", "FAKE_TOKEN_DELAY": "0.05"}
BRIEF = {"FAKE_TOKENS": "60", "FAKE_TOKEN_DELAY": "0.05"}
ENDLESS = {"FAKE_TOKENS": "4000", "FAKE_TOKEN_DELAY": "0.02"}
REFUSAL = "request (9000 tokens) exceeds the available context size (4096 tokens), try increasing it"
OTHERS = ("--model", "other.gguf", "--model", "third.gguf")
STEEPEST = {"parts": 2, "code": 2, "list": 2, "table": 2.5}
"""How much more a frame may cost late in each: a table is laid out as a whole, because its columns fit all rows."""
DEMO_ANSWERS = (
    "Llama Appliance is a program",
    "Your text stays on this computer",
    "GGUF is a file",
    "Once upon a time",
)
WORD_NAMES = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
LAN = "192.0.2.1"
CUT_OFF = f'ip link set lo up; ip address add {LAN}/32 dev lo; exec "$@"'
MICROPHONE = "BROWSER_ARGS=--use-fake-device-for-media-stream"
Killable = Callable[..., tuple[Server, dict[str, Callable[[], object]]]]
ServeFile = Callable[..., Server]
ALLOWED = f"{MICROPHONE} --use-fake-ui-for-media-stream --autoplay-policy=no-user-gesture-required"


def says(*turns: Mapping[str, object]) -> dict[str, str]:
    """The environment in which the engine says this, turn by turn."""
    return {"FAKE_SCRIPT": json.dumps(turns)}


def call(number: int, name: str, **arguments: str) -> dict[str, object]:
    return {"calls": [{"name": name, "id": f"c{number}", "arguments": json.dumps(arguments)}]}


class Scenario(NamedTuple):
    """One that needs nothing but a server with these words in this environment. It says in its file what it shows."""

    name: str
    words: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    main_flow: bool = False


REFUSED = f"{MICROPHONE} --deny-permission-prompts"
FULL = f"data: {json.dumps({'error': {'code': 400, 'message': REFUSAL}})}\n\n"
PLAIN = (
    "talking.summed screens.prefix questions.settings views.failing views.late views.early finding.looks "
    "keeping.overtaken keeping.refused keeping.odd reading.printed reading.painted others.several"
)
MAIN_FLOWS = (
    "screens.german years.answers views.found finding.hits finding.keys reading.formulas reading.files reading.code"
)
ONE_AT_A_TIME = ("--models-max", "1", *OTHERS[:2])
SCENARIOS = [
    *(Scenario(name) for name in PLAIN.split()),
    *(Scenario(name, main_flow=True) for name in MAIN_FLOWS.split()),
    Scenario("talking.resume", env=COUNTING),
    Scenario("talking.closed", env=BRIEF, main_flow=True),
    Scenario("talking.long", env={"FAKE_TOKENS": "64", "FAKE_TOKEN_SIZE": str(1 << 14)}),
    Scenario("talking.compare", OTHERS[:2]),
    Scenario("talking.here", ("--no-conversations",), BRIEF),
    Scenario("talking.walk", env={"FAKE_TOKENS": "12", "FAKE_TOKEN_DELAY": "0.01"}, main_flow=True),
    Scenario("screens.layouts", env=says({"text": RIGHT_TO_LEFT})),
    Scenario("years.chats", env=BRIEF),
    Scenario("years.long", env={"FAKE_TOKENS": "20000", "FAKE_TOKEN_DELAY": "0.005"}),
    Scenario("screens.key", ("--api-key", "secret")),
    Scenario(
        "questions.mcp",
        ("--mcp-servers-json", json.dumps({"mcpServers": FAKE_MCP})),
        says(call(1, "s_echo", message="hello"), {"text": "All is said."}),
    ),
    Scenario("machine.memory", ONE_AT_A_TIME, ENDLESS, main_flow=True),
    Scenario("machine.now", ONE_AT_A_TIME, ENDLESS, main_flow=True),
    Scenario("machine.why", (*ONE_AT_A_TIME, *OTHERS[2:]), main_flow=True),
    Scenario("speed.curves", ONE_AT_A_TIME, main_flow=True),
    Scenario("machine.logs", OTHERS[:2], main_flow=True),
    Scenario("boxes.boxes", ("--admin",), main_flow=True),
    Scenario("agents.cancel", env=says({"text": "so far", "stall": True})),
    Scenario(
        "playground.load",
        ONE_AT_A_TIME,
        {"FAKE_TOKENS": "4000", "FAKE_TOKEN_DELAY": "0.03", "FAKE_LOAD_DELAY": "1", "FAKE_SLOW_PROMPT": "0.5"},
        main_flow=True,
    ),
    Scenario("finding.quiet", ("--no-conversations",), COUNTING, main_flow=True),
    Scenario("keeping.stops", OTHERS, ENDLESS, main_flow=True),
    Scenario("keeping.scrolling", env={"FAKE_TOKENS": "1500", "FAKE_TOKEN_DELAY": "0.0005"}, main_flow=True),
    Scenario("keeping.reading", env={"FAKE_TOKENS": "9000", "FAKE_TOKEN_DELAY": "0.005"}),
    Scenario("keeping.full", env=says({"text": "One."}, {"raw": FULL, "done": False})),
    Scenario("output.hostile", env=says({"text": HOSTILE})),
    Scenario("output.tables", env=says({"text": TABLE}), main_flow=True),
    Scenario("output.folds", env=says({"text": FOLDED, "pace": 0.05})),
    Scenario("starting.phases", env={"FAKE_LOAD_DELAY": "3", "FAKE_SLOW_PROMPT": "1", "FAKE_STALL_AFTER_TOKENS": "5"}),
    Scenario("starting.queued", ONE_AT_A_TIME, {**COUNTING, "FAKE_LOAD_DELAY": "1"}),
    Scenario("starting.carets", env=says(*({"text": text, "stall": True} for text in ENDS))),
]


@pytest.fixture
def file(fake_engine: Path, tmp_path: Path) -> ConfigFile:
    """A configuration of models on the scripted engine."""
    return ConfigFile(tmp_path / "config.yaml", fake_engine, "--model", write_model(tmp_path / "small.gguf"))


@pytest.fixture
def serve_file(serve: StartServer, file: ConfigFile) -> ServeFile:
    """Start a server with these models, and with what else the configuration says."""

    def start(models: Mapping[str, dict[str, object]], env: Mapping[str, str] = {}, **top: object) -> Server:
        return serve("--config", file.write(models, **top), "--no-stores", "--no-starter", **env)

    return start


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A file that the tools may write, and that is not there yet."""
    (tmp_path / "files").mkdir()
    return tmp_path / "files" / "note.txt"


@pytest.mark.parametrize(
    "scenario",
    [pytest.param(each, id=each.name, marks=pytest.mark.main_flow if each.main_flow else ()) for each in SCENARIOS],
)
def test_a_scenario(play: Play, serve_fake: StartServer, scenario: Scenario) -> None:
    play(scenario.name, serve_fake(*scenario.words, **scenario.env))


def test_with_the_starter_model(play: Play, serve: StartServer) -> None:
    if not available():
        pytest.skip("the embedded engine is not on this machine")
    play("talking.chat", serve("--no-stores", engine=EMBEDDED))


# ---- servers and engines that die ------------------------------------------------------------------------------------


@pytest.fixture
def killable(serve_fake: StartServer) -> Killable:
    """A server, and the steps that kill it and start it again at its place, ``afterwards`` with another environment."""

    def start(afterwards: Mapping[str, str] = {}, **env: str) -> tuple[Server, dict[str, Callable[[], object]]]:
        running: list[Server] = [serve_fake(**env)]
        place = f"{running[0].host}:{running[0].port}"

        def kill() -> None:
            running[-1].process.kill()
            running[-1].process.wait(10)

        return running[0], {
            "kill": kill,
            "start": lambda: running.append(serve_fake(listen=place, **{**env, **afterwards})),
        }

    return start


@pytest.mark.slow
@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_any_request_loses_no_question(play: Play, killable: Killable, after: bool, existing: bool) -> None:
    """``after``: the server has the request, and the page does not hear of it."""
    server, steps = killable()
    play("keeping.between", server, after, existing, **steps)


@pytest.mark.main_flow
@pytest.mark.parametrize(("scenario", "afterwards"), [("keeping.drafts", ENDLESS), ("keeping.rescued", BRIEF)])
def test_a_dead_server_takes_nothing_along(
    play: Play, killable: Killable, scenario: str, afterwards: dict[str, str]
) -> None:
    server, steps = killable(afterwards, **ENDLESS)
    play(scenario, server, **steps)


def test_the_page_outlives_a_killed_engine(play: Play, serve_fake: StartServer) -> None:
    server = serve_fake(FAKE_TOKENS="200", FAKE_TOKEN_DELAY="0.05")
    # A process that was started before its engine's devices are known has another to fall back to: the same, named.
    server.wait_for(lambda: not any(seat["id"].endswith(":") for seat in seats(server)))

    def kill() -> None:
        engines = [child for child in server.children() if "--port" in child.cmdline()]
        assert engines
        for engine in engines:
            engine.kill()

    play("talking.engine", server, kill=kill)


@pytest.mark.main_flow
def test_the_cache_its_misses_and_the_contexts_in_files(play: Play, serve_fake: StartServer, tmp_path: Path) -> None:
    async def keep() -> None:
        async with opened(tmp_path / "xdg_data_home" / "llama-appliance" / "contexts") as kept:
            one = await kept_one(kept, model="small")
            await kept.used(one.name, 1234)

    trio.run(keep)
    play("cache.reasons", serve_fake("--keep-context", "disk"))


# ---- what reaches beyond the page ------------------------------------------------------------------------------------


def test_a_preview_of_html_reaches_nothing(play: Play, serve_fake: StartServer, tmp_path: Path) -> None:
    """Not even a connection, or the look for a name; the same HTML outside of the preview does all that."""
    log = tmp_path / "net.json"
    logged = ("env", f"BROWSER_ARGS=--log-net-log={log}")
    with (
        socket.create_server(("127.0.0.1", 0)) as elsewhere,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        place = f"127.0.0.1:{elsewhere.getsockname()[1]}"
        datagrams.bind(elsewhere.getsockname())
        reached = [elsewhere, datagrams]

        def nothing() -> None:
            assert select.select(reached, [], [], 0)[0] == []

        def everything() -> None:
            wait(lambda: select.select(reached, [], [], 0)[0] == reached)

        text = PREVIEWED.replace("ELSEWHERE", f"http://{place}").replace("PLACE", place)
        server = serve_fake(**says({"text": text.replace("NAME", "preview.example")}))
        play("output.preview", server, within=logged, nothing=nothing, everything=everything)
    found = log.read_text("utf-8", "replace")
    assert "control.example" in found
    assert "preview.example" not in found


@pytest.mark.needs("namespaces", "ip", "nsenter")
def test_on_plain_http_without_a_network(play: Play, serve_fake: StartServer) -> None:
    server = serve_fake(
        "--api-key", "secret", listen=f"{LAN}:0", under=("unshare", "--net", "sh", "-c", CUT_OFF, "sh"),
        **says({"text": "```python\ndef f(): return 1\n```"}),
    )  # fmt: skip
    inside = ("nsenter", f"--net=/proc/{server.process.pid}/ns/net")
    play("screens.lan", server, within=inside)


# ---- the hub, and the first minutes ----------------------------------------------------------------------------------


@pytest.fixture
def from_hub(hub: FakeHub, tmp_path: Path) -> dict[str, str]:
    return {"MODEL_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "cache")}


def test_a_model_is_fetched_and_paused(
    play: Play, serve_fake: StartServer, hub: FakeHub, from_hub: dict[str, str]
) -> None:
    whole = (hub.root / "acme/big-GGUF" / "big-Q8_0.gguf").stat().st_size
    hub.behave(rate=2_000_000)

    def paused() -> None:
        assert 0 < hub.sent() < whole

    came = {"came": lambda: wait(lambda: hub.sent() > SIZE // 16), "paused": paused, "fast": hub.behave}
    play("models.pull", serve_fake(**from_hub), **came)
    assert hub.sent() < 2 * whole


def test_a_profile_is_chosen(play: Play, serve_file: ServeFile) -> None:
    work = {"description": "What is used at work", "pins": {"work-chat": "small"}}
    profiles = {"work": work, "home": {"pins": {"home-chat": "small"}}}
    play("models.profiles", serve_file({"small": {}}, profiles=profiles))


@pytest.mark.main_flow
def test_what_a_removal_frees_is_said_before_it(
    play: Play, serve_fake: StartServer, hub: FakeHub, from_hub: dict[str, str]
) -> None:
    """Two models share their contents, and the disk has the last word."""
    file = write_model(hub.root / "acme/pair-GGUF" / "pair-Q8_0.gguf", weights=SIZE // 16)
    shutil.copyfile(file, file.with_name("pair-F16.gguf"))
    server = serve_fake(**from_hub)
    for tag in ("Q8_0", "F16"):
        http(server, "POST", "/models", {"model": f"acme/pair-GGUF:{tag}"})
        server.wait_for(lambda tag=tag: f"pair-GGUF:{tag}" in stored(server))
    hub.behave(rate=2_000_000)
    cache, before = Path(from_hub["HF_HUB_CACHE"]), dict[str, int]()

    def note() -> None:
        before.update({**stored(server), "": taken_in(cache).bytes})

    def compare() -> None:
        (gone,) = before.keys() - stored(server).keys() - {""}
        assert before[""] - taken_in(cache).bytes == before.pop(gone)

    def empty() -> None:
        assert not [path for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"]

    play("disk.disk", server, before=note, after=compare, nothing=empty, fast=hub.behave)


def stored(server: Server) -> dict[str, int]:
    """What the removal of each model of the cache frees."""
    models = http(server, "GET", "/api/disk").json()["models"]
    return {one["model"].removeprefix("acme/"): one["frees"] for one in models if one["source"] == "cache"}


@pytest.mark.main_flow
def test_the_first_model_and_the_first_question(
    play: Play, serve: StartServer, hub: FakeHub, from_hub: dict[str, str]
) -> None:
    hub.behave(rate=4_000_000)
    play("models.first", serve("--no-starter", "--no-stores", **from_hub), coming=hub.behave)


@pytest.mark.main_flow
def test_what_fits_and_a_search_of_the_hub(play: Play, serve_fake: StartServer, from_hub: dict[str, str]) -> None:
    play("models.hub", serve_fake(**from_hub))


@pytest.mark.needs("cc")
def test_a_card_that_no_engine_uses_is_offered_one(play: Play, serve: StartServer, tmp_path: Path) -> None:
    """By a driver's library that tells of cards, and the real list of builds."""
    build_nvml(tmp_path / "lib")
    (tmp_path / "lib" / "libvulkan.so.1").symlink_to("libnvidia-ml.so.1")
    server = serve("--no-stores", LD_LIBRARY_PATH=str(tmp_path / "lib"))
    server.wait_for(lambda: http(server, "GET", "/api/engines").json()["offers"])  # the first look takes a moment
    play("models.engines", server)


@pytest.mark.main_flow
@pytest.mark.parametrize("scenario", ["starting.dismissed", "starting.tried", "starting.real", "starting.carried"])
def test_the_demo_is_not_taken_for_a_model(
    play: Play, serve: StartServer, hub: FakeHub, from_hub: dict[str, str], scenario: str
) -> None:
    """As it is after the installation. Without a hub the cards say what to carry."""
    play(scenario, serve("--no-stores", **from_hub), gone=hub.stop)


def test_the_demo_answers_the_questions_that_the_page_offers(serve: StartServer) -> None:
    """The first words of its answers: it has one for each thing that it knows."""
    if not available():
        pytest.skip("the embedded engine is not on this machine")
    server = serve("--no-stores", engine=EMBEDDED)
    text = (ROOT / "appliance" / "web" / "src" / "i18n" / "first.ts").read_text("utf-8")
    for language in ("en", "de"):
        asked = re.findall(rf'^  demo\d: .*{language}: "(.*?)"', text, re.MULTILINE)
        for question, begin in zip(asked, DEMO_ANSWERS, strict=True):
            messages = [{"role": "user", "content": question}]
            said = answer(server, "/v1/chat/completions", model="starter", messages=messages)
            assert said["choices"][0]["message"]["content"].startswith(begin), question


def test_every_question_of_the_page_can_be_left(play: Play, serve_fake: StartServer, from_hub: dict[str, str]) -> None:
    server = serve_fake(**from_hub)
    http(server, "POST", "/models", {"model": "acme/big-GGUF:Q8_0"})

    def kept() -> None:
        assert b"acme/big" in http(server, "GET", "/v1/models").body

    play("questions.dialogs", server, kept=kept)


def test_a_damaged_file_needs_attention(play: Play, serve_fake: StartServer, tmp_path: Path) -> None:
    torn = tmp_path / "models" / "torn.gguf"
    torn.parent.mkdir()
    torn.write_bytes(b"GGUF")
    play("machine.attention", serve_fake("--models-dir", "models"), mended=torn.unlink)


@pytest.fixture
def builds(tmp_path: Path) -> Path:
    """The folder of engines: two releases of one line, and a build for cards that computes garbage."""
    root = tmp_path / "engines"
    make_build(root, "cpu", "b100")
    make_build(root, "cpu", "b200")
    make_build(root, "vulkan", "b100", devices=[Listed(name="Vulkan0")], lie=Lie(work="garbage"))
    return root


def test_engines_are_tried_and_a_bundle_is_read_before_it_is_saved(
    play: Play, start_server: StartServer, builds: Path
) -> None:
    server = start_server("serve", *ANY_PORT, "--no-stores", env={"LLAMA_APPLIANCE_ENGINES_DIR": str(builds)})
    play("engines.engines", server, f"{HERE}-cpu/b200:CPU", f"{HERE}-vulkan/b100:Vulkan0")


def test_an_engine_is_chosen_in_the_page_where_the_server_lets_clients_choose(
    play: Play, start_server: StartServer, builds: Path
) -> None:
    before, after = f"{HERE}-cpu/b100", f"{HERE}-cpu/b200"
    StateFile(builds).apply([UpdateBegun(build=after, old=before, at=1.0), *[StepDone(time.time())] * 5])
    env = {"LLAMA_APPLIANCE_ENGINES_DIR": str(builds)}
    server = start_server("serve", *ANY_PORT, "--no-stores", "--admin", env=env)
    assert http(server, "POST", "/api/engines/prove").status == 200
    play("engines.chosen", server, f"{before}:CPU", f"{after}:CPU")


# ---- files, tools, speech --------------------------------------------------------------------------------------------


def test_files_and_parameters_reach_the_model(play: Play, serve_fake: StartServer, tmp_path: Path) -> None:
    write_model(tmp_path / "models" / "watcher" / "watcher.gguf")
    projector = {"clip__has_vision_encoder": True, "clip__has_audio_encoder": True}
    write_model(tmp_path / "models" / "watcher" / "mmproj-F16.gguf", architecture="clip", **projector)
    body = (
        '<w:p><w:pPr><w:outlineLvl w:val="0"/></w:pPr><w:r><w:t>Zebra</w:t></w:r></w:p>'
        "<w:p><w:r><w:t>Grüße</w:t></w:r></w:p>"
    )
    with zipfile.ZipFile(tmp_path / "paper.docx", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("word/document.xml", f'<w:document xmlns:w="{WORD_NAMES}">{body}</w:document>')
    server = serve_fake("--models-dir", "models", FAKE_SCRIPT='[{"echo": true}]')
    play("questions.files", server, str(tmp_path / "paper.docx"))


def test_a_long_name_of_a_model_covers_no_button(play: Play, serve_fake: StartServer, tmp_path: Path) -> None:
    write_model(tmp_path / "models" / f"{'a-very-long-model-name-' * 4}Q4_K_M.gguf")
    play("reading.toolbar", serve_fake("--models-dir", "models"))


def test_a_tool_that_writes_is_asked_for(play: Play, serve_fake: StartServer, notes: Path) -> None:
    writes, again = (call(n, "write_file", path="note.txt", content=text) for n, text in ((1, "hi"), (3, "again")))
    script = says(writes, call(2, "read_file", path="note.txt"), again, {"text": "All is written."})

    def asked() -> None:
        assert not notes.exists()

    def written() -> None:
        assert notes.read_text("utf-8") == "again"
        notes.write_text("hi", "utf-8")

    tools = ("--tools", "write_file,read_file", "--tools-root", str(notes.parent))
    play("questions.tools", serve_fake(*tools, **script), asked=asked, written=written)


def test_a_tools_question_is_noticed_and_not_answered_by_chance(
    play: Play, serve_fake: StartServer, notes: Path
) -> None:
    first, second = (call(n, "write_file", path="note.txt", content="hi") for n in (1, 2))

    def asked() -> None:
        assert not notes.exists()

    tools = ("--tools", "write_file", "--tools-root", str(notes.parent))
    turns = (first, {"text": "Fine."}, second, {"text": "Never mind."})
    play("questions.permission", serve_fake(*tools, **says(*turns)), asked=asked)


@pytest.mark.main_flow
def test_a_run_is_begun_answered_and_followed(play: Play, serve_fake: StartServer, notes: Path) -> None:
    notes.write_text("from the note", "utf-8")
    asks, reads = call(1, "ask_user", question="Which note?"), call(2, "read_file", path="note.txt")
    tools = ("--tools", "read_file", "--tools-root", str(notes.parent))
    play("agents.run", serve_fake(*tools, **says(asks, reads, {"text": "It says: hi."})))


def test_runs_that_say_much_and_that_crash(play: Play, serve_file: ServeFile) -> None:
    """Of a run that says much, the events do not last to its question."""
    much = {"text": "word " * 400, **call(1, "ask_user", question="Enough?")}
    for scenario, turn in (("agents.long", much), ("agents.locked", {"text": "so far", "die": 3})):
        play(scenario, serve_file({"small": {}}, says(turn), runs={"eventBytes": 1024, "maxRestarts": 0}))


def test_plugins_are_shown_with_their_faults_and_settings(play: Play, serve_fake: StartServer, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    works = "def on_response(r, c): pass"
    write_plugin(folder, "good", works, {"settings": {"api_key": "hunter2", "size": 3}})
    write_plugin(folder, "off", works, {"enabled": False})
    write_plugin(folder, "bad", "import nothing_of_the_kind", {})

    def mended() -> None:
        write_plugin(folder, "bad", works, {})

    play("agents.plugins", serve_fake("--plugins", str(folder)), mended=mended)


@pytest.mark.parametrize("name", GROWING)
def test_a_frame_costs_little_more_late_in_an_answer(play: Play, serve_fake: StartServer, name: str) -> None:
    """``-s`` shows the figures."""
    play("output.growing", serve_fake(**says({"text": GROWING[name]})), STEEPEST[name])


def test_requests_are_found_again_opened_and_repeated(play: Play, serve_file: ServeFile) -> None:
    play("machine.activity", serve_file({"other": {}, "small": {}}, captureBuffer=5))


def test_years_of_models(play: Play, serve_file: ServeFile) -> None:
    play("years.models", serve_file({f"model-{number}": {} for number in range(1000)}))


def test_years_of_requests(play: Play, serve_file: ServeFile, file: ConfigFile, tmp_path: Path) -> None:
    store = tmp_path / "activity.db"
    table, now = ActivityTable(open_file(store, 2000), None), datetime.now(UTC)
    table.add(
        [
            Row(
                id=number + 1,
                timestamp=now - timedelta(seconds=4 * number),
                model=f"model-{number % 13 % 11}",
                req_path="/v1/chat/completions",
                resp_status_code=200,
                tokens=Tokens(
                    cache_tokens=number % 300, draft_tokens=16, draft_acc_tokens=number % 17, input_tokens=200,
                    output_tokens=100, prompt_per_second=900.0 + number % 70, tokens_per_second=30.0 + number % 7,
                ),
                duration_ms=4000,
                first_token_ms=250 + number % 997,
                metadata={"waited_ms": str(number % 41)},
            )
            for number in range(20_000)
        ]
    )  # fmt: skip
    table.close()
    server = serve_file({"small": {}}, store={"path": str(store)})

    def changed() -> None:
        file.write({"small": {}, "other": {}}, store={"path": str(store)})
        assert http(server, "POST", "/api/config/reload").status == 200

    play("years.requests", server, changed=changed)


def test_a_flood_of_log_lines_does_not_hold_the_page_up(play: Play, serve_file: ServeFile, file: ConfigFile) -> None:
    server = serve_file({"loud": {"cmd": file.cmd("--log-flood")}})
    assert http(server, "POST", "/models/load", {"model": "loud", "wait": True}).status == 200
    play("machine.flood", server)


@pytest.mark.main_flow
def test_every_kind_of_request_is_tried(play: Play, serve_file: ServeFile, file: ConfigFile) -> None:
    models: dict[str, dict[str, object]] = {
        "writer": {},
        "vectors": {"cmd": file.cmd("--embeddings")},
        "ranks": {"cmd": file.cmd("--reranking"), "capabilities": {"reranker": True}},
        "mouth": {"capabilities": {"in": ["text"], "out": ["audio"]}},
        "painter": {"capabilities": {"in": ["text"], "out": ["image"]}},
    }
    pace = {"FAKE_TOKENS": "4000", "FAKE_TOKEN_DELAY": "0.02"}
    play("playground.kinds", serve_file(models, pace))


@pytest.mark.parametrize(
    ("scenario", "arguments"),
    [*((each, ALLOWED) for each in ("spoken", "gestures", "aloud")), ("refused", REFUSED)],
)
def test_speech_becomes_text_and_text_becomes_speech(
    play: Play, serve_file: ServeFile, file: ConfigFile, scenario: str, arguments: str
) -> None:
    """The browser's microphone and permission are Chromium's own."""
    models: dict[str, dict[str, object]] = {
        "ears": {"cmd": file.cmd("--mmproj", file.words[-1]), "capabilities": {"in": ["audio"], "out": ["text"]}},
        "mouth": {"capabilities": {"in": ["text"], "out": ["audio"]}},
        "talker": {},
    }
    play(f"voice.{scenario}", serve_file(models, says({"text": SPOKEN})), within=("env", arguments))


@pytest.mark.slow
@pytest.mark.needs("node", "page-packages")
def test_the_development_server_stands_in_front_of_a_running_one(
    serve_fake: StartServer, free_port: Callable[[], int]
) -> None:
    folder = ROOT / "appliance" / "web"
    server, port = serve_fake(), free_port()
    command = [folder / "node_modules/.bin/vite", "--host", "127.0.0.1", "--port", str(port), "--strictPort"]
    env = {**os.environ, "LLAMA_APPLIANCE_URL": server.url, "NO_COLOR": "1"}
    with subprocess.Popen(
        command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            while b"Local:" not in (line := process.stdout.readline()):
                assert line, "it has ended"
            # The page, a part of it, which is compiled when it is asked for, and what the server behind it says.
            for path, words in (("/", b"/src/main.ts"), ("/src/App.svelte", b"svelte"), ("/v1/models", b'"small"')):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as found:
                    assert words in found.read(), path
        finally:
            process.kill()


def test_words_are_kept_and_the_configuration_is_edited(play: Play, serve_fake: StartServer, tmp_path: Path) -> None:
    file = tmp_path / "tuned.yaml"
    keys = "cmd: run --port ${PORT}", "env: [TOKEN=sk-hidden]", "ttl: 600  # ten minutes"
    text = "".join(("# mine\nmodels:\n  tuned:\n", *(f"    {key}\n" for key in keys)))
    file.write_text(text)

    def saved() -> None:
        assert file.read_text() == f"# an editor was here\n{text.replace('600', '300')}"

    server = serve_fake("--config", str(file), "--admin")
    play("machine.typed", server)
    play("machine.config", server, edited=lambda: file.write_text(f"# an editor was here\n{text}"), saved=saved)
    assert file.read_text() == f"# an editor was here\n{text}"
