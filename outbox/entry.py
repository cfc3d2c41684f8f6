"""A stream entry as an event: the reading side of what docs/reference/streams.md promises."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID, SafeUUID

import msgspec

from outbox import fields
from outbox.errors import NotDecodable
from outbox.event import Event

_HEADERS = msgspec.json.Decoder(dict[str, str])
_OWN_HEADERS = (
    (b"traceparent", "traceparent"),
    (b"tracestate", "tracestate"),
    (b"tenant", "tenant"),
)


def event_of(topic: str, entry: Mapping[bytes, bytes]) -> Event[Any]:
    """The event that a projector has published. Raises NotDecodable for anything else."""
    try:
        sequence = entry.get(b"sequence")
        event: Event[Any] = Event.__new__(Event)
        event._set(
            id=_uuid(entry[b"id"]),
            source=entry[b"source"].decode(),
            topic=topic,
            type=entry[b"type"].decode(),
            time=datetime.fromisoformat(entry[b"time"].decode()),
            content_type=entry[b"datacontenttype"].decode(),
            raw=entry[b"data"],
            headers=_headers(entry),
            deliver_at=None,
            _key=entry[b"subject"].decode(),
            _seq=None if sequence is None else int(sequence),
            _key_owner=None,
            _data_type=Any,
        )
    except KeyError as exc:
        raise NotDecodable("an event", f"the entry has no field {exc.args[0].decode()!r}") from exc
    except (ValueError, msgspec.DecodeError) as exc:
        raise NotDecodable("an event", str(exc)) from exc
    return event


def _uuid(text: bytes) -> UUID:
    """As UUID(text) gives it, which takes three times as long to look at every form there is."""
    if len(text) != 36:
        raise ValueError(f"{text!r} is no UUID")
    made = UUID.__new__(UUID)
    object.__setattr__(made, "int", int(text.replace(b"-", b""), 16))
    object.__setattr__(made, "is_safe", SafeUUID.unknown)
    return made


def _headers(entry: Mapping[bytes, bytes]) -> Mapping[str, str]:
    found = {name: entry[field].decode() for field, name in _OWN_HEADERS if field in entry}
    if b"headers" in entry:
        found |= _HEADERS.decode(entry[b"headers"])
    return fields.headers(found) if found else fields.NO_HEADERS
