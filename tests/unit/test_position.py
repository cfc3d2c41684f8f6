"""Positions and snapshots: pure data, checked against a model of sets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.position import DAWN, CorruptPosition, Moment, Origin, Position, StaleSnapshot
from projector.snapshot import NOTHING, Snapshot

ORIGIN = Origin("7000000000000000001", "00000001")


@st.composite
def snapshots(draw: st.DrawFn, top: int = 30) -> Snapshot:
    xmax = draw(st.integers(3, top))
    running = draw(st.sets(st.integers(3, xmax - 1), max_size=8)) if xmax > 3 else set()
    return Snapshot(min(running, default=xmax), xmax, tuple(sorted(running)))


def seen(snapshot: Snapshot) -> set[int]:
    return {xid for xid in range(3, 60) if snapshot.sees(xid)}


@given(snapshots())
def test_a_snapshot_comes_back_from_its_text(snapshot: Snapshot):
    """PostgreSQL's own form, both ways."""
    assert Snapshot.parse(str(snapshot)) == snapshot


@given(snapshots(), snapshots())
def test_covers_means_sees_all_that_the_older_sees(newer: Snapshot, older: Snapshot):
    """Against sets of transaction ids."""
    assert newer.covers(older) == (seen(older) <= seen(newer))


def test_nothing_sees_nothing():
    """Where a new lane starts: every row is fresh."""
    assert seen(NOTHING) == set()


moments = st.builds(
    lambda snapshot, more: Moment(snapshot, snapshot.xmax + more), snapshots(), st.integers(0, 9)
)


@given(moments, st.integers(0, 2**62), st.none() | st.tuples(moments, st.integers(0, 2**62)))
def test_a_position_comes_back_from_its_text(base, head, window):
    """What Redis compares is exactly what the projector knows."""
    upto, after = window or (None, 0)
    position = Position(ORIGIN, "e1", base, head, upto, after)
    assert Position.parse(str(position)) == position


@pytest.mark.parametrize(
    "text", ["", "x", "2 s t e 3:3:/3 0", "1 s t e 3:3:/3 0 3:3:/3", "1 s t e 3:3 0"]
)
def test_a_broken_position_fails_closed(text: str):
    """Nothing is published from a position that cannot be read."""
    with pytest.raises(CorruptPosition, match="rebase"):
        Position.parse(text)


def test_a_window_opens_advances_and_closes():
    """head only grows, and only when the window is through."""
    upto = Moment(Snapshot(5, 9, (5, 7)), 12)
    opened = Position(ORIGIN, "e1", DAWN, head=10).opened(upto)
    assert (opened.upto, opened.after) == (upto, 0)
    late = opened.advanced(4)
    assert (late.after, late.closed().head) == (4, 10)
    fresh = late.advanced(25)
    assert fresh.head == 10
    assert fresh.closed() == Position(ORIGIN, "e1", upto, head=25)


@given(snapshots(), snapshots())
def test_a_stale_snapshot_never_opens_a_window(base: Snapshot, upto: Snapshot):
    """A snapshot that misses something the base saw would publish it a second time, or lose it."""
    position = Position(ORIGIN, "e1", Moment(base, base.xmax))
    if upto.covers(base):
        position.opened(Moment(upto, upto.xmax))
    else:
        with pytest.raises(StaleSnapshot, match="older"):
            position.opened(Moment(upto, upto.xmax))
