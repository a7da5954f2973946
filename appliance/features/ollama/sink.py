"""The answer to a client of Ollama's API: whatever is written in llama-server's words leaves in Ollama's.

Everything above this sink knows OpenAI's words alone: fallback, pings, error records, tokens that are counted.
"""

from __future__ import annotations

from appliance.core.headers import is_event_stream
from appliance.errors import UpstreamFailed
from appliance.features.ollama.core.answering import NDJSON, Translator, translated_error
from appliance.traffic.record import RecordingSink
from appliance.traffic.request import Headers, Passing, Request, Sink, push_whole

MAX_WHOLE = 64 << 20  # bytes of a plain answer that is held until it can be translated
LINES = (b"Content-Type", NDJSON)
JSON_TYPE = (b"Content-Type", b"application/json; charset=utf-8")
PATHS = frozenset(
    f"/api/{name}"
    for name in (
        "tags", "show", "ps", "chat", "generate", "embed", "embeddings", "pull", "push", "delete", "copy", "create",
        "status", "me", "signout", "experimental/web_search", "experimental/web_fetch",
        "experimental/model-recommendations",
    )
)  # fmt: skip
BLOBS, USER_KEYS = "/api/blobs/", "/api/user/keys/"
_REPLACED = (b"content-type", b"content-length", b"transfer-encoding")


def is_ollamas(request: Request) -> bool:
    """True if a request is of Ollama's API alone; `/` and `/api/version` are others' as well.

    Clients of Ollama upload below `BLOBS`; boxes of a pool read there, with GET and HEAD.
    """
    if request.path.startswith(BLOBS):
        return request.method not in ("GET", "HEAD")
    return request.path in PATHS or request.path.startswith(USER_KEYS)


class OllamaSink(Passing):
    """Translates errors, and what `speak` says how to. Anything else passes as it is: it is in Ollama's words."""

    def __init__(self, inner: Sink) -> None:
        super().__init__(inner)
        self._translator: Translator | None = None
        self._name = ""
        self._streams = False
        self._head: tuple[int, Headers] | None = None  # of an answer that is held
        self._held = bytearray()

    def speak(self, translator: Translator | None, name: str) -> None:
        """The answer will be llama-server's; ``name`` is what the request calls the model."""
        self._translator, self._name = translator, name

    @property
    def event_stream(self) -> bool:
        """It has started, and for those above as server-sent events."""
        return self._streams

    def start(self, status: int, headers: Headers) -> None:
        if self._translator is not None and is_event_stream(headers):
            self._streams = True
            self.inner.start(status, (LINES, *_without_type(headers)))
        elif status >= 400 or self._translator is not None:
            self._head, self._held = (status, headers), bytearray()
        else:
            self.inner.start(status, headers)

    def push(self, data: bytes) -> bool:
        if self._head is not None:
            if len(self._held) <= MAX_WHOLE:
                self._held += data
            return True
        if self._streams and self._translator is not None:
            lines = self._translator.feed(data)
            return self.inner.push(lines) if lines else True
        return self.inner.push(data)

    def finish(self) -> bool:
        """Raises UpstreamFailed for an answer that is too long to be translated."""
        if self._head is not None:
            (status, headers), self._head = self._head, None
            if len(self._held) > MAX_WHOLE:
                raise UpstreamFailed(self._name, f"its answer is longer than {MAX_WHOLE} bytes")
            content = bytes(self._held)
            if status == 200 and self._translator is not None:
                status, content = self._translator.whole(content)
            elif status >= 400:
                status, content = translated_error(status, content, self._name)
            return push_whole(self.inner, status, (JSON_TYPE, *_without_type(headers)), content)
        if self._streams and self._translator is not None and (lines := self._translator.end()):
            self.inner.push(lines)
        return self.inner.finish()

    def abort(self) -> None:
        """Drop a held answer: nothing of it has left, so that the error can be sent instead."""
        if self._head is not None:
            self._head = None
        else:
            self.inner.abort()


def _without_type(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [header for header in headers if header[0].lower() not in _REPLACED]


def speak(sink: Sink, *, translator: Translator | None, name: str) -> None:
    """Have the answer translated on its way to the client; see `OllamaSink.speak`."""
    inner = sink.inner if isinstance(sink, RecordingSink) else sink
    if isinstance(inner, OllamaSink):
        inner.speak(translator, name)
