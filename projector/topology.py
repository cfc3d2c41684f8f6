"""How the streams of each topic are kept. Declared in Settings, or in the configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

HIGH_WATER = 1_000_000


class Topic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One topic's streams: one in each lane. A topic that is not declared has all the defaults."""

    groups: tuple[str, ...] = ()
    """Consumer groups that exist from the first event on, so that a producer may be deployed before
    its consumers. Created at 0, and remembered in the database."""
    recover: tuple[str, ...] = ()
    """Groups of other clients whose pending entries are given to a living consumer when theirs is
    dead. For consumers that re-read their pending list: who reads `>` alone never sees them."""
    maxlen: int = 0
    """Keep about this many entries, whoever has read them; 0 has no such limit."""
    approximate: bool = True
    """Trim whole nodes of the stream, which is much cheaper; a few more entries may stay."""
    high_water: int = HIGH_WATER
    """Entries at which a stream counts as full; 0 for no limit."""
    on_full: Literal["wait", "trim"] = "wait"
    """What happens to a full stream. `wait`: the topic is detached, and its events stay in the
    database until there is room. `trim`: the oldest entries go, read or not."""

    def __post_init__(self) -> None:
        if any(not group for group in (*self.groups, *self.recover)):
            raise ValueError("a group's name must not be empty")
        if min(self.maxlen, self.high_water) < 0:
            raise ValueError("maxlen and high_water count entries; 0 means no limit")
        if self.on_full == "trim" and not (self.high_water or self.maxlen):
            raise ValueError('on_full = "trim" needs a high_water to trim to')

    @property
    def capped(self) -> bool:
        """Entries go without being asked for."""
        return bool(self.maxlen) or self.on_full == "trim"

    def limits(self) -> tuple[int, int, str]:
        """For the publishing script: high water, cap, and how to trim. A stream that is trimmed
        when full is never full."""
        how = "~" if self.approximate else "="
        if self.on_full == "trim":
            return 0, self.maxlen or self.high_water, how
        return self.high_water, self.maxlen, how


PLAIN = Topic()

Topology = Mapping[str, Topic]


def with_groups(declared: Topology, known: Mapping[str, set[str]]) -> dict[str, Topic]:
    """What was declared, and every group that was ever registered."""
    merged = dict(declared)
    for topic, groups in known.items():
        kept = merged.get(topic, PLAIN)
        merged[topic] = msgspec.structs.replace(kept, groups=tuple(sorted({*kept.groups, *groups})))
    return merged
