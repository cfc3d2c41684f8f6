"""How far a lane has been published. Pure data, with one text form that Redis compares.

A position says: every row that `base` sees is published, and so is everything of the open window up
to `after`. A window is what `upto` sees and `base` does not, in id order:

- late rows, id ≤ head: their transaction was running when `base` was taken. It is in base's list,
  or has an xid from its xmax up to its `next_xid`: xmax is the latest *completed* xid + 1,
  so transactions with higher xids may already run and appear in no list;
- fresh rows, id > head: nothing with a higher id was ever published.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

from projector.errors import ProjectorError
from projector.snapshot import FIRST_XID, NOTHING, Snapshot

VERSION = "1"


class CorruptPosition(ProjectorError):
    """A stored position cannot be read; nothing is published from it."""

    def __init__(self, text: str) -> None:
        super().__init__(f"the stored position {text!r} cannot be read; run `projector rebase`")
        self.text = text


class StaleSnapshot(ProjectorError):
    """A window's end misses what its start has seen; publishing from it would double or lose."""

    def __init__(self, upto: Snapshot, base: Snapshot) -> None:
        super().__init__(f"the snapshot {upto} is older than the position's {base}")


@dataclass(frozen=True, slots=True)
class Origin:
    """Which database a position speaks of. Ids and xids mean nothing on another one."""

    system: str
    """The cluster's system identifier."""
    timeline: str
    """Changes when a standby is promoted; ids and xids of lost commits are then used again."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A snapshot, and an upper bound of the xids that were assigned when it was taken."""

    snapshot: Snapshot
    next_xid: int

    def running(self) -> Iterator[int]:
        """Every transaction that may have been running."""
        return chain(self.snapshot.running, range(self.snapshot.xmax, self.next_xid))

    def may_run(self, xid: int) -> bool:
        """Whether it may have been running."""
        beyond = self.snapshot.xmax <= xid < self.next_xid
        return beyond or xid in self.snapshot.running

    def __str__(self) -> str:
        return f"{self.snapshot}/{self.next_xid}"

    @classmethod
    def parse(cls, text: str) -> Moment:
        snapshot, next_xid = text.split("/")
        return cls(Snapshot.parse(snapshot), int(next_xid))


DAWN = Moment(NOTHING, FIRST_XID)


@dataclass(frozen=True, slots=True)
class Position:
    """Where one lane stands."""

    origin: Origin
    epoch: str
    """Made new when the position is created or rebased, so that readers can tell a reset."""
    base: Moment = DAWN
    head: int = 0
    """The highest id published when `base` was reached."""
    upto: Moment | None = None
    """The end of the window that is being published, or None between windows."""
    after: int = 0
    """The last id published in the window."""

    @property
    def published_to(self) -> int:
        """No row with a higher id was published."""
        return max(self.head, self.after)

    def opened(self, upto: Moment) -> Position:
        """The next window. `upto` must have been taken after this position was read."""
        assert self.upto is None, "a window is open"
        if not upto.snapshot.covers(self.base.snapshot):
            raise StaleSnapshot(upto.snapshot, self.base.snapshot)
        return replace(self, upto=upto, after=0)

    def advanced(self, after: int) -> Position:
        """Everything of the window up to and including id `after` is published."""
        assert self.upto is not None
        assert after > self.after, "ids grow within a window"
        return replace(self, after=after)

    def closed(self) -> Position:
        """Late and fresh rows are exhausted: the window's end is the new base."""
        assert self.upto is not None
        return replace(self, base=self.upto, head=max(self.head, self.after), upto=None, after=0)

    def __str__(self) -> str:
        window = [] if self.upto is None else [str(self.upto), str(self.after)]
        fields = [VERSION, self.origin.system, self.origin.timeline, self.epoch]
        return " ".join([*fields, str(self.base), str(self.head), *window])

    @classmethod
    def parse(cls, text: str) -> Position:
        try:
            version, system, timeline, epoch, base, head, *window = text.split(" ")
            if version != VERSION or len(window) not in (0, 2):
                raise ValueError(text)
            upto, after = (Moment.parse(window[0]), int(window[1])) if window else (None, 0)
            origin = Origin(system, timeline)
            return cls(origin, epoch, Moment.parse(base), int(head), upto, after)
        except ValueError as exc:
            raise CorruptPosition(text) from exc
