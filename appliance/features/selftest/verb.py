"""``selftest``: proves that engine and model work on this machine, step by step."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import click
import msgspec
import psutil
import trio
from msgspec import Struct

from appliance.catalog.catalog import STARTER_ID, scan_models
from appliance.cli.app import ground_of
from appliance.cli.options import ModelOptions
from appliance.cli.remote import (
    CHAT_PATH,
    JSON_HEADERS,
    MAX_ANSWER,
    ChatRequest,
    RunMessage,
    refuse,
    stream_answer,
    whole_answer,
)
from appliance.cli.show import json_option, print_json
from appliance.core.engine import Engine
from appliance.core.lenient_json import UNREADABLE
from appliance.core.models.model import Model
from appliance.core.openai import ChatCompletion
from appliance.core.settings import FleetSettings
from appliance.engines.named import ENGINE_HELP
from appliance.errors import ApplianceError
from appliance.fleet.owner import Fleet, open_fleet
from appliance.platform.console import EXIT_OURS, PROGRAM
from appliance.upstream.client import Address, HttpAnswer, HttpCall

QUESTION = "What is the capital of France?"
MAX_TOKENS = 200
LOAD_TIME = 300.0
STEP_TIME = 120.0
ENGLISH_LETTERS = 0.6
"""Share of ASCII letters that any English sentence has, and that noise from broken arithmetic lacks."""


class TestStep(Struct, frozen=True, kw_only=True):
    """One step of the test. ``detail`` is its result, or what is wrong."""

    name: str
    ok: bool
    seconds: float
    detail: str


class SelftestReport(Struct, frozen=True, kw_only=True):
    """The output of ``selftest --json``."""

    ok: bool
    engine: Engine | None
    model: str
    tokens_per_second: float | None
    steps: list[TestStep]


class StepFailed(Exception):
    """A step that did not prove what it should; the message says why. Never leaves this module."""


class AnswerTimings(Struct, frozen=True):
    """llama-server's own measurement."""

    predicted_per_second: float | None = None


class WholeAnswer(ChatCompletion):
    """An answer that was not streamed, as far as it is checked."""

    timings: AnswerTimings = AnswerTimings()


@click.command()
@click.option("--engine", metavar="ENGINE", help=ENGINE_HELP)
@click.option(
    "--model", metavar="MODEL", default=STARTER_ID, help="Model id or .gguf file; default: the starter model."
)
@json_option
@click.pass_context
async def selftest(ctx: click.Context, engine: str | None, model: str, as_json: bool) -> int:
    """Prove that the engine and the starter model work here: load, answer, stream, stop.

    \b
    Examples:
      llama-appliance selftest
      llama-appliance selftest --engine ./llama-server --json
    """
    source = ground_of(ctx).engines()
    async with source.found(engine).open() as engines:
        chosen = engines.choose() or source.find(engine)  # the one on which a server would start a model
    is_file = model.endswith(".gguf")
    sources = ModelOptions(models=(model,) if is_file else (), stores=not is_file).sources()
    snapshot = await trio.to_thread.run_sync(scan_models, sources)
    found = next(m for m in snapshot.models if m.source == "path") if is_file else snapshot.require(model)
    trial = SelftestTrial(found, quiet=as_json)
    if not as_json:
        click.echo(f"{PROGRAM} selftest: engine {chosen.in_words()}, model {found.id}")
    settings = FleetSettings(models_max=1, load_timeout=LOAD_TIME)
    async with open_fleet(settings, chosen, estimate=ground_of(ctx).estimate()) as fleet:
        await trial.run(fleet)
    report = SelftestReport(
        ok=all(step.ok for step in trial.steps),
        engine=chosen,
        model=found.id,
        tokens_per_second=trial.tokens_per_second,
        steps=trial.steps,
    )
    if as_json:
        print_json(report)
    else:
        click.echo("everything works" if report.ok else "something does not work here; see the line marked FAILED")
    return 0 if report.ok else EXIT_OURS


class SelftestTrial:
    """Run the steps with one model and record each as it ends; a failed step skips the rest."""

    def __init__(self, model: Model, *, quiet: bool) -> None:
        self.steps: list[TestStep] = []
        self.tokens_per_second: float | None = None
        self._model = model
        self._quiet = quiet

    async def run(self, fleet: Fleet) -> None:
        """Run all steps; a failure is a step that is not ok."""
        pid = 0

        async def load() -> str:
            nonlocal pid
            await fleet.load(self._model)
            status = fleet.known(self._model.id)
            pid = status.pid or 0 if status else 0
            return f"process {pid}"

        if not await self._step("load", load, LOAD_TIME):
            return
        async with fleet.lease(self._model) as address:
            if not await self._with_loaded(address):
                return
        await self._step("stop", partial(_stop, fleet, self._model, pid), STEP_TIME)

    async def _with_loaded(self, address: Address) -> bool:
        ask = partial(_ask, address)
        whole: list[str] = []

        async def once() -> str:
            answer = await self._answer(ask)
            whole.append(answer)
            return _quoted(answer)

        async def again() -> str:
            whole.append(await self._answer(ask))
            if whole[0] != whole[1]:
                raise StepFailed(f"at temperature 0 the answer was {_quoted(whole[0])}, then {_quoted(whole[1])}")
            return "the same answer"

        async def stream() -> str:
            streamed = await stream_answer(ask, self._request(), lambda piece: None)
            if streamed.text != whole[0]:
                raise StepFailed(f"the stream said {_quoted(streamed.text)}")
            if streamed.chunks < 2:
                raise StepFailed("the whole answer came at once")
            return f"the same answer in {streamed.chunks} pieces"

        async def speed() -> str:
            if not self.tokens_per_second:
                raise StepFailed("the engine did not say how fast it was")
            return f"{self.tokens_per_second:.0f} tokens/s"

        steps = {"health": partial(_health, address), "chat": once, "repeat": again, "stream": stream, "speed": speed}
        for name, work in steps.items():
            if not await self._step(name, work, STEP_TIME):
                return False
        return True

    async def _step(self, name: str, work: Callable[[], Awaitable[str]], seconds: float) -> bool:
        began = trio.current_time()
        try:
            with trio.fail_after(seconds):
                detail, ok = await work(), True
        except (ApplianceError, StepFailed) as error:
            detail, ok = str(error), False
        except trio.TooSlowError:
            detail, ok = f"it took longer than {seconds:g} s", False
        step = TestStep(name=name, ok=ok, seconds=round(trio.current_time() - began, 3), detail=detail)
        self.steps.append(step)
        if not self._quiet:
            click.echo(f"  {'ok    ' if ok else 'FAILED'} {name:<8}{step.seconds:7.2f} s  {detail}")
        return ok

    def _request(self) -> ChatRequest:
        """Switch off the prompt cache: a cached prompt is computed in other batches, which may change the last bits."""
        return ChatRequest(
            model=self._model.id,
            messages=(RunMessage(role="user", content=QUESTION),),
            temperature=0,
            max_tokens=MAX_TOKENS,
            seed=1,
            cache_prompt=False,
        )

    async def _answer(self, ask: Callable[[bytes], AbstractAsyncContextManager[HttpAnswer]]) -> str:
        body = await whole_answer(ask, self._request())
        try:
            answer = msgspec.json.decode(body, type=WholeAnswer)
            choice = (answer.choices or [])[0]
        except (*UNREADABLE, IndexError):
            raise StepFailed("the answer is not a chat completion") from None
        self.tokens_per_second = answer.timings.predicted_per_second
        text = choice.said.text
        self._judge(text, choice.finish_reason)
        return text

    def _judge(self, text: str, finish_reason: str | None) -> None:
        """The starter model is known to end its answer; another model may be cut off at the limit."""
        allowed = ("stop",) if self._model.source == "starter" else ("stop", "length")
        if finish_reason not in allowed:
            raise StepFailed(f"the answer ended with {finish_reason!r} instead of 'stop': {_quoted(text)}")
        letters = len(re.findall(r"[A-Za-z]", text))
        if not text.strip() or (self._model.source == "starter" and letters < ENGLISH_LETTERS * len(text)):
            raise StepFailed(f"the answer is not an English sentence: {_quoted(text)}")


@asynccontextmanager
async def _ask(address: Address, body: bytes) -> AsyncGenerator[HttpAnswer]:
    async with HttpCall(address, "POST", CHAT_PATH, JSON_HEADERS, body) as response:
        if response.status >= 400:
            refuse("the engine", response.status, await response.read(MAX_ANSWER))
        yield response


async def _health(address: Address) -> str:
    async with HttpCall(address, "GET", "/health") as response:
        if response.status != 200:
            raise StepFailed(f"/health answered {response.status}")
    return "/health answered 200"


async def _stop(fleet: Fleet, model: Model, pid: int) -> str:
    if not await fleet.unload(model.id):
        raise StepFailed("the model was no longer running")
    if psutil.pid_exists(pid):
        raise StepFailed(f"process {pid} still exists")
    return f"process {pid} is gone"


def _quoted(text: str) -> str:
    shown = " ".join(text.split())
    return f'"{shown[:80]}{"..." if len(shown) > 80 else ""}"'
