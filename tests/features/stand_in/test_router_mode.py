"""llama-server without a model: its router mode, from its own command line and environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Command, settings_of
from gguf_files import cached_repository

from appliance.catalog.catalog import Catalog
from appliance.core.models.model import Model
from appliance.core.settings import DEFAULT_MODELS_MAX, UnixSocket
from appliance.settings import AppSettings, Later

pytestmark = pytest.mark.usefixtures("plain_environment")


@pytest.fixture
def preset(tmp_path: Path) -> Path:
    path = tmp_path / "p.ini"
    path.write_text("[*]\nngl = 1\n[m]\nmodel = /x.gguf\nc = 3\n")
    return path


def only(app: AppSettings) -> Model:
    (model,) = Catalog(app.sources, app.config).scan().models
    return model


def test_defaults_are_llama_servers(command: Command, tmp_path: Path) -> None:
    app = settings_of(command, "llama-server")
    assert app.http.listen == (("127.0.0.1", 8080),)
    assert (app.http.single, app.http.autoload, app.http.page, app.http.tls) == (None, True, True, None)
    assert (app.http.open_inference, app.http.cors.origins, app.http.api_keys) == (True, "localhost", ())
    assert (app.fleet.models_max, app.fleet.engine_args, app.fleet.metrics) == (DEFAULT_MODELS_MAX, (), False)
    assert (app.sources.models_dir, app.sources.cache, app.sources.starter) == (None, tmp_path / "cache", None)
    assert app.preload == ()


@pytest.mark.parametrize("flag", ["--model", "-m"])
def test_a_model_makes_it_the_single_mode(command: Command, flag: str) -> None:
    assert settings_of(command, "llama-server", flag, "x.gguf").http.single == "x.gguf"


@pytest.mark.parametrize("flag", ["--hf-repo", "-hf", "-hfr"])
def test_a_repository_is_looked_at_before_the_mode_is_known(command: Command, flag: str) -> None:
    """It may hold presets; and what is not in the cache is downloaded first."""
    assert isinstance(command("llama-server", flag, "org/repo").program, Later)
    refused = command("llama-server", flag, "org/repo", "--port", "x")
    assert (refused.program, "--port x: a port is a number" in refused.err) == (None, True)


def test_the_routers_own_options(command: Command, tmp_path: Path, preset: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "keys").write_text("k3\n")
    app = settings_of(
        command,
        "llama-server",
        *("--models-dir", "models", "--models-preset", "p.ini", "--models-max", "0", "--no-models-autoload"),
        *("--host", "127.0.0.1,::1,a.sock", "--port", "7", "--api-prefix", "/api", "--no-ui"),
        *("--api-key", "k1,k2", "--api-key-file", "keys", "--cors-origins", "localhost", "--cors-methods", "GET"),
        *("--no-cors-credentials", "--sse-ping-interval", "4", "--path", "models"),
        *("--ssl-cert-file", "c.pem", "--ssl-key-file", "k.pem"),
    )
    assert app.sources.models_dir == tmp_path / "models"
    assert app.sources.presets.file == preset
    assert (app.fleet.models_max, app.http.autoload, app.http.page) == (0, False, False)
    assert app.http.listen == (("127.0.0.1", 7), ("::1", 7), UnixSocket("a.sock"))
    assert (app.http.api_prefix, app.http.api_keys, app.http.tls) == ("/api", ("k1", "k2", "k3"), ("c.pem", "k.pem"))
    assert (app.http.cors.origins, app.http.cors.methods, app.http.cors.credentials) == ("localhost", "GET", False)
    assert (app.http.open_inference, app.http.ping_after, app.http.static) == (False, 4.0, str(tmp_path / "models"))


def test_everything_else_is_for_every_model(command: Command, preset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "55")
    monkeypatch.setenv("LLAMA_ARG_BATCH", "64")
    monkeypatch.setenv("LLAMA_ARG_N_PREDICT", "5")
    monkeypatch.setenv("HF_TOKEN", "secret")
    app = settings_of(
        command,
        "llama-server",
        *("--models-preset", str(preset), "--temp", "0.8", "--no_jinja", "-n", "6", "--timeout", "9", "--tags", "t"),
        *("--sleep-idle-seconds", "7", "--alias", "dropped", "--api-key", "k", "--port", "0", "--hf-token", "secret"),
    )
    model = only(app)
    assert " ".join(model.args) == (
        "--no-jinja --sleep-idle-seconds 7 --temperature 0.8 --batch-size 64 --ctx-size 3 --n-predict 6 "
        "--n-gpu-layers 1 --timeout 9"
    )
    assert (model.tags, model.aliases, app.fleet.engine_args) == (("t",), (), ())
    assert "secret" not in repr(model)


def test_the_environment_sets_up_the_router(command: Command, preset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "LLAMA_ARG_PORT": "81",
        "LLAMA_ARG_MODELS_PRESET": str(preset),
        "LLAMA_ARG_MODELS_MAX": "2",
        "LLAMA_ARG_MODELS_AUTOLOAD": "off",
        "LLAMA_API_KEY": "env-key",
    }.items():
        monkeypatch.setenv(name, value)
    app = settings_of(command, "llama-server", "--models-max", "3")
    assert (app.http.listen, app.http.api_keys, app.http.autoload) == ((("127.0.0.1", 81),), ("env-key",), False)
    assert app.fleet.models_max == 3
    assert only(app).id == "m"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--models-max x", "--models-max is a whole number, not 'x'"),
        ("--models-max -1", "--models-max -1: expected a whole number of at least 0"),
        ("-c many", "-c is a whole number, not 'many'"),
        ("--sleep-idle-seconds 0", "--sleep-idle-seconds is a number of seconds from 1 on, or -1 for never"),
        ("--models-dir nowhere", "nowhere does not exist; create it, or name another"),
        ("--models-dir p.ini", "p.ini is not a folder"),
        ("--models-preset nowhere.ini", "there is no file"),
        ("--path nowhere", "--path nowhere: no such folder"),
        ("--ssl-key-file k", "--ssl-key-file needs --ssl-cert-file"),
        ("--ssl-cert-file k", "--ssl-cert-file needs --ssl-key-file"),
        ("--port 0 --host 127.0.0.1,::1", "--port 0 works with only one --host"),
        ("--host ,", "--host contains no address"),
        ("--spec-ngram-size-n 3", "--spec-ngram-size-n has been removed from llama-server"),
    ],
)
def test_mistakes(command: Command, preset: Path, line: str, message: str) -> None:
    outcome = command("llama-server", *line.split())
    assert (outcome.program, outcome.out) == (None, "")
    assert outcome.status != 0
    assert message in outcome.err


def test_what_is_odd_about_a_preset_file_is_told(command: Command, preset: Path) -> None:
    preset.write_text("[m]\nmodel = /x.gguf\nport = 3\n", "utf-8")
    outcome = command("llama-server", "--models-preset", str(preset))
    assert isinstance(outcome.program, AppSettings)
    assert f"{preset}:3:1: warning: [m]: port is for the server" in outcome.err


def test_more_models_at_the_start_than_may_run(command: Command, preset: Path) -> None:
    preset.write_text("[*]\nload-on-startup = 1\n[a]\nm=/a\n[b]\nm=/b\n[c]\nm=/c\nload-on-startup=0\n", "utf-8")
    told = command.bad("llama-server", "--models-preset", preset, "--models-max", "1", status=1)
    assert "2 models are configured to load at the start (a, b), and --models-max is 1" in told
    app = settings_of(command, "llama-server", "--models-preset", str(preset), "--models-max", "2")
    assert [m.id for m in Catalog(app.sources).scan().models if m.load_on_startup] == ["a", "b"]
    assert settings_of(command, "llama-server", "--models-preset", str(preset), "--models-max", "0")


def test_serve_takes_the_same_file(command: Command, preset: Path) -> None:
    app = settings_of(command, "serve", "--models-preset", str(preset), "--no-starter", "--no-stores")
    models = {model.id: model for model in Catalog(app.sources).scan().models}
    assert models["m"].args == ("--ctx-size", "3", "--n-gpu-layers", "1")
    preset.write_text("[m]\nfoo=1\n", "utf-8")
    assert "llama-server has no option 'foo'" in command.bad("serve", "--models-preset", preset)


def cached_presets(tmp_path: Path, text: str) -> None:
    (cached_repository(tmp_path / "cache", "org/presets") / "preset.ini").write_text(text)


def test_a_repository_that_holds_presets_is_the_router_mode(command: Command, tmp_path: Path) -> None:
    cached_presets(tmp_path, "[m]\nhf-repo = org/model:q8_0\nc = 3\n")
    app = settings_of(command, "llama-server", "--hf-repo", "org/presets", "-t", "1")
    model = only(app)
    assert (model.id, app.http.single) == ("m", None)
    assert model.args == ("--ctx-size", "3", "--threads", "1", "--hf-repo", "org/model:q8_0")


@pytest.mark.parametrize(
    "setting", ["model = /etc/x.gguf", "media-path = /", "rpc = 1.2.3.4:5", "lora = /x", "log-prompts-dir = /tmp"]
)
def test_presets_of_a_repository_reach_no_files_and_servers(command: Command, tmp_path: Path, setting: str) -> None:
    cached_presets(tmp_path, f"[m]\nhf-repo = org/model\n{setting}\n")
    told = command.bad("llama-server", "--hf-repo", "org/presets", status=1)
    assert f"preset.ini:3:1: error: [m]: {setting.partition(' ')[0]} is not taken from a repository" in told


# ---- llama-server's configuration file -------------------------------------------------------------------------------


def configured(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config" / "llama.cpp" / "config.ini"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("models-max=9\n", (9, True)),
        ("[*]\nmodels-max=9\n", (9, True)),
        ("[m9]\nmodels-max=9\n", (4, True)),
        ("[default]\nmodels-max=9\n", (9, True)),
        ("models-max=9\n[*]\nmodels-max=8\n", (9, True)),
        ("[*]\nmodels-max=8\n[default]\nmodels-max=9\n", (9, True)),
        ("no-models-autoload=true\n", (4, False)),
        ("models-autoload=off\nLLAMA_ARG_MODELS_MAX=3\n", (3, False)),
    ],
)
def test_what_a_configuration_file_says(
    command: Command, tmp_path: Path, text: str, expected: tuple[int, bool]
) -> None:
    configured(tmp_path, text)
    app = settings_of(command, "llama-server")
    assert (app.fleet.models_max, app.http.autoload) == expected


def test_environment_and_command_line_beat_the_configuration_file(
    command: Command, tmp_path: Path, preset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured(tmp_path, "models-max=9\nport = 5\napi-key = k\nctx-size = 7\ntemp = 1\nbatch-size=8\nzip = 1\n")
    monkeypatch.setenv("LLAMA_ARG_MODELS_MAX", "7")
    monkeypatch.setenv("LLAMA_ARG_BATCH", "9")
    outcome = command("llama-server", "--models-preset", str(preset), "--port", "6")
    app = outcome.program
    assert isinstance(app, AppSettings)
    assert (app.fleet.models_max, app.http.listen, app.http.api_keys) == (7, (("127.0.0.1", 6),), ("k",))
    assert " ".join(only(app).args) == "--temperature 1 --batch-size 9 --ctx-size 3 --n-gpu-layers 1"
    assert "config.ini:7:1: warning: llama-server has no option 'zip'; it is ignored" in outcome.err


def test_a_configuration_file_may_name_the_model(command: Command, tmp_path: Path) -> None:
    configured(tmp_path, "model = folder/x.gguf\n")
    assert settings_of(command, "llama-server").http.single == "x.gguf"


def test_mistakes_in_a_configuration_file(command: Command, tmp_path: Path) -> None:
    path = configured(tmp_path, " models-max=9\nmodels-max=abc\n")
    told = command.bad("llama-server", status=1)
    assert f"{path}:1:2: error: " in told
    assert f"{path}:2:1: error: models-max is a whole number, not 'abc'" in told


@pytest.mark.parametrize(("said", "seconds"), [("1", 2.0), ("no", 2.0), ("", 0.0)])
def test_a_variable_slows_it_down_for_those_who_watch_its_queue(
    command: Command, monkeypatch: pytest.MonkeyPatch, said: str, seconds: float
) -> None:
    monkeypatch.setenv("LLAMA_SERVER_DEBUG_FAKE_TIMING", said)
    app = settings_of(command, "llama-server")
    assert (app.fleet.start_delay, app.http.held_for) == (seconds, seconds)
    one = settings_of(command, "llama-server", "-m", "x.gguf")
    assert (one.fleet.start_delay, one.http.held_for) == (0.0, 0.0)
