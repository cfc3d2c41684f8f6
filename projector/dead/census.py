"""How many letters groups have: one script a lane, whose cost grows with the parked keys alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from outbox import fields, layout
from outbox.script import load
from projector.cluster import AnyRedis
from projector.sink import script


@dataclass(frozen=True, slots=True)
class Census:
    """The letters of one group. A parked key counts as one dead letter: the event it waits for."""

    group: str
    dead: int = 0
    waiting: int = 0
    """Events behind those."""
    parked: int = 0
    """Keys."""
    oldest_age: timedelta | None = None
    """Since the oldest letter came."""

    def __add__(self, other: Census) -> Census:
        ages = [age for age in (self.oldest_age, other.oldest_age) if age is not None]
        return Census(
            self.group,
            self.dead + other.dead,
            self.waiting + other.waiting,
            self.parked + other.parked,
            max(ages, default=None),
        )


async def census(redis: AnyRedis, name: str, lane: int, groups: Iterable[str]) -> list[Census]:
    """Of some groups on one lane. Left out are those whose names no consumer of ours can have: with
    a colon, their keys could be a letter of somebody else."""
    groups = [group for group in groups if fields.NAME.fullmatch(group)]
    if not groups:
        return []
    keys = [
        key
        for group in groups
        for key in (layout.dead(name, lane, group), layout.parked(name, lane, group))
    ]
    now, *told = await script.run(redis, load("projector.dead", "census"), keys, [])
    return list(_counted(groups, int(now), told))


def summed(found: Iterable[Census]) -> tuple[Census, ...]:
    """One for each group, over its lanes."""
    total: dict[str, Census] = {}
    for each in found:
        total[each.group] = total.get(each.group, Census(each.group)) + each
    return tuple(total[group] for group in sorted(total))


def _counted(groups: Iterable[str], now: int, told: list[Any]) -> Iterator[Census]:
    rows = iter(told)
    for group, letters, parked, queued, oldest in zip(groups, rows, rows, rows, rows, strict=True):
        age = timedelta(milliseconds=max(now - float(oldest), 0)) if oldest else None
        waiting = max(queued - parked, 0)
        yield Census(group, letters - waiting, waiting, parked, age)
