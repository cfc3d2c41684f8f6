"""Applications that write, as unfriendly as they come."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import asyncpg

from outbox.keys import lane_of
from support.lanes import INSERT, Pipeline

AWAY = (
    *(OSError, asyncpg.InterfaceError, asyncpg.PostgresConnectionError),
    asyncpg.exceptions.OperatorInterventionError,
)
"""The server is gone, or on its way back: an application connects again and goes on."""


def _time_to_commit(chance: random.Random) -> float:
    """None at all for most. Some milliseconds for some, so that projectors look between a write
    and its commit; seconds for a few, but they hold their keys' locks meanwhile."""
    what = chance.random()
    return chance.random() * (2 if what < 0.02 else 0.01 if what < 0.4 else 0)


class Writers:
    """Concurrent transactions on few keys, from one seed.

    Each locks its keys' counters and writes the next numbers, so that a key's numbers are its
    commit order. Half take their xid early; a tenth roll back; they take up to two seconds; some
    write hundreds of rows.
    """

    def __init__(
        self, pipe: Pipeline, seed: int | str, keys_: int = 6, topics: Sequence[str] = ("t",)
    ) -> None:
        self.pipe = pipe
        self.seed = seed
        self.keys = [f"key-{number}" for number in range(keys_)]
        self.topics = topics

    async def prepare(self) -> None:
        connection = await self.pipe.connect()
        await connection.execute("create table counters (key text primary key, n bigint not null)")
        await connection.executemany(
            "insert into counters values ($1, 0)", [(k,) for k in self.keys]
        )
        await connection.close()

    async def run(self, count: int, stop: asyncio.Event) -> None:
        await asyncio.gather(
            *(self._work(random.Random(f"{self.seed}-{n}"), stop) for n in range(count))
        )

    async def _work(self, chance: random.Random, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                connection = await self.pipe.connect()
                while not stop.is_set():
                    await self._transact(connection, chance)
                await connection.close()
            except AWAY:
                await asyncio.sleep(0.02)

    async def _transact(self, connection: Any, chance: random.Random) -> None:
        transaction = connection.transaction()
        await transaction.start()
        if chance.random() < 0.5:
            await connection.execute("select pg_current_xact_id()")
            await asyncio.sleep(chance.random() * 0.02)
        for key in sorted(chance.sample(self.keys, chance.randint(1, 2))):
            topic = chance.choice(self.topics)
            await self._change(connection, topic, key, 300 if chance.random() < 0.02 else 1)
        await asyncio.sleep(_time_to_commit(chance))
        if chance.random() < 0.1:
            await transaction.rollback()
        else:
            await transaction.commit()

    async def _change(self, connection: Any, topic: str, key: str, rows: int) -> None:
        last = await connection.fetchval(
            "update counters set n = n + $2 where key = $1 returning n", key, rows
        )
        lane = lane_of(key, self.pipe.outbox.lanes)
        await connection.executemany(
            INSERT, [(lane, topic, key, n) for n in range(last - rows + 1, last + 1)]
        )

    async def say_goodbye(self) -> None:
        """One more event of every key in every topic."""
        connection = await self.pipe.connect()
        for key in self.keys:
            for topic in self.topics:
                await self._change(connection, topic, key, 1)
        await connection.close()

    async def committed(self) -> dict[str, list[int]]:
        connection = await self.pipe.connect()
        rows = await connection.fetch("select key, n from counters where n > 0")
        await connection.close()
        return {row["key"]: list(range(1, row["n"] + 1)) for row in rows}
