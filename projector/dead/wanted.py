"""Which letters are meant. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from projector.dead.letter import DEAD, Letter


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Everything that is said must hold; of several ids, keys, types or topics, one.

    Letters that wait behind a dead one are meant only by their ids, or with `waiting`.
    """

    ids: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    error: str = ""
    """A part of the cause, in any case."""
    older_than: timedelta | None = None
    newer_than: timedelta | None = None
    """By when the letter came."""
    waiting: bool = False

    @property
    def everything(self) -> bool:
        """Nothing was said that would keep a dead letter out."""
        said = (self.ids, self.keys, self.types, self.topics, self.error)
        return not any(said) and self.older_than is None and self.newer_than is None

    def matches(self, letter: Letter, now: datetime) -> bool:
        return (
            (letter.state == DEAD or self.waiting or bool(self.ids))
            and (not self.ids or letter.event_id in self.ids)
            and (not self.keys or letter.key in self.keys)
            and (not self.types or letter.type in self.types)
            and (not self.topics or letter.topic in self.topics)
            and self.error.casefold() in letter.cause.casefold()
            and (self.older_than is None or now - letter.since >= self.older_than)
            and (self.newer_than is None or now - letter.since < self.newer_than)
        )
