"""What a projector tells about itself while it runs: metrics, and whether it is well.

Labels are lane, topic, group and reason only. Their number is bounded; that of keys and ids is not.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from projector.dead.census import Census, summed
from projector.health import Health, Problem

UNREAD = "unread"
LOST = "lost"
LOSS_SHOWN = 600.0
"""Seconds that a loss counts as a problem."""
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_STREAM = re.compile(r"\{.+:(\d+)\}:(.+)")

Place = tuple[int | None, str | None]
"""A lane and a topic; without a topic the whole lane, without a lane everything."""
EVERYTHING: Place = (None, None)
STOPPED = "stopped"


class Telemetry:
    """One per projector, with a registry of its own. Called from the projector's event loop only.

    `patience`  how long the loop may take to turn before it counts as dead
    `clock`     monotonic seconds
    """

    def __init__(
        self,
        *,
        patience: float | timedelta = 30,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._patience = patience.total_seconds() if isinstance(patience, timedelta) else patience
        self._clock = clock
        self._started = self._beat = clock()
        self._held: set[int] | None = None
        self._problems: dict[Place, Problem] = {}
        self._letters: dict[int, dict[str, Census]] = {}
        self._losses: dict[tuple[int, str, str], Problem] = {}
        self._metrics = _Metrics()
        self._metrics.look_age.set_function(lambda: self._clock() - self._beat)
        self._metrics.ready.set_function(lambda: self.health().ready)

    def now(self) -> float:
        """What the clock says; problems are dated by it."""
        return self._clock()

    def looked(self) -> None:
        """The loop turns: it has asked the database for what is new."""
        self._beat = self._clock()
        self._metrics.looks.inc()

    def published(self, lane: int, topic: str, count: int, seconds: float) -> None:
        """`count` events of the topic went out, in a batch that took `seconds`."""
        self._metrics.published.labels(lane, topic).inc(count)
        self._metrics.publish_seconds.labels(topic).observe(seconds)

    def moved(self, lane: int) -> None:
        """The lane stood elsewhere than expected: Redis lost data, or another one was at work."""
        self._metrics.moved.labels(lane).inc()

    def detached(self, lane: int, topic: str, reason: str, detail: str = "") -> bool:
        """The lane goes on without the topic. Whether that, or the reason, is news."""
        before = self._problems.get((lane, topic))
        if before and before.reason == reason:
            self._problems[lane, topic] = replace(before, detail=detail)
            return False
        if before:
            self._metrics.detached.remove(lane, topic, before.reason)
        self._metrics.detached.labels(lane, topic, reason).set(1)
        self._metrics.detachments.labels(lane, topic, reason).inc()
        since = before.since if before else self._clock()
        self._problems[lane, topic] = Problem(reason, detail, since, lane, topic)
        return True

    def rejoined(self, lane: int, topic: str) -> None:
        """The topic has caught up with its lane."""
        self._clear((lane, topic))

    def unread(self, lane: int, topic: str, detail: str) -> bool:
        """A stream fills up, and nobody reads it. Whether that is news."""
        if (lane, topic) in self._problems:
            return False
        self._problems[lane, topic] = Problem(UNREAD, detail, self._clock(), lane, topic)
        self._metrics.detached.labels(lane, topic, UNREAD).set(0)
        return True

    def read(self, lane: int, topic: str) -> None:
        """Somebody reads it, or it does not fill up any more."""
        problem = self._problems.get((lane, topic))
        if problem and problem.reason == UNREAD:
            self._clear((lane, topic))

    def letters(self, lane: int, found: Iterable[Census]) -> None:
        """The dead letters of the groups that read the lane."""
        before, now = self._letters.pop(lane, {}), {each.group: each for each in found}
        for group in before.keys() - now.keys():
            self._metrics.dead.remove(lane, group)
            self._metrics.waiting_behind.remove(lane, group)
            self._metrics.parked.remove(lane, group)
        for group, each in now.items():
            self._metrics.dead.labels(lane, group).set(each.dead)
            self._metrics.waiting_behind.labels(lane, group).set(each.waiting)
            self._metrics.parked.labels(lane, group).set(each.parked)
        if now:
            self._letters[lane] = now

    def trimmed(self, lane: int, topic: str, count: int) -> None:
        """Entries that every group has acknowledged were removed."""
        self._metrics.trimmed.labels(lane, topic).inc(count)

    def handed_over(self, lane: int, topic: str, count: int) -> None:
        """Pending entries of dead consumers were given to living ones."""
        self._metrics.handed_over.labels(lane, topic).inc(count)

    def lost(self, lane: int, topic: str, group: str, why: str, count: int) -> None:
        """Entries were removed before a group had them: `unread`, or `pending`. Nothing heals that,
        so it is a problem for a while, and then history."""
        self._metrics.lost.labels(lane, topic, why).inc(count)
        detail = f"at least {count} entries were gone before group {group} had them ({why})"
        self._losses[lane, topic, group] = Problem(LOST, detail, self._clock(), lane, topic)

    def holds(self, lanes: Iterable[int]) -> None:
        """The lanes that are ours now. What was wrong with others is no longer our concern."""
        held, before = set(lanes), self._held or set()
        for lane in before - held:
            self._metrics.held.remove(lane)
            self.letters(lane, ())
            for place in [place for place in self._problems if place[0] == lane]:
                self._clear(place)
            for loss in [loss for loss in self._losses if loss[0] == lane]:
                del self._losses[loss]
        for lane in held - before:
            self._metrics.held.labels(lane).set(1)
        self._held = held

    def outage(self, reason: str, detail: str = "") -> bool:
        """A server is away; it is waited out. `reason` as `trouble.reason` gives it. Whether that
        is news."""
        self._beat = self._clock()  # trying again is a turn too
        before = self._problems.get(EVERYTHING)
        if before and before.reason == reason:
            return False
        since = before.since if before else self._clock()
        self._clear(EVERYTHING)
        self._metrics.outage.labels(reason).set(1)
        self._metrics.outages.labels(reason).inc()
        self._problems[EVERYTHING] = Problem(reason, detail, since)
        return True

    def recovered(self) -> None:
        """A turn went well from end to end."""
        self._clear(EVERYTHING)

    def rejected(self, lane: int) -> None:
        """A row could not be published and was set aside."""
        self._metrics.rejected.labels(lane).inc()

    def stranger(self, stream: str) -> None:
        """Somebody else wrote to one of our streams."""
        if found := _STREAM.fullmatch(stream):
            self._metrics.strangers.labels(*found.groups()).inc()

    def problem(self, lane: int, text: str) -> bool:
        """The lane has stopped, and time alone does not heal it. Whether that is news."""
        before = self._problems.get((lane, None))
        since = before.since if before else self._clock()
        self._clear((lane, None))
        self._problems[lane, None] = Problem(STOPPED, text, since, lane)
        self._metrics.stopped.labels(lane).set(1)
        return before is None or before.detail != text

    def waits(self, lane: int, reason: str, detail: str = "") -> bool:
        """The lane has trouble with Redis that others have not; it is tried again by itself.
        `reason` as `trouble.reason` gives it. Whether that is news."""
        before = self._problems.get((lane, None))
        if before and before.reason == reason:
            self._problems[lane, None] = replace(before, detail=detail)
            return False
        since = before.since if before else self._clock()
        self._clear((lane, None))
        self._metrics.waiting.labels(lane, reason).set(1)
        self._metrics.setbacks.labels(lane, reason).inc()
        self._problems[lane, None] = Problem(reason, detail, since, lane)
        return True

    def resumes(self, lane: int) -> None:
        """The lane waits no longer. If it has stopped meanwhile, that stays."""
        problem = self._problems.get((lane, None))
        if problem and problem.reason != STOPPED:
            self._clear((lane, None))

    def fine(self, lane: int) -> None:
        """The lane moves (again)."""
        self._clear((lane, None))

    def render(self) -> bytes:
        """All metrics in Prometheus' text form."""
        return generate_latest(self._metrics.registry)

    def health(self, now: float | None = None) -> Health:
        """How things stand at `now`, by the clock."""
        now = self._clock() if now is None else now
        alive = now - self._beat <= self._patience
        problems = list(self._problems.values())
        problems += [loss for loss in self._losses.values() if now - loss.since < LOSS_SHOWN]
        if not alive:
            idle = f"the loop has not turned for {now - self._beat:.0f} s"
            problems.insert(0, Problem("stalled", idle, self._beat))
        elif self._held is None and EVERYTHING not in self._problems:
            detail = "no lane has been asked for yet"
            problems.insert(0, Problem("starting", detail, self._started))
        letters = summed(each for lane in self._letters.values() for each in lane.values())
        return Health(alive, not problems, problems, letters)

    def _clear(self, place: Place) -> None:
        problem = self._problems.pop(place, None)
        if problem is None:
            return
        match place:
            case (None, _):
                self._metrics.outage.remove(problem.reason)
            case (lane, None) if problem.reason == STOPPED:
                self._metrics.stopped.remove(lane)
            case (lane, None):
                self._metrics.waiting.remove(lane, problem.reason)
            case (lane, topic):
                self._metrics.detached.remove(lane, topic, problem.reason)


class _Metrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(f"projector_{name}", help, labels, registry=registry)

        def gauge(name: str, help: str, *labels: str) -> Gauge:
            return Gauge(f"projector_{name}", help, labels, registry=registry)

        self.looks = counter("looks_total", "How often the loop looked for new events.")
        self.look_age = gauge("look_age_seconds", "Time since the loop last turned.")
        self.ready = gauge("ready", "1 while every lane that is held, and every topic, moves.")
        self.published = counter(
            "events_published_total", "Events that entered their stream.", "lane", "topic"
        )
        self.publish_seconds = Histogram(
            "projector_publish_seconds",
            "Time to publish a batch that had events of the topic.",
            ["topic"],
            buckets=BUCKETS,
            registry=registry,
        )
        self.moved = counter(
            "positions_moved_total", "How often a lane stood elsewhere than expected.", "lane"
        )
        self.rejected = counter(
            "rows_rejected_total", "Rows that could not be published and were set aside.", "lane"
        )
        self.held = gauge("lane_held", "1 for each lane that this projector holds.", "lane")
        self.stopped = gauge("lane_stopped", "1 while a lane has stopped for good.", "lane")
        self.waiting = gauge(
            "lane_waiting", "1 while a lane waits for Redis and others do not.", "lane", "reason"
        )
        self.setbacks = counter(
            "lane_setbacks_total", "How often a lane had to wait by itself.", "lane", "reason"
        )
        where = ("lane", "topic", "reason")
        self.detached = gauge("topic_detached", "1 while a topic is detached.", *where)
        self.detachments = counter(
            "topic_detachments_total", "How often a topic was detached from its lane.", *where
        )
        whose = ("lane", "group")
        self.dead = gauge("dead_letters", "Events that a group gave up on.", *whose)
        self.waiting_behind = gauge(
            "waiting_letters", "Events of parked keys that wait behind a dead letter.", *whose
        )
        self.parked = gauge("parked_keys", "Keys that wait for a dead letter.", *whose)
        self.trimmed = counter(
            "entries_trimmed_total",
            "Entries that every group had acknowledged and that were removed.",
            *("lane", "topic"),
        )
        self.handed_over = counter(
            "entries_handed_over_total",
            "Pending entries of dead consumers that were given to living ones.",
            *("lane", "topic"),
        )
        self.lost = counter(
            "entries_lost_total", "Entries that were gone before a group had them.", *where
        )
        self.outage = gauge("outage", "1 while a server is away.", "reason")
        self.outages = counter("outages_total", "How often a server was away.", "reason")
        self.strangers = counter(
            "stranger_writes_total",
            "How often a stream was found written to by somebody else.",
            *("lane", "topic"),
        )
