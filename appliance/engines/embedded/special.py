"""Carriers of the options about words: sampling, templates, names and addresses, done as llama.cpp's parser does."""

from __future__ import annotations

import json
import re
import sys

from appliance.core.llama.flags import Option
from appliance.engines.embedded.carriers import (
    ON_OFF,
    Target,
    as_file,
    as_integer,
    as_json,
    as_list,
    as_number,
    bad,
)

_SAMPLER_LETTERS = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "i": "infill",
    "a": "adaptive_p",
}
_ESCAPE = re.compile(r"""\\(x[0-9a-fA-F]{2}|[nrt'"\\])""")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}


def context_size(target: Target, option: Option) -> None:
    """An explicit 0 asks for the model's whole context, and forbids --fit to take less."""
    size = as_integer(option, 0)
    target.set("n_ctx", size)
    if size == 0:
        target.set("fit_params_min_ctx", -1)


def rope_scale(target: Target, option: Option) -> None:
    factor = as_number(option)
    if factor <= 0:
        raise bad(option, "is not above 0")
    target.set("rope_freq_scale", 1 / factor)


def lora(target: Target, option: Option) -> None:
    _add_loras(target, [(path, 1.0) for path in as_list(option)])


def lora_scaled(target: Target, option: Option) -> None:
    pairs: list[tuple[str, float]] = []
    for item in as_list(option):
        path, colon, scale = item.rpartition(":")
        if not colon:
            raise bad(option, "is not FILE:SCALE")
        pairs.append((path, as_number(option, scale)))
    _add_loras(target, pairs)


def _add_loras(target: Target, pairs: list[tuple[str, float]]) -> None:
    target.extend("lora_adapters", [target.native.CommonAdapterLoraInfo(path, scale) for path, scale in pairs])


def seed(target: Target, option: Option) -> None:
    """-1 is the largest unsigned number, which asks for a random seed."""
    try:
        target.set("sampling.seed", int(option.values[0]) & 0xFFFFFFFF)
    except ValueError:
        raise bad(option, "is not an integer") from None


def samplers(target: Target, option: Option) -> None:
    _set_samplers(target, option, [name for name in option.values[0].split(";") if name])
    target.mark_sampling("SAMPLERS")


def sampler_letters(target: Target, option: Option) -> None:
    unknown = set(option.values[0]) - _SAMPLER_LETTERS.keys()
    if unknown:
        raise bad(option, f"holds letters that name no sampler: {''.join(sorted(unknown))}")
    _set_samplers(target, option, [_SAMPLER_LETTERS[letter] for letter in option.values[0]])


def _set_samplers(target: Target, option: Option, names: list[str]) -> None:
    target.set("sampling.samplers", ";".join(names))
    if target.text_at("sampling.samplers").count(";") + 1 != max(1, len(names)):
        raise bad(option, "names an unknown sampler")


def dry_base(target: Target, option: Option) -> None:
    """A base below 1 would undo the penalty; llama.cpp keeps its default then."""
    base = as_number(option)
    if base >= 1:
        target.set("sampling.dry_base", base)


def grammar(target: Target, option: Option) -> None:
    _set_grammar(target, "USER", option.values[0])


def grammar_file(target: Target, option: Option) -> None:
    _set_grammar(target, "USER", as_file(option))


def json_schema(target: Target, option: Option) -> None:
    _set_schema(target, option, option.values[0])


def json_schema_file(target: Target, option: Option) -> None:
    _set_schema(target, option, as_file(option))


def _set_schema(target: Target, option: Option, schema: str) -> None:
    try:
        rules = target.native.json_schema_to_grammar(schema)
    except ValueError as cause:
        raise bad(option, f"is no usable JSON schema: {cause}") from None
    _set_grammar(target, "OUTPUT_FORMAT", rules)


def _set_grammar(target: Target, kind: str, rules: str) -> None:
    kind_of = target.member("common_grammar_type", kind)
    target.set("sampling.grammar", target.native.CommonGrammar(kind_of, rules))


def speculative_types(target: Target, option: Option) -> None:
    kinds = target.native.common_speculative_type.__members__
    for word in as_list(option):
        name = f"COMMON_SPECULATIVE_TYPE_{word.upper().replace('-', '_')}"
        if name not in kinds or name.endswith("_COUNT"):
            raise bad(option, f"names no kind of speculative decoding: {word}")
        _add_speculative(target, kinds[name])


def speculative_default(target: Target, option: Option) -> None:
    _add_speculative(target, target.member("common_speculative_type", "NGRAM_MOD"))


def _add_speculative(target: Target, kind: object) -> None:
    target.extend("speculative.types", [kind])


def synthetic_rates(target: Target, option: Option) -> None:
    target.set("speculative.synth_rates", [as_number(option, word) for word in as_list(option)])


def speculative_sampling(target: Target, option: Option) -> None:
    if option.values[0] not in ("greedy", "probabilistic"):
        raise bad(option, "is neither greedy nor probabilistic")
    target.set("speculative.draft.probabilistic", option.values[0] == "probabilistic")


def reverse_prompt(target: Target, option: Option) -> None:
    target.extend("antiprompt", [option.values[0]])


def unescape(target: Target) -> None:
    """Once all options are in: --escape, on by default, holds for every reverse prompt whatever the order."""
    if target.get("escape"):
        prompts = [_ESCAPE.sub(_unescaped, str(prompt)) for prompt in target.items_at("antiprompt")]
        target.set("antiprompt", prompts)


def _unescaped(found: re.Match[str]) -> str:
    what = found[1]
    return chr(int(what[1:], 16)) if what.startswith("x") else _ESCAPED.get(what, what)


def keep_output_formats(target: Target) -> None:
    """Once all options are in: the wheel's server follows ``response_format`` in a chat only with Jinja templates.

    With ``--no-jinja`` it passes over it without a word. Jinja then renders the template anyway, which gives the same
    prompt, unless it is the name of a built-in one, which Jinja does not know.
    """
    if target.get("use_jinja"):
        return
    template = target.text_at("chat_template")
    if template and "{" not in template:
        print(f"warning: with --no-jinja and the template {template}, response_format has no effect", file=sys.stderr)
    else:
        target.set("use_jinja", True)


def rerank(target: Target, option: Option) -> None:
    target.set("embedding", True)
    target.set("pooling_type", target.member("llama_pooling_type", "RANK"))


def parallel(target: Target, option: Option) -> None:
    slots = as_integer(option)
    if slots == 0:
        raise bad(option, "is not a number of slots; -1 chooses")
    target.set("n_parallel", slots)


def port(target: Target, option: Option) -> None:
    number = as_integer(option, 0)
    if number > 65535:
        raise bad(option, "is not a port")
    target.set("port", number)


def hosts(target: Target, option: Option) -> None:
    target.set("hostnames", as_list(option))


def api_keys(target: Target, option: Option) -> None:
    target.extend("api_keys", as_list(option))


def api_key_file(target: Target, option: Option) -> None:
    keys = [line.strip() for line in as_file(option).splitlines()]
    target.extend("api_keys", [key for key in keys if key and not key.startswith("#")])


def cors_origins(target: Target, option: Option) -> None:
    target.set("cors_origins", option.values[0])
    target.set("cors_origins_explicit", True)


def ui_config(target: Target, option: Option) -> None:
    as_json(option, option.values[0])
    target.set("ui_config_json", option.values[0])


def ui_config_file(target: Target, option: Option) -> None:
    config = as_file(option)
    as_json(option, config)
    target.set("ui_config_json", config)


def template_kwargs(target: Target, option: Option) -> None:
    found = as_json(option, option.values[0])
    if not isinstance(found, dict):
        raise bad(option, "is not a JSON object")
    for name, value in json.loads(option.values[0]).items():
        target.template_kwarg(name, value)


def reasoning(target: Target, option: Option) -> None:
    if option.values[0] in ("auto", "-1"):
        target.set("enable_reasoning", -1)
        return
    thinking = ON_OFF.get(option.values[0])
    if thinking is None:
        raise bad(option, "is none of on, off, auto")
    target.set("enable_reasoning", int(thinking))
    target.template_kwarg("enable_thinking", thinking)


def reasoning_effort(target: Target, option: Option) -> None:
    if option.values[0] != "default":
        target.template_kwarg("reasoning_effort", option.values[0])


def reasoning_preserve(target: Target, option: Option) -> None:
    target.set("preserve_reasoning_specified", True)
    target.template_kwarg("preserve_reasoning", option.on)


def sleep_idle(target: Target, option: Option) -> None:
    seconds = as_integer(option, -1)
    if seconds == 0:
        raise bad(option, "is not a number of seconds; -1 never sleeps")
    target.set("sleep_idle_seconds", seconds)


def verbose(target: Target, option: Option) -> None:
    target.set("verbosity", 2**31 - 1)


def log_nothing(target: Target, option: Option) -> None:
    """Below the level of every message."""
    target.set("verbosity", -1)


def log_colours(target: Target, option: Option) -> None:
    if option.values[0] not in ("auto", "-1", "off", "disabled", "false", "0"):
        raise bad(option, "cannot be honoured: the embedded engine writes its log without colours")
