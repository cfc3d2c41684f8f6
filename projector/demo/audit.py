"""Was every committed event delivered and billed, once, in order?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from projector import keys
from projector.cluster import AnyRedis
from projector.demo.shop import Bill, Order, events


@dataclass(frozen=True, slots=True)
class Audit:
    committed: int
    delivered: int
    effects: int
    lost: int
    duplicated: int
    out_of_order: int

    @property
    def good(self) -> bool:
        complete = self.committed == self.delivered == self.effects
        return complete and not (self.lost or self.duplicated or self.out_of_order)

    def __str__(self) -> str:
        return (
            f"audit: committed={self.committed} delivered={self.delivered} effects={self.effects} "
            f"lost={self.lost} duplicated={self.duplicated} out_of_order={self.out_of_order}"
        )


async def audit(engine: AsyncEngine, redis: AnyRedis) -> Audit:
    async with engine.connect() as connection:
        orders = (await connection.execute(select(Order.id))).all()
        log = events.table.c
        written = {str(row[0]) for row in await connection.execute(select(log.event_id))}
        columns = (Bill.event_id, Bill.customer, Bill.seq)
        bills = (await connection.execute(select(*columns).order_by(Bill.id))).all()
    entries = await _entries(redis)
    streamed = Counter(entry[b"id"].decode() for entry in entries)
    billed = Counter(bill.event_id for bill in bills)
    return Audit(
        committed=len(orders),
        delivered=len(streamed),
        effects=sum(billed.values()),
        lost=len(written - streamed.keys()) + len(written - billed.keys()),
        duplicated=_more_than_once(streamed) + _more_than_once(billed),
        out_of_order=_out_of_order((bill.customer, bill.seq) for bill in bills)
        + _out_of_order((e[b"subject"].decode(), int(e[b"sequence"])) for e in entries),
    )


async def _entries(redis: AnyRedis) -> list[dict[bytes, bytes]]:
    found: list[dict[bytes, bytes]] = []
    for lane in range(events.lanes):
        entries: Any = await redis.xrange(keys.stream(events.name, lane, "orders"))
        found += [entry for _, entry in entries]
    return found


def _more_than_once(counted: Counter[str]) -> int:
    return sum(count - 1 for count in counted.values())


def _out_of_order(numbered: Iterable[tuple[str, int]]) -> int:
    """How many do not follow their predecessor."""
    last: dict[str, int] = defaultdict(int)
    wrong = 0
    for key, seq in numbered:
        wrong += seq != last[key] + 1
        last[key] = seq
    return wrong
