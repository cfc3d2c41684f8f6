"""What Redis keeps of a group's work on one lane: pending entries, claims, dead letters.

Every method is one script, and may be sent again after an error: its second answer is as good as
the first. Except `read`, whose entries are then pending, and are read again from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from redis.asyncio import Redis

from inbox.consumer.message import Message, deleted_of, messages_of
from outbox import layout, script
from outbox.script import Script, load

OWNER = "@lane"
"""The consumer that entries of an ordered lane are delivered to, whichever process it is: so
whoever takes the lane over finds what was pending."""

NEW = ">"
NOTHING: Mapping[str, bytes] = MappingProxyType({})

Judgement = Literal["claimed", "done", "running", "suspect", "parked", "hole", "corrupt"]


def _script(name: str) -> Script:
    return load("inbox.consumer", name)


@cache
def _machine(name: str, *libraries: str) -> Script:
    """A script that needs the claim machine, and maybe more."""
    own = [load("inbox.consumer", part).source for part in (*libraries, name)]
    return script.joined(load("inbox.claims", "machine").source, *own)


class LaneLost(Exception):
    """Another process has the lane; nothing was read."""


class Read(NamedTuple):
    messages: list[Message]
    deleted: int
    """Pending entries that are gone from the stream: events that the group never handled."""
    groups_made: int
    """Groups that were missing, and were created at the beginning of their streams."""
    tops: Mapping[str, str]
    """Streams that have nothing more, and the last id that was delivered to the group."""
    problems: Mapping[str, str]
    """Streams that cannot be read, and why. The others can."""


class Verdict(NamedTuple):
    kind: Judgement
    detail: str
    attempts: int


class Letter(NamedTuple):
    message: Message
    attempts: int
    first: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """One group on one lane. `token` tells this holder of the lane from the one before it."""

    redis: Redis
    name: str
    lane: int
    group: str
    topics: Sequence[str]
    token: str
    consumer: str = OWNER
    lease: timedelta = timedelta(seconds=60)
    """Of claims."""
    kept: timedelta = timedelta(days=7)
    """How long it is remembered that an event was handled; zero leaves that to the SQL inbox."""
    by_seq: bool = False

    # The lane

    async def hold(self, length: timedelta) -> list[str] | None:
        """Take or renew the lane. None if it is another's; else the places to be retried."""
        found = await script.run(
            self.redis,
            _script("lease"),
            [self._lease, self._retries],
            [self.token, _milliseconds(length)],
        )
        return [script.text(place) for place in found[1:]] if found[0] else None

    async def marked(self) -> list[str]:
        """The places to be retried, for whoever needs no lane to work on them."""
        found: Any = await self.redis.smembers(self._retries)
        return [script.text(place) for place in found]

    async def leave(self) -> None:
        await script.run(self.redis, _script("release"), [self._lease], [self.token])

    # Entries

    async def read(self, after: Mapping[str, str], count: int, *, fenced: bool = True) -> Read:
        """The next entries of each topic: new ones, or those pending after an id. Raises LaneLost
        if the lane is another's by now."""
        answer = await script.run(
            self.redis,
            _script("read"),
            [self._lease, *(self._stream(topic) for topic in after)],
            [self.token if fenced else "", self.group, self.consumer, count, *after.values()],
        )
        if script.text(answer[0]) == "lost":
            raise LaneLost
        messages: list[Message] = []
        deleted = 0
        tops: dict[str, str] = {}
        problems: dict[str, str] = {}
        for topic, entries, top in zip(after, answer[2::2], answer[3::2], strict=True):
            messages += messages_of(topic, entries)
            gone = deleted_of(entries)
            if gone:
                deleted += len(gone)
                await self.redis.xack(self._stream(topic), self.group, *gone)
            last = script.text(top)
            if last.startswith("!"):
                problems[topic] = last[1:]
            elif not entries:
                tops[topic] = last
        return Read(messages, deleted, int(answer[1]), tops, problems)

    async def reclaim(self, idle: timedelta) -> int:
        """Make ours what other consumers have left lying for so long; they are pending then. How
        many of them are gone from their stream."""
        gone = 0
        for topic in self.topics:
            begin = "0-0"
            while begin:
                answer = await script.run(
                    self.redis,
                    _script("reclaim"),
                    [self._stream(topic)],
                    [self.group, self.consumer, _milliseconds(idle), begin],
                )
                begin, gone = script.text(answer[0]), gone + int(answer[1])
        return gone

    def without_seq(self) -> Ledger:
        return replace(self, by_seq=False)

    async def adopt(self) -> None:
        """Make what is pending with other consumers of the group ours."""
        for topic in self.topics:
            begin = "-"
            while begin:
                answer = await script.run(
                    self.redis,
                    _script("adopt"),
                    [self._lease, self._stream(topic)],
                    [self.token, self.group, self.consumer, begin],
                )
                begin = script.text(answer)

    # Claims

    async def take(
        self,
        messages: Sequence[Message],
        *,
        suspects: bool = False,
        unsettled: Mapping[str, bytes] = NOTHING,
    ) -> list[Verdict]:
        """Claim events, as many as can be. The caller is told of each what became of it. For dedup
        by seq, `unsettled` is what is handled already, by place."""
        arguments: list[Any] = [
            self.token,
            _microseconds(self.lease),
            "suspects" if suspects else "",
            "seq" if self.by_seq else "",
        ]
        for message in messages:
            last = unsettled.get(message.place, b"")
            arguments += (message.place, message.event_id, message.seq, last)
        answer = await script.run(
            self.redis,
            _machine("take"),
            [self._parked, self._dead, self._watermarks, *map(self._record, messages)],
            arguments,
        )
        texts = map(script.text, answer)
        verdicts = [
            Verdict(kind, detail, int(attempts or 0))  # type: ignore[arg-type]  # as the script says
            for kind, detail, attempts in zip(texts, texts, texts, strict=True)
        ]
        for message, verdict in zip(messages, verdicts, strict=True):
            if verdict.kind == "claimed":
                message.fence, message.attempts = int(verdict.detail), verdict.attempts
        return verdicts

    async def keep(self, messages: Iterable[Message]) -> list[Message]:
        """Renew claims. Those that are lost."""
        return await self._keep(list(messages), _microseconds(self.lease), 0)

    async def give_back(self, messages: Iterable[Message], *, begun: bool) -> None:
        """Let others claim them at once. What has not begun was no attempt."""
        await self._keep(list(messages), 0, 0 if begun else 1)

    async def _keep(self, messages: list[Message], lease: int, unbegun: int) -> list[Message]:
        if not messages:
            return []
        keys = list(map(self._record, messages))
        answer = await script.run(self.redis, _machine("keep"), keys, [self.token, lease, unbegun])
        return [message for message, kept in zip(messages, answer, strict=True) if not kept]

    async def attempt(self, message: Message) -> bool:
        """Another try is about to begin. False if the claim is lost."""
        count = await script.run(
            self.redis, _machine("attempt"), [self._record(message)], [self.token]
        )
        message.attempts = int(count) or message.attempts
        return bool(count)

    async def settle(self, messages: Sequence[Message]) -> list[Message]:
        """Handled: remember that, and acknowledge. Those whose claim was lost, and which were
        neither."""
        topics = list(dict.fromkeys(message.topic for message in messages))
        number = {topic: index for index, topic in enumerate(topics, 1)}
        arguments: list[Any] = [self.token, self.group, _milliseconds(self.kept), len(topics)]
        for message in messages:
            seq = message.seq if self.by_seq else ""
            arguments += (number[message.topic], message.entry_id, message.place, seq)
        answer = await script.run(
            self.redis,
            _machine("settle"),
            [self._watermarks, *map(self._stream, topics), *map(self._record, messages)],
            arguments,
        )
        return [message for message, done in zip(messages, answer, strict=True) if not done]

    async def acknowledge(self, messages: Sequence[Message]) -> None:
        """They were handled before."""
        topics = list(dict.fromkeys(message.topic for message in messages))
        number = {topic: index for index, topic in enumerate(topics, 1)}
        arguments: list[Any] = [self.group]
        for message in messages:
            arguments += (number[message.topic], message.entry_id)
        streams = list(map(self._stream, topics))
        await script.run(self.redis, _script("acknowledge"), streams, arguments)

    # Dead letters

    async def bury(
        self, message: Message, what: Literal["park", "skip", "wait"], about: Mapping[str, Any]
    ) -> str:
        """Out of the stream: as a dead letter, or behind one. `ok`, `lost`, or `free` if its key is
        not parked (any more)."""
        letter: dict[Any, Any] = {**message.entry, **{f"@{name}": v for name, v in about.items()}}
        letter |= {"@topic": message.topic, "@entry": message.entry_id, "@group": self.group}
        answer = await script.run(
            self.redis,
            _machine("bury"),
            [
                self._record(message),
                self._stream(message.topic),
                self._dead,
                self._letter(message.event_id),
                self._parked,
                self._queue(message.place),
            ],
            [
                *(what, self.token, self.group),
                *(message.entry_id, message.event_id, message.place),
                *(item for pair in letter.items() for item in pair),
            ],
        )
        return script.text(answer)

    async def first_letter(self, place: str) -> str | None:
        """The event that a parked key waits for. A place like `#id` is that letter alone."""
        if place.startswith("#"):
            return place[1:]
        found: Any = await self.redis.lindex(self._queue(place), 0)
        return None if found is None else script.text(found)

    async def reopen(self, event_id: str, place: str = "") -> Letter | timedelta | str | None:
        """Claim a letter for another try: the letter, or how long somebody else may be at it, or
        why it cannot be. None if there is none (any more); it is then out of its place's line."""
        kind, *rest = await script.run(
            self.redis,
            _machine("reopen", "line"),
            [
                layout.record(self.name, self.lane, self.group, event_id),
                self._letter(event_id),
                self._dead,
                self._parked,
                self._queue(place),
                self._retries,
            ],
            [self.token, _microseconds(self.lease), event_id, place],
        )
        match script.text(kind):
            case "running":
                return timedelta(milliseconds=int(rest[0]))
            case "refused":
                return script.text(rest[0])
            case "gone":
                return None
        fields = dict(zip(rest[1][::2], rest[1][1::2], strict=True))
        entry = {name: value for name, value in fields.items() if not name.startswith(b"@")}
        message = Message(fields[b"@topic"].decode(), fields[b"@entry"], entry)
        message.fence = int(rest[0])
        attempts = int(fields.get(b"@attempts", 0))
        return Letter(message, attempts, fields.get(b"@first", b"").decode())

    async def close(self, message: Message) -> int:
        """A letter was handled at last. How many events of its key are left in the queue; -1 if the
        claim was lost."""
        seq = message.seq if self.by_seq else ""
        left = await script.run(
            self.redis,
            _machine("close", "line"),
            [
                self._record(message),
                self._letter(message.event_id),
                self._dead,
                self._parked,
                self._queue(message.place),
                self._retries,
                self._watermarks,
            ],
            [self.token, message.event_id, message.place, _milliseconds(self.kept), seq],
        )
        return int(left)

    async def fail(self, message: Message, about: Mapping[str, Any]) -> None:
        """A letter failed again, and waits for the next retry."""
        keys = [
            self._record(message),
            self._letter(message.event_id),
            self._retries,
        ]
        fields = [item for name, value in about.items() for item in (f"@{name}", value)]
        arguments = [self.token, message.event_id, message.place, *fields]
        await script.run(self.redis, _machine("fail"), keys, arguments)

    # Keys

    @property
    def _lease(self) -> str:
        return layout.lease(self.name, self.lane, self.group)

    @property
    def _parked(self) -> str:
        return layout.parked(self.name, self.lane, self.group)

    @property
    def _dead(self) -> str:
        return layout.dead(self.name, self.lane, self.group)

    @property
    def _retries(self) -> str:
        return layout.retries(self.name, self.lane, self.group)

    @property
    def _watermarks(self) -> str:
        return layout.watermarks(self.name, self.lane, self.group)

    def _letter(self, event_id: str) -> str:
        return layout.letter(self.name, self.lane, self.group, event_id)

    def _queue(self, place: str) -> str:
        return layout.queue(self.name, self.lane, self.group, place)

    def _stream(self, topic: str) -> str:
        return layout.stream(self.name, self.lane, topic)

    def _record(self, message: Message) -> str:
        return layout.record(self.name, self.lane, self.group, message.event_id)


def _milliseconds(length: timedelta) -> int:
    return int(length / timedelta(milliseconds=1))


def _microseconds(length: timedelta) -> int:
    return int(length / timedelta(microseconds=1))
