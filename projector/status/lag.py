"""How far a group is behind, from what the server can tell. Pure.

The server's own `lag` counts entries that were trimmed unread, and on older servers keeps counting
them for ever. What is there to be delivered is what lies above the last delivered id.
"""

from __future__ import annotations

from typing import Any

Facts = dict[str, Any]


def true_lag(stream: Facts, group: Facts) -> tuple[int, bool]:
    """Entries not delivered yet, and whether that is exact. Facts as inspect.lua gives them."""
    length, first, last = stream["length"], stream.get("first"), _id(stream["last"])
    delivered = _id(group["delivered"])
    if not length or first is None or delivered >= last:
        return 0, True
    if delivered < _id(first):
        return length, True
    if group.get("counted") is None:  # nothing was ever removed: the counters hold
        return group["lag"], True
    if group["complete"]:
        return group["counted"], True
    most = length - 1  # the first one was delivered
    if group.get("read") is not None:
        guess = stream["added"] - group["read"]
    else:
        guess = round(length * (last[0] - delivered[0]) / max(last[0] - _id(first)[0], 1))
    return min(max(guess, group["counted"]), most), False


def _id(text: str) -> tuple[int, int]:
    milliseconds, _, number = text.partition("-")
    return int(milliseconds), int(number or 0)
