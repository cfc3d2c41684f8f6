"""An event as a row of the log or of the delayed table. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outbox.cloudevents import OWN_FIELDS, split_headers
from outbox.event import Event
from outbox.keys import lane_of
from outbox.versions import AUTO

Row = dict[str, Any]


def log_row(event: Event[Any], key: str, seq: int | None, lanes: int) -> Row:
    return _row(event, key, lanes) | {"seq": seq}


def delayed_row(event: Event[Any], key: str, lanes: int) -> Row:
    return _row(event, key, lanes) | {"deliver_at": event.deliver_at, "auto": event._seq is AUTO}


def size_of(raw: bytes, headers: Mapping[str, str]) -> int:
    """What the size limit speaks of: the bytes of the data and of the headers."""
    return len(raw) + sum(len(text.encode()) for pair in headers.items() for text in pair)


def _row(event: Event[Any], key: str, lanes: int) -> Row:
    own, rest = split_headers(event.headers)
    return {
        "lane": lane_of(key, lanes),
        "event_id": event.id,
        "topic": event.topic,
        "type": event.type,
        "key": key,
        "data": event.raw,
        "content_type": event.content_type,
        **{name: own.get(name) for name in OWN_FIELDS},
        "headers": rest,
        "created_at": event.time,
    }
