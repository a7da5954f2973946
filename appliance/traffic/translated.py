"""The sink of an answer that is said in another dialect on its way to the client."""

from __future__ import annotations

from appliance.core.answers.translate import AnswerTranslate
from appliance.core.headers import is_event_stream, joined, without
from appliance.errors import UpstreamFailed
from appliance.traffic.request import Headers, Passing, Sink, push_whole

MAX_WHOLE = 64 << 20
"""Bytes of a plain answer, which is held until it can be translated."""
_FRAMING = (b"content-length", b"transfer-encoding")
_OF_THE_BODY = (b"content-type", *_FRAMING)
_JSON = (b"Content-Type", b"application/json; charset=utf-8")


class TranslatedSink(Passing):
    """Takes llama-server's words, and gives the client those of its dialect.

    Comments to a waiting client go past it (`appliance.traffic.record.aside`), so that a stream may have begun before
    the answer's head comes.
    """

    stream_type: Headers = ()
    """The type of a stream in the dialect, where that is another one than the engine's."""

    def __init__(self, inner: Sink, translate: AnswerTranslate, headers: Headers = ()) -> None:
        """``headers`` are more of them, for the answer's head."""
        super().__init__(inner)
        self._translate = translate
        self._more = headers
        self._head: tuple[int, Headers] | None = None  # of an answer that is held
        self._held = bytearray()

    def speak(self, translate: AnswerTranslate, headers: Headers = ()) -> None:
        """The answer will be llama-server's, and is said by this."""
        self._translate, self._more = translate, headers

    def start(self, status: int, headers: Headers) -> None:
        if status < 400 and is_event_stream(headers):
            kept = without(headers, _OF_THE_BODY if self.stream_type else _FRAMING)
            self.inner.start(status, (*self.stream_type, *joined(kept, self._more)))
        else:
            self._head = status, headers

    def push(self, data: bytes) -> bool:
        """Raises RecordTooLong."""
        if self._head is not None:
            if len(self._held) <= MAX_WHOLE:
                self._held += data
            return True
        said = self._translate.feed(data)
        return self.inner.push(said) if said else True

    def finish(self) -> bool:
        """Raises UpstreamFailed for an answer that is too long to be translated."""
        if self._head is None:
            if last := self._translate.end():
                self.inner.push(last)
            return self.inner.finish()
        (status, headers), self._head = self._head, None
        if len(self._held) > MAX_WHOLE:
            raise UpstreamFailed("the model", f"its answer is longer than {MAX_WHOLE} bytes")
        held = bytes(self._held)
        status, content = self._translate.refused(status, held) if status >= 400 else self._translate.whole(held)
        kept = joined(without(headers, _OF_THE_BODY), self._more)
        return push_whole(self.inner, status, (_JSON, *kept), content)

    def abort(self) -> None:
        """Drop a held answer: nothing of it has left, so that the error can be sent instead."""
        if self._head is not None:
            self._head = None
        else:
            self.inner.abort()


def speak(translate: AnswerTranslate, sink: Sink, headers: Headers = ()) -> None:
    """Have the next answer that ``sink`` gets said by ``translate``, where its way has a translated sink."""
    while isinstance(sink, Passing) and not isinstance(sink, TranslatedSink):
        sink = sink.inner
    if isinstance(sink, TranslatedSink):
        sink.speak(translate, headers)
