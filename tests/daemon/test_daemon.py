"""`projector run` as a process: killed, stopped, doubled, cut off."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable

from projector import keys
from projector.connect import engine_of, redis_of
from projector.daemon import Projector
from projector.settings import Settings
from support.daemons import eventually, projector, same
from support.lanes import Pipeline, pipeline


async def test_sigterm_ends_it_at_once_and_frees_the_lanes(database, redis_url):
    """Exit code 0 within seconds, and no lease is left behind."""
    async with pipeline(database, redis_url) as pipe:
        with projector(pipe, redis_url) as process:
            await eventually(lambda: held(pipe, 0))
            process.terminate()
            assert process.wait(5) == 0
        assert not await held(pipe, 0)


async def test_it_can_be_stopped_at_any_moment(database, redis_url):
    """While it takes lanes, loads, renews or writes checkpoints: it ends, and holds nothing."""
    chance = random.Random(3)
    async with pipeline(database, redis_url, lanes=4) as pipe:
        engine, redis = engine_of(database), redis_of(redis_url)
        for _ in range(40):
            settings = Settings(name=pipe.name, lanes=4, lease=0.03, checkpoint=0.01)
            made = Projector(engine, redis, settings)
            running = asyncio.create_task(made.run())
            await asyncio.sleep(chance.random() * 0.08)
            made.stop()
            await asyncio.wait_for(running, 10)
        made = Projector(engine, redis, Settings(name=pipe.name, lanes=4, lease=60))
        running = asyncio.create_task(made.run())
        await eventually(lambda: held(pipe, 0))  # and the other lanes are being taken
        made.stop()
        await asyncio.wait_for(running, 10)
        assert not any([await held(pipe, lane) for lane in range(4)])
        await redis.aclose()
        await engine.dispose()


async def held(pipe: Pipeline, lane: int) -> bool:
    return await pipe.redis.exists(keys.lease(pipe.name, lane)) == 1


async def test_two_projectors_share_the_lanes(database, redis_url):
    """Half each; when one is killed, the other takes over within the lease."""
    async with pipeline(database, redis_url, lanes=4) as pipe:

        async def holders() -> list[str]:
            names = [keys.lease(pipe.name, lane) for lane in range(4)]
            found = [token for token in await pipe.redis.mget(names) if token]
            return sorted(token.decode().split(":")[1] for token in found)

        with projector(pipe, redis_url, "--lease", "0.6") as one:
            await eventually(lambda: equal(holders(), [str(one.pid)] * 4))
            with projector(pipe, redis_url, "--lease", "0.6") as two:
                both = sorted([str(one.pid), str(two.pid)] * 2)
                await eventually(lambda: equal(holders(), both))
                two.kill()
                await eventually(lambda: equal(holders(), [str(one.pid)] * 4))


async def equal(found: Awaitable[list[str]], expected: list[str]) -> bool:
    return await found == expected


async def test_a_frozen_projector_does_no_harm(database, redis_url):
    """SIGSTOP, a successor takes over, SIGCONT: each event once, in order."""
    async with pipeline(database, redis_url) as pipe:
        connection = await pipe.connect()
        with projector(pipe, redis_url, "--lease", "0.5") as frozen:
            for seq in range(1, 51):
                await pipe.write(connection, "k", seq)
            await eventually(lambda: same(pipe, {"k": list(range(1, 51))}))
            frozen.send_signal(signal.SIGSTOP)
            for seq in range(51, 101):
                await pipe.write(connection, "k", seq)
            with projector(pipe, redis_url, "--lease", "0.5"):
                await eventually(lambda: same(pipe, {"k": list(range(1, 101))}))
                frozen.send_signal(signal.SIGCONT)
                for seq in range(101, 151):
                    await pipe.write(connection, "k", seq)
                await eventually(lambda: same(pipe, {"k": list(range(1, 151))}))
        await connection.close()


async def test_once_publishes_what_is_there_and_exits(database, redis_url):
    """For cron and for tests."""
    async with pipeline(database, redis_url) as pipe:
        connection = await pipe.connect()
        for seq in range(1, 11):
            await pipe.write(connection, "k", seq)
        with projector(pipe, redis_url, "--once", "--batch", "3") as process:
            assert await asyncio.to_thread(process.wait, 20) == 0
        assert await pipe.seqs() == {"k": list(range(1, 11))}
        await connection.close()
