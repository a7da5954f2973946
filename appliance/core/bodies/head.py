"""The little that the program reads of a request: which model, whether the answer is to be a stream, and
which conversation it belongs to.

Everything else of a body stays bytes. Sources: JSON body, multipart form field, query parameter ``model``.

The engine reads the same bytes again. The members on which both act (`_Body`) are read as llama-server (b11434) reads
them: of several members with one name the last counts, a number may be written in any way and loses its fraction,
``true`` is 1, and a byte order mark is skipped. Where it is not certain what the engine reads, the reading says so.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from appliance.core.lenient_json import decoded
from appliance.errors import BadRequest

EXTENSION = "appliance"
"""The member of a request that is for this program, not for the model's server: see docs/agents.md."""
MAX_FIELD = 4096
"""Longest form field read as a model name or flag, in bytes."""
MAX_PARTS = 1000
MULTIPART_SLICE = 1 << 16
NO_SLOT, ODD_SLOT = -1, -2
"""No slot is named; one may be named that the engine has to be kept from, as it is not certain which."""
_SLOTS = 1 << 31
"""llama-server's slots are below it: what a larger number becomes there, its processor decides."""
_BOM = b"\xef\xbb\xbf"
_AT_BYTE = re.compile(r"\s*\(byte (\d+)\)$")
_WRONG_TYPE = re.compile(r"Expected `(?P<wanted>[^`]+)`, got `(?P<got>[^`]+)`(?: - at `\$\.?(?P<field>[^`]*)`)?")
_NAMES = {"str": "a string", "bool": "true or false", "int": "a number", "float": "a number", "null": "null"}


class RequestHead(Struct, frozen=True):
    """``model`` is None where the request names none."""

    model: str | None = None
    stream: bool = False
    extended: bool = False
    """A JSON body has the member `EXTENSION`."""
    conversation: str = ""
    """The id of the conversation that a JSON body belongs to; empty where it says nothing."""
    uncached: bool = False
    """A JSON body has ``cache_prompt: false``: nothing is to come from the engine's cache of prompts."""
    slot: int = NO_SLOT
    """The engine's slot that a JSON body names (``id_slot``), or `NO_SLOT`, or `ODD_SLOT`."""
    several: bool = False
    """A JSON body asks for more than one answer: by ``n_cmpl`` or ``n``, or with several prompts."""


class _Body(Struct):
    model: str | int | float | None = None
    stream: bool | None = None
    appliance: Raw | UnsetType = UNSET
    cache_prompt: Raw | UnsetType = UNSET
    id_slot: Raw | UnsetType = UNSET
    n_cmpl: Raw | UnsetType = UNSET
    n: Raw | UnsetType = UNSET
    prompt: Raw | UnsetType = UNSET
    prompt_cache_key: Raw | UnsetType = UNSET
    session_id: Raw | UnsetType = UNSET


class _Passed(Struct):
    id_slot: Raw | UnsetType = UNSET


_BODY = msgspec.json.Decoder(_Body)
_PASSED = msgspec.json.Decoder(_Passed)
_TEXT = msgspec.json.Decoder(str)
_NUMBER = msgspec.json.Decoder(bool | int | float)
_LIST = msgspec.json.Decoder(list[Raw])
_NOTHING = (UNSET, Raw(b"null"))
_ONE = (*_NOTHING, Raw(b"1"))
_ITEMS, _NUMERAL = re.compile(rb"\[\s*(?![-0-9])"), re.compile(rb"[-0-9]")
"""A list that does not begin with a token; a pattern looks at a long prompt without a copy."""
_FALSE = Raw(b"false")


def read_query(query: bytes) -> dict[str, str]:
    """Query parameters; of a repeated one the last counts, as in llama-server."""
    return dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))


def read_json(body: bytes) -> RequestHead:
    """Raises BadRequest that says what is wrong with the body, and where."""
    if not body or body.isspace():
        raise BadRequest("the request body is empty; send a JSON object")
    try:
        found = _BODY.decode(body.removeprefix(_BOM))
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from None
    except RecursionError:
        raise BadRequest("the request body is nested too deeply") from None
    except UnicodeDecodeError:
        raise BadRequest("the request body is not valid UTF-8") from None
    except msgspec.DecodeError as error:
        raise BadRequest(f"the request body is not valid JSON: {_where(str(error), body)}") from None
    model = found.model
    name = model or None if isinstance(model, str) else _in_words(model)
    conversation = _text(found.prompt_cache_key) or _text(found.session_id)
    uncached = found.cache_prompt == _FALSE
    # The other name of ``n`` goes before it. What is not a number the engine refuses.
    number = found.n if found.n_cmpl in _NOTHING else found.n_cmpl
    several = number not in _ONE and _number(number) != 1
    return RequestHead(
        name,
        bool(found.stream),
        found.appliance is not UNSET,
        conversation,
        uncached,
        NO_SLOT if found.id_slot is UNSET else _slot(found.id_slot),
        several or (found.prompt is not UNSET and _is_prompts(found.prompt)),
    )


def read_passed(body: bytes) -> RequestHead:
    """The slot that a body names which is passed on as it is, to a server that may be another one than llama-server."""
    found = decoded(_PASSED, body.removeprefix(_BOM))
    return RequestHead(slot=_slot(found.id_slot) if found is not None else ODD_SLOT)


def check_json(body: bytes) -> None:
    """The same for a body that is decoded with all its members; a model's is passed on unread. Raises BadRequest."""
    try:
        body.decode()
    except UnicodeDecodeError:
        raise BadRequest("the request body is not valid UTF-8") from None
    read_json(body)


def _slot(raw: Raw | UnsetType) -> int:
    if raw in _NOTHING:
        return NO_SLOT
    slot = _number(raw)
    return slot if slot is not None and NO_SLOT <= slot < _SLOTS else ODD_SLOT


def _number(raw: Raw | UnsetType) -> int | None:
    """The number that llama-server makes of a member; None if it makes none of it."""
    value = None if isinstance(raw, UnsetType) else decoded(_NUMBER, raw)
    return None if value is None else int(value)


def _is_prompts(prompt: Raw) -> bool:
    """True if a prompt is several. With a number among them they are the parts of one, its tokens and texts."""
    items = decoded(_LIST, prompt) or [] if _ITEMS.match(prompt) is not None else []
    return len(items) > 1 and not any(map(_NUMERAL.match, items))


def _text(raw: Raw | UnsetType) -> str:
    """The text of a member that is for others: one of another type says nothing here."""
    return "" if isinstance(raw, UnsetType) else decoded(_TEXT, raw) or ""


def _in_words(model: float | None) -> str | None:
    """A number as a name, the way llama-swap reads it: ``7`` and ``7.0`` are the model "7"."""
    if isinstance(model, float):
        return str(int(model)) if model.is_integer() else repr(model)
    return None if model is None else str(model)


def is_object(body: bytes) -> bool:
    """True if a JSON body can carry a ``model`` field at all."""
    return body.removeprefix(_BOM).lstrip(b" \t\r\n")[:1] == b"{"


def is_container(body: bytes) -> bool:
    """True if it begins as a JSON object or array, which no form does."""
    return body.lstrip(b" \t\r\n")[:1] in (b"{", b"[")


def multipart_boundary(content_type: str | None) -> bytes | None:
    """The boundary of a multipart/form-data body, None for any other body. Raises BadRequest when it has none."""
    if content_type is None or not content_type.lower().startswith("multipart/form-data"):
        return None
    from werkzeug.http import parse_options_header  # see read_multipart

    boundary = parse_options_header(content_type)[1].get("boundary")
    if not boundary:
        raise BadRequest("the multipart body has no boundary in its Content-Type header")
    return boundary.encode("latin-1", "replace")


def read_multipart(body: bytes, boundary: bytes) -> RequestHead:
    """The form fields ``model`` and ``stream``; file parts are skipped over. Raises BadRequest."""
    # werkzeug costs 3 MB of memory, and most programs never see a form
    from werkzeug.exceptions import RequestEntityTooLarge
    from werkzeug.sansio.multipart import Data, Epilogue, Field, MultipartDecoder, NeedData, Preamble

    decoder = MultipartDecoder(boundary, max_form_memory_size=None, max_parts=MAX_PARTS)
    fields: dict[str, bytes] = {}
    current: str | None = None
    position = 0
    try:
        while True:
            match decoder.next_event():
                case NeedData() if position < len(body):
                    decoder.receive_data(body[position : position + MULTIPART_SLICE])
                    position += MULTIPART_SLICE
                case NeedData():
                    decoder.receive_data(None)
                case Field(name=name):
                    current = name if name in ("model", "stream") else None
                    fields.pop(name, None)
                case Data(data=data, more_data=more) if current is not None:
                    fields[current] = fields.get(current, b"") + data
                    if len(fields[current]) > MAX_FIELD:
                        raise BadRequest(f"the form field '{current}' is too long", param=current)
                    current = current if more else None
                case Epilogue():
                    break
                case Preamble() | Data():
                    pass
                case _:
                    current = None
    except RequestEntityTooLarge:
        raise BadRequest(f"the multipart body has more than {MAX_PARTS} parts") from None
    except ValueError:
        raise BadRequest("the multipart body does not end with its boundary, or is damaged") from None
    model = fields.get("model", b"").decode("utf-8", "replace").strip()
    return RequestHead(model or None, fields.get("stream", b"").strip().lower() in (b"true", b"1"))


def read_form(body: bytes) -> RequestHead:
    """A body of type ``application/x-www-form-urlencoded``."""
    fields = read_query(body)
    return RequestHead(fields.get("model") or None, fields.get("stream", "").lower() in ("true", "1"))


def _wrong_type(message: str) -> BadRequest:
    match = _WRONG_TYPE.match(message)
    if match is None:
        return BadRequest(f"the request body cannot be used: {message}")
    field, got = match["field"], match["got"]
    if not field:
        return BadRequest(f"the request body must be a JSON object, not {_article(got)}")
    wanted = "str" if "str" in match["wanted"] else match["wanted"].removesuffix(" | null")
    return BadRequest(f"'{field}' must be {_article(wanted)}, not {_article(got)}", param=field)


def _article(kind: str) -> str:
    return _NAMES.get(kind) or f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _where(message: str, body: bytes) -> str:
    match = _AT_BYTE.search(message)
    what = _AT_BYTE.sub("", message).removeprefix("JSON is malformed: ")
    if match is None:
        return what[:1].lower() + what[1:]
    at = int(match[1])
    line = body.count(b"\n", 0, at) + 1
    column = at - (body.rfind(b"\n", 0, at) + 1) + 1
    return f"{what} at byte {at} (line {line}, column {column})"
