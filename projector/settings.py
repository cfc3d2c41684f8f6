"""What can be set, with its meaning, special values and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from projector.relay import BATCH, BATCH_BYTES
from projector.sink.redis import Stream

Duration = float | timedelta
"""Seconds, or a timedelta."""


def duration(value: Duration) -> timedelta:
    return value if isinstance(value, timedelta) else timedelta(seconds=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a projector works. Durations are given in seconds or as a timedelta."""

    name: str
    """The outbox's name, as in `Outbox(name=…)`."""
    lanes: int = 8
    """The number of lanes, if the database does not say: as in `Outbox(lanes=…)`."""
    schema: str | None = None
    prefix: str = ""
    batch: int = BATCH
    """How many events are published at once."""
    batch_bytes: int = BATCH_BYTES
    """How many bytes of data are published at once; a single larger event goes alone."""
    poll_busy: Duration = 0.001
    """How long to wait for new events while events flow."""
    poll_idle: Duration = 0.025
    """How long to wait at most when there are none: the latency of the first one after silence."""
    checkpoint: Duration = 5
    """How often positions are written to the database."""
    retention: Duration = timedelta(hours=24)
    """How long rows are kept after every group has acknowledged them."""
    lease: Duration = 10
    """How long a lane stays with a projector that does not renew it."""
    topology: Mapping[str, Stream] = field(default_factory=dict)
    """Topics that are declared: their groups, caps and limits."""
