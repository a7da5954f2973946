"""Anthropic's official types, read strictly: no member that they do not know, and none of another type."""

from __future__ import annotations

from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from anthropic.types import ErrorResponse, Message, MessageTokensCount, RawMessageStreamEvent
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model


class Ping(BaseModel):
    """An event that the client skips, and has no type for."""

    model_config = ConfigDict(extra="forbid", strict=True)
    type: Literal["ping"]


@cache
def _strict(kind: type[BaseModel]) -> type[BaseModel]:
    """The same type, which forbids what it does not know, and so do the types of its members."""
    fields: dict[str, Any] = {
        name: (_closed(field.rebuild_annotation()), field.default if not field.is_required() else ...)
        for name, field in kind.model_fields.items()
    }
    config = ConfigDict(extra="forbid", strict=True)
    return create_model(f"Strict{kind.__name__}", __config__=config, **fields)


def _closed(kind: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return _strict(kind)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:  # the client's own mark of what tells the types apart
        closed = _closed(inner[0])
        return Annotated[closed, Field(discriminator="type")] if get_origin(closed) in (Union, UnionType) else closed
    if origin in (Union, UnionType):
        return Union[tuple(_closed(each) for each in inner)]  # noqa: UP007
    if origin is list:
        return list[_closed(inner[0])]
    return kind


@cache
def _reader(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(_closed(kind))


def event_of(event: object) -> None:
    """Raises ValidationError for anything but an event of a stream."""
    kind = event.get("type") if isinstance(event, dict) else None
    if kind == "ping":
        Ping.model_validate(event)
    elif kind == "error":
        error_of(event)
    else:
        _reader(RawMessageStreamEvent).validate_python(event)


def message_of(body: object) -> None:
    _reader(Message).validate_python(body)


def error_of(body: object) -> None:
    _reader(ErrorResponse).validate_python(body)


def count_of(body: object) -> None:
    _reader(MessageTokensCount).validate_python(body)
