"""The error hierarchy, split by blame; knows nothing of HTTP or exit codes.

Every leaf makes its one-line message of facts: the problem and the fix. A fact that callers read is a field.
``http/errors.py`` and ``cli/`` each have one table from class to status. An error that is not in here is a bug.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_SHOWN = 200
"""Characters of a name that somebody has sent: a message does not repeat many megabytes."""
WHERE_MODELS_ARE = "; 'llama-appliance ls' and GET /v1/models list the models"


class ApplianceError(Exception):
    """Root of all errors that the program raises on purpose."""

    reason = "internal_error"
    """Machine-readable word; the ``reason`` field of an HTTP error body."""


class _Told(Exception):
    """Base of errors whose message is written where they are raised."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message


class _OfModel(Exception):
    """Base of errors of one model's engine; ``log_tail`` holds the engine's last log lines."""

    def __init__(self, model: str, why: str, log_tail: Sequence[str] = ()) -> None:
        super().__init__(model, why, tuple(log_tail))
        self.model = model
        self.why = why
        self.log_tail = tuple(log_tail)

    @property
    def tail(self) -> str:
        """The log's last lines as the end of a message; empty if there are none."""
        lines = "".join(f"\n  {line}" for line in self.log_tail)
        return f"; its last log lines:{lines}" if lines else ""


def shortened(name: str) -> str:
    return name if len(name) <= MAX_SHOWN else f"{name[:MAX_SHOWN]}..."


# ---- the caller's fault ----------------------------------------------------------------------------------------------


class CallerError(ApplianceError):
    """The request or command line is wrong; repeating it unchanged will not help."""


class BadRequest(_Told, CallerError):
    """A field, header or body cannot be used. ``param`` names the field if there is one."""

    reason = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class BodyTooLarge(_Told, CallerError):
    """A body longer than the program accepts; refused before it is read. ``fixed``: no setting changes the limit."""

    reason = "body_too_large"

    def __init__(self, limit: int, *, fixed: bool = False) -> None:
        advice = "send less" if fixed else "send less, or raise --max-body"
        super().__init__(f"the request body is larger than the limit of {limit} bytes; {advice}")


class UnsupportedCoding(_Told, CallerError):
    """A body in a content coding that is not read here."""

    reason = "unsupported_coding"

    def __init__(self, coding: str) -> None:
        super().__init__(
            f"the Content-Encoding {shortened(coding)!r} is not read here; send the body plain, or as gzip or deflate"
        )


class BodyTooSlow(_Told, CallerError):
    """A body that stopped arriving before its end, or that comes drop by drop."""

    reason = "body_timeout"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the request body made no progress worth the name for {seconds:g} s; send it again, faster")


class ModelNotFound(_Told, CallerError):
    """No model, alias or peer has this name. ``near`` holds similar known names, ``advice`` says how to get it."""

    reason = "model_not_found"

    def __init__(self, model: str, near: Sequence[str] = (), advice: str = "") -> None:
        hint = f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else advice or WHERE_MODELS_ARE
        super().__init__(f"model '{shortened(model)}' not found{hint}")
        self.near = tuple(near)


class ModelNotLoaded(_Told, CallerError):
    """A question about a model that is not running; to answer it, the program would have to load the model."""

    reason = "model_not_loaded"

    def __init__(self, model: str) -> None:
        super().__init__(
            f"model is not loaded: '{model}'; POST /models/load loads it, as does a request with ?autoload=1"
        )


class RouteNotFound(_Told, CallerError):
    """There is no such path, or it does not support this method."""

    reason = "route_not_found"

    def __init__(self, method: str, path: str) -> None:
        super().__init__(f"there is no route {method} {shortened(path)}")


class SlotFilesClosed(_Told, CallerError):
    """The files of a model's slots are kept contexts. The text begins as llama-server's own does without the flag."""

    reason = "slot_files_closed"

    def __init__(self, model: str) -> None:
        super().__init__(
            "This server does not support slots action. Start it with `--slot-save-path`; "
            f"the folder that model '{model}' has now is the program's own"
        )


class NotFound(_Told, CallerError):
    """The path or body names a thing, other than a model or a route, that does not exist (any more)."""

    reason = "not_found"


class RequestCancelled(_Told, CallerError):
    """A request was cancelled on demand while it was under way. Do not send it again."""

    reason = "cancelled"

    def __init__(self, message: str = "the request was cancelled while it was under way") -> None:
        super().__init__(message)


class Unauthorized(CallerError):
    """The request has no credential, or not one of the configured keys."""

    reason = "invalid_api_key"

    def __str__(self) -> str:
        return "Invalid API Key"


class Forbidden(_Told, CallerError):
    """A request is refused because of its source (Host, Origin) or because a feature is off."""

    reason = "forbidden"


class AdminOff(Forbidden):
    """The route changes the program itself, and ``serve --admin`` has not switched that on."""

    reason = "admin_off"

    def __init__(self, what: str, verb: str) -> None:
        super().__init__(f"{what} over HTTP is off: start the server with --admin, or use 'llama-appliance {verb}'")


class EditRefused(Forbidden):
    """An edit of the configuration over HTTP changes something that only the machine's own files may say."""

    reason = "edit_refused"

    def __init__(self, problems: Sequence[object]) -> None:
        told = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"nothing was written, because of {len(problems)} change{'s' * (len(problems) != 1)}:{told}")


class UsageError(_Told, CallerError):
    """A command line, environment or configuration cannot be used."""

    reason = "usage"


class OpenDoor(UsageError):
    """The server would let in every machine that reaches it, and nobody has said that this is meant."""

    reason = "open_door"


class InvalidConfig(UsageError):
    """A configuration has mistakes; ``problems`` lists all of them, each as one line with its place."""

    reason = "invalid_config"

    def __init__(self, problems: Sequence[object]) -> None:
        told = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"the configuration has {len(problems)} mistake{'s' * (len(problems) != 1)}:{told}")
        self.problems = tuple(problems)


class Conflict(_Told, CallerError):
    """A request would have to start a model, and must not."""

    reason = "conflict"


class DownloadNeeded(_Told, CallerError):
    """The model would have to be downloaded, and the request does not say that it may be."""

    reason = "download_needed"

    def __init__(self, model: str) -> None:
        name = shortened(model)
        super().__init__(
            f"model '{name}' is not on this machine; send the request again with the header "
            f"'X-Appliance-Download: allow' to download it, or use 'llama-appliance pull {name}'"
        )


class NotReady(_Told, CallerError):
    """The run has not ended yet, so it has no result."""

    reason = "not_ready"

    def __init__(self, run: str) -> None:
        super().__init__(f"run {run} has not ended yet; 'partial' has the result so far")


# ---- the model's or the engine's fault -------------------------------------------------------------------------------


class ModelError(ApplianceError):
    """A model file or a model process failed; another model may still work."""


class InvalidModelFile(_Told, ModelError):
    """A file is not a usable GGUF. ``why`` says which check it failed."""

    reason = "invalid_model_file"

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} is not a usable GGUF model: {why}")


class ModelFailedToStart(_OfModel, ModelError):
    """A model process exited, or stayed silent, before it was ready."""

    reason = "model_failed_to_start"

    def __str__(self) -> str:
        return f"model '{self.model}' failed to start: {self.why}{self.tail}"


class WillNotFit(_OfModel, ModelError):
    """The memory that this program may have cannot take the model, so it was not started."""

    reason = "will_not_fit"

    def __str__(self) -> str:
        return f"model '{self.model}' will not fit: {self.why}"


class UpstreamFailed(_OfModel, ModelError):
    """A model process broke the connection, or answered with something other than HTTP."""

    reason = "upstream_failed"

    def __str__(self) -> str:
        return f"the engine of model '{self.model}' failed: {self.why}"


class KillsEngines(_OfModel, CallerError):
    """Model processes died under this request, wherever it was sent."""

    reason = "kills_engines"

    def __str__(self) -> str:
        return (
            f"two processes of model '{self.model}' ended while they answered this request, and it is not sent to a "
            f"third: {self.why}; change the request, or send it again in ten minutes"
        )


class ToolLoopFailed(_OfModel, ModelError):
    """The server runs the tools of a request, and the model used them in a way that leads nowhere."""

    reason = "tool_loop_failed"

    def __str__(self) -> str:
        return f"model '{self.model}' could not be answered with tools: {self.why}"


class PeerFailed(_Told, ModelError):
    """Another server was asked for a model, and did not answer."""

    reason = "peer_failed"

    def __init__(self, peer: str, why: str) -> None:
        super().__init__(f"peer '{peer}' failed: {why}")
        self.why = why


class BoxFailed(_Told, ApplianceError):
    """Another box of the pool cannot be reached, or did not do what it was asked."""

    reason = "box_failed"

    def __init__(self, box: str, why: str) -> None:
        super().__init__(f"box '{box}': {why}")
        self.box = box
        self.why = why


class TargetFailed(_Told, ModelError):
    """A server on the internet, asked through ``/cors-proxy``, did not answer as it should."""

    reason = "target_failed"

    def __init__(self, host: str, why: str) -> None:
        super().__init__(f"the server '{host}' failed: {why}")


class PluginFailed(_Told, ApplianceError):
    """A plugin that a request named has failed. ``hook`` is the function of its agent.py that failed."""

    reason = "plugin_failed"

    def __init__(self, plugin: str, hook: str, why: str) -> None:
        super().__init__(f"plugin '{plugin}' failed in {hook}: {why}")


class StoreFailed(_Told, ApplianceError):
    """A file that the program keeps for its user is damaged. Only a person can set it aside."""

    reason = "store_failed"


class EngineNotFound(_Told, ModelError):
    """No llama.cpp build on this machine can be used."""

    reason = "engine_not_found"

    def __init__(self, looked: Sequence[str], *, install: str = "") -> None:
        """``install``: the command that installs the embedded engine, in a program that can have one."""
        inside = f"install the embedded one with '{install}', " if install else ""
        super().__init__(
            f"no llama.cpp engine found (looked at: {', '.join(looked)}); {inside}build one with "
            "'python llama-builds/build.py', or name one with --engine PATH"
        )


# ---- now is not the time ---------------------------------------------------------------------------------------------


class Busy(_Told, ApplianceError):
    """A limit is reached; the same request may succeed after ``retry_after`` seconds."""

    reason = "busy"

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NoSlotAvailable(Busy):
    """A model has the largest allowed number of agent runs, running and waiting."""

    reason = "no_slot_available"

    def __init__(self, model: str, slots: int, waiting: int) -> None:
        queue = f", and {waiting} wait" if waiting else ""
        super().__init__(
            f"no slot available: model '{model}' has {slots} run{'s' * (slots != 1)} under way{queue}; "
            "send it again later, or raise runs.slots or runs.queue",
            retry_after=2.0,
        )
        self.model = model


class NotPlaced(Busy):
    """A box of the pool is asked for a model that it could load only at the cost of others; another box may do it."""

    reason = "not_placed"

    def __init__(self, model: str, why: str) -> None:
        super().__init__(
            f"model '{model}' was not loaded for the pool, because {why}; send the request again when a model is idle, "
            "or load it with 'llama-appliance load' on the box that shall have it"
        )


class WorkerFailed(_OfModel, ModelError):
    """A model's engine had to be restarted so often that its runs are refused until somebody has looked at it."""

    reason = "worker_failed"

    def __str__(self) -> str:
        return (
            f"runs on model '{self.model}' are refused: {self.why}; once the cause is fixed, "
            f"POST /api/workers/{self.model}/reset allows them again{self.tail}"
        )


class TooManyRequests(_Told, ApplianceError):
    """A model has as many requests, queued ones included, as its ``concurrencyLimit`` allows."""

    reason = "concurrency_limit"
    retry_after = 1.0

    def __init__(self, model: str, limit: int) -> None:
        super().__init__(
            f"Too many requests: model '{model}' has {limit} under way or waiting; send it again later, "
            "or raise the model's concurrencyLimit"
        )


class ModelLoading(ApplianceError):
    """The one model of single-model mode is not ready yet; the message is llama-server's."""

    reason = "model_loading"

    def __str__(self) -> str:
        return "Loading model"


class ModelUnloaded(_Told, ApplianceError):
    """The model was unloaded on request, while something waited for it or used it."""

    reason = "model_unloaded"
    retry_after = 1.0

    def __init__(self, model: str) -> None:
        super().__init__(
            f"model '{model}' was unloaded while the request was under way; send it again to load it again"
        )


class ShuttingDown(ApplianceError):
    """The program is ending and accepts no new work."""

    reason = "shutting_down"

    def __str__(self) -> str:
        return "the server is shutting down"
