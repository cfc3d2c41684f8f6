"""What came of publishing a batch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Published:
    """Every row is in its stream, once, and the state has moved."""

    strangers: tuple[str, ...] = ()
    """Streams that somebody else has written to."""


@dataclass(frozen=True, slots=True)
class Moved:
    """Nothing was written: another state is stored than the batch was read from."""

    stored: str


@dataclass(frozen=True, slots=True)
class Blocked:
    """Nothing was written: one topic's stream takes no entries."""

    topic: str
    reason: str
    """full, type, deleted, refused, or paused."""
    detail: str


Outcome = Published | Moved | Blocked
