"""The effect of one event: claims what is not claimed yet, runs the handler, retries, gives up."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from inbox.claims.claim import Claim
from inbox.claims.held import CURRENT, Held
from inbox.consumer.handlers import Handler
from inbox.consumer.ledger import Ledger
from inbox.consumer.message import Message
from inbox.consumer.policy import Policy
from inbox.errors import InboxError, PermanentError
from outbox.errors import NotDecodable

log = logging.getLogger("inbox.consumer")

TRY_AGAIN = 0.5
"""Seconds at most between two looks at a claim that somebody else holds."""


class Failed(InboxError):
    """A letter failed again."""


class Result(NamedTuple):
    settled: Sequence[Message]
    """Handled: to be settled."""
    gone: Sequence[Message]
    """Acknowledged already, or left pending: of no further concern."""


class Effect:
    """Runs the handlers of one lane."""

    def __init__(self, ledger: Ledger, policy: Policy, alone: asyncio.Lock) -> None:
        self._ledger = ledger
        self._policy = policy
        self._alone = alone
        self._clock = policy.metrics.clock("message", policy.group)
        self._lease = policy.claim_lease.total_seconds()
        self.running: dict[Message, Held] = {}
        self.unsettled: dict[str, bytes] = {}
        """For dedup by seq: the last seq of each place that is handled, until it is settled."""
        self._parked: set[str] = set()
        """Places that were parked while later events of theirs were claimed already."""

    def renewed(self, message: Message, still_held: bool, since: float) -> None:
        if held := self.running.get(message):
            held.renewed(still_held, since)

    async def next(self, messages: deque[Message]) -> Result:
        """The first of a chain, or as many as its batch handler takes."""
        handler = self._policy.handlers.find(messages[0])
        if handler is not None and handler.batch:
            batch = [messages.popleft() for _ in range(min(handler.batch, len(messages)))]
            return await self._batch(batch, handler)
        return await self._one(messages.popleft(), handler)

    async def _one(self, message: Message, handler: Handler[Any] | None) -> Result:
        if message.fence and message.place not in self._parked:
            return await self._claimed(message, handler)
        return await self._unclaimed(message, handler)

    async def _unclaimed(self, message: Message, handler: Handler[Any] | None) -> Result:
        """Somebody else has it, or had it and did not come back; or its key is parked."""
        while True:
            (verdict,) = await self._ledger.take([message], unsettled=self.unsettled)
            match verdict.kind:
                case "claimed":
                    self._parked.discard(message.place)
                    return await self._claimed(message, handler)
                case "done":
                    await self._ledger.acknowledge([message])
                    self._count("hit")
                    return Result((), [message])
                case "parked":
                    if await self._wait_in_line(message):
                        return Result((), [message])
                case "suspect":
                    if result := await self._suspect(message, handler):
                        return result
                case "hole":
                    return await self._hole(message, verdict.detail)
                case _:
                    await asyncio.sleep(min(TRY_AGAIN, int(verdict.detail or 500) / 1000))

    async def _suspect(self, message: Message, handler: Handler[Any] | None) -> Result | None:
        """The process that tried it last has died. One at a time: the next death tells which event
        it was, and the others are not blamed for it. None if somebody else has it by now."""
        async with self._alone:
            (verdict,) = await self._ledger.take([message], suspects=True, unsettled=self.unsettled)
            if verdict.kind != "claimed":
                return None
            self._count("takeover")
            limit = self._policy.retry_of(handler).attempts if handler else 1
            if message.attempts > limit:
                times = message.attempts - 1
                return await self._give_up(message, f"its process died {times} times", "")
            return await self._claimed(message, handler)

    async def _claimed(self, message: Message, handler: Handler[Any] | None) -> Result:
        if handler is None:
            if self._policy.on_unknown == "skip":
                return Result([message], ())
            problem = f"nobody handles {message.type!r} of topic {message.topic!r}"
            return await self._give_up(message, problem, "")
        retry = self._policy.retry_of(handler)
        while True:
            try:
                await self._run([message], handler)
                return self._handled([message])
            except (PermanentError, NotDecodable) as problem:
                return await self._give_up(message, *_told(problem))
            except Exception as problem:
                self._count("failed")
                if message.attempts >= retry.attempts:
                    return await self._give_up(message, *_told(problem))
                log.info(
                    "a handler failed, and is tried again: %s",
                    type(problem).__name__,
                    extra={"event": message.event_id, "attempt": message.attempts},
                )
            await asyncio.sleep(retry.pause(message.attempts))
            if not await self._ledger.attempt(message):
                self._count("lost")
                return Result((), [message])

    async def _batch(self, batch: list[Message], handler: Handler[Any]) -> Result:
        """All at once; one by one if that fails, or if one of them is not ours yet."""
        if all(message.fence and message.place not in self._parked for message in batch):
            try:
                await self._run(batch, handler)
                return self._handled(batch)
            except Exception as problem:
                self._count("failed")
                log.info("a batch failed, and is handled one by one: %s", type(problem).__name__)
        settled: list[Message] = []
        gone: list[Message] = []
        for message in batch:
            result = await self._one(message, handler)
            settled += result.settled
            gone += result.gone
        return Result(settled, gone)

    def _handled(self, messages: Sequence[Message]) -> Result:
        if self._ledger.by_seq:
            self.unsettled |= {message.place: message.seq for message in messages}
        return Result(messages, ())

    def landed(self, message: Message) -> None:
        if self.unsettled.get(message.place) == message.seq:
            del self.unsettled[message.place]

    async def _run(self, messages: Sequence[Message], handler: Handler[Any]) -> None:
        began = time.monotonic()
        held = Held(_claim(self._ledger, messages[0]), self._lease, began)
        token = CURRENT.set(held)
        for message in messages:
            self.running[message] = held
            message.begun = True
        try:
            await self._policy.inbox.run(self._policy.group, messages, handler, held)
        finally:
            self._clock.observe(time.monotonic() - began)
            CURRENT.reset(token)
            for message in messages:
                del self.running[message]

    # Giving up

    async def _give_up(self, message: Message, cause: str, trace: str) -> Result:
        what = self._policy.on_dead if self._policy.ordered else "skip"
        now = _now()
        about = {
            "state": "dead",
            "cause": cause,
            "traceback": trace,
            "attempts": message.attempts,
            "first": now,
            "last": now,
        }
        outcome = await self._ledger.bury(message, what, about)
        if what == "park":
            self._parked.add(message.place)
        log.error(
            "an event is a dead letter: %s",
            cause.partition("\n")[0],
            extra={"event": message.event_id, "type": message.type, "outcome": outcome},
        )
        self._count("dead" if outcome == "ok" else "lost")
        return Result((), [message])

    async def _hole(self, message: Message, last: str) -> Result:
        """An event of the key is missing. It parks the key: what is missing may come yet."""
        (verdict,) = await self._ledger.without_seq().take([message], suspects=True)
        if verdict.kind != "claimed":
            await asyncio.sleep(TRY_AGAIN)
            return await self._unclaimed(message, None)
        seq = message.seq.decode()
        cause = f"a hole: the last event of its key was {last}, and this one is {seq}"
        return await self._give_up(message, cause, "")

    async def _wait_in_line(self, message: Message) -> bool:
        """Behind a dead letter of its key. False if the key is not parked any more."""
        about = {"state": "waiting", "cause": "", "attempts": 0, "first": _now(), "last": _now()}
        return await self._ledger.bury(message, "wait", about) == "ok"

    # Dead letters, once more

    async def retry(self, place: str) -> bool:
        """The next letter of a parked key. Whether there may be more. Raises Failed if it failed
        again, and the key stays parked."""
        event_id = await self._ledger.first_letter(place)
        if event_id is None:
            return False
        alone = place.startswith("#")
        match await self._ledger.reopen(event_id, "" if alone else place):
            case None:
                return not alone
            case str() as reason:
                raise Failed(reason)
            case timedelta() as wait:
                await asyncio.sleep(min(TRY_AGAIN, wait.total_seconds()))
                return True
            case letter:
                return await self._again(letter.message, letter.attempts)

    async def _again(self, message: Message, attempts: int) -> bool:
        handler = self._policy.handlers.find(message)
        try:
            if handler is None:
                raise PermanentError(f"nobody handles {message.type!r} of {message.topic!r}")
            await self._run([message], handler)
        except Exception as problem:
            cause, trace = _told(problem)
            about = {"state": "dead", "cause": cause, "traceback": trace}
            about |= {"attempts": str(attempts + 1), "last": _now()}
            await self._ledger.fail(message, about)
            self._count("failed")
            raise Failed(cause) from problem
        self._count("miss")
        return await self._ledger.close(message) > 0

    def _count(self, outcome: Any) -> None:
        self._policy.metrics.count("message", self._policy.group, outcome)


def _claim(ledger: Ledger, message: Message) -> Claim:
    return Claim(message.event_id, ledger.token, message.fence)


def _told(problem: BaseException) -> tuple[str, str]:
    """One line, and the whole story."""
    trace = "".join(traceback.format_exception(problem))
    return f"{type(problem).__name__}: {problem}", trace[-16_000:]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
