"""Rates of several subjects, measured so that a noisy machine treats them all alike."""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from time import perf_counter

Work = Callable[[], Awaitable[None]]

SLICE = 0.04
"""Seconds. Noise comes in bursts that are longer, and so mostly hits a round as a whole."""


@dataclass(frozen=True)
class Spread:
    """A median, with the quartiles around it."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(low, median, high)


@dataclass
class Subject:
    """One thing to measure: `work` is done again and again, by `workers` at a time."""

    name: str
    label: str
    work: Work
    workers: int = 1
    surroundings: Callable[[], AbstractContextManager[None]] = nullcontext
    """Entered around each slice, outside of what is timed."""
    rates: list[float] = field(default_factory=list)
    done: int = 0
    """How often the work was done in all, warm-up included."""

    @property
    def rate(self) -> Spread:
        return Spread.of(self.rates)

    @property
    def microseconds(self) -> float:
        """The median time that one piece of work takes."""
        return 1e6 / self.rate.median

    async def run(self, seconds: float) -> float:
        """Work for so long, at least once a worker; the rate per second."""
        with self.surroundings():
            before, start = self.done, perf_counter()
            end = start + seconds
            await asyncio.gather(*[self._until(end) for _ in range(self.workers)])
            return (self.done - before) / (perf_counter() - start)

    async def _until(self, end: float) -> None:
        while True:
            await self.work()
            self.done += 1
            if perf_counter() >= end:
                return


async def measure(subjects: Sequence[Subject], seconds: float) -> None:
    """Fill in the rates. Each round gives every subject a slice, in an order of its own."""
    rounds = max(3, round(seconds / len(subjects) / SLICE))
    for subject in subjects:
        await subject.run(0.2)
    gc.collect()
    gc.freeze()  # so that collecting before each slice is cheap: nobody pays for another's garbage
    order = random.Random(1)
    for _ in range(rounds):
        for subject in order.sample(subjects, len(subjects)):
            gc.collect()
            subject.rates.append(await subject.run(SLICE))
    gc.unfreeze()


def times_as_long(subject: Subject, other: Subject) -> Spread:
    """How many times as long as `other` the subject takes, compared round by round."""
    pairs = zip(subject.rates, other.rates, strict=True)
    return Spread.of([theirs / ours for ours, theirs in pairs])
