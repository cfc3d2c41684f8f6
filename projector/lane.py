"""The state of a lane: its position, and those of topics that were detached from it. Pure.

One text holds all of it, so that one compare in Redis guards it all. A topic is detached when its
stream takes no entries: the lane goes on without it, from the same position, and the topic follows
at its own pace until both stand at the same moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from projector.position import Position

NONE: Mapping[str, Position] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LaneState:
    """Where a lane stands, and where the topics stand that it goes on without."""

    main: Position
    detached: Mapping[str, Position] = field(default_factory=lambda: NONE)

    def moved(self, main: Position) -> LaneState:
        return replace(self, main=main)

    def detach(self, topic: str) -> LaneState:
        """Go on without the topic; its own position starts where the lane stands now."""
        return replace(self, detached={**self.detached, topic: self.main})

    def moved_topic(self, topic: str, position: Position) -> LaneState:
        """A detached topic got on. It rejoins where both stand at the same moment."""
        others = {name: value for name, value in self.detached.items() if name != topic}
        if position.upto is None and self.main.upto is None and position.base == self.main.base:
            head = max(position.head, self.main.head)
            return LaneState(replace(self.main, head=head), others)
        return replace(self, detached={**self.detached, topic: position})

    def __str__(self) -> str:
        topics = [f"{topic} {position}" for topic, position in sorted(self.detached.items())]
        return "\n".join([str(self.main), *topics])

    @classmethod
    def parse(cls, text: str) -> LaneState:
        main, *topics = text.split("\n")
        pairs = (line.partition(" ") for line in topics)
        return cls(
            Position.parse(main),
            {topic: Position.parse(position) for topic, _, position in pairs},
        )
