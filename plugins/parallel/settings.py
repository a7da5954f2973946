"""The settings in config.json; README.md explains each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

MOST = 16
"""Number of candidates for one request, the request's own answer included."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    models: Sequence[str] = ()
    samples: int = 2
    choose: Literal["judge", "merge", "vote", "first"] = "judge"
    judge_model: str = ""
    vote_on: Literal["whole", "last_line"] = "whole"
    temperature: float | None = None
    seconds: float = 120.0

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError("'samples' must be 1 or more")
        if self.seconds <= 0:
            raise ValueError("'seconds' must be more than 0")
        count = self.samples * (1 + len(self.models))
        if not 2 <= count <= MOST:
            raise ValueError(f"'samples' of each model make {count} candidates; 2 to {MOST} can be compared")

    def others(self, own: str) -> list[str]:
        """Return the models to ask besides the request itself, one entry for each answer."""
        return [own] * (self.samples - 1) + [model for model in self.models for _ in range(self.samples)]
