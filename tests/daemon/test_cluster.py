"""`projector run` on a cluster: lanes on several servers, which come, go and hand slots over."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from outbox.keys import lane_of
from projector import keys
from projector.embedded import Valkey, valkey_cluster
from projector.embedded.cluster import SLOTS, Cluster
from support.daemons import eventually, projector, same
from support.lanes import Pipeline
from support.writers import Writers

LANES = 8
SETTINGS = {
    "cluster-require-full-coverage": "no",
    "appendonly": "yes",
    "appendfsync": "always",
}
QUICK = ("--lease", "0.5", "--checkpoint", "0.3")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with valkey_cluster(settings=SETTINGS) as made:
        yield made


def slot_of(cluster: Cluster, key: str) -> int:
    return int(cluster.nodes[0].execute("CLUSTER", "KEYSLOT", key))


def node_of(cluster: Cluster, key: str) -> int:
    """As the slots were dealt out at first."""
    slot = slot_of(cluster, key)
    return next(node for node in range(3) if slot < SLOTS * (node + 1) // 3)


def lanes_of(cluster: Cluster, pipe: Pipeline, node: int) -> list[int]:
    names = {lane: keys.position(pipe.name, lane) for lane in range(LANES)}
    return [lane for lane, name in names.items() if node_of(cluster, name) == node]


@asynccontextmanager
async def spread(database: str, cluster: Cluster) -> AsyncIterator[Pipeline]:
    """An outbox whose lanes lie on all three nodes."""
    while True:
        pipe = Pipeline(database, cluster.url, LANES)
        if all(lanes_of(cluster, pipe, node) for node in range(3)):
            break
        await pipe.close()
    await pipe.start()
    try:
        yield pipe
    finally:
        await pipe.close()


class Written:
    """One key in each lane, and how far it was written."""

    def __init__(self, pipe: Pipeline, connection: Any) -> None:
        self.pipe = pipe
        self.connection = connection
        names = (f"key-{number}" for number in range(1000))
        self.keys: dict[int, str] = {}
        for name in names:
            self.keys.setdefault(lane_of(name, LANES), name)
        self.last = dict.fromkeys(range(LANES), 0)

    async def write(self, *lanes: int) -> None:
        for lane in lanes:
            self.last[lane] += 1
            await self.pipe.write(self.connection, self.keys[lane], self.last[lane])

    async def arrived(self, *lanes: int) -> bool:
        """The events of these lanes, once each and in order."""
        for lane in lanes:
            entries = await self.pipe.redis.xrange(keys.stream(self.pipe.name, lane, "t"))
            if [int(e[b"sequence"]) for _, e in entries] != list(range(1, self.last[lane] + 1)):
                return False
        return True


async def test_every_event_comes_once_and_in_order(database, cluster):
    """Whatever the writers do, over three servers; a forgotten script costs nothing."""
    async with spread(database, cluster) as pipe:
        writers = Writers(pipe, seed=3, keys_=12)
        await writers.prepare()
        stop = asyncio.Event()
        with projector(pipe, cluster.url, *QUICK, "--batch", "20"):
            writing = asyncio.create_task(writers.run(4, stop))
            for node in cluster.nodes:
                await asyncio.sleep(0.3)
                node.execute("SCRIPT", "FLUSH")
            stop.set()
            await writing
            committed = await writers.committed()
            await eventually(partial(same, pipe, committed))


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_a_server_that_is_away_stops_its_own_lanes_only(database, cluster, how):
    """The others go on meanwhile, however long it takes to notice; when it is back, its lanes go on
    where they stood."""
    async with spread(database, cluster) as pipe:
        written = Written(pipe, await pipe.connect())
        away = node_of(cluster, keys.members(pipe.name))  # so that no lane needs it elsewhere
        theirs = lanes_of(cluster, pipe, away)
        others = [lane for lane in range(LANES) if lane not in theirs]
        with projector(pipe, f"{cluster.url}?socket_timeout=60", *QUICK):
            await written.write(*range(LANES))
            await eventually(partial(written.arrived, *range(LANES)))
            leave(cluster.nodes[away], how)
            try:
                enough = time.monotonic() + 1  # leases were renewed, checkpoints written, or not
                while time.monotonic() < enough:
                    await written.write(*range(LANES))
                    await eventually(partial(written.arrived, *others))
            finally:
                come_back(cluster.nodes[away], how)
            await eventually(partial(written.arrived, *range(LANES)))
            await written.write(*range(LANES))
            await eventually(partial(written.arrived, *range(LANES)))


def leave(node: Valkey, how: str) -> None:
    node.kill() if how == "killed" else os.kill(node.pid, signal.SIGSTOP)


def come_back(node: Valkey, how: str) -> None:
    node.start() if how == "killed" else os.kill(node.pid, signal.SIGCONT)


async def test_a_replica_takes_over_while_events_are_written(database):
    """The lanes of the dead server find it; nothing is lost, doubled or out of order."""
    settings = {**SETTINGS, "appendonly": "no"}
    with valkey_cluster(settings=settings, replicas=True) as cluster:
        async with spread(database, cluster) as pipe:
            writers = Writers(pipe, seed=5, keys_=12)
            await writers.prepare()
            stop = asyncio.Event()
            with projector(pipe, cluster.url, *QUICK):
                writing = asyncio.create_task(writers.run(4, stop))
                await eventually(partial(published, pipe))
                cluster.nodes[0].kill()
                cluster.replicas[0].execute("CLUSTER", "FAILOVER", "TAKEOVER")
                await asyncio.sleep(0.3)
                stop.set()
                await writing
                committed = await writers.committed()
                await eventually(partial(same, pipe, committed))


async def published(pipe: Pipeline) -> bool:
    return sum(map(len, (await pipe.seqs()).values())) > 20


class Migration:
    """The slot of a lane, from one node to another, step by step."""

    def __init__(self, cluster: Cluster, slot: int, source: Valkey, target: Valkey) -> None:
        self.cluster = cluster
        self.slot = slot
        self.source, self.target = source, target

    def begin(self) -> None:
        source, target = (node.execute("CLUSTER", "MYID") for node in (self.source, self.target))
        self.target.execute("CLUSTER", "SETSLOT", self.slot, "IMPORTING", source)
        self.source.execute("CLUSTER", "SETSLOT", self.slot, "MIGRATING", target)

    def move(self, count: int) -> int:
        """How many keys went."""
        names = self.source.execute("CLUSTER", "GETKEYSINSLOT", self.slot, count)
        if names:
            where = ("127.0.0.1", self.target.port, "", 0, 5000)
            login = ("AUTH", self.target.password)
            self.source.execute("MIGRATE", *where, *login, "KEYS", *names)
        return len(names)

    def end(self) -> None:
        owner = self.target.execute("CLUSTER", "MYID")
        for node in (self.target, self.source, *self.cluster.nodes):
            node.execute("CLUSTER", "SETSLOT", self.slot, "NODE", owner)


async def test_a_slot_moves_while_its_lane_is_at_work(database, cluster):
    """Keys on both sides (TRYAGAIN), all on the new one (ASK), a new owner (MOVED), and back."""
    async with spread(database, cluster) as pipe:
        written = Written(pipe, await pipe.connect())
        lane = lanes_of(cluster, pipe, 0)[0]
        everyone = range(LANES)
        others = [other for other in everyone if other != lane]
        there = Migration(
            cluster, slot_of(cluster, keys.position(pipe.name, lane)), *cluster.nodes[:2]
        )
        back = Migration(cluster, there.slot, there.target, there.source)
        with projector(pipe, cluster.url, *QUICK):
            await written.write(*everyone)
            await eventually(partial(written.arrived, *everyone))
            for migration in (there, back):
                migration.begin()
                await written.write(*everyone)
                await eventually(partial(written.arrived, *everyone))
                migration.move(1)
                await written.write(*everyone)
                await eventually(partial(written.arrived, *others))
                while migration.move(10):
                    pass
                await eventually(partial(written.arrived, *everyone))  # its owner is still the old
                migration.end()
                await written.write(*everyone)
                await eventually(partial(written.arrived, *everyone))


async def test_commands_work_on_a_cluster(database, cluster):
    """`run --once`, `status`, `groups list | drop`, `rebase`."""
    async with spread(database, cluster) as pipe:
        written = Written(pipe, await pipe.connect())
        await written.write(*range(LANES))
        command = partial(run, pipe, cluster)
        assert command("run", "--once") == "published 8 events\n"
        streams = [keys.stream(pipe.name, lane, "t") for lane in range(LANES)]
        for stream in streams:
            await pipe.redis.xgroup_create(stream, "billing", "0")
        with projector(pipe, cluster.url, *QUICK):
            await eventually(partial(listed, command))
            found = json.loads(command("status", "--json"))
        assert (found["redis_problem"], found["database_problem"]) == (None, None)
        assert [lane["problem"] for lane in found["lanes"]] == [None] * LANES
        assert sorted(stream["key"] for stream in found["streams"]) == sorted(streams)
        assert {stream["length"] for stream in found["streams"]} == {1}
        assert {group["lag"] for stream in found["streams"] for group in stream["groups"]} == {1}
        assert len(found["projectors"]) == 1
        assert "from 8 streams" in command("groups", "drop", "billing")
        assert "rebased 8 lanes" in command("rebase")
        assert command("run", "--once") == "published 8 events\n"


async def listed(command: Callable[..., str]) -> bool:
    return await asyncio.to_thread(command, "groups", "list") == "t: billing\n"


def run(pipe: Pipeline, cluster: Cluster, *words: str) -> str:
    database = pipe.database.render_as_string(hide_password=False)
    options = ["--database-url", database, "--redis-url", cluster.url, "--name", pipe.name]
    lanes = {"PROJECTOR_LANES": str(LANES)}
    done = subprocess.run(
        [sys.executable, "-m", "projector", *words, *options],
        env={**os.environ, **lanes},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_status_tells_of_the_servers_that_answer(database, cluster):
    """One that is away is told at its lanes."""
    async with spread(database, cluster) as pipe:
        written = Written(pipe, await pipe.connect())
        await written.write(*range(LANES))
        run(pipe, cluster, "run", "--once")
        theirs = lanes_of(cluster, pipe, 2)
        cluster.nodes[2].kill()
        try:
            found = json.loads(run(pipe, cluster, "status", "--json"))
        finally:
            cluster.nodes[2].start()
        assert [lane["lane"] for lane in found["lanes"] if lane["problem"]] == theirs
        assert {lane["published"] for lane in found["lanes"] if not lane["problem"]} == {True}
        assert len(found["streams"]) == LANES - len(theirs)
