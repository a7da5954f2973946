"""The command line of a model process: what later flags may override, and what they may not lose."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.cli.serve import OWNED
from appliance.core.llama import flags
from appliance.fleet.launch import model_command


def command(*overrides: str, on_cpu: bool = True, defaults: Sequence[str] = ()) -> tuple[str, ...]:
    return model_command(
        ("engine",),
        on_cpu=on_cpu,
        model_id="m",
        path="/m.gguf",
        port=4000,
        threads=3,
        metrics=True,
        options=(*defaults, *overrides),
    )


def effective(argv: Sequence[str], name: str) -> str | None:
    """The value llama-server ends up with: the last one given, under any spelling."""
    option = flags.last(flags.split(argv[1:]), name)
    return option.values[0] if option else None


def test_what_the_user_asked_for_wins_over_the_model_and_the_program() -> None:
    argv = command("-t", "8", "-c", "100", defaults=("--ctx-size", "8192", "--temp", "0"))
    assert effective(argv, "--threads") == "8"
    assert effective(argv, "--ctx-size") == "100"
    assert effective(argv, "--temp") == "0"
    assert effective(argv, "--host") == "127.0.0.1"
    assert effective(argv, "--port") == "4000"


def test_cpu_batches_are_small_unless_somebody_chose() -> None:
    assert effective(command(), "--batch-size") == "512"
    assert effective(command("-b", "2048"), "--batch-size") == "2048"
    assert effective(command("-ub", "1024"), "--batch-size") is None
    assert effective(command(on_cpu=False), "--batch-size") is None


def test_owned_flags_exist() -> None:
    assert [flag for flag in OWNED if flags.lookup(flag) is None] == []
