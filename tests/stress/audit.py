"""What is in the streams against what was committed: lost, doubled, reordered, or strange. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

SHOWN = 8


class Event(NamedTuple):
    topic: str
    key: str
    seq: int
    id: str

    def __str__(self) -> str:
        return f"{self.topic} {self.key} {self.seq}"


@dataclass(frozen=True)
class Audit:
    committed: int
    lost: Sequence[Event]
    """Committed, and not in a stream."""
    doubled: Sequence[Event]
    """More often than once in a stream."""
    strange: Sequence[Event]
    """In a stream, and not committed."""
    reordered: Sequence[Event]
    """Behind a later event of its topic and key."""

    @property
    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.strange or self.reordered)

    def forgiving(self) -> Audit:
        """For a database that lost commits after they were published: what it lost is strange, and
        what it kept may come again, but all of it comes, and first in order."""
        return Audit(self.committed, self.lost, (), (), self.reordered)

    def __str__(self) -> str:
        kinds = ("lost", "doubled", "strange", "reordered")
        lines = [_line(kind, getattr(self, kind)) for kind in kinds if getattr(self, kind)]
        return "\n".join(lines) or f"{self.committed} events, once each and in order"


def audit(committed: Iterable[Event], published: Iterable[Event]) -> Audit:
    """`published` in the order of the streams. Order is judged by the first time each one came."""
    wanted = {event.id: event for event in committed}
    times = Counter(event.id for event in published)
    first = {event.id: event for event in published}  # a dict keeps the place of the first
    highest: dict[tuple[str, str], int] = defaultdict(int)
    reordered = []
    for event in first.values():
        if event.id not in wanted:
            continue
        place = event.topic, event.key
        if event.seq < highest[place]:
            reordered.append(event)
        highest[place] = max(highest[place], event.seq)
    return Audit(
        committed=len(wanted),
        lost=[event for event in wanted.values() if event.id not in times],
        doubled=[event for event in first.values() if times[event.id] > 1],
        strange=[event for event in first.values() if wanted.get(event.id) != event],
        reordered=reordered,
    )


def _line(kind: str, events: Sequence[Event]) -> str:
    more = f" and {len(events) - SHOWN} more" if len(events) > SHOWN else ""
    return f"{len(events)} {kind}: {', '.join(map(str, events[:SHOWN]))}{more}"
