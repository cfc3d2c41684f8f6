"""Settings of the doors, checked when a door is made."""

from __future__ import annotations

from inbox.errors import InvalidSetting


def one_of(field: str, value: str, *known: str) -> None:
    if value not in known:
        raise InvalidSetting(field, f"needs one of {', '.join(map(repr, known))}, not {value!r}")


def at_least_one(field: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidSetting(field, f"needs a whole number from 1, not {value!r}")
    return value
