"""The model of all others: hostile writers, a relay that dies all the time, nothing lost."""

from __future__ import annotations

import asyncio
import random

import pytest

from support.lanes import pipeline
from support.writers import Writers

SECONDS = 4


@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_is_lost_doubled_or_out_of_order(database, redis_url, seed):
    """Twelve writers, early xids, rollbacks, long transactions; a relay forgotten at random."""
    chance = random.Random(seed)
    async with pipeline(database, redis_url, lanes=2) as pipe:
        writers = Writers(pipe, seed)
        await writers.prepare()
        stop = asyncio.Event()
        writing = asyncio.create_task(writers.run(12, stop))
        asyncio.get_running_loop().call_later(SECONDS, stop.set)
        relays = {}
        while not writing.done():
            for lane in range(2):
                if lane not in relays or chance.random() < 0.05:
                    batch = chance.choice([1, 7, 100, 1000])
                    relays[lane] = await pipe.loaded(lane, batch=batch)
                await pipe.turn(relays[lane])
            await asyncio.sleep(0)
        await writing
        for lane in range(2):
            await pipe.settle(relays[lane])  # a turn may end with nothing and a window still open
        committed = await writers.committed()
        assert sum(map(len, committed.values())) > 20
        assert await pipe.seqs() == committed
