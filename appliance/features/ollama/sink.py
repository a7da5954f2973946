"""The answer to a client of Ollama's API: whatever is written in llama-server's words leaves in Ollama's.

Everything above this sink knows OpenAI's words alone: fallback, pings, error records, tokens that are counted.
"""

from __future__ import annotations

from appliance.core.headers import is_event_stream
from appliance.features.ollama.core.answering import NDJSON, ErrorsAlone, Translator
from appliance.traffic.request import Headers, Sink
from appliance.traffic.translated import TranslatedSink


class OllamaSink(TranslatedSink):
    """Translates errors, and what `speak` says how to. Anything else passes as it is: it is in Ollama's words."""

    stream_type = ((b"Content-Type", NDJSON),)

    def __init__(self, inner: Sink) -> None:
        super().__init__(inner, ErrorsAlone())
        self._streams = False

    @property
    def event_stream(self) -> bool:
        """It has started, and for those above as server-sent events."""
        return self._streams

    def start(self, status: int, headers: Headers) -> None:
        if status < 400 and not isinstance(self._translate, Translator):
            self.inner.start(status, headers)
        else:
            self._streams = status < 400 and is_event_stream(headers)
            super().start(status, headers)
