"""Writers, servers and projectors, and what a trouble may do to them."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal
from uuid import uuid4

from projector import keys
from projector.embedded import Postgres, Valkey
from stress.audit import Audit, Event, audit
from support.daemons import eventually, projector
from support.lanes import Pipeline, pipeline
from support.proxy import Proxy, proxy
from support.writers import Writers

WRITERS = 12
LANES = 2
LEASE = 0.5
BATCHES = (1, 7, 100, 1000)
TOLD_TO = (0, -signal.SIGKILL, -signal.SIGTERM)
"""How a projector ends that is told to; by SIGTERM itself if it came before anything was begun."""
PATIENCE = 60
"""Seconds until what was committed must be in the streams."""


@dataclass(frozen=True)
class Trouble:
    """What happens while applications write."""

    act: Callable[[Scene], Awaitable[None]]
    postgres: Mapping[str, Any] | None = None
    """The settings of a server of its own; None for one that it does no harm to."""
    valkey: Mapping[str, Any] = field(default_factory=dict)
    topics: Sequence[str] = ("t",)
    through: Literal["postgres", "valkey"] | None = None
    """Which server everybody reaches through a proxy, as `scene.between`."""
    loses_commits: bool = False
    """The database may lose commits after they were published."""

    @property
    def name(self) -> str:
        return self.act.__name__


class Scene:
    """One outbox with busy writers. A trouble acts on it until it is over."""

    def __init__(
        self,
        pipe: Pipeline,
        writers: Writers,
        chance: random.Random,
        seconds: float,
        postgres: Postgres,
        valkey: Valkey,
        redis_url: str,
        between: Proxy | None,
        stack: ExitStack,
    ) -> None:
        self.pipe = pipe
        self.writers = writers
        self.chance = chance
        self.postgres = postgres
        self.valkey = valkey
        self._redis_url = redis_url
        self._between = between
        self.tally: Counter[str] = Counter()
        """What the trouble did, and how often."""
        self._ends = time.monotonic() + seconds
        self._stack = stack
        self._folder = Path(stack.enter_context(TemporaryDirectory()))
        self._processes: list[tuple[subprocess.Popen[bytes], Path]] = []
        self._silence = asyncio.Event()
        self._writing = asyncio.create_task(writers.run(WRITERS, self._silence))

    @property
    def between(self) -> Proxy:
        assert self._between, "the trouble has to say through what"
        return self._between

    def over(self) -> bool:
        """The time is up, and there was some trouble: a slow machine gets more time for it."""
        return time.monotonic() > self._ends and any(self.tally.values())

    async def pause(self, most: float) -> None:
        await asyncio.sleep(self.chance.random() * most)

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """A `projector run` with another batch size each time. It runs until the trouble ends it,
        or the scene."""
        log = self._folder / f"{len(self._processes)}.log"
        batch = str(self.chance.choice(BATCHES))
        wanted = ("--batch", batch, "--lease", str(LEASE), "--checkpoint", "0.3", *options)
        with log.open("wb") as stderr:
            process = self._stack.enter_context(
                projector(self.pipe, self._redis_url, *wanted, stderr=stderr)
            )
        self._processes.append((process, log))
        return process

    def file(self, text: str) -> str:
        """The name of a file with this in it."""
        file = self._folder / uuid4().hex
        file.write_text(text)
        return str(file)

    async def moves(self) -> None:
        """Returns when something more was published."""
        before: int | None = None

        async def moved() -> bool:
            nonlocal before
            now = sum([sum(await self.lengths(topic)) for topic in self.writers.topics])
            before = now if before is None else before
            return now != before

        await eventually(moved, PATIENCE)

    async def lengths(self, topic: str = "t") -> list[int]:
        """Of the topic's streams, lane by lane."""
        streams = [keys.stream(self.pipe.name, lane, topic) for lane in range(LANES)]
        return [await self.pipe.redis.xlen(stream) for stream in streams]

    async def keep(self, server: Postgres | Valkey) -> None:
        """Starts a server that ends with the scene."""
        self._stack.callback(server.close)
        await asyncio.to_thread(server.start)

    async def silence(self) -> None:
        """The writers stop; everything they committed is published."""
        if not self._silence.is_set():
            self._silence.set()
            await self._writing
            await self.writers.say_goodbye()
        committed = await self.committed()

        async def complete() -> bool:
            return not audit(committed, await self.published()).lost

        with suppress(TimeoutError):  # the audit says what is missing
            await eventually(complete, PATIENCE)

    async def stop(self) -> list[str]:
        """Ends the projectors as an operator does. What there is to complain of."""
        complaints = []
        for process, log in self._processes:
            if process.poll() is not None and process.returncode not in TOLD_TO:
                said = log.read_text(errors="replace")[-2000:]
                complaints.append(f"a projector ended by itself ({process.returncode}): {said}")
            process.terminate()
        for process, _ in self._processes:
            try:
                code = await asyncio.to_thread(process.wait, PATIENCE)
            except subprocess.TimeoutExpired as problem:
                complaints.append(f"SIGTERM did not end a projector: {problem}")
            else:
                if code not in TOLD_TO:
                    complaints.append(f"SIGTERM ended a projector with {code}")
        return complaints

    async def close(self) -> None:
        """Leaves no writer behind, however it ended."""
        self._writing.cancel()
        await asyncio.gather(self._writing, return_exceptions=True)

    def logs(self) -> str:
        """The last words of each projector."""
        texts = [log.read_text(errors="replace") for _, log in self._processes]
        return "\n".join(text[-2000:] for text in texts[-3:])

    async def committed(self) -> list[Event]:
        connection = await self.pipe.connect()
        rows = await connection.fetch("select topic, key, seq, event_id::text as id from outbox")
        await connection.close()
        return [Event(row["topic"], row["key"], row["seq"], row["id"]) for row in rows]

    async def published(self) -> list[Event]:
        found = []
        for lane in range(LANES):
            for topic in self.writers.topics:
                for _, entry in await self.pipe.redis.xrange(
                    keys.stream(self.pipe.name, lane, topic)
                ):
                    if b"subject" in entry:  # what a trouble put there is no event
                        key, seq = entry[b"subject"].decode(), int(entry[b"sequence"])
                        found.append(Event(topic, key, seq, entry[b"id"].decode()))
        return found


@dataclass(frozen=True)
class Outcome:
    audit: Audit
    tally: Counter[str]
    seconds: float
    complaints: Sequence[str]
    logs: str

    @property
    def good(self) -> bool:
        return self.audit.clean and not self.complaints

    def __str__(self) -> str:
        if self.good:
            return str(self.audit)
        return "\n".join(
            [str(self.audit), *self.complaints, "the projectors' last words:", self.logs]
        )


async def play(trouble: Trouble, shared: Postgres, seconds: float, seed: int) -> Outcome:
    """Writers for so long, the trouble meanwhile, and at the end the audit."""
    began = time.monotonic()
    async with _scene(trouble, shared, seconds, seed) as scene:
        complaints = []
        try:
            await trouble.act(scene)
        except (TimeoutError, AssertionError) as problem:  # the audit may tell why
            complaints.append(f"the trouble could not go on: {problem!r}")
        await scene.silence()
        complaints += await scene.stop()
        found = audit(await scene.committed(), await scene.published())
        if trouble.loses_commits:
            found = found.forgiving()
        return Outcome(found, scene.tally, time.monotonic() - began, complaints, scene.logs())


@asynccontextmanager
async def _scene(
    trouble: Trouble, shared: Postgres, seconds: float, seed: int
) -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        ending = stack.enter_context(ExitStack())
        valkey = ending.enter_context(Valkey(dict(trouble.valkey)))
        postgres = shared
        if trouble.postgres is not None:
            postgres = ending.enter_context(Postgres(dict(trouble.postgres)))
        name = f"stress_{uuid4().hex[:12]}"
        database = postgres.create_database(name)
        if postgres is shared:
            ending.callback(shared.execute, f"DROP DATABASE {name} WITH (FORCE)")
        redis_url, between = valkey.url(), None
        if trouble.through == "valkey":
            between = await stack.enter_async_context(proxy(redis_url))
            redis_url = between.url
        elif trouble.through == "postgres":
            between = await stack.enter_async_context(proxy(database))
            database = between.url
        pipe = await stack.enter_async_context(pipeline(database, redis_url, LANES))
        writers = Writers(pipe, seed, topics=trouble.topics)
        await writers.prepare()
        postgres.execute("CHECKPOINT")  # a crash may lose commits, but not the tables
        chance = random.Random(f"{seed}-{trouble.name}")
        scene = Scene(pipe, writers, chance, seconds, postgres, valkey, redis_url, between, ending)
        try:
            yield scene
        finally:
            await scene.close()
