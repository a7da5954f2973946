"""The clients that can be started: one entry each, with the settings that lead it to a model of the server.

Settings that a client takes from its environment or its command line are for the one start alone. A settings file gets
a provider of ours beside its owner's. The key stays in the environment, and the file names its variable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from msgspec import Struct

from appliance.features.launch.core.jsonc import Json
from appliance.features.launch.core.settings_text import Form

NO_KEY = "no-key-needed"
"""The key for a server without one: clients insist on some text."""
ANSWER = 8192
"""The most tokens of one answer, for clients that ask; a quarter of a shorter context."""
System = Literal["linux", "darwin", "win32"]
Variables = Mapping[str, str | None]
"""The variables of an environment; None removes one."""
CLAUDE = {
    "ANTHROPIC_BASE_URL": "<url>",
    "ANTHROPIC_MODEL": "<model>",
    **{f"ANTHROPIC_DEFAULT_{tier}_MODEL": "<model>" for tier in ("OPUS", "SONNET", "HAIKU", "FABLE")},
    "CLAUDE_CODE_SUBAGENT_MODEL": "<model>",
    "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "<context>",
    "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "<answer>",
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # another one in each request would make the prompt cache useless
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
}
KEY: Variables = MappingProxyType({"LLAMA_APPLIANCE_API_KEY": "<key>"})
"""`core.settings.KEY_VARIABLE`. Zed makes the same name from that of the provider."""


class SettingsPlace(NamedTuple):
    """The folder that the variable names, else one in the home; then the rest of the path. ``system``: only there."""

    variable: str
    folder: str
    file: str
    system: System | None = None


class Client(Struct, frozen=True, kw_only=True):
    """One client. In its texts, names in ``<>`` stand for the facts of `facts`.

    The first one of ``programs`` that is there is started, or its ``name`` without them. ``least`` is the context, in
    tokens, that its own prompt and tools need with some room for work. ``words`` go before the user's; ``alone`` are
    there if the user gives none. ``environment`` is added to the user's. Of the ``places`` of settings the first one
    that is there is edited, else the last one is made. ``patch`` is JSON, in which only texts have such names, but for
    numbers.
    """

    name: str
    title: str
    install: str
    programs: tuple[str, ...] = ()
    least: int = 16384
    environment: Variables = KEY
    words: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    form: Form = "json"
    places: tuple[SettingsPlace, ...] = ()
    patch: str = ""


CLIENTS = (
    Client(
        name="claude",
        title="Claude Code",
        install="npm install -g @anthropic-ai/claude-code",
        least=32768,
        # A key of Anthropic's would go before the token.
        environment={**CLAUDE, "ANTHROPIC_AUTH_TOKEN": "<key>", "ANTHROPIC_API_KEY": None},
        # The `env` of the user's settings.json goes before the environment, and could lead to another server.
        words=("--settings", "<claude>"),
    ),
    Client(
        name="codex",
        title="Codex",
        install="npm install -g @openai/codex",
        words=("-cmodel_provider=llama-appliance", "-cmodel=<quoted>", "-cmodel_context_window=<context>"),
        form="toml",
        places=(SettingsPlace("CODEX_HOME", ".codex", "config.toml"),),
        patch="""{"model_providers": {"llama-appliance": {
            "name": "llama-appliance", "base_url": "<url>/v1", "env_key": "LLAMA_APPLIANCE_API_KEY",
            "wire_api": "responses"}}}""",
    ),
    Client(
        name="opencode",
        title="opencode",
        install="npm install -g opencode-ai",
        environment={**KEY, "OPENCODE_CONFIG_CONTENT": "<opencode>"},
        places=tuple(
            SettingsPlace("XDG_CONFIG_HOME", ".config", f"opencode/opencode.{end}") for end in ("jsonc", "json")
        ),
        patch="""{"provider": {"llama-appliance": {
            "npm": "@ai-sdk/openai-compatible", "name": "llama-appliance",
            "options": {"baseURL": "<url>/v1", "apiKey": "{env:LLAMA_APPLIANCE_API_KEY}"},
            "models": {"<model>": {"name": "<model>", "limit": {"context": <context>, "output": <answer>}}}}}}""",
    ),
    Client(
        name="qwen",
        title="Qwen Code",
        install="npm install -g @qwen-code/qwen-code",
        least=32768,
        environment={"OPENAI_BASE_URL": "<url>/v1", "OPENAI_API_KEY": "<key>", "OPENAI_MODEL": "<model>"},
        words=("--auth-type", "openai", "--model", "<model>"),
        places=(SettingsPlace("QWEN_HOME", ".qwen", "settings.json"),),
        patch="""{"modelProviders": {"openai": [{
            "id": "<model>", "baseUrl": "<url>/v1", "envKey": "OPENAI_API_KEY",
            "generationConfig": {"contextWindowSize": <context>}}]}}""",
    ),
    Client(
        name="aider",
        title="aider",
        install="python3 -m pip install aider-install && aider-install",
        least=8192,
        environment={"AIDER_OPENAI_API_KEY": "<key>", "OPENAI_API_KEY": "<key>"},
        words=("--model", "openai/<model>", "--openai-api-base", "<url>/v1", "--no-show-model-warnings"),
    ),
    Client(
        name="goose",
        title="goose",
        install="brew install block-goose-cli",
        environment={
            "GOOSE_PROVIDER": "openai",
            "GOOSE_MODEL": "<model>",
            "GOOSE_CONTEXT_LIMIT": "<context>",
            "OPENAI_HOST": "<url>",
            "OPENAI_BASE_PATH": "v1/chat/completions",
            "OPENAI_API_KEY": "<key>",
        },
        alone=("session",),
    ),
    Client(
        name="crush",
        title="Crush",
        install="npm install -g @charmland/crush",
        places=(
            SettingsPlace("LOCALAPPDATA", "AppData/Local", "crush/crush.json", "win32"),
            SettingsPlace("XDG_CONFIG_HOME", ".config", "crush/crush.json"),
        ),
        patch="""{"providers": {"llama-appliance": {
            "name": "llama-appliance", "type": "openai-compat", "base_url": "<url>/v1",
            "api_key": "$LLAMA_APPLIANCE_API_KEY", "models": [{
                "id": "<model>", "name": "<model>", "context_window": <context>, "default_max_tokens": <answer>}]}},
            "models": {"large": {"provider": "llama-appliance", "model": "<model>"},
                "small": {"provider": "llama-appliance", "model": "<model>"}}}""",
    ),
    Client(
        name="continue",
        title="Continue",
        programs=("cn",),
        install="npm install -g @continuedev/cli",
        words=("--config", "<path>"),
        form="yaml",
        places=(SettingsPlace("CONTINUE_GLOBAL_DIR", ".continue", "config.yaml"),),
        patch="""{"models": [{
            "name": "llama-appliance: <model>", "provider": "openai", "model": "<model>", "apiBase": "<url>/v1",
            "apiKey": "${{ secrets.LLAMA_APPLIANCE_API_KEY }}",
            "roles": ["chat", "edit", "apply"], "capabilities": ["tool_use"],
            "defaultCompletionOptions": {"contextLength": <context>, "maxTokens": <answer>}}]}""",
    ),
    Client(
        name="pi",
        title="pi",
        install="npm install -g @earendil-works/pi-coding-agent",
        least=8192,
        words=("--provider", "llama-appliance", "--model", "<model>"),
        places=(SettingsPlace("PI_CODING_AGENT_DIR", ".pi/agent", "models.json"),),
        patch="""{"providers": {"llama-appliance": {
            "baseUrl": "<url>/v1", "api": "openai-completions", "apiKey": "$LLAMA_APPLIANCE_API_KEY",
            "compat": {"supportsDeveloperRole": false},
            "models": [{"id": "<model>", "contextWindow": <context>, "maxTokens": <answer>}]}}}""",
    ),
    Client(
        name="zed",
        title="Zed",
        programs=("zed", "zeditor"),
        install="curl -f https://zed.dev/install.sh | sh",
        places=(
            SettingsPlace("XDG_CONFIG_HOME", ".config", "zed/settings.json", "linux"),
            SettingsPlace("", ".config", "zed/settings.json", "darwin"),
            SettingsPlace("APPDATA", "AppData/Roaming", "Zed/settings.json", "win32"),
        ),
        patch="""{"language_models": {"openai_compatible": {"llama-appliance": {
            "api_url": "<url>/v1", "available_models": [{
                "name": "<model>", "max_tokens": <context>, "max_output_tokens": <answer>,
                "capabilities": {"tools": true}}]}}},
            "agent": {"default_model": {"provider": "llama-appliance", "model": "<model>"}}}""",
    ),
)


def paths(client: Client, system: System, home: str, environ: Mapping[str, str]) -> list[str]:
    """Return the paths of the client's settings file, the usual one at the end."""
    here = [place for place in client.places if place.system in (None, system)]
    return [f"{environ.get(place.variable) or f'{home}/{place.folder}'}/{place.file}" for place in here]


def facts(client: Client, url: str, model: str, context: int, key: str) -> dict[str, str]:
    """Return the facts behind the names in a client's texts. ``url`` has no ``/v1``; ``context`` 0 is unknown."""
    context, ours = context or client.least, f"llama-appliance/{model}"
    answer = str(min(ANSWER, context // 4))
    known = {"<url>": url, "<model>": model, "<key>": key, "<context>": str(context), "<answer>": answer}
    return {
        "<claude>": json.dumps({"env": {name: filled(text, known) for name, text in CLAUDE.items()}}),
        "<opencode>": json.dumps({"model": ours, "small_model": ours}),
        "<quoted>": json.dumps(model),
        **known,
    }


def filled(text: str, known: Mapping[str, str]) -> str:
    """Return a client's text with the facts in it."""
    for name, fact in known.items():
        text = text.replace(name, fact)
    return text


def patch_of(client: Client, known: Mapping[str, str]) -> Mapping[str, Json]:
    """Return the section of ours for the client's settings file."""
    patch: Mapping[str, Json] = json.loads(
        filled(client.patch, {name: json.dumps(fact)[1:-1] for name, fact in known.items()})
    )
    return patch
