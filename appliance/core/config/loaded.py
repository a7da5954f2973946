"""The inputs and results of reading a configuration: values that are known without reading one."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from appliance.core.config.nodes import Problem
from appliance.core.config.types import Config
from appliance.errors import InvalidConfig

NO_PORTS: dict[str, int] = {}


class Source(Struct, frozen=True):
    """One file; ``file`` is its name in messages."""

    file: str
    text: str


class Loaded(Struct, frozen=True):
    """``config`` is None when there are errors. Problems are in the order of the files."""

    config: Config | None
    problems: tuple[Problem, ...]
    ports: Mapping[str, int] = NO_PORTS
    """The port of each model that uses ``${PORT}``."""

    @property
    def errors(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.level == "error")

    @property
    def warnings(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.level == "warning")

    def require(self) -> Config:
        """The configuration. Raises InvalidConfig with every error."""
        if self.config is None:
            raise InvalidConfig(self.errors)
        return self.config
