"""What a source hands over: rows in the order to publish them, and the position behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from projector.position import Moment, Position


class Topics(NamedTuple):
    """Which topics to read: one, or all without some."""

    only: str | None = None
    without: tuple[str, ...] = ()


EVERY_TOPIC = Topics()

EVENT_BYTES = 64 * 1024 * 1024
"""How much data a row may have, if nothing else is said."""


class Row(NamedTuple):
    """A committed event as it is published. Texts are ready for the stream."""

    id: int
    event_id: str
    topic: str
    type: str
    key: str
    seq: int | None
    data: bytes | None
    """None if it is larger than the source hands over."""
    content_type: str
    traceparent: str | None
    tracestate: str | None
    tenant: str | None
    headers: str | None
    time: str


@dataclass(frozen=True, slots=True)
class Batch:
    """The next events of a lane. Empty rows with a new position: nothing to publish, move on."""

    rows: list[Row]
    position: Position
    """Where the lane stands once these rows are published."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """The first page of a window, read together with the window's end."""

    start: Position
    """The window it belongs to, as it was opened. It is of no use for any other."""
    page: Batch


@dataclass(frozen=True, slots=True)
class Survey:
    """A moment, and which lanes have something to publish up to it."""

    moment: Moment
    lanes: Mapping[int, Ahead | None]
    """Those that have, or may have; with their first page, if it was read along."""
