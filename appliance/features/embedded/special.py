"""Carriers of options that set several fields, or need more than a value, done as llama.cpp's parser does.

First those about words: sampling, templates, names, addresses. Then those about where the work is done: processors,
devices, and which tensors go to which.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from types import ModuleType

from appliance.core.llama.flags import Option
from appliance.errors import UsageError
from appliance.features.embedded.carriers import (
    ON_OFF,
    Carrier,
    ParameterTarget,
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
_MIB = 1024 * 1024
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
_DENSE = r"\.ffn_(up|down|gate)\."


def context_size(target: ParameterTarget, option: Option) -> None:
    """An explicit 0 asks for the model's whole context, and forbids --fit to take less."""
    size = as_integer(option, 0)
    target.set("n_ctx", size)
    if size == 0:
        target.set("fit_params_min_ctx", -1)


def rope_scale(option: Option) -> float:
    factor = as_number(option)
    if factor <= 0:
        raise bad(option, "is not above 0")
    return 1 / factor


def lora(target: ParameterTarget, option: Option) -> None:
    _add_loras(target, [(path, 1.0) for path in as_list(option)])


def lora_scaled(target: ParameterTarget, option: Option) -> None:
    pairs: list[tuple[str, float]] = []
    for item in as_list(option):
        path, colon, scale = item.rpartition(":")
        if not colon:
            raise bad(option, "is not FILE:SCALE")
        pairs.append((path, as_number(option, scale)))
    _add_loras(target, pairs)


def _add_loras(target: ParameterTarget, pairs: list[tuple[str, float]]) -> None:
    target.extend("lora_adapters", [target.native.CommonAdapterLoraInfo(path, scale) for path, scale in pairs])


def seed(option: Option) -> int:
    """-1 is the largest unsigned number, which asks for a random seed."""
    try:
        return int(option.values[0]) & 0xFFFFFFFF
    except ValueError:
        raise bad(option, "is not an integer") from None


def samplers(target: ParameterTarget, option: Option) -> None:
    _set_samplers(target, option, [name for name in option.values[0].split(";") if name])
    target.mark_sampling("SAMPLERS")


def sampler_letters(target: ParameterTarget, option: Option) -> None:
    unknown = set(option.values[0]) - _SAMPLER_LETTERS.keys()
    if unknown:
        raise bad(option, f"holds letters that name no sampler: {''.join(sorted(unknown))}")
    _set_samplers(target, option, [_SAMPLER_LETTERS[letter] for letter in option.values[0]])


def _set_samplers(target: ParameterTarget, option: Option, names: list[str]) -> None:
    target.set("sampling.samplers", ";".join(names))
    if target.text_at("sampling.samplers").count(";") + 1 != max(1, len(names)):
        raise bad(option, "names an unknown sampler")


def dry_base(target: ParameterTarget, option: Option) -> None:
    """A base below 1 would undo the penalty; llama.cpp keeps its default then."""
    base = as_number(option)
    if base >= 1:
        target.set("sampling.dry_base", base)


def grammar(read: Callable[[Option], str]) -> Carrier:
    return lambda target, option: _set_grammar(target, "USER", read(option))


def json_schema(read: Callable[[Option], str]) -> Carrier:
    def carry(target: ParameterTarget, option: Option) -> None:
        schema = read(option)
        found = as_json(option, schema)
        if isinstance(found, dict):  # llguidance gives up a schema with a keyword that it does not know, unless told so
            schema = json.dumps({**found, "x-guidance": {"lenient": True, "coerce_one_of": True}})
        try:
            rules = target.native.json_schema_to_grammar(schema)
        except ValueError as cause:
            raise bad(option, f"is not a usable JSON schema: {cause}") from None
        _set_grammar(target, "OUTPUT_FORMAT", rules)

    return carry


def _set_grammar(target: ParameterTarget, kind: str, rules: str) -> None:
    kind_of = target.member("common_grammar_type", kind)
    target.set("sampling.grammar", target.native.CommonGrammar(kind_of, rules))


def speculative_types(target: ParameterTarget, option: Option) -> None:
    kinds = target.native.common_speculative_type.__members__
    for word in as_list(option):
        name = f"COMMON_SPECULATIVE_TYPE_{word.upper().replace('-', '_')}"
        if name not in kinds or name.endswith("_COUNT"):
            raise bad(option, f"names no kind of speculative decoding: {word}")
        _add_speculative(target, kinds[name])


def speculative_default(target: ParameterTarget, option: Option) -> None:
    _add_speculative(target, target.member("common_speculative_type", "NGRAM_MOD"))


def _add_speculative(target: ParameterTarget, kind: object) -> None:
    target.extend("speculative.types", [kind])


def synthetic_rates(option: Option) -> list[float]:
    return [as_number(option, word) for word in as_list(option)]


def is_probabilistic(option: Option) -> bool:
    if option.values[0] not in ("greedy", "probabilistic"):
        raise bad(option, "is neither greedy nor probabilistic")
    return option.values[0] == "probabilistic"


def reverse_prompt(target: ParameterTarget, option: Option) -> None:
    target.extend("antiprompt", [option.values[0]])


def unescape(target: ParameterTarget) -> None:
    """Once all options are in: --escape, on by default, holds for every reverse prompt whatever the order."""
    if target.get("escape"):
        prompts = [_ESCAPE.sub(_unescaped, str(prompt)) for prompt in target.items_at("antiprompt")]
        target.set("antiprompt", prompts)


def _unescaped(found: re.Match[str]) -> str:
    what = found[1]
    return chr(int(what[1:], 16)) if what.startswith("x") else _ESCAPED.get(what, what)


def keep_output_formats(target: ParameterTarget) -> None:
    """Once all options are in: the wheel's server follows every ``response_format`` in a chat only with Jinja.

    With ``--no-jinja`` llguidance takes its place, which gives up with some vocabularies without a word. Jinja then
    renders the template anyway, which gives the same prompt, unless it is the name of a built-in one, which Jinja does
    not know.
    """
    if target.get("use_jinja"):
        return
    template = target.text_at("chat_template")
    if template and "{" not in template:
        print(
            f"warning: with --no-jinja and the template {template}, not every response_format counts", file=sys.stderr
        )
    else:
        target.set("use_jinja", True)


def rerank(target: ParameterTarget, option: Option) -> None:
    target.set("embedding", True)
    target.set("pooling_type", target.member("llama_pooling_type", "RANK"))


def slots(option: Option) -> int:
    count = as_integer(option)
    if count == 0:
        raise bad(option, "is not a number of slots; -1 chooses")
    return count


def port(option: Option) -> int:
    number = as_integer(option, 0)
    if number > 65535:
        raise bad(option, "is not a port")
    return number


def api_keys(target: ParameterTarget, option: Option) -> None:
    target.extend("api_keys", as_list(option))


def api_key_file(target: ParameterTarget, option: Option) -> None:
    keys = [line.strip() for line in as_file(option).splitlines()]
    target.extend("api_keys", [key for key in keys if key and not key.startswith("#")])


def cors_origins(target: ParameterTarget, option: Option) -> None:
    target.set("cors_origins", option.values[0])
    target.set("cors_origins_explicit", True)


def json_text(read: Callable[[Option], str]) -> Callable[[Option], str]:
    """Text that has to be JSON."""

    def read_json(option: Option) -> str:
        found = read(option)
        as_json(option, found)
        return found

    return read_json


def template_kwargs(target: ParameterTarget, option: Option) -> None:
    found = as_json(option, option.values[0])
    if not isinstance(found, dict):
        raise bad(option, "is not a JSON object")
    for name, value in json.loads(option.values[0]).items():
        target.template_kwarg(name, value)


def reasoning(target: ParameterTarget, option: Option) -> None:
    if option.values[0] in ("auto", "-1"):
        target.set("enable_reasoning", -1)
        return
    thinking = ON_OFF.get(option.values[0])
    if thinking is None:
        raise bad(option, "is none of on, off, auto")
    target.set("enable_reasoning", int(thinking))
    target.template_kwarg("enable_thinking", thinking)


def reasoning_effort(target: ParameterTarget, option: Option) -> None:
    if option.values[0] != "default":
        target.template_kwarg("reasoning_effort", option.values[0])


def reasoning_preserve(target: ParameterTarget, option: Option) -> None:
    target.set("preserve_reasoning_specified", True)
    target.template_kwarg("preserve_reasoning", option.on)


def idle_seconds(option: Option) -> int:
    seconds = as_integer(option, -1)
    if seconds == 0:
        raise bad(option, "is not a number of seconds; -1 never sleeps")
    return seconds


def look(option: Option, fixed: bool, why: str) -> None:
    """The look of the log cannot be chosen here, and no server ends for that."""
    wished = {**ON_OFF, "auto": fixed, "-1": fixed}.get(option.values[0]) if option.values else option.on
    if wished is None:
        raise bad(option, "is none of on, off, auto")
    if wished is not fixed:
        print(f"warning: {option.flag} has no effect: the embedded engine {why}", file=sys.stderr)


def threads(option: Option) -> int:
    """Zero or less means every processor that this process may use."""
    if (count := as_integer(option)) > 0:
        return count
    from appliance.platform.machine import here  # modules that hardly any start needs

    return here.cores()


def cpu_mask(path: str) -> Carrier:
    """A hexadecimal mask, its lowest bit the first processor."""

    def carry(target: ParameterTarget, option: Option) -> None:
        try:
            bits = int(option.values[0], 16)
        except ValueError:
            raise bad(option, "is not a hexadecimal mask") from None
        _add_cpus(target, path, option, [at for at in range(bits.bit_length()) if bits >> at & 1])

    return carry


def cpu_range(path: str) -> Carrier:
    """``lo-hi``, either end of which may be left out."""

    def carry(target: ParameterTarget, option: Option) -> None:
        found = re.fullmatch(r"(\d*)-(\d*)", option.values[0])
        if found is None:
            raise bad(option, "is not a range such as 0-3")
        low, high = int(found[1] or 0), int(found[2] or _mask_width(target) - 1)
        _add_cpus(target, path, option, list(range(low, high + 1)))

    return carry


def _mask_width(target: ParameterTarget) -> int:
    width = target.native.GGML_MAX_N_THREADS
    assert isinstance(width, int)
    return width


def _add_cpus(target: ParameterTarget, path: str, option: Option, cpus: list[int]) -> None:
    width = _mask_width(target)
    if not cpus or cpus[-1] >= width:
        raise bad(option, f"names no processor below {width}")
    mask = target.items_at(f"{path}.cpumask")
    chosen = set(cpus)
    target.set(f"{path}.cpumask", [bool(mask[at]) or at in chosen for at in range(width)])
    target.set(f"{path}.mask_valid", True)


def priority(path: str) -> Carrier:
    def carry(target: ParameterTarget, option: Option) -> None:
        level = as_integer(option)
        if not -1 <= level <= 3:
            raise bad(option, "is none of -1, 0, 1, 2, 3")
        target.set(path, target.native.ggml_sched_priority(level))

    return carry


def gpu_layers(option: Option) -> int:
    value = {"auto": -1, "all": -2}.get(option.values[0])
    return as_integer(option, 0) if value is None else value


def tensor_split(target: ParameterTarget, option: Option) -> None:
    shares = [as_number(option, word) for word in re.split(r"[,/]+", option.values[0]) if word]
    slots = target.items_at("tensor_split")
    if len(shares) > len(slots):
        raise bad(option, f"names more than {len(slots)} devices")
    target.set("tensor_split", [*shares, *[0.0] * (len(slots) - len(shares))])


def fit_target(target: ParameterTarget, option: Option) -> None:
    """Free MiB to leave per device; a single value is for all of them."""
    margins = [int(as_number(option, word)) * _MIB for word in as_list(option)]
    slots = target.items_at("fit_params_target")
    if not 1 <= len(margins) <= len(slots) or min(margins) < 0:
        raise bad(option, "is not a list of sizes in MiB")
    others = [margins[0]] * len(slots) if len(margins) == 1 else slots
    target.set("fit_params_target", [*margins, *others[len(margins) :]])


def tensor_overrides(path: str) -> Carrier:
    def carry(target: ParameterTarget, option: Option) -> None:
        _add_overrides(target, path, option, option.values[0])

    return carry


def experts_on_cpu(path: str) -> Carrier:
    return lambda target, option: _add_overrides(target, path, option, f"{_EXPERTS}=CPU")


def layers_on_cpu(path: str, *, dense: bool = False) -> Carrier:
    def carry(target: ParameterTarget, option: Option) -> None:
        tensors = _DENSE if dense else _EXPERTS
        layers = [rf"blk\.{at}{tensors}=CPU" for at in range(as_integer(option, 0))]
        if layers:
            _add_overrides(target, path, option, ",".join(layers))

    return carry


def _add_overrides(target: ParameterTarget, path: str, option: Option, overrides: str) -> None:
    before = target.text_at(path)
    try:
        target.set(path, f"{before},{overrides}" if before else overrides)
    except ValueError as cause:
        raise UsageError(f"{option.flag}: {cause}") from None


def accelerators(native: ModuleType) -> list[dict[str, object]]:
    """The library's devices other than the processor itself."""
    found: list[dict[str, object]] = native.get_device_info()
    return [device for device in found if device["type"] != native.ggml_backend_dev_type.GGML_BACKEND_DEVICE_TYPE_CPU]


def no_device(target: ParameterTarget, option: Option) -> None:
    """The wheel offers no choice of devices; without any to choose from, ``none`` is what happens anyway."""
    if option.values[0] != "none" or accelerators(target.native):
        raise bad(option, "cannot be honoured: the embedded engine does not take a list of devices")
    target.set("mmproj_device", "none")
    target.set("mmproj_use_gpu", False)


def draft_device(target: ParameterTarget, option: Option) -> None:
    try:
        target.set("speculative.draft.devices", option.values[0])
    except ValueError as cause:
        raise UsageError(f"{option.flag}: {cause}") from None


def mmproj_device(target: ParameterTarget, option: Option) -> None:
    target.set("mmproj_device", option.values[0])
    if option.values[0] == "none":
        target.set("mmproj_use_gpu", False)


def mmproj_offload(target: ParameterTarget, option: Option) -> None:
    target.set("mmproj_use_gpu", option.on)
    if not option.on:
        target.set("mmproj_device", "none")
