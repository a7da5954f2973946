"""The verbs of params.py: each writes one llama-server option into the wheel's parameters.

A carrier takes the target and one option, and raises UsageError, naming the flag as it was given, for a value that
llama-server would not take either.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import cast

from appliance.core.llama.flags import Option
from appliance.errors import UsageError

_INT32 = 2**31
ON_OFF: dict[str, bool] = {
    **dict.fromkeys(("on", "enabled", "true", "1"), True),
    **dict.fromkeys(("off", "disabled", "false", "0"), False),
}


class ParameterTarget:
    """The parameters being filled, addressed by dotted path, and the library they belong to."""

    def __init__(self, native: ModuleType) -> None:
        self.native = native
        self.params: object = native.CommonParams()

    def get(self, path: str) -> object:
        found: object = self.params
        for name in path.split("."):
            found = getattr(found, name)
        return found

    def set(self, path: str, value: object) -> None:
        owner, _, leaf = path.rpartition(".")
        setattr(self.get(owner) if owner else self.params, leaf, value)

    def member(self, enum: str, name: str) -> object:
        """A member of one of the library's enumerations, without repeating its prefix."""
        return getattr(getattr(self.native, enum), f"{enum}_{name}".upper())

    def mark_sampling(self, name: str) -> None:
        """Note that the user chose this sampling value, so that the model's own metadata does not replace it."""
        chosen = self.member("common_params_sampling_config", name)
        assert isinstance(chosen, int)
        self.set("sampling.user_sampling_config", self.integer_at("sampling.user_sampling_config") | chosen)

    def integer_at(self, path: str) -> int:
        value = self.get(path)
        assert isinstance(value, int)
        return value

    def text_at(self, path: str) -> str:
        value = self.get(path)
        assert isinstance(value, str)
        return value

    def items_at(self, path: str) -> list[object]:
        # The library is untyped; the list holds the values that its own setter takes back.
        return cast("list[object]", self.get(path))

    def extend(self, path: str, values: Iterable[object]) -> None:
        """Add to a list; the library hands out copies, so it is written back whole."""
        self.set(path, [*self.items_at(path), *values])

    def template_kwarg(self, name: str, value: object) -> None:
        """Set one variable of the chat template; the library keeps them as JSON text."""
        before = cast("dict[str, str]", self.get("default_template_kwargs"))  # as documented by its property
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        self.set("default_template_kwargs", {**before, name: text})


Carrier = Callable[[ParameterTarget, Option], None]


def bad(option: Option, why: str) -> UsageError:
    return UsageError(f"{option.flag}: {option.values[0]!r} {why}")


def as_integer(option: Option, least: int = -_INT32) -> int:
    try:
        value = int(option.values[0])
    except ValueError:
        raise bad(option, "is not an integer") from None
    if not max(least, -_INT32) <= value < _INT32:
        raise bad(option, "is out of range" if value >= _INT32 else f"is below {least}")
    return value


def as_number(option: Option, text: str | None = None) -> float:
    try:
        value = float(option.values[0] if text is None else text)
    except ValueError:
        raise bad(option, "is not a number") from None
    if not math.isfinite(value):
        raise bad(option, "is not a finite number")
    return value


def as_list(option: Option) -> list[str]:
    """The comma-separated words of a value, quoted ones whole, empty ones dropped."""
    import csv  # a millisecond, for the few options that are lists

    return [word for row in csv.reader([option.values[0]]) for word in row if word]


def as_file(option: Option) -> str:
    from pathlib import Path  # five milliseconds, which options without a file do without

    try:
        return Path(option.values[0]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        raise bad(option, f"cannot be read: {cause}") from None


def as_json(option: Option, text: str) -> object:
    try:
        value: object = json.loads(text)
    except ValueError as cause:
        raise bad(option, f"is not JSON: {cause}") from None
    return value


def given(option: Option) -> str:
    return option.values[0]


def is_on(option: Option) -> bool:
    """A switch, or a toggle whose negative spelling clears what the positive one sets."""
    return option.on


def as_on_off(option: Option) -> bool:
    value = ON_OFF.get(option.values[0])
    if value is None:
        raise bad(option, "is neither on nor off")
    return value


def as_directory(option: Option) -> str:
    """An existing directory; the library wants it to end in a separator."""
    from pathlib import Path  # five milliseconds, which options without a directory do without

    if not Path(option.values[0]).is_dir():
        raise bad(option, "is not a directory")
    return option.values[0].rstrip("/") + "/"


def stored(read: Callable[[Option], object], *paths: str, mark: str = "") -> Carrier:
    """Store what ``read`` makes of the option. ``mark`` is the name of a sampling value that the user chose."""

    def carry(target: ParameterTarget, option: Option) -> None:
        value = read(option)
        for path in paths:
            target.set(path, value)
        if mark:
            target.mark_sampling(mark)

    return carry


def integer(*paths: str, least: int = -_INT32, scale: int = 1, mark: str = "") -> Carrier:
    return stored(lambda option: as_integer(option, least) * scale, *paths, mark=mark)


def number(path: str, *, mark: str = "", least: float = -math.inf) -> Carrier:
    """A value below ``least`` counts as ``least``."""
    return stored(lambda option: max(least, as_number(option)), path, mark=mark)


def text(*paths: str) -> Carrier:
    return stored(given, *paths)


def switch(path: str) -> Carrier:
    return stored(is_on, path)


def unset(*paths: str) -> Carrier:
    """A switch for parameters that are named after their absence."""
    return stored(lambda option: not option.on, *paths)


def names(path: str) -> Carrier:
    """A set of names, added to."""

    def carry(target: ParameterTarget, option: Option) -> None:
        before = cast("set[str]", target.get(path))  # as documented by its property
        target.set(path, {*before, *as_list(option)})

    return carry


def choice(path: str, enum: str, members: Mapping[str, str]) -> Carrier:
    """One word out of ``members``, each with the name of the enumeration's member it stands for."""

    def carry(target: ParameterTarget, option: Option) -> None:
        member = members.get(option.values[0])
        if member is None:
            raise bad(option, f"is none of {', '.join(members)}")
        target.set(path, target.member(enum, member))

    return carry


def nothing(target: ParameterTarget, option: Option) -> None:
    """For an option that llama.cpp itself accepts without effect, or whose effect is what the engine does anyway."""
