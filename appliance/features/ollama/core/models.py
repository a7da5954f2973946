"""Models as Ollama lists them: names, details, abilities, and models that are derived from others.

Source: Ollama 0.34 (``server/routes.go``, ``server/images.go``, ``server/create.go``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec import Struct

from appliance.core.bodies.json_text import JSON, JsonObject
from appliance.core.models.context import asked_context
from appliance.core.models.download import Remote, parse_image, parse_wanted
from appliance.core.models.embedding import served_kind
from appliance.core.models.gguf import GgufInfo
from appliance.core.models.model import NO_WORDS, Model
from appliance.core.models.names import HUBS
from appliance.features.ollama.core import asking

VERSIONS: JsonObject = {"version": "0.34.0", "commit": "unknown", "build_date": "unknown"}
"""Ollama's version, which clients turn into numbers (some want at least 0.6.4), and llama-swap's members beside it."""
COMPLETION, EMBEDDING, RERANK = "completion", "embedding", "rerank"
TOOLS, THINKING, INSERT, VISION, AUDIO = "tools", "thinking", "insert", "vision", "audio"
FOR_EVER = timedelta(microseconds=(1 << 63) // 1000)  # time to the end of a model that stays, as Ollama gives it
_GPT_OSS = "gpt-oss"
_NOT_HERE = ("quantize", "adapters", "draft_files", "renderer", "parser", "template")


class TemplateCaps(Struct, frozen=True):
    supports_tools: bool = False
    supports_tool_calls: bool = False


class Modalities(Struct, frozen=True):
    vision: bool = False
    audio: bool = False


class EngineProps(Struct, frozen=True):
    """The part of llama-server's ``/props`` that tells what a running model can do."""

    chat_template: str = ""
    chat_template_caps: TemplateCaps | None = None
    modalities: Modalities = Modalities()


class ModelFacts(Struct, frozen=True, kw_only=True):
    """Everything that is known of one model. A model at a peer, or behind a foreign server, has no header."""

    name: str
    model: Model | None = None
    info: GgufInfo | None = None
    props: EngineProps | None = None
    preset: asking.DerivedPreset = asking.PLAIN
    base: str = ""  # the model that a derived one is made from
    made_at: float = 0.0
    context: int | None = None  # tokens of one request in the running engine

    @property
    def template(self) -> str:
        if self.info is not None and self.info.chat_template:
            return self.info.chat_template
        return self.props.chat_template if self.props is not None else ""

    @property
    def sure(self) -> bool:
        """False where so little is known that nothing may be refused."""
        return self.info is not None or bool(self.template)

    @property
    def abilities(self) -> list[str]:
        """Return Ollama's ``capabilities``; the configuration only adds to what the files and the engine say."""
        said = self.model.config.capabilities if self.model is not None and self.model.config is not None else None
        kind = self.info.kind if self.info is not None else "generation"
        if self.model is not None:  # the command can make another use of a model than its file says
            config = self.model.config
            kind = served_kind(*(self.model.args,) if config is None else (config.argv, config.env)) or kind
        if kind == "rerank" or (said is not None and said.reranker):
            return [RERANK]
        if kind == "embedding":
            return [EMBEDDING]
        template, props = self.template, self.props or EngineProps()
        caps, inputs = props.chat_template_caps, self.model.input_modalities if self.model is not None else ()
        found = {
            TOOLS: "tool" in template or (caps is not None and (caps.supports_tools or caps.supports_tool_calls)),
            THINKING: ("<think>" in template and "</think>" in template) or self._architecture == _GPT_OSS,
            INSERT: self.info is not None and self.info.fills,
            VISION: "image" in inputs or props.modalities.vision,
            AUDIO: "audio" in inputs or props.modalities.audio,
        }
        if said is not None and said.tools:
            found[TOOLS] = True
        return [COMPLETION, *(name for name, there in found.items() if there)]

    @property
    def _architecture(self) -> str:
        return self.info.architecture if self.info is not None else ""

    @property
    def trained_context(self) -> int | None:
        said = self.model.config.capabilities.context if self.model is not None and self.model.config else 0
        return said or (self.info.context_length if self.info is not None else None)

    @property
    def _asked_context(self) -> int:
        """The tokens that the model's command asks for, before it runs; 0: not known."""
        model = self.model
        return asked_context(self.info, model.config.argv if model.config else model.args) if model is not None else 0

    def lacks(self, ability: str) -> bool:
        """True if it is known that the model cannot do this."""
        return self.sure and ability not in self.abilities

    @property
    def digest(self) -> str:
        """Return 64 digits that change with the model's files."""
        size, created = (self.model.size, self.model.created) if self.model is not None else (0, 0)
        return hashlib.sha256(f"{self.name}\0{self.base}\0{size}\0{created}\0{self.made_at}".encode()).hexdigest()

    @property
    def modified(self) -> str:
        at = self.made_at or (self.model.created if self.model is not None else 0)
        return datetime.fromtimestamp(at, UTC).isoformat()

    @property
    def details(self) -> JsonObject:
        info = self.info
        details: JsonObject = {
            "parent_model": self.base,
            "format": "gguf",
            "family": self._architecture or "unknown",
            "families": [self._architecture or "unknown"],
            "parameter_size": in_short(info.parameters) if info is not None else "unknown",
            "quantization_level": (info.quantisation if info is not None else None) or "unknown",
        }
        if context := self.context or self._asked_context or self.trained_context:
            details["context_length"] = context
        if info is not None and info.embedding_length:
            details["embedding_length"] = info.embedding_length
        return details


def in_short(count: int) -> str:
    """Return a number of parameters as Ollama writes it: ``8.0B``, ``137M``, ``2.36M``."""
    if count >= 1_000_000_000:
        return f"{count / 1e9:.1f}B"
    if count >= 100_000_000:
        return f"{count / 1e6:.0f}M"
    if count >= 1_000_000:
        return f"{count / 1e6:.2f}M"
    return f"{count / 1e3:.0f}K" if count >= 1000 else str(count)


def tags(models: Sequence[ModelFacts]) -> JsonObject:
    """Return ``/api/tags``: the newest first, each name once."""
    entries: dict[str, JsonObject] = {}
    for facts in sorted(models, key=lambda facts: facts.modified, reverse=True):
        name = asking.shown_name(facts.name)
        entries.setdefault(
            name,
            {
                "name": name,
                "model": name,
                "modified_at": facts.modified,
                "size": facts.model.size if facts.model is not None else 0,
                "digest": facts.digest,
                "details": facts.details,
                "capabilities": list[JSON](facts.abilities),
            },
        )
    return {"models": list[JSON](entries.values())}


class LoadedModel(Struct, frozen=True, kw_only=True):
    """A model that is loaded, or is being loaded. ``left``: seconds until it goes if nobody asks; None: it stays."""

    facts: ModelFacts
    memory: Mapping[str, int]
    left: float | None
    queue: int
    state: str


def running(models: Sequence[LoadedModel], now: float) -> JsonObject:
    """Return ``/api/ps``, the one that stays longest first. ``now`` is in Unix seconds."""
    at = datetime.fromtimestamp(now, UTC)
    ordered = sorted(models, key=lambda one: one.left if one.left is not None else 1e18, reverse=True)
    entries: list[JSON] = []
    for one in ordered:
        facts, name = one.facts, asking.shown_name(one.facts.name)
        left = FOR_EVER if one.left is None else timedelta(seconds=one.left)
        on_gpus = sum(size for device, size in one.memory.items() if device.startswith("gpu"))
        entries.append(
            {
                "name": name,
                "model": name,
                "size": sum(one.memory.values()),
                "digest": facts.digest,
                "details": facts.details,
                "expires_at": (at + left).isoformat(),
                "size_vram": on_gpus,
                "context_length": facts.context or facts.trained_context or 0,
                "state": one.state,
                "queue": one.queue,
            }
        )
    return {"models": entries}


def shown(facts: ModelFacts, *, basename: str = "") -> JsonObject:
    """Return ``/api/show``. ``basename``: what the model is to be called in ``model_info``."""
    preset, template, abilities = facts.preset, facts.template, facts.abilities
    parameters: JsonObject = {**({"num_ctx": facts.context} if facts.context else {}), **preset.parameters}
    lines = [f"FROM {facts.base or facts.name}"]  # without paths: a client need not learn where files are
    if preset.system:
        lines.append(f'SYSTEM """{preset.system}"""')
    lines += [f"PARAMETER {' '.join(line.split())}" for line in _parameter_lines(preset.parameters).splitlines()]
    lines += [f"MESSAGE {m.get('role', '')} {m.get('content', '')}" for m in preset.messages]
    answer: JsonObject = {
        "modelfile": "\n".join(lines) + "\n",
        "parameters": _parameter_lines(parameters),
        "template": f"{template}{{# .Suffix #}}" if INSERT in abilities else template,
        "details": facts.details,
        "model_info": _model_info(facts, basename),
        "capabilities": list[JSON](abilities),
        "modified_at": facts.modified,
    }
    if facts.info is not None and facts.info.license:
        answer["license"] = facts.info.license
    if preset.system:
        answer["system"] = preset.system
    if preset.messages:
        answer["messages"] = list[JSON](preset.messages)
    return answer


def _model_info(facts: ModelFacts, basename: str) -> JsonObject:
    info, architecture = facts.info, facts.info.architecture if facts.info is not None else "unknown"
    found: JsonObject = {
        "general.architecture": architecture,
        "general.basename": basename or (info.name if info is not None and info.name else facts.name),
        f"{architecture}.context_length": facts.trained_context,
    }
    if info is not None:
        found |= {
            "general.parameter_count": info.parameters,
            f"{architecture}.embedding_length": info.embedding_length,
            f"{architecture}.block_count": info.block_count,
            f"{architecture}.vocab_size": info.vocabulary_size,
            **{f"{architecture}.{key}": count for key, count in info.counts.items()},
        }
    return {name: value for name, value in found.items() if value is not None}


def _parameter_lines(parameters: Mapping[str, JSON]) -> str:
    rows = (
        (name, one) for name, value in parameters.items() for one in (value if isinstance(value, list) else [value])
    )
    return "\n".join(f"{name:<30} {msgspec.json.encode(one).decode()}" for name, one in rows)


class Derived(Struct, frozen=True, kw_only=True):
    """A name for another model, with what it adds."""

    name: str  # as its maker spells it
    base: str
    preset: asking.DerivedPreset = asking.PLAIN
    made_at: float = 0.0


def read_copy(members: JsonObject) -> tuple[str, str]:
    """Return source and destination. Raises OllamaRefusal."""
    for name in ("source", "destination"):
        if not asking.is_expressible(given := asking.member_of(members, name, "")):
            raise asking.OllamaRefusal(400, f'{name} "{given}" is invalid')
    return asking.member_of(members, "source", ""), asking.member_of(members, "destination", "")


def read_create(members: JsonObject, now: float) -> Derived:
    """Raises OllamaRefusal."""
    name, base = asking.model_of(members), asking.member_of(members, "from", "")
    if not asking.is_expressible(name):
        raise asking.OllamaRefusal(400, "invalid model name")
    for member in filter(members.get, _NOT_HERE):
        told = f"'{member}' is not supported here; derive models with from, system, parameters, messages"
        raise asking.OllamaRefusal(501, told)
    if members.get("files"):
        told = "models from uploaded files are not supported here; put the GGUF file into the models folder"
        raise asking.OllamaRefusal(501, told)
    if not base:
        raise asking.OllamaRefusal(400, "neither 'from' or 'files' was specified")
    parameters, messages = asking.member_of(members, "parameters", JsonObject()), members.get("messages")
    asking.sampling_of(parameters)
    if not isinstance(messages, list | None) or not all(isinstance(one, dict) for one in messages or ()):
        raise asking.OllamaRefusal(400, "'messages' must be an array of objects")
    said = tuple(one for one in messages or () if isinstance(one, dict))
    preset = asking.DerivedPreset(system=asking.member_of(members, "system", ""), parameters=parameters, messages=said)
    return Derived(name=name, base=base, preset=preset, made_at=now)


def preset_of(model: Model | None, derived: Derived | None) -> asking.DerivedPreset:
    """Return what a request to a model gets: of a derived one, else of the model's own words."""
    words = model.words if model is not None else NO_WORDS
    own = asking.PLAIN
    if words != NO_WORDS:
        messages = tuple[dict[str, JSON], ...]({"role": role, "content": text} for role, text in words.messages)
        parameters: dict[str, JSON] = {"stop": list(words.stop)} if words.stop else {}
        own = asking.DerivedPreset(system=words.system, parameters=parameters, messages=messages)
    return over(derived, own) if derived is not None else own


def over(derived: Derived, below: asking.DerivedPreset) -> asking.DerivedPreset:
    """Return what a model adds that is derived from a derived one: its own words count, where it has some."""
    own = derived.preset
    parameters, messages = {**below.parameters, **own.parameters}, own.messages or below.messages
    return asking.DerivedPreset(system=own.system or below.system, parameters=parameters, messages=messages)


def pull_name(name: str) -> Remote | None:
    """Return what a name in ``/api/pull`` is to be downloaded; None for one of Ollama's own registry.

    Raises BadRequest and UsageError.
    """
    lowered = name.lower()
    if lowered.startswith("docker.io/"):
        return parse_image(name)
    host, slash, rest = name.partition("/")
    from_hub = slash and "/" not in rest and "." not in host and host != "library"
    return parse_wanted(name) if from_hub or lowered.startswith(tuple(HUBS)) else None


def layer_of(oid: str) -> str:
    """Return the digest of a file in a download; files that are not stored by their sha256 get one made of their id."""
    return f"sha256:{oid if len(oid) == 64 else hashlib.sha256(oid.encode()).hexdigest()}"
