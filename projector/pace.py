"""How long to wait between two turns. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Pace:
    """`busy` seconds while events flow and for `linger` seconds after the last one; then twice as
    long each time, up to `idle`.

    Without lingering, the pauses between the events of a steady trickle would count as silence: at
    100 events a second, every other one would wait for many milliseconds.
    """

    busy: float
    idle: float
    linger: float
    _last: float = float("-inf")
    _wait: float = 0.0

    def wait(self, published: int, now: float) -> float:
        """How long after a turn that published so many events."""
        if published:
            self._last = now
        lingering = now - self._last < self.linger
        self._wait = self.busy if lingering else min(max(self._wait, self.busy) * 2, self.idle)
        return self._wait
