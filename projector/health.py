"""Whether a projector lives and gets on, and what does not. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

from projector.dead.census import Census


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that does not move: a topic of a lane, a lane, or (neither given) all of it."""

    reason: str
    """Of a topic: full, type, deleted, refused, paused, unread, lost. Of a lane: stopped, or what
    `trouble.reason` calls the trouble it waits out. Of all: starting, stalled, or an outage as it
    is called there."""
    detail: str
    since: float
    """By the projector's monotonic clock."""
    lane: int | None = None
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """What probes ask for."""

    alive: bool
    """The loop turned lately. Servers that are away do not change that: a restart heals nothing."""
    ready: bool
    """Every lane that is held, and every topic, moves."""
    problems: list[Problem]
    letters: tuple[Census, ...] = ()
    """The dead letters of each group, on the lanes that are held. They are a consumer's matter, and
    make no projector unready."""
