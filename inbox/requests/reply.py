"""What came of a request: how it is stored, and how it is given again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from inbox.claims.claim import Record
from inbox.errors import ResultUnavailable
from outbox import codec
from outbox.errors import NotDecodable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reply(Generic[T]):
    """`cached` if the request was carried out before, and this is what came of it then."""

    result: T
    cached: bool

    def marked(self) -> dict[str, Any]:
        """For the payload of an answer: the result's fields with `cached` among them. A result that
        is no object stands under `result`."""
        plain = msgspec.json.decode(_encode(self.result)).get("result")
        fields = plain if isinstance(plain, dict) else {"result": plain}
        return {**fields, "cached": self.cached}


class _Saved(msgspec.Struct, Generic[T]):
    # One more layer, so that bytes are written as JSON too.
    result: T


def dump(result: object, wanted: Any) -> tuple[bytes, Any]:
    """The payload, and the result as every reply will have it, the first one too.

    Raises NotEncodable or NotDecodable.
    """
    payload = _encode(result)
    return payload, _decode(payload, wanted)


def load(record: Record, wanted: Any) -> Any:
    if record.payload is None:
        raise ResultUnavailable(record.key, "its result could not be stored")
    try:
        return _decode(record.payload, wanted)
    except NotDecodable as exc:
        raise ResultUnavailable(record.key, str(exc)) from exc


def _encode(result: object) -> bytes:
    return codec.encode(_Saved(result))[0]


def _decode(payload: bytes, wanted: Any) -> Any:
    return codec.decode(payload, codec.JSON, _Saved[wanted]).result
