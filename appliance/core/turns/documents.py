"""PDF and Word documents in a request: another part of the program reads them, and the model gets their texts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from appliance.errors import BadRequest

ReadText = Callable[[str, bytes], Awaitable[str]]
"""Returns the text of a file, given its name or "", and its content. Raises BadRequest in words, and Busy."""
MAX_TEXTS = 4 << 20  # characters of all documents of a request


async def texts_of(files: Mapping[str, tuple[str, bytes]], read: ReadText | None) -> dict[str, str]:
    """Return the texts of files, given by their members. Raises BadRequest that names the member, and Busy."""
    texts, left = dict[str, str](), MAX_TEXTS
    for member, (name, content) in files.items():
        try:
            if read is None:
                raise BadRequest("only documents of text are read here; send the text of this one")
            texts[member] = await read(name, content)
        except BadRequest as error:
            raise BadRequest(f"'{member}': {error}", param=member) from None
        if (left := left - len(texts[member])) < 0:
            raise BadRequest(f"'{member}': the documents have more than {MAX_TEXTS} characters", param=member)
    return texts
