"""Consumers that give up on what they are told to, and the letters they leave."""

from __future__ import annotations

import asyncio
from typing import Any

from inbox.consumer.consumer import Consumer
from inbox.errors import PermanentError
from inbox.redis_inbox import RedisInbox
from outbox import Event
from projector.dead.letter import Letter
from projector.dead.letters import DeadLetters
from projector.dead.wanted import Wanted
from support.streams import Streams


class Work:
    """A group's handler: fails on what is `bad`, or has that for data; remembers the rest."""

    def __init__(self, streams: Streams, group: str = "billing", **options: Any) -> None:
        self.streams = streams
        self.options = {"group": group, "lane_lease": 0.3, **options}
        self.letters = DeadLetters(streams.redis, streams.name, range(streams.lanes), group)
        self.bad: set[tuple[str, int | None]] = set()
        self.seen: list[tuple[str, int | None]] = []

    async def handle(self, event: Event) -> None:
        if (event.key, event.seq) in self.bad or event.data == "bad":
            raise PermanentError(f"no {event.type} for {event.key}")
        self.seen.append((event.key, event.seq))

    def consumer(self) -> Consumer:
        redis = self.streams.redis
        made = Consumer(redis, self.streams.name, inbox=RedisInbox(redis), **self.options)
        made.default(topic="t")(self.handle)
        made.default(topic="u")(self.handle)
        return made

    async def drain(self) -> None:
        await asyncio.wait_for(self.consumer().drain(), 20)

    def seqs(self, key: str) -> list[int | None]:
        return [seq for each, seq in self.seen if each == key]

    async def find(self, **wanted: Any) -> list[Letter]:
        return [letter async for letter in self.letters.find(Wanted(**wanted))]

    async def one(self, **wanted: Any) -> Letter:
        (letter,) = await self.find(**wanted)
        return letter
