"""The turn of plugins: which requests name some. The first that does has the rest imported; nearly all name none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from msgspec import structs

from appliance.core.answers.families import family_of
from appliance.core.bodies.head import RequestHead
from appliance.core.runs.inward import Asker
from appliance.errors import BadRequest
from appliance.features.plugins.registry import Plugins
from appliance.http.way.context import AskModel, ModelRequest, Use
from appliance.http.way.progress import Pings
from appliance.http.way.routes import Route


class PluginChains:
    """Takes requests through the plugins that they name. ``models`` tells the names that may be asked for."""

    acts = True

    def __init__(self, plugins: Plugins, asker: Asker, models: Callable[[], list[str]], pings: Pings) -> None:
        self._plugins, self._asker, self._models = plugins, asker, models
        self._pings = pings

    def is_for(self, route: Route) -> bool:
        """See `appliance.http.way.hooks.Turn`."""
        return family_of(route.name) is not None

    def wants(self, route: Route, head: RequestHead, body: bytes) -> bool:
        """Return whether there is a plan, or a mistake. See `appliance.http.way.hooks.Turn`."""
        try:
            return self._plugins.plan(route.name, body) is not None
        except BadRequest:
            return True

    def take(self, job: ModelRequest, model: str) -> tuple[ModelRequest, Use | None]:
        """A request without its commands, and the plugins for them; nearly all requests have none, the program's none.

        Raises BadRequest. The answer raises what its ``ask`` does, and PluginFailed.
        """
        plan = self._plugins.plan(job.route.name, job.body) if not job.request.inward else None
        if plan is None:
            return job, None
        return structs.replace(job, body=plan.body), partial(self._run, plan.commands, model) if plan.commands else None

    async def _run(self, commands: Sequence[str], model: str, job: ModelRequest, ask: AskModel) -> None:
        from appliance.features.plugins.answering import answer_through
        from appliance.features.plugins.chain import open_chain

        job.record.metadata["plugins"] = " ".join(commands)
        entries = [self._plugins.entries[name] for name in commands]
        async with open_chain(entries, job.route.name, model, self._asker, self._models) as chain:
            await answer_through(chain, job, model, ask, self._pings)
