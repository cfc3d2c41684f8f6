"""The claim under which the running code runs."""

from __future__ import annotations

import time
from contextvars import ContextVar

from inbox.claims.claim import Claim

CURRENT: ContextVar[Held | None] = ContextVar("current_claim", default=None)


class Held:
    """A claim while its effect runs. Its heartbeat keeps it; `lost` tells when it could not."""

    __slots__ = ("_refused", "_sure_until", "claim", "lease", "outer", "over")

    def __init__(self, claim: Claim, lease: float, since: float) -> None:
        self.claim = claim
        self.lease = lease
        self.outer = CURRENT.get()
        """The claim around this one: guards may be nested."""
        self.over = False
        """The effect has ended; code that it left running may still see this as its claim."""
        self._refused = False
        self._sure_until = since + lease

    @property
    def key(self) -> str:
        return self.claim.key

    @property
    def token(self) -> str:
        return self.claim.token

    @property
    def fence(self) -> int:
        """Hand it to what the effect changes, and let that refuse a lower one than it has seen."""
        return self.claim.fence

    @property
    def lost(self) -> bool:
        """Another worker has the claim, or may have it: a renewal was refused, or none has got
        through for a whole lease, be it that the store is away or that this process stood still."""
        return self._refused or time.monotonic() >= self._sure_until

    def renewed(self, still_held: bool, since: float) -> None:
        """A renewal that was sent at `since`, by the monotonic clock, has been answered."""
        if still_held:
            self._sure_until = since + self.lease
        else:
            self._refused = True


def current_claim() -> Held | None:
    """The claim under which this code runs, the innermost one; None outside of a guard."""
    return CURRENT.get()


def is_within(key: str) -> bool:
    """This code runs inside the effect of `key`: whoever waits for that here waits for himself."""
    held = current_claim()
    while held is not None:
        if held.key == key and not held.over:
            return True
        held = held.outer
    return False
