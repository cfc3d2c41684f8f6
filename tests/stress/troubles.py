"""What may happen to a projector and its servers, again and again until the scene is over.

After each of them the streams hold what was committed, once each and in order. Whoever acts keeps a
tally, so that a trouble that did nothing is noticed.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

import asyncpg

from projector import keys
from projector.embedded import Postgres
from stress.scene import LANES, LEASE, PATIENCE, Scene, Trouble
from support.daemons import eventually

LAST_ID = "18446744073709551615-18446744073709551615"
OWN = {"wal_writer_delay": "10s"}
"""A server to be killed, on which nobody flushes the log but commits that wait for it."""
LONG_LEASE = ("--lease", "1.5")
DURABLE = {"appendonly": "yes", "appendfsync": "everysec"}


async def projector_killed(scene: Scene) -> None:
    """SIGKILL at any moment; the next one has another batch size."""
    while not scene.over():
        process = scene.start()
        await scene.moves()
        await scene.pause(0.3)
        process.kill()
        scene.tally["kills"] += 1
    scene.start()


async def several_projectors(scene: Scene) -> None:
    """They share the lanes, come and go, and now and then two work on the same lane: until the next
    renewal, which is a third of the lease away, neither knows of the other."""
    running = [scene.start(*LONG_LEASE) for _ in range(3)]
    await scene.moves()  # somebody holds a lane by now
    leases = [keys.lease(scene.pipe.name, lane) for lane in range(LANES)]
    while not scene.over() or not scene.tally["leases lost"]:
        await scene.pause(0.3)
        held = [lease for lease in leases if await scene.pipe.redis.exists(lease)]
        if held:
            scene.tally["leases lost"] += await scene.pipe.redis.delete(scene.chance.choice(held))
        if scene.chance.random() < 0.3:
            leaving = running.pop(scene.chance.randrange(len(running)))
            leaving.send_signal(scene.chance.choice([signal.SIGTERM, signal.SIGKILL]))
            await asyncio.to_thread(leaving.wait)
            running.append(scene.start(*LONG_LEASE))
            scene.tally["left"] += 1


async def holder_frozen(scene: Scene) -> None:
    """SIGSTOP until another has taken over, SIGCONT: whatever it had in hand comes too late."""
    running = [scene.start() for _ in range(2)]
    await scene.moves()
    while not scene.over():
        frozen = scene.chance.choice(running)
        frozen.send_signal(signal.SIGSTOP)
        await scene.pause(LEASE * 3)
        await scene.moves()
        frozen.send_signal(signal.SIGCONT)
        scene.tally["freezes"] += 1
        await scene.pause(0.1)


async def reply_lost(scene: Scene) -> None:
    """The connection breaks before a request arrives, or after the script ran."""
    scene.start()
    await scene.moves()
    while not scene.over():
        what = scene.chance.choice(["request", "reply"])
        scene.between.lose(what, after=scene.chance.randrange(30))

        async def lost() -> bool:
            return scene.between.lost

        await eventually(lost, PATIENCE)
        scene.tally[f"{what} lost"] += 1


async def scripts_forgotten(scene: Scene) -> None:
    """SCRIPT FLUSH, many times a second."""
    scene.start()
    while not scene.over():
        await scene.pause(0.05)
        await scene.pipe.redis.script_flush()
        scene.tally["flushes"] += 1


async def valkey_killed(scene: Scene) -> None:
    """With AOF everysec: it comes back without its last writes, torn anywhere."""
    scene.start()
    while not scene.over():
        await scene.moves()
        await scene.pause(0.3)
        scene.valkey.kill()
        (file,) = scene.valkey.folder.glob("data/appendonlydir/*.incr.aof")
        with file.open("r+b") as log:
            log.truncate(max(0, file.stat().st_size - scene.chance.randrange(20_000)))
        await asyncio.to_thread(scene.valkey.start)
        scene.tally["kills"] += 1


async def replica_promoted(scene: Scene) -> None:
    """The replica that takes over lacks the last writes."""
    scene.start()
    primary = scene.valkey
    while not scene.over():
        replica = scene.valkey.replica()
        await scene.keep(replica)
        await scene.moves()
        replica.promote()  # it is cut off: what comes now it never gets
        before = sum(await scene.lengths())
        await scene.moves()
        await scene.pause(0.2)
        scene.tally["writes lost"] += sum(await scene.lengths()) - before
        primary.kill()
        scene.between.target = replica.url()
        scene.valkey = primary = replica
        scene.tally["promotions"] += 1


async def redis_emptied(scene: Scene) -> None:
    """FLUSHALL while events flow; and once more when nobody writes any more."""
    scene.start()
    while not scene.over():
        await scene.moves()
        await scene.pause(0.5)
        await scene.pipe.redis.flushall()
        scene.tally["flushed"] += 1
    await scene.silence()
    await scene.pipe.redis.flushall()
    scene.tally["flushed idle"] += 1


async def stream_deleted(scene: Scene) -> None:
    """One of several; the others show nothing of it."""
    scene.start()
    while not scene.over():
        await scene.moves()
        await scene.pause(0.5)
        lane, topic = scene.chance.randrange(LANES), scene.chance.choice(scene.writers.topics)
        scene.tally["deleted"] += await scene.pipe.redis.delete(
            keys.stream(scene.pipe.name, lane, topic)
        )


async def script_fails_halfway(scene: Scene) -> None:
    """One stream is out of ids, which shows when half of the batch is written: what was written is
    taken back, and the rest of the lane goes on. Later somebody removes that stream."""
    scene.start()
    while not scene.over():
        await scene.moves()
        stream = keys.stream(scene.pipe.name, scene.chance.randrange(LANES), "u")
        await scene.pipe.redis.xadd(stream, {"by": "a stranger"}, id=LAST_ID)
        for _ in range(2):
            await scene.moves()
        await scene.pause(0.3)
        await scene.pipe.redis.delete(stream)
        scene.tally["out of ids"] += 1


async def memory_full(scene: Scene) -> None:
    """At the limit nothing is written; with room again everything goes on."""
    scene.start()
    while not scene.over():
        await scene.moves()
        scene.valkey.execute("CONFIG", "SET", "maxmemory", 1)
        await scene.pause(0.5)
        scene.valkey.execute("CONFIG", "SET", "maxmemory", 0)
        scene.tally["full"] += 1


async def topic_full(scene: Scene) -> None:
    """One topic stands at its high-water mark while the other flows; then it is given room."""
    mark = 0
    while not scene.over():
        mark += 50
        process = scene.start("--config", scene.file(f"[topics.u]\nhigh_water = {mark}"))

        async def full(mark: int = mark) -> bool:
            return min(await scene.lengths("u")) >= mark

        await eventually(full, PATIENCE)
        blocked, flowing = await scene.lengths("u"), await scene.lengths("t")
        await scene.pause(0.5)
        await scene.moves()
        assert await scene.lengths("u") == blocked
        assert await scene.lengths("t") != flowing
        process.terminate()
        await asyncio.to_thread(process.wait)
        scene.tally["full"] += 1
    scene.start()


async def postgres_killed(scene: Scene) -> None:
    """The server, or one backend of it: what was not flushed is forgotten, its xids come again."""
    scene.start()
    while not scene.over():
        await scene.moves()
        await scene.pause(0.5)
        if scene.chance.random() < 0.5:
            scene.postgres.kill()
            await asyncio.to_thread(scene.postgres.start)
            scene.tally["kills"] += 1
        else:
            with suppress(OSError, asyncpg.PostgresError, ProcessLookupError):
                os.kill(await _backend(scene), signal.SIGKILL)
                scene.tally["backends killed"] += 1


async def _backend(scene: Scene) -> int:
    connection = await scene.pipe.connect()
    statement = "select pid from pg_stat_activity where datname = current_database() order by pid"
    pids = [row["pid"] for row in await connection.fetch(statement)]
    await connection.close()
    return scene.chance.choice(pids)


async def commits_lost(scene: Scene) -> None:
    """synchronous_commit=off, and the server is killed: it forgets commits, but none that was
    published."""
    await postgres_killed(scene)


async def standby_promoted(scene: Scene) -> None:
    """The new primary lacks commits that were published. Applications are back first, and have
    given the lost ids and xids to others by the time the projector looks."""
    process = scene.start()
    while not scene.over():
        standby = scene.postgres.standby()
        await scene.keep(standby)
        await scene.moves()
        await asyncio.to_thread(standby.promote)  # it is cut off: what comes now it never gets
        _, kept = await _counters(scene, standby)

        async def more(kept: int = kept) -> bool:
            return (await _counters(scene, scene.postgres))[1] > kept

        await eventually(more, PATIENCE)
        await scene.moves()
        process.send_signal(signal.SIGSTOP)
        mark, rows = await _counters(scene, scene.postgres)
        scene.tally["commits lost"] += rows - kept
        await asyncio.to_thread(scene.postgres.kill)
        scene.between.target = standby.url(database=scene.pipe.database.database)
        scene.postgres = standby

        async def passed(mark: int = mark, standby: Postgres = standby) -> bool:
            return (await _counters(scene, standby))[0] > mark

        await eventually(passed, PATIENCE)
        if scene.chance.random() < 0.5:
            process.kill()
            process = scene.start()
        process.send_signal(signal.SIGCONT)
        scene.tally["promotions"] += 1


async def _counters(scene: Scene, server: Postgres) -> tuple[int, int]:
    """The next xid, and the number of events."""
    statement = """select pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
                          (select count(*) from outbox)"""
    database = scene.pipe.database.database
    ((xid, rows),) = await asyncio.to_thread(server.execute, statement, database)
    return xid, rows


TWO = ("t", "u")
TROUBLES = (
    Trouble(projector_killed),
    Trouble(several_projectors),
    Trouble(holder_frozen),
    Trouble(reply_lost, through="valkey"),
    Trouble(scripts_forgotten),
    Trouble(valkey_killed, valkey=DURABLE),
    Trouble(replica_promoted, through="valkey"),
    Trouble(redis_emptied),
    Trouble(stream_deleted, topics=TWO),
    Trouble(script_fails_halfway, topics=TWO),
    Trouble(memory_full),
    Trouble(topic_full, topics=TWO),
    Trouble(postgres_killed, postgres=OWN),
    Trouble(commits_lost, postgres={**OWN, "synchronous_commit": "off"}),
    Trouble(standby_promoted, postgres=OWN, through="postgres", loses_commits=True),
)
