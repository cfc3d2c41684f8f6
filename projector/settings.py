"""What can be set, with its meaning, special values and defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from projector.errors import ProjectorError
from projector.janitor import CONSUMER_IDLE, PENDING_IDLE
from projector.relay import BATCH, BATCH_BYTES
from projector.source.batch import EVENT_BYTES
from projector.topology import Topology

Duration = float | timedelta
"""Seconds, or a timedelta."""


def duration(value: Duration) -> timedelta:
    return value if isinstance(value, timedelta) else timedelta(seconds=value)


class InvalidSetting(ProjectorError):
    """A setting that cannot be worked with."""

    def __init__(self, setting: str, problem: str) -> None:
        super().__init__(f"{setting} {problem}")
        self.setting = setting
        self.problem = problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a projector works. Durations are given in seconds or as a timedelta."""

    name: str
    """The outbox's name, as in `Outbox(name=…)`."""
    lanes: int | None = None
    """The number of lanes; None takes what the database says, or 8 if it says nothing yet. Another
    number than the database's is an error."""
    schema: str | None = None
    prefix: str = ""
    batch: int = BATCH
    """How many events are published at once."""
    batch_bytes: int = BATCH_BYTES
    """How many bytes of data are published at once; a single larger event goes alone."""
    event_bytes: int = EVENT_BYTES
    """How many bytes an event may have. A larger one is set aside, and its lane goes on."""
    poll_busy: Duration = 0.001
    """How long to wait for new events while events flow."""
    poll_idle: Duration = 0.025
    """How long to wait at most when there are none: the latency of the first one after silence."""
    poll_linger: Duration = 0.1
    """How long after the last event `poll_busy` holds, before the waits grow up to `poll_idle`."""
    notify: bool = False
    """Listen on PostgreSQL for the notifications of `Outbox(notify=True)`, which end a wait."""
    checkpoint: Duration = 5
    """How often positions are written to the database."""
    retention: Duration = timedelta(hours=24)
    """How long rows are kept after every group has acknowledged them."""
    keep_at_most: Duration | None = None
    """How long rows are kept that a group has not acknowledged; None keeps them until it has."""
    trim: bool = True
    """Remove entries that every group has acknowledged from their streams."""
    pending_idle: Duration = PENDING_IDLE
    """How long an entry is pending before it is taken from a consumer that is dead."""
    consumer_idle: Duration = CONSUMER_IDLE
    """How long a consumer with nothing pending must be silent before it is removed."""
    lease: Duration = 10
    """How long a lane stays with a projector that does not renew it."""
    topology: Topology = field(default_factory=dict)
    """Topics that are declared: their groups, caps and limits."""

    def __post_init__(self) -> None:
        for setting in ("batch", "batch_bytes", "event_bytes"):
            if getattr(self, setting) < 1:
                raise InvalidSetting(setting, "must be at least 1")
        for setting in (
            *("poll_busy", "poll_idle", "checkpoint", "lease"),
            *("pending_idle", "consumer_idle"),
        ):
            if duration(getattr(self, setting)) <= timedelta(0):
                raise InvalidSetting(setting, "must be longer than nothing")
        if duration(self.retention) < timedelta(0):
            raise InvalidSetting("retention", "must not be negative")
        if self.keep_at_most is not None and duration(self.keep_at_most) < duration(self.retention):
            raise InvalidSetting("keep_at_most", "must not be shorter than the retention")
