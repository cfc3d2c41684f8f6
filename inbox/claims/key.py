"""Which keys, durations and outcomes a store accepts; checked before anything is written."""

from __future__ import annotations

import math
from datetime import timedelta
from hashlib import sha256
from typing import TypeAlias

from inbox.claims.claim import State
from inbox.errors import InvalidDuration, InvalidKey, InvalidOutcome

Seconds: TypeAlias = float | timedelta
"""A duration: seconds, or a timedelta."""

MAX_BYTES = 512
"""Of a store key in UTF-8. An index of PostgreSQL takes no more than 2,700."""

SHORTEST = 0.001
LONGEST = 100 * 365 * 86_400.0


def store_key(key: str, *, scope: str = "", tenant: str = "") -> str:
    """The one key under which a store keeps `key` of `tenant` in `scope`.

    Different triples never give the same key: the first two carry their length, so no delimiter can
    be forged. What is long, or not printable, is replaced by its SHA-256.
    """
    _check_text("key", key)
    for field, text in (("scope", scope), ("tenant", tenant)):
        if text != "":
            _check_text(field, text)
    joined = f"{len(scope)}:{scope}{len(tenant)}:{tenant}{key}"
    if joined.isprintable() and len(joined.encode()) <= MAX_BYTES:
        return joined
    return f"#{sha256(joined.encode()).hexdigest()}"  # no other starts with this sign


def check_key(key: str) -> None:
    if len(_check_text("key", key)) > MAX_BYTES or "\0" in key:
        raise InvalidKey(
            "key", f"longer than {MAX_BYTES} bytes, or has a NUL: make it with store_key()"
        )


def check_claim(key: str, fingerprint: str, token: str) -> None:
    check_key(key)
    _check_text("token", token)
    if fingerprint != "":
        _check_text("fingerprint", fingerprint)
    if "\0" in token or "\0" in fingerprint:
        raise InvalidKey("token or fingerprint", "has a NUL: use hexadecimal digits")


def seconds(field: str, duration: Seconds) -> float:
    """The duration in seconds, if it is one that every store can keep."""
    if isinstance(duration, timedelta):
        duration = duration.total_seconds()
    if isinstance(duration, bool) or not isinstance(duration, int | float):
        raise InvalidDuration(field, f"needs seconds or a timedelta, not {duration!r}")
    if not math.isfinite(duration) or not SHORTEST <= duration <= LONGEST:
        raise InvalidDuration(field, f"needs 1 millisecond to 100 years, not {duration!r} seconds")
    return float(duration)


def check_limit(limit: int) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise InvalidKey("limit", f"needs a whole number from 1, not {limit!r}")
    return limit


def outcome(state: State, payload: bytes | None) -> tuple[State, bytes | None]:
    """What is to be saved, as a copy that nobody else can change."""
    if state not in (State.COMPLETED, State.FAILED):
        raise InvalidOutcome(f"a claim is settled as completed or failed, not as {state!r}")
    if payload is not None and not isinstance(payload, bytes | bytearray | memoryview):
        raise InvalidOutcome(f"a payload is bytes or None, not {type(payload).__name__}")
    return State(state), None if payload is None else bytes(payload)


def _check_text(field: str, text: str) -> bytes:
    if not isinstance(text, str):
        raise InvalidKey(field, f"needs a str, not {type(text).__name__}")
    if not text:
        raise InvalidKey(field, "is empty")
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise InvalidKey(field, f"{text!r} is not valid Unicode: {exc.reason}") from exc
