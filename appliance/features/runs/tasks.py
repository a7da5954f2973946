"""A task that another part of the program waits for: begun, followed in words, and what came of it."""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from appliance.core.bodies.sse import Decoder
from appliance.core.turns.tasks import TaskEnd, Tell
from appliance.features.runs.owner import Agents
from appliance.features.runs.record import result_of
from appliance.features.runs.routes import read_run
from appliance.features.runs.run import AgentRun, RequestedRun
from appliance.traffic.targets import Targets


class _EventText(Struct):
    text: str = ""
    name: str = ""


async def run_task(agents: Agents, targets: Targets, body: bytes, tell: Tell | None) -> TaskEnd:
    """See `core.turns.tasks.RunTask`. Raises BadRequest, and what `Agents.submit` raises."""
    task, limits = read_run(body, agents.toolbox, agents.settings)
    worker = await targets.worker(task.model)
    run = agents.submit(RequestedRun(task=task, worker=worker, limits=limits))
    try:
        await _follow(run, tell)
    finally:
        if not run.over:
            agents.cancel(run.id)
    found = result_of(run.record())
    why = found.detail or found.fail_reason or found.state
    failure = None if found.state == "completed" else f"run {found.id} {found.state}: {why}"
    return TaskEnd(output=found.output, failure=failure, result=Raw(msgspec.json.encode(found)))


async def _follow(run: AgentRun, tell: Tell | None) -> None:
    """Until it has ended; steps that are too fast to follow are left out."""
    reader, decoder = run.feed.reader(0), Decoder()
    while True:
        data = await reader.receive()
        if data:
            for event in decoder.feed(data):
                if tell is not None and event.name == "output":
                    await tell(msgspec.json.decode(event.data, type=_EventText).text)
                elif tell is not None and event.name == "tool_call":
                    await tell(f"[uses {msgspec.json.decode(event.data, type=_EventText).name}]")
        elif reader.overtaken:
            reader, decoder = run.feed.reader(run.feed.ring.dropped), Decoder()
        else:
            return
