"""How far a group has come, told in positions of the lane. Pure.

A group acknowledges stream entries, the database knows positions. The bridge is a *mark*: a
position, and the last id of each stream at that moment. Who has acknowledged everything up to those
ids has acknowledged everything up to that position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from projector.position import Position

KEPT = 64


@dataclass(frozen=True, slots=True)
class GroupState:
    """What Redis says of a group on one stream."""

    last_delivered: str
    oldest_pending: str | None = None

    def acknowledged(self, entry: str) -> bool:
        """Everything up to and including this entry."""
        if stream_id(self.last_delivered) < stream_id(entry):
            return False
        return self.oldest_pending is None or stream_id(self.oldest_pending) > stream_id(entry)


def stream_id(text: str) -> tuple[int, int]:
    milliseconds, _, number = text.partition("-")
    return int(milliseconds), int(number or 0)


@dataclass(frozen=True, slots=True)
class Mark:
    """The lane stood here when its streams ended there."""

    position: Position
    tops: Mapping[str, str]

    def reached(self, group: Mapping[str, GroupState]) -> bool:
        """By a group, on each stream that it reads."""
        return all(
            state.acknowledged(self.tops[stream])
            for stream, state in group.items()
            if stream in self.tops
        )


@dataclass(slots=True)
class Marks:
    """The marks of one lane, oldest first; thinned out when there are many."""

    kept: list[Mark] = field(default_factory=list)

    def add(self, mark: Mark) -> None:
        if not self.kept or self.kept[-1].position != mark.position:
            self.kept.append(mark)
        if len(self.kept) > KEPT:
            self.kept = [*self.kept[:-1:2], self.kept[-1]]

    def newest_reached(self, group: Mapping[str, GroupState]) -> Position | None:
        for mark in reversed(self.kept):
            if mark.reached(group):
                return mark.position
        return None
