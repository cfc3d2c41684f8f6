"""What tells entities, users and requests apart."""

from __future__ import annotations

from typing import TypeAlias
from uuid import UUID

from inbox.errors import InvalidKey

Id: TypeAlias = str | int | UUID


def text_of(field: str, value: Id) -> str:
    """7 and "7" are the same: one comes from a database, the other from a socket."""
    if isinstance(value, bool) or not isinstance(value, str | int | UUID):
        raise InvalidKey(field, f"needs a str, int or UUID, not {type(value).__name__}")
    if value == "":
        raise InvalidKey(field, "is empty")
    return str(value)
