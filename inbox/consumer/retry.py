"""When a handler that failed is tried again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from tenacity import RetryCallState, wait_random_exponential

Seconds = float | timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Exponential, with jitter and a cap. Attempts are counted when they begin, across crashes.

    attempts  how often at most, the first one included; then the event is a dead letter
    first     about how long before the second attempt; twice as long before each further one
    cap       never longer than this
    """

    attempts: int = 5
    first: Seconds = 0.2
    cap: Seconds = 30

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError("attempts must be at least 1")

    def pause(self, attempt: int) -> float:
        """Seconds to wait after the attempt of that number, from half to all of what is due."""
        first, cap = _seconds(self.first), _seconds(self.cap)
        waiting = wait_random_exponential(multiplier=first, max=cap, min=min(first / 2, cap))
        state = RetryCallState(retry_object=None, fn=None, args=(), kwargs={})  # type: ignore[arg-type]
        state.attempt_number = attempt
        return waiting(state)


def _seconds(value: Seconds) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else value
