"""What the doors tell about themselves, in Prometheus' terms.

Labels are the door and its name only: their number is bounded; that of keys is not.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from time import perf_counter
from typing import Literal

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram

Door = Literal["function", "command", "http", "request", "message"]

Outcome = Literal[
    "miss", "hit", "conflict", "busy", "wait", "takeover", "lost", "failed", "dead", "error"
]
"""miss: the effect ran. hit: a saved answer was given. conflict: the key was used for something
else. busy: refused, since the first one still runs. wait: waited for it. takeover: its lease was
over, and the effect ran again. lost: somebody took ours over. failed: the effect raised.
dead: it was given up. error: the store did not answer."""


class Metrics:
    """One per registry. `METRICS` speaks to Prometheus' own, which most services expose."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._outcomes = Counter(
            "inbox_outcomes_total",
            "What came of what arrived, by door.",
            ["door", "name", "outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "inbox_processing_seconds",
            "Time that the effect took, by door.",
            ["door", "name"],
            registry=registry,
        )
        # Looking a label up takes longer than counting; there are no more than in the registry.
        self._outcome = cache(self._outcomes.labels)
        self._timer = cache(self._seconds.labels)

    def count(self, door: Door, name: str, outcome: Outcome) -> None:
        """`name` says which function, operation or route; never a key."""
        self._outcome(door, name, outcome).inc()

    def count_many(self, door: Door, name: str, outcome: Outcome, many: int) -> None:
        self._outcome(door, name, outcome).inc(many)

    def clock(self, door: Door, name: str) -> Histogram:
        """For those who time many effects: where to `observe` seconds."""
        return self._timer(door, name)

    def timed(self, door: Door, name: str) -> AbstractContextManager[None]:
        """Around the effect, whether it raises or not."""
        return _Timed(self._timer(door, name))


class _Timed:
    # A generator would take longer than what it measures.
    __slots__ = ("_began", "_seconds")

    def __init__(self, seconds: Histogram) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(self, *_: object) -> None:
        self._seconds.observe(perf_counter() - self._began)


METRICS = Metrics(REGISTRY)
