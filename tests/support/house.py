"""A lane with all that is kept beside it: checkpoints, a janitor, rejected rows."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from projector import keys
from projector.checkpoint import Checkpoints
from projector.janitor import Janitor
from projector.janitor.prune import Pruner
from projector.rejected import Rejected
from projector.relay import Relay
from projector.sink.redis import RedisSink
from support.lanes import Pipeline


class House:
    """A lane with a janitor, and what tests ask of it."""

    def __init__(self, pipe: Pipeline, engine: AsyncEngine) -> None:
        self.pipe = pipe
        self.connection: Any = None
        self.stream = keys.stream(pipe.name, 0, "t")
        self.checkpoints = Checkpoints(engine, pipe.outbox.tables, pipe.source.origin)
        self.janitor = Janitor(engine, pipe.redis, pipe.outbox, self.checkpoints)
        self.rejected = Rejected(engine, pipe.outbox.tables)
        self.pruner = Pruner(engine, pipe.outbox, self.checkpoints, timedelta(hours=24))

    async def relay(self) -> Relay:
        sink = RedisSink(self.pipe.redis, self.pipe.name)
        relay = Relay(0, self.pipe.source, sink, self.checkpoints, self.rejected)
        await relay.load()
        return relay

    async def left(self) -> list[int]:
        rows = await self.connection.fetch("select seq from outbox order by id")
        return [row["seq"] for row in rows]

    async def publish(self, relay: Relay, *seqs: int) -> None:
        for seq in seqs:
            await self.pipe.write(self.connection, "k", seq)
        await self.pipe.turn(relay)
        await self.janitor.checkpoint(relay)

    async def consume(self, group: str, count: int, *, acknowledge: bool = True) -> None:
        read = await self.pipe.redis.xreadgroup(group, "c", {self.stream: ">"}, count=count)
        entries = read[0][1] if isinstance(read, list) else next(iter(read.values()))[0]
        if acknowledge:
            await self.pipe.redis.xack(self.stream, group, *[entry[0] for entry in entries])


def command(house: House, redis_url: str, *words: str) -> str:
    database = house.pipe.database.render_as_string(hide_password=False)
    options = ["--database-url", database, "--redis-url", redis_url, "--name", house.pipe.name]
    done = subprocess.run(
        [sys.executable, "-m", "projector", *words, *options],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
