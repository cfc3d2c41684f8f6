"""Lanes that wait by themselves, each for its own trouble with Redis, while others go on."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from redis.exceptions import RedisError
from tenacity import AsyncRetrying, RetryCallState
from tenacity.wait import wait_random_exponential

from projector import trouble
from projector.telemetry import Telemetry

log = logging.getLogger("projector")

WAIT = wait_random_exponential(multiplier=0.2, min=0.05, max=5)
"""With jitter, between two tries: of everything in an outage, and of a lane by itself."""

Doing = Literal["hold", "publish", "checkpoint"]
"""What failed. Only its own success shows that the trouble is over."""


@dataclass(frozen=True, slots=True)
class Setback:
    problem: RedisError
    tries: int
    until: float
    """By the monotonic clock."""


class Setbacks:
    """What lanes are not to try again yet. Nothing sleeps here, so that nothing needs to be woken:
    the loops turn anyway, and pass over them."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._of: dict[tuple[int, Doing], Setback] = {}

    def add(self, doing: Doing, failed: Mapping[int, RedisError]) -> None:
        """These lanes have failed at it (again)."""
        for lane, problem in failed.items():
            before = self._of.get((lane, doing))
            tries = before.tries + 1 if before else 1
            self._of[lane, doing] = Setback(problem, tries, time.monotonic() + _pause(tries))
            told = trouble.told(problem)
            if self._telemetry.waits(lane, trouble.reason(problem), told):
                log.warning("a lane waits by itself: %s", told, extra={"lane": lane})

    def over(self, doing: Doing, lane: int) -> None:
        """The lane was able to do it."""
        if self._of.pop((lane, doing), None) and not any(other == lane for other, _ in self._of):
            self._telemetry.resumes(lane)
            log.info("a lane goes on", extra={"lane": lane})

    def keep(self, lanes: Collection[int]) -> None:
        """The others are no longer ours to tell of."""
        for lane, doing in list(self._of):
            if lane not in lanes:
                del self._of[lane, doing]
                self._telemetry.resumes(lane)

    def waiting(self, doing: Doing, lane: int) -> bool:
        return (lane, doing) in self._of and self._of[lane, doing].until > time.monotonic()

    def check(self) -> None:
        """Raises what a lane waits for, if one does."""
        for setback in self._of.values():
            raise setback.problem


def _pause(tries: int) -> float:
    """What tenacity waits before the next attempt."""
    state = RetryCallState(AsyncRetrying(), None, (), {})
    state.attempt_number = tries
    return WAIT(state)
