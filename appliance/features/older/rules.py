"""Requests of earlier llama-server releases in the words of the one that is followed, and answers as they were then.

llama.cpp b11434 takes no notice of ``image_data``, says one token where ``n_predict`` is 0, and no longer counts the
cells of its cache. Its README still promises the second, and clients of earlier releases rely on all three.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from appliance.core.bodies.json_text import JsonEdit, apply_edits, parse_path
from appliance.core.lenient_json import UNREADABLE, decoded
from appliance.core.llama import flags
from appliance.errors import BadRequest

COMPLETIONS = frozenset({"/completion", "/completions"})
_PROMPTS = dict.fromkeys(COMPLETIONS, ("prompt",)) | dict.fromkeys(("/embedding", "/embeddings"), ("input", "content"))
ROUTES = _PROMPTS.keys()
"""The routes that took ``image_data``, and the members that had its places."""
IMAGES = "image_data"
NEW_FORM = (
    'send images to /v1/chat/completions, or "prompt": {"prompt_string": ..., "multimodal_data": [...]} with the '
    "media_marker of /props in the text"
)
_PLACE = re.compile(r"\[img-(\d{1,18})\]")
_PERHAPS_SILENT = re.compile(rb'"(?:n_predict|max_tokens|max_completion_tokens)"\s*:\s*-?0')
_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_ARRAY = msgspec.json.Decoder(list[Raw])
_SILENT = {
    "content": b'""',
    "tokens": b"[]",
    "tokens_predicted": b"0",
    "completion_probabilities": b"[]",
    "has_new_line": b"false",
    "stop_type": b'"limit"',
    "stopping_word": b'""',
}
_SILENT_TIMES = ("predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second")
_DATA, _END = b"data: ", b"\n\n"
_USAGE, _TOKENS = "llamacpp:kv_cache_usage_ratio", "llamacpp:kv_cache_tokens"


class _Image(Struct):
    data: str
    id: int


class _Images(Struct):
    image_data: list[_Image] | None = None
    prompt: Raw | UnsetType = UNSET
    input: Raw | UnsetType = UNSET
    content: Raw | UnsetType = UNSET


class _Wanted(Struct):
    n_predict: float | None = None
    max_completion_tokens: float | None = None
    max_tokens: float | None = None


_IMAGES = msgspec.json.Decoder(_Images)
_WANTED = msgspec.json.Decoder(_Wanted)


def is_older(route: str, body: bytes) -> bool:
    """Return whether a request may need the rest of this file. It is cheap, because every request asks."""
    return (route in _PROMPTS and b'"image_data"' in body) or (
        route in COMPLETIONS and _PERHAPS_SILENT.search(body) is not None
    )


def has_images(route: str, body: bytes) -> bool:
    """Return whether `with_images` has something to do. Raises BadRequest as it does, before a model is loaded."""
    return with_images(route, body, "") is not body


def with_images(route: str, body: bytes, marker: str) -> bytes:
    """Put images where the text has ``[img-N]``, the way an engine with this ``media_marker`` wants them.

    A body without images comes back as it is; one that cannot be read does too, for the engine to refuse. Raises
    BadRequest for a place without its image, and for an image without a place.
    """
    if route not in _PROMPTS or b'"image_data"' not in body:
        return body
    try:
        found = _IMAGES.decode(body)
    except msgspec.ValidationError as error:
        raise BadRequest(
            f'image_data cannot be read ({error}); it looks like [{{"data": "<base64>", "id": 12}}]', param=IMAGES
        ) from None
    except UNREADABLE:
        return body
    if not found.image_data:
        return body
    images = {image.id: image.data for image in found.image_data}
    placed: set[int] = set()
    edits = [_edit(IMAGES, None)]
    members = {"prompt": found.prompt, "input": found.input, "content": found.content}
    named = next((name for name in _PROMPTS[route] if members[name] is not UNSET), None)  # the one that counts
    given = members[named] if named is not None else UNSET
    if named is not None and given is not UNSET and (value := _placed(given, images, marker, placed)) is not None:
        edits.append(_edit(named, value))
    if missing := sorted(images.keys() - placed):
        names = " or ".join(f"'{name}'" for name in _PROMPTS[route])
        raise BadRequest(
            f"nothing in {names} says where image {missing[0]} goes: write [img-{missing[0]}]", param=IMAGES
        )
    return apply_edits(body, edits)


def _placed(given: Raw, images: dict[int, str], marker: str, placed: set[int]) -> bytes | None:
    """One member of the request with its images; None where it stays. Notes the ids in ``placed``."""
    kind = bytes(given)[:1]
    if kind == b'"':
        text = msgspec.json.decode(given, type=str)
        ids = [int(number) for number in _PLACE.findall(text)]
        if unknown := [number for number in ids if number not in images]:
            raise BadRequest(f"the text has [img-{unknown[0]}], and image_data has no image {unknown[0]}", param=IMAGES)
        placed.update(ids)
        parts = {"prompt_string": _PLACE.sub(lambda _: marker, text), "multimodal_data": [images[n] for n in ids]}
        return msgspec.json.encode(parts) if ids else None
    if kind != b"[":
        return None
    each = _ARRAY.decode(given)
    values = [_placed(one, images, marker, placed) for one in each]
    if any(value is not None for value in values) and any(bytes(one)[:1] not in b'"[{' for one in each):
        raise BadRequest("[img-N] cannot be used in a prompt that is partly tokens; write it as text", param=IMAGES)
    if all(value is None for value in values):
        return None
    return msgspec.json.encode([one if value is None else Raw(value) for one, value in zip(each, values, strict=True)])


def _edit(name: str, value: bytes | None) -> JsonEdit:
    path = parse_path(name)
    assert path is not None
    return JsonEdit(path, value)


def wants_no_words(route: str, body: bytes) -> bool:
    """Return whether a request wants its prompt evaluated, and no token."""
    is_perhaps = route in COMPLETIONS and _PERHAPS_SILENT.search(body) is not None
    if not is_perhaps or (wanted := decoded(_WANTED, body)) is None:
        return False
    said = (wanted.n_predict, wanted.max_completion_tokens, wanted.max_tokens)
    return next((number for number in said if number is not None), None) == 0


def silenced(answer: bytes) -> bytes:
    """A whole answer, or those of several prompts, without the token that the engine has said."""
    try:
        if answer.lstrip()[:1] == b"[":
            return b"[%b]" % b",".join(silenced(bytes(one)) for one in _ARRAY.decode(answer))
        members = _OBJECT.decode(answer)
    except UNREADABLE:
        return answer
    edits = [_edit(name, value) for name, value in _SILENT.items() if name in members]
    if bytes(members.get("timings", Raw()))[:1] == b"{":
        times = _OBJECT.decode(members["timings"])
        edits += [_edit(f"timings.{name}", b"0") for name in _SILENT_TIMES if name in times]
    edits += [_edit(f"timings/{name}", b"0") for name in _SILENT_TIMES if f"timings/{name}" in members]
    return apply_edits(answer, edits)


class _Record(Struct):
    stop: bool | None = None
    prompt_progress: Raw | UnsetType = UNSET


_RECORD = msgspec.json.Decoder(_Record)


def silenced_records(records: bytes) -> bytes:
    """The same of a stream's whole records: those with the token go, the last one is edited."""
    kept: list[bytes] = []
    for record in records.split(_END):
        told = decoded(_RECORD, record.removeprefix(_DATA)) if record.startswith(_DATA) else None
        if told is not None and told.stop:
            kept.append(_DATA + silenced(record.removeprefix(_DATA)) + _END)
        elif record and (told is None or told.stop is None or told.prompt_progress is not UNSET):
            kept.append(record + _END)
    return b"".join(kept)


class _Slot(Struct):
    n_ctx: int
    n_prompt_tokens: int = 0


_SLOTS = msgspec.json.Decoder(list[_Slot])


def lacks_cache(metrics: bytes) -> bool:
    """Return whether these are metrics of a llama-server that no longer tells how full its cache is."""
    return b"\nllamacpp:" in metrics and _USAGE.encode() not in metrics


def cache_lines(slots: bytes, argv: Sequence[str]) -> bytes:
    """The lines that are missing, from an answer of ``GET /slots``; none where that says nothing of contexts.

    The process was started with ``argv``. With ``--no-slots`` it tells nobody of them, also while it sleeps.
    """
    found = decoded(_SLOTS, slots)
    tells, shared = _read(argv)
    if not found or not tells:
        return b""
    tokens = sum(slot.n_prompt_tokens for slot in found)
    size = max(slot.n_ctx for slot in found) if shared else sum(slot.n_ctx for slot in found)
    ratio = min(tokens / size, 1.0) if size else 0.0
    return (
        f"# HELP {_USAGE} Share of the context that holds tokens, from 0 to 1\n"
        f"# TYPE {_USAGE} gauge\n{_USAGE} {ratio:.6g}\n"
        f"# HELP {_TOKENS} Tokens that all slots together hold\n"
        f"# TYPE {_TOKENS} gauge\n{_TOKENS} {tokens}\n"
    ).encode()


def _read(argv: Sequence[str]) -> tuple[bool, bool]:
    """Return whether slots may be shown, and whether they share one context: they do where no number is given."""
    tells, shared, parallel, apart = True, False, "-1", False
    for word, following in zip(argv, [*argv[1:], ""], strict=False):
        flag = flags.lookup(word) if word.startswith("-") else None
        if flag is None:
            continue
        on = flags.normalise(word) in flag.spellings
        match flag.name:
            case "--slots":
                tells = on
            case "--kv-unified":
                shared = on
            case "--parallel":
                parallel = following
            case "--kv-unified-per-slot":
                apart = True
            case _:
                pass
    return tells, not apart and (shared or parallel.startswith("-"))
