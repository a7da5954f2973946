"""llama-server's own command line and environment, read as llama-server reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Command, settings_of
from gguf_files import cached_repository, write_model

from appliance.features.stand_in.core.older import SHORTHANDS

pytestmark = pytest.mark.usefixtures("plain_environment")


def test_defaults_are_llama_servers(command: Command) -> None:
    app = settings_of(command, "llama-server", "-m", "folder/some-model.Q8_0.gguf")
    assert app.http.listen == (("127.0.0.1", 8080),)
    assert app.http.single == "some-model.Q8_0.gguf"
    assert app.sources.files[0].path == str(Path("folder/some-model.Q8_0.gguf").absolute())
    assert (app.http.open_inference, app.http.cors.origins, app.http.cors.credentials) == (True, "localhost", True)
    assert (app.http.page, app.http.api_keys, app.http.api_prefix) == (True, (), "")
    assert app.fleet.engine_args == ()
    assert app.preload == (app.http.single,)
    assert app.http.grace + app.fleet.stop_timeout <= 3, "it is gone soon after SIGTERM"


def test_the_front_takes_its_own_options_and_the_engine_gets_the_rest(command: Command, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("k3\n")
    app = settings_of(
        command,
        "llama-server",
        *("--port", "0", "--temp", "0.8", "--seed", "42", "--host", "0.0.0.0", "--slots", "--no-jinja", "--no_ui"),
        *("--model", "m.gguf", "--api-key", "k1,k2", "--api-key-file", str(keys), "--api-prefix", "/api"),
        *("--cors-origins", "localhost", "--cors-methods", "GET", "--no-cors-credentials", "--ctx-size", "64"),
        *("-ngl", "99", "--alias", "zeta,alpha", "--threads-http", "4", "--models-max", "2", "--timeout", "9"),
    )
    assert app.http.listen == (("0.0.0.0", 0),)
    assert app.http.api_keys == ("k1", "k2", "k3")
    assert (app.http.api_prefix, app.http.page, app.http.open_inference) == ("/api", False, False)
    assert (app.http.cors.origins, app.http.cors.methods, app.http.cors.credentials) == ("localhost", "GET", False)
    assert app.http.single == "alpha"
    assert (app.http.body_stall, app.http.write_stall) == (9, 9), "--timeout counts for clients, too"
    assert app.fleet.engine_args == (
        *("--no-ui", "--temp", "0.8", "--seed", "42", "--slots", "--no-jinja", "--ctx-size", "64", "-ngl", "99"),
        *("--alias", "zeta,alpha", "--timeout", "9"),
    )


def test_several_hosts(command: Command) -> None:
    app = settings_of(command, "llama-server", "-m", "m.gguf", "--host", "127.0.0.1,::1", "--port", "7")
    assert app.http.listen == (("127.0.0.1", 7), ("::1", 7))


def test_the_environment_counts_and_flags_beat_it(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "LLAMA_ARG_MODEL": "env.gguf",
        "LLAMA_ARG_PORT": "81",
        "LLAMA_ARG_HOST": "::1",
        "LLAMA_API_KEY": "env-key",
        "LLAMA_ARG_CTX_SIZE": "128",
        "LLAMA_ARG_N_PREDICT": "5",
        "LLAMA_ARG_UI": "off",
        "HF_TOKEN": "secret",
    }.items():
        monkeypatch.setenv(name, value)
    app = settings_of(command, "llama-server", "--port", "82", "-n", "6")
    assert app.http.listen == (("::1", 82),)
    assert (app.http.single, app.http.api_keys, app.http.page) == ("env.gguf", ("env-key",), False)
    assert app.fleet.engine_args == ("--no-ui", "--ctx-size", "128", "-n", "6")


@pytest.mark.parametrize("flag", sorted(SHORTHANDS))
def test_what_stands_for_several_options(command: Command, flag: str, tmp_path: Path) -> None:
    """Off-line and with an empty cache, the message tells which model is meant."""
    told = command.bad("llama-server", flag, "--offline", status=1)
    assert "ggml-org/" in told
    assert "is not in the cache" in told


def test_they_count_where_they_stand(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_model(cached_repository(tmp_path / "cache", "ggml-org/gemma-3-4b-it-qat-GGUF") / "gemma-Q4_0.gguf")
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "cache"))
    app = settings_of(command, "llama-server", "--port", "5", "-c", "7", "--vision-gemma-4b-default", "--no-jinja")
    assert app.http.listen == (("127.0.0.1", 8014),)
    assert app.http.single == "ggml-org/gemma-3-4b-it-qat-GGUF"
    assert app.fleet.engine_args == ("-c", "7", "--ctx-size", "0", "--jinja", "--no-jinja")


@pytest.mark.parametrize("model", [(), ("-m", "x.gguf")])
def test_a_container_of_vertex_ai_says_where_to_listen(
    command: Command, monkeypatch: pytest.MonkeyPatch, model: tuple[str, ...]
) -> None:
    def where(*words: str) -> tuple[object, ...]:
        http = settings_of(command, "llama-server", *model, "--port", "5", *words).http
        return http.listen, http.predict, http.health

    assert where() == ((("127.0.0.1", 5),), None, None)
    monkeypatch.setenv("AIP_MODE", "PREDICTION")
    assert where() == ((("127.0.0.1", 8080),), "/predict", None)
    monkeypatch.setenv("AIP_HTTP_PORT", "7")
    monkeypatch.setenv("AIP_PREDICT_ROUTE", "v1/models/m:predict")
    monkeypatch.setenv("AIP_HEALTH_ROUTE", "/v1/models/m")
    assert where("--host", "0.0.0.0") == ((("0.0.0.0", 7),), "/v1/models/m:predict", "/v1/models/m")
    monkeypatch.setenv("AIP_HTTP_PORT", "x")
    assert "AIP_HTTP_PORT=x: a port is a number" in command("llama-server").err
