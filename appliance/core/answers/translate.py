"""An answer of llama-server's chat completions, said in another dialect: the shape of a translator, and its reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from appliance.core.bodies.sse import Decoder


class AnswerTranslate(Protocol):
    """Says the answer to one request in its client's dialect. No input makes it raise, but RecordTooLong."""

    def feed(self, data: bytes) -> bytes:
        """Return what these bytes of a chat stream complete. Errors come as records as well."""
        ...

    def end(self) -> bytes:
        """The stream has ended in good order: return its last words, none behind an error."""
        ...

    def whole(self, content: bytes) -> tuple[int, bytes]:
        """Return status and body for a whole body that is not an error's."""
        ...

    def refused(self, status: int, content: bytes) -> tuple[int, bytes]:
        """Return status and body for those of an error."""
        ...


class ChatRecords:
    """Reads the records of one stream, in any pieces."""

    def __init__(self) -> None:
        self._decoder = Decoder()
        self._between = True  # the decoder holds nothing

    def feed(self, data: bytes) -> Sequence[bytes | str]:
        """Return the data of the records that these bytes complete. Raises RecordTooLong."""
        whole = data.endswith(b"\n\n") and b"\r" not in data
        if self._between and whole and data.find(b"\n") == len(data) - 2 and data.startswith(b"data: "):
            return (data[6:-2],)  # one record, as for each token
        if self._between and whole:  # how llama-server writes, which costs half as much
            records = data[:-2].split(b"\n\n")
            if all(record.startswith(b"data: ") and b"\n" not in record for record in records):
                return [record[6:] for record in records]
        self._between = whole
        return [event.data for event in self._decoder.feed(data)]
