"""The event: what happened, to which key, with which data."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar, overload
from uuid import UUID

from outbox import cloudevents, codec, fields, keys
from outbox.errors import InvalidField, NotWritten
from outbox.identity import new_id
from outbox.versions import AUTO, Auto

T = TypeVar("T")
U = TypeVar("U")

UNNAMED = "oncebox"
"""The source of an event that no outbox has taken yet."""


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Event(Generic[T]):
    """One thing that happened. Immutable; equal when everything that travels is equal.

    The data is encoded when the event is made: changing the object you passed changes nothing.
    `key` and `seq` may be decided by the commit (a primary key not known yet, `AUTO`); reading them
    before raises `NotWritten`.
    """

    id: UUID
    source: str
    topic: str
    type: str
    time: datetime
    content_type: str
    raw: bytes
    """The data as it is stored and published."""
    headers: Mapping[str, str]
    deliver_at: datetime | None
    _key: str | None
    _seq: int | Auto | None
    _key_owner: object = field(compare=False)
    _data_type: Any = field(compare=False)

    def __init__(
        self,
        type: str,
        *,
        topic: str,
        key: keys.Key,
        data: T,
        seq: int | Auto | None = None,
        headers: Mapping[str, str] | None = None,
        deliver_at: datetime | None = None,
        event_id: UUID | None = None,
        time: datetime | None = None,
        content_type: str | None = None,
        source: str = UNNAMED,
    ) -> None:
        if event_id is not None and not isinstance(event_id, UUID):
            raise InvalidField("event_id", f"must be a UUID, not {event_id!r}")
        text = keys.key_text(key)
        if content_type is not None:
            fields.text("content_type", content_type)
        raw, content_type = codec.encode(data, content_type)
        self._set(
            id=event_id or new_id(),
            source=fields.text("source", source),
            topic=fields.name("topic", topic),
            type=fields.text("type", type),
            time=datetime.now(UTC) if time is None else fields.moment("time", time),
            content_type=content_type,
            raw=raw,
            headers=fields.headers(headers),
            deliver_at=None if deliver_at is None else fields.moment("deliver_at", deliver_at),
            _key=text,
            _seq=fields.seq(seq),
            _key_owner=None if keys.is_settled(key) else key,
            _data_type=codec.type_of(data),
        )
        if deliver_at is not None and isinstance(self._seq, int):
            raise InvalidField(
                "seq", "a delayed event cannot keep a number of its own: use AUTO, taken when due"
            )

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def key(self) -> str:
        """The aggregate the event is about. Order is promised per topic and key."""
        if self._key is None:
            raise NotWritten("key")
        return self._key

    @property
    def seq(self) -> int | None:
        """The key's version: 1, 2, 3 …, or None for an unversioned event."""
        if self._seq is AUTO:
            raise NotWritten("seq")
        return self._seq

    @property
    def data(self) -> T:
        """The data, decoded anew at each access, as the type it was made of."""
        value: T = codec.decode(self.raw, self.content_type, self._data_type)
        return value

    @overload
    def decode(self, wanted: builtins.type[U]) -> U: ...
    @overload
    def decode(self, wanted: Any = ...) -> Any: ...
    def decode(self, wanted: Any = Any) -> Any:
        """The data as `wanted`: a dataclass, attrs class, Struct, pydantic model or builtin."""
        return codec.decode(self.raw, self.content_type, wanted)

    def to_cloudevent(self) -> dict[str, Any]:
        """This event as a CloudEvents 1.0 JSON object."""
        return cloudevents.export(self)

    @classmethod
    def from_cloudevent(
        cls, cloudevent: Mapping[str, Any], *, topic: str | None = None
    ) -> Event[Any]:
        """The event of a CloudEvents JSON object that `to_cloudevent` or another producer made.

        `topic` is for those of others, which have none. An id that is no UUID becomes one that is
        made of source and id, always the same.
        """
        event: Event[Any] = Event(**cloudevents.fields_of(cloudevent, topic))
        event._set(_data_type=Any)
        return event

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle and copy, which know nothing of read-only headers."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return _restored, (values | {"headers": dict(self.headers)},)

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        key = "…" if self._key is None else repr(self._key)
        return (
            f"Event({self.type!r}, topic={self.topic!r}, key={key}, seq={self._seq!r}, "
            f"id={self.id}, {len(self.raw)} bytes)"
        )


def _restored(values: dict[str, Any]) -> Event[Any]:
    event: Event[Any] = Event.__new__(Event)
    event._set(**values | {"headers": fields.headers(values["headers"])})
    return event
