"""Which rows a position has yet to publish, and how many those are. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from projector.position import Moment, Position
from projector.source.batch import Topics
from projector.source.postgres import late_xids
from projector.status.report import Backlog


@dataclass(frozen=True, slots=True)
class Late:
    """Rows of these transactions with low < id ≤ high."""

    xids: Sequence[int]
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Part:
    """A lane without its detached topics, or one of those: everything above an id, and what
    committed late below it. Of a row that is not committed nobody knows yet."""

    lane: int
    topics: Topics
    above: int
    late: tuple[Late, ...]


@dataclass(frozen=True, slots=True)
class LateFound:
    """What was seen of the rows below the id."""

    found: int = 0
    most: int = 0
    """Rows seen of one transaction, at most."""
    oldest: timedelta | None = None


@dataclass(frozen=True, slots=True)
class FreshFound:
    """What was seen of the rows above the id: all of them, or the first."""

    scanned: int = 0
    found: int = 0
    first: int | None = None
    last: int | None = None
    top: int | None = None
    """The lane's highest id."""
    oldest: timedelta | None = None
    position_age: timedelta | None = None


def part_of(lane: int, position: Position | None, topics: Topics) -> Part:
    """What is unpublished from the position on; without one, everything."""
    if position is None:
        return Part(lane, topics, 0, ())
    reached = max(position.head, position.after)
    late = [Late(_running(position.upto or position.base), 0, reached)]
    if position.upto is not None:
        # That was what the window cannot see; this is what it sees and has not come to.
        late.append(Late(late_xids(position), position.after, position.head))
    return Part(lane, topics, reached, tuple(each for each in late if each.xids))


def _running(moment: Moment) -> Sequence[int]:
    """Every transaction that may have run then. Those below xmax are listed; others may run too."""
    return [*moment.snapshot.running, *range(moment.snapshot.xmax, moment.next_xid)]


def backlog_of(fresh: FreshFound, late: LateFound, limit: int) -> Backlog:
    """From what was found within `limit` rows. Beyond them, as many per id as within."""
    beyond = 0
    if fresh.scanned >= limit and fresh.first is not None and fresh.last is not None:
        span = fresh.last - fresh.first + 1
        beyond = round(fresh.found / span * ((fresh.top or fresh.last) - fresh.last))
    ages = [age for age in (fresh.oldest, late.oldest) if age is not None]
    return Backlog(
        events=fresh.found + beyond + late.found,
        exact=fresh.scanned < limit and late.most < limit,
        late=late.found,
        oldest_age=max(ages, default=None),
    )
