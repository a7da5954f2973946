"""Reads a model's own engine flags as far as they concern its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from appliance.core.fit.estimate import Options
from appliance.core.fit.shape import Shape
from appliance.core.llama_flags import Option, from_env, last, merge, split
from appliance.errors import UsageError

NOTHING: Mapping[str, str] = {}
MOST = 1 << 31


class Asked(Struct, frozen=True, kw_only=True):
    """The options of one start, and which of them the user has set: those are not chosen again."""

    options: Options = Options()
    context: bool = False
    gpu_layers: bool = False
    parallel: bool = False
    fit: bool = True
    """llama-server may adjust options that nobody has set."""
    understood: bool = True
    """False if the flags are for another engine than the known one; the options are then the defaults."""


def asked_of(
    args: Sequence[str],
    *,
    environ: Mapping[str, str] = NOTHING,
    gpus: Sequence[str] = (),
    projector: int = 0,
    draft: Shape | None = None,
) -> Asked:
    """Read the flags of a model's start, as llama-server would: later ones win, flags before the environment."""
    try:
        said = merge(split(args), from_env(environ))
    except UsageError:
        return Asked(options=Options(gpus=tuple(gpus), projector=projector, draft=draft), understood=False)
    words = _Words(said)
    layers = words.whole("--n-gpu-layers")
    parallel, context = words.whole("--parallel"), words.whole("--ctx-size")
    ranking = words.on("--reranking") or words.text("--pooling") not in ("", "none")
    options = Options(
        context=context or 0,
        parallel=parallel if parallel is not None and parallel > 0 else 0,
        unified=words.toggle("--kv-unified"),
        keys_type=words.text("--cache-type-k") or "f16",
        values_type=words.text("--cache-type-v") or "f16",
        batch=words.whole("--batch-size") or 2048,
        ubatch=words.whole("--ubatch-size") or 512,
        flash=words.text("--flash-attn") not in ("off", "0", "false", "disabled"),
        gpu_layers=layers,
        split=words.numbers("--tensor-split"),
        window_full=words.on("--swa-full"),
        embedding=words.on("--embedding") or ranking,
        experts_in_ram=MOST if words.on("--cpu-moe") else words.whole("--n-cpu-moe") or 0,
        cache_in_ram=words.toggle("--kv-offload") is False,
        repack=words.toggle("--repack") is not False,
        projector=projector,
        draft=draft,
        gpus=() if words.text("--device") == "none" else tuple(gpus),
    )
    return Asked(
        options=options,
        context=context is not None,
        gpu_layers=words.text("--n-gpu-layers") not in ("", "auto"),
        parallel=options.parallel > 0,
        fit=words.text("--fit") not in ("off", "0", "false", "disabled"),
    )


class _Words:
    """The last value of each option. A value that is not a number counts as unset: the engine will refuse it."""

    def __init__(self, said: Sequence[Option]) -> None:
        self._said = said

    def text(self, name: str) -> str:
        option = last(self._said, name)
        return option.values[-1].strip().lower() if option and option.values else ""

    def whole(self, name: str) -> int | None:
        text = self.text(name)
        return min(int(text), MOST) if text.isascii() and text.isdecimal() else None

    def numbers(self, name: str) -> tuple[float, ...]:
        words = self.text(name).replace("/", ",").split(",")
        return tuple(float(w) for w in words if w.replace(".", "", 1).isdecimal() and w.isascii())

    def toggle(self, name: str) -> bool | None:
        option = last(self._said, name)
        return option.on if option else None

    def on(self, name: str) -> bool:
        return self.toggle(name) is True
