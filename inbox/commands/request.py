"""What a command is, told by its content: the same for the same, whatever it is written in."""

from __future__ import annotations

import sys
from hashlib import sha256
from typing import Any

import msgspec

from outbox import codec
from outbox.errors import NotEncodable


def hash_request(command: object) -> str:
    """64 hexadecimal digits that tell one request from another under the same key.

    A dataclass, an attrs class, a msgspec Struct, a pydantic model and a dict of the same content
    give the same; the order of fields, keys and sets makes no difference, that of lists does, and
    1, 1.0, "1" and True are four values. Stable across processes and versions of Python. What has
    no JSON form raises NotEncodable and names the path to it.
    """
    raw, content_type = codec.encode(command)  # refuses what would get lost, such as NaN
    if codec.is_json(content_type):
        raw = _canonical(command)
    # JSON quotes and escapes, and the content's length comes first: no two can run together.
    return sha256(b"%s %d " % (content_type.encode(), len(raw)) + raw).hexdigest()


def _canonical(command: object) -> bytes:
    try:
        return _encoder.encode(command)
    except (TypeError, ValueError) as exc:
        raise NotEncodable("$", str(exc)) from exc


def _to_plain(value: Any) -> Any:
    """For what msgspec does not know: models, and the types that pydantic brings along."""
    if hasattr(type(value), "__pydantic_validator__") and hasattr(value, "model_dump"):
        # As Python values: as JSON, sets would be lists in an order of the moment.
        return value.model_dump(by_alias=True, round_trip=True)
    pydantic = sys.modules.get("pydantic_core")
    if pydantic is None:
        raise TypeError(f"{type(value).__name__} has no JSON form")
    return pydantic.to_jsonable_python(value)


_encoder = msgspec.json.Encoder(enc_hook=_to_plain, order="sorted")
