"""An event as a CloudEvents 1.0 JSON object, and back, without losing a byte."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, UUID, uuid5

from outbox import codec
from outbox.errors import InvalidField, NotDecodable, NotEncodable

if TYPE_CHECKING:
    from outbox.event import Event

OWN_FIELDS = ("traceparent", "tracestate", "tenant")
"""Headers that travel as fields of their own, in streams, tables and CloudEvents."""


def split_headers(headers: Mapping[str, str]) -> tuple[dict[str, str], str | None]:
    """The headers with fields of their own, and the rest as one JSON text (None if empty)."""
    if not headers:
        return {}, None
    own = {name: headers[name] for name in OWN_FIELDS if name in headers}
    rest = {name: value for name, value in headers.items() if name not in own}
    return own, codec.encode(rest)[0].decode() if rest else None


def join_headers(own: Mapping[str, str | None], rest: str | bytes | None) -> dict[str, str]:
    """The inverse of `split_headers`."""
    fields = {name: value for name in OWN_FIELDS if (value := own.get(name)) is not None}
    if rest is None:
        return fields
    raw = rest.encode() if isinstance(rest, str) else rest
    try:
        others: dict[str, str] = codec.decode(raw, codec.JSON, dict[str, str])
    except NotDecodable as exc:
        raise InvalidField("headers", exc.problem) from exc
    return fields | others


def export(event: Event[Any]) -> dict[str, Any]:
    """The event as a dict that any JSON encoder takes."""
    own, rest = split_headers(event.headers)
    optional: dict[str, Any] = {
        "sequence": None if event.seq is None else str(event.seq),
        "deliverat": None if event.deliver_at is None else _stamp(event.deliver_at),
        "headers": rest,
        **own,
    }
    return {
        "specversion": "1.0",
        "id": str(event.id),
        "source": event.source,
        "type": event.type,
        "subject": event.key,
        "time": _stamp(event.time),
        "datacontenttype": event.content_type,
        "topic": event.topic,
        **{name: value for name, value in optional.items() if value is not None},
        **_data(event),
    }


def fields_of(cloudevent: Mapping[str, Any], topic: str | None = None) -> dict[str, Any]:
    """The arguments that make an Event of a CloudEvents JSON object."""
    source, identity = _required(cloudevent, "source"), _required(cloudevent, "id")
    time = partial(_parsed, cloudevent, parse=datetime.fromisoformat)
    return {
        "type": _required(cloudevent, "type"),
        "topic": topic or _required(cloudevent, "topic"),
        "key": _required(cloudevent, "subject"),
        "source": source,
        "event_id": _uuid(source, identity),
        "time": time("time"),
        "seq": _parsed(cloudevent, "sequence", _sequence),
        "headers": join_headers(cloudevent, cloudevent.get("headers")),
        "deliver_at": time("deliverat"),
        "content_type": cloudevent.get("datacontenttype", codec.JSON),
        "data": _raw(cloudevent),
    }


def _stamp(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def _data(event: Event[Any]) -> dict[str, Any]:
    """JSON stays readable where it comes back as the same bytes; all else goes as base64."""
    if codec.is_json(event.content_type):
        with suppress(NotDecodable, NotEncodable):
            value = event.decode()
            if codec.encode(value)[0] == event.raw:
                return {"data": value}
    return {"data_base64": base64.b64encode(event.raw).decode()}


def _raw(cloudevent: Mapping[str, Any]) -> bytes:
    if "data_base64" in cloudevent:
        raw: bytes = _parsed(cloudevent, "data_base64", partial(base64.b64decode, validate=True))
        return raw
    data = cloudevent.get("data")
    if isinstance(data, str) and not codec.is_json(cloudevent.get("datacontenttype", codec.JSON)):
        return data.encode()  # a text of another kind stands as it is
    return codec.encode(data)[0]


def _uuid(source: str, identity: str) -> UUID:
    """Ours are UUIDs; from those of others, the same one is made each time."""
    try:
        return UUID(identity)
    except (TypeError, ValueError, AttributeError):
        return uuid5(NAMESPACE_URL, f"{source}#{identity}")


def _sequence(value: Any) -> int:
    if isinstance(value, float):
        raise ValueError("not a whole number")
    return int(value)


def _required(cloudevent: Mapping[str, Any], field: str) -> Any:
    value = cloudevent.get(field)
    if value is None:
        raise InvalidField(field, "is missing from the CloudEvent")
    return value


def _parsed(cloudevent: Mapping[str, Any], field: str, parse: Callable[[Any], Any]) -> Any:
    value = cloudevent.get(field)
    try:
        return None if value is None else parse(value)
    except (TypeError, ValueError, AttributeError, NotDecodable) as exc:
        raise InvalidField(field, f"{value!r} does not parse: {exc}") from exc
