"""The error hierarchy, split by whose fault it is; knows nothing of HTTP or exit codes.

Every leaf carries facts as fields and builds its one-line message in ``__str__``: what is wrong and what to do.
``http/errors.py`` and ``cli/`` each hold one table from class to status; anything not in this file is a bug.
"""

from __future__ import annotations

from collections.abc import Sequence


class ApplianceError(Exception):
    """Root of everything the program says on purpose."""

    reason = "internal_error"
    """Machine-readable word, the ``reason`` field of an HTTP error body."""


class _Told(Exception):
    """For errors that are told by whoever raises them."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message


class _OfModel(Exception):
    """For errors of one model's engine; ``log_tail`` is what the engine said last."""

    def __init__(self, model: str, why: str, log_tail: Sequence[str] = ()) -> None:
        super().__init__(model, why, tuple(log_tail))
        self.model = model
        self.why = why
        self.log_tail = tuple(log_tail)

    @property
    def tail(self) -> str:
        """The log's last lines as the end of a message; empty where there are none."""
        lines = "".join(f"\n  {line}" for line in self.log_tail)
        return f"; its last log lines:{lines}" if lines else ""


# ---- the caller's fault ----------------------------------------------------------------------------------------------


class CallerError(ApplianceError):
    """The request or command line is wrong; repeating it unchanged cannot help."""


class BadRequest(_Told, CallerError):
    """A field, header or body that cannot be used. ``param`` names the field where there is one."""

    reason = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class BodyTooLarge(CallerError):
    """A body longer than the program accepts; refused before it is read."""

    reason = "body_too_large"

    def __init__(self, limit: int, *, fixed: bool = False) -> None:
        super().__init__(limit)
        self.limit = limit
        self.fixed = fixed
        """It is the route's own limit, which no setting changes."""

    def __str__(self) -> str:
        advice = "send less" if self.fixed else "send less, or raise --max-body"
        return f"the request body is larger than the limit of {self.limit} bytes; {advice}"


class BodyTooSlow(CallerError):
    """A body that stopped arriving before its end."""

    reason = "body_timeout"

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds

    def __str__(self) -> str:
        return f"the request body made no progress for {self.seconds:g} s; send it again"


WHERE_MODELS_ARE = "; 'llama-appliance ls' and GET /v1/models list what there is"


class ModelNotFound(CallerError):
    """No model, alias or peer has this name. ``near`` holds known names that look like it."""

    reason = "model_not_found"

    def __init__(self, model: str, near: Sequence[str] = ()) -> None:
        super().__init__(model, tuple(near))
        self.model = model
        self.near = tuple(near)

    def __str__(self) -> str:
        hint = f"; did you mean {' or '.join(repr(n) for n in self.near)}?" if self.near else ""
        return f"model '{self.model}' not found{hint or WHERE_MODELS_ARE}"


class ModelNotLoaded(CallerError):
    """A question about a model that does not run; answering it would have to load the model."""

    reason = "model_not_loaded"

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model

    def __str__(self) -> str:
        return f"model is not loaded: '{self.model}'; POST /models/load loads it, as does a request with ?autoload=1"


class RouteNotFound(CallerError):
    """No such path, or not with this method."""

    reason = "route_not_found"

    def __init__(self, method: str, path: str) -> None:
        super().__init__(method, path)
        self.method = method
        self.path = path

    def __str__(self) -> str:
        return f"there is no route {self.method} {self.path}"


class NotFound(_Told, CallerError):
    """A thing other than a model or a route that the path or body names, and that is not (or no longer) there."""

    reason = "not_found"


class RequestCancelled(_Told, CallerError):
    """A request that was ended on demand while it was under way. Sending it again is not what was wanted."""

    reason = "cancelled"

    def __init__(self, message: str = "the request was cancelled while it was under way") -> None:
        super().__init__(message)


class Unauthorized(CallerError):
    """No credential, or not one of the configured keys."""

    reason = "invalid_api_key"

    def __str__(self) -> str:
        return "Invalid API Key"


class Forbidden(_Told, CallerError):
    """A request refused for where it comes from (Host, Origin) or for a feature that is off."""

    reason = "forbidden"


class UsageError(_Told, CallerError):
    """A command line, environment or configuration that cannot be used."""

    reason = "usage"


class InvalidConfig(UsageError):
    """A configuration with mistakes; ``problems`` are all of them, each one line with its place."""

    reason = "invalid_config"

    def __init__(self, problems: Sequence[object]) -> None:
        told = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"the configuration has {len(problems)} mistake{'s' * (len(problems) != 1)}:{told}")
        self.problems = tuple(problems)


class Conflict(_Told, CallerError):
    """A request that would have to start a model, and must not."""

    reason = "conflict"


class NotReady(CallerError):
    """The result of a run that has not ended yet."""

    reason = "not_ready"

    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.run = run

    def __str__(self) -> str:
        return f"run {self.run} has not ended yet; 'partial' is what there is so far"


# ---- the model's or the engine's fault -------------------------------------------------------------------------------


class ModelError(ApplianceError):
    """A model file or a model process failed; another model may still work."""


class InvalidModelFile(ModelError):
    """A file that is not a usable GGUF. ``why`` says which check it failed."""

    reason = "invalid_model_file"

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why)
        self.path = path
        self.why = why

    def __str__(self) -> str:
        return f"{self.path} is not a usable GGUF model: {self.why}"


class ModelFailedToStart(_OfModel, ModelError):
    """A model process that exited, or stayed silent, before it was ready."""

    reason = "model_failed_to_start"

    def __str__(self) -> str:
        return f"model '{self.model}' failed to start: {self.why}{self.tail}"


class UpstreamFailed(_OfModel, ModelError):
    """A model process that broke the connection, or spoke something other than HTTP."""

    reason = "upstream_failed"

    def __str__(self) -> str:
        return f"the engine of model '{self.model}' failed: {self.why}"


class ToolLoopFailed(_OfModel, ModelError):
    """A request whose tools are used here, and whose model used them in a way that leads nowhere."""

    reason = "tool_loop_failed"

    def __str__(self) -> str:
        return f"model '{self.model}' could not be answered with tools: {self.why}"


class PeerFailed(ModelError):
    """Another server that was asked for a model, and did not answer."""

    reason = "peer_failed"

    def __init__(self, peer: str, why: str) -> None:
        super().__init__(peer, why)
        self.peer = peer
        self.why = why

    def __str__(self) -> str:
        return f"peer '{self.peer}' failed: {self.why}"


class TargetFailed(ModelError):
    """A server on the internet that was asked for a web page (``/cors-proxy``), and did not answer as it should."""

    reason = "target_failed"

    def __init__(self, host: str, why: str) -> None:
        super().__init__(host, why)
        self.host = host
        self.why = why

    def __str__(self) -> str:
        return f"the server '{self.host}' failed: {self.why}"


class PluginFailed(ApplianceError):
    """A plugin that a request named, and that did not do its part. ``hook`` is where: a function of its agent.py."""

    reason = "plugin_failed"

    def __init__(self, plugin: str, hook: str, why: str) -> None:
        super().__init__(plugin, hook, why)
        self.plugin = plugin
        self.hook = hook
        self.why = why

    def __str__(self) -> str:
        return f"plugin '{self.plugin}' failed in {self.hook}: {self.why}"


class EngineNotFound(ModelError):
    """No llama.cpp build on this machine can be used."""

    reason = "engine_not_found"

    def __init__(self, looked: Sequence[str]) -> None:
        super().__init__(tuple(looked))
        self.looked = tuple(looked)

    def __str__(self) -> str:
        return (
            f"no llama.cpp engine found (looked at: {', '.join(self.looked)}); install the embedded one with "
            "'pip install llama-appliance[embedded]', build one with 'python llama-builds/build.py', "
            "or name one with --engine PATH"
        )


# ---- now is not the time ---------------------------------------------------------------------------------------------


class Busy(_Told, ApplianceError):
    """A limit is reached; the same request may succeed after ``retry_after`` seconds."""

    reason = "busy"

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NoSlotAvailable(Busy):
    """As many agent runs of one model as may be are under way, and as many as may wait do."""

    reason = "no_slot_available"

    def __init__(self, model: str, slots: int, waiting: int) -> None:
        queue = f", and {waiting} wait" if waiting else ""
        super().__init__(
            f"no slot available: model '{model}' has {slots} run{'s' * (slots != 1)} under way{queue}; "
            "send it again later, or raise runs.slots or runs.queue",
            retry_after=2.0,
        )
        self.model = model


class WorkerFailed(_OfModel, ModelError):
    """The engine of a model had to be restarted so often that runs on it are refused until somebody has looked."""

    reason = "worker_failed"

    def __str__(self) -> str:
        return (
            f"runs on model '{self.model}' are refused: {self.why}; when the cause is mended, "
            f"POST /api/workers/{self.model}/reset lets them in again{self.tail}"
        )


class TooManyRequests(ApplianceError):
    """One model has as many requests, queued ones included, as its ``concurrencyLimit`` allows."""

    reason = "concurrency_limit"
    retry_after = 1.0

    def __init__(self, model: str, limit: int) -> None:
        super().__init__(model, limit)
        self.model = model
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"Too many requests: model '{self.model}' has {self.limit} under way or waiting; send it again later, "
            "or raise the model's concurrencyLimit"
        )


class ModelLoading(ApplianceError):
    """The one model of single-model mode is not ready yet; the words are llama-server's."""

    reason = "model_loading"

    def __str__(self) -> str:
        return "Loading model"


class ModelUnloaded(ApplianceError):
    """The model was unloaded, on request, while something waited for it or used it."""

    reason = "model_unloaded"

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model

    def __str__(self) -> str:
        return f"model '{self.model}' was unloaded while the request was under way; send it again to load it again"


class ShuttingDown(ApplianceError):
    """The program is ending and takes no new work."""

    reason = "shutting_down"

    def __str__(self) -> str:
        return "the server is shutting down"
