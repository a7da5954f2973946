"""The flags of a model's start, as far as its memory depends on them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from appliance.core.engine import Manual
from appliance.core.llama.flags import FALSE_WORDS, canonical, split
from appliance.core.models.shape import Shape
from appliance.core.sizes import GIB, MIB
from appliance.core.whole_numbers import whole_number
from appliance.errors import UsageError

AUTO_PARALLEL = 4  # slots without ``--parallel``; they then share one context
MOST = 1 << 31
CACHE, PER_SLOT, CHECKPOINTS = "--cache-ram", "--kv-unified-per-slot", "--ctx-checkpoints"
MOST_CACHED = 8 * GIB  # the cache of prompts that llama-server has unless somebody sets another; here the largest


class Options(Struct, frozen=True, kw_only=True):
    """The options of a start. The defaults are llama-server's. A plan chooses none that somebody has set."""

    context: int | None = None  # tokens of all slots together; 0: as many as it was trained for; None: nobody said
    parallel: int = 0  # 0: nobody said
    unified: bool | None = None  # the slots share one context; None: if their number is llama-server's choice
    slot_context: int = 0  # tokens that a slot may have (`PER_SLOT`); 0: nobody said
    keys_type: str = "f16"
    values_type: str = "f16"
    batch: int = 2048
    ubatch: int = 512
    flash: bool = True
    gpu_layers: int | None = None  # the last so many of all layers and the output are on GPUs; None: nobody said
    window_full: bool = False
    embedding: bool = False
    experts_in_ram: int = 0  # layers, from the first, whose experts stay in main memory
    cache_in_ram: bool = False
    repack: bool = True
    projector: int = 0  # size of the projector's file in bytes
    draft: Shape | None = None
    gpus: tuple[str, ...] = ()  # names of the devices beside the processor, in the order in which they are filled
    prompt_cache: int | None = None  # bytes that its cache of prompts may take (`CACHE`); None: it is to be chosen
    apart: bool = False  # slots that cannot use up each other's context are to be chosen
    checkpoints: bool = False  # their number is to be chosen
    fit: bool = True  # llama-server may adjust options that nobody has set
    understood: bool = True  # False if the flags are for another engine than the known one; these are then defaults


def asked_of(args: Sequence[str], *, gpus: Sequence[str] = (), manual: Manual | None = None) -> Options:
    """Read the flags of a model's start, as llama-server would: later ones win.

    ``gpus`` are those that it may use. ``manual`` is what the build says of itself: an option that is not known to be
    there is not chosen; but `CACHE`, which is older, is taken to be there in a build that has not said.
    """
    try:
        said = {option.canonical: option for option in split(args)}
    except UsageError:
        return Options(gpus=tuple(gpus), understood=False)

    def text(name: str) -> str:
        option = said.get(canonical(name))
        return option.values[-1].strip().lower() if option is not None and option.values else ""

    def whole(name: str) -> int | None:
        """A value that is not a number counts as unset: the engine will refuse it."""
        found = whole_number(text(name))
        return min(found, MOST) if found is not None else None

    def is_on(name: str) -> bool | None:
        option = said.get(canonical(name))
        return option.on if option is not None else None

    build = manual or Manual()
    layers, cached, parallel = whole("--n-gpu-layers"), whole(CACHE), whole("--parallel") or 0
    context, each, unified = whole("--ctx-size"), whole(PER_SLOT) or 0, is_on("--kv-unified")
    if context is None and each:
        context = each * (parallel or AUTO_PARALLEL)  # as the server then sizes it
    pooled = text("--pooling") not in ("", "none")
    embedding = pooled or is_on("--embedding") is True or is_on("--reranking") is True
    if text(CACHE):
        cache = MOST_CACHED if cached is None else cached * MIB
    else:  # for embeddings it keeps nothing of a prompt
        cache = 0 if embedding or (build.options and not build.names(CACHE)) else None
    return Options(
        context=context,
        parallel=parallel,
        unified=unified,
        slot_context=each,
        keys_type=text("--cache-type-k") or "f16",
        values_type=text("--cache-type-v") or "f16",
        batch=whole("--batch-size") or 2048,
        ubatch=whole("--ubatch-size") or 512,
        flash=text("--flash-attn") not in FALSE_WORDS,
        gpu_layers=MOST if layers is None and text("--n-gpu-layers") not in ("", "auto") else layers,
        window_full=is_on("--swa-full") is True,
        embedding=embedding,
        experts_in_ram=MOST if is_on("--cpu-moe") else whole("--n-cpu-moe") or 0,
        cache_in_ram=is_on("--kv-offload") is False,
        repack=is_on("--repack") is not False,
        gpus=() if text("--device") == "none" else tuple(gpus),
        prompt_cache=cache,
        apart=build.names(PER_SLOT) and unified is None and not (parallel or text(PER_SLOT) or embedding),
        checkpoints=build.names(CHECKPOINTS) and not text(CHECKPOINTS),
        fit=text("--fit") not in FALSE_WORDS,
    )
