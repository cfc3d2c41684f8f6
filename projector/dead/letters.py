"""The dead letters of a group, on all lanes: found, marked, discarded, edited.

Each action is one script on one letter, and may be sent again after an error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from operator import attrgetter
from typing import Any

from outbox import codec, layout
from outbox.errors import NotDecodable
from outbox.script import Script, joined, load
from projector.cluster import AnyRedis
from projector.dead.census import Census, census
from projector.dead.letter import SUMMARY, WHOLE, Letter, Whole, letter_of, whole_of
from projector.dead.outcome import Busy, Changed, Discarded, Edited, Gone, Marked, NotEdited
from projector.dead.wanted import Wanted
from projector.errors import GroupHasLetters
from projector.sink import script

PAGE = 100
REMEMBERED = timedelta(days=7)
"""How long a discarded event is remembered at least: as long as consumers remember theirs."""


@cache
def _script(name: str, *libraries: str) -> Script:
    return joined(*(load("projector.dead", part).source for part in (*libraries, name)))


@dataclass(frozen=True, slots=True)
class DeadLetters:
    redis: AnyRedis
    name: str
    lanes: Sequence[int]
    group: str
    remembered: timedelta = REMEMBERED
    """How long a discarded event is known for one, should it be published again. No shorter than
    rows are kept."""

    # Reading

    async def find(self, wanted: Wanted) -> AsyncIterator[Letter]:
        """Lane after lane, the oldest first. Letters may come and go meanwhile."""
        now = datetime.now(UTC)
        for lane in self.lanes:
            pages = self._named(lane, wanted.ids) if wanted.ids else self._pages(lane)
            async for page in pages:
                for letter in sorted(await self._read(lane, page), key=attrgetter("turn")):
                    if wanted.matches(letter, now):
                        yield letter

    async def whole(self, event_id: str) -> Whole | None:
        """A letter with its data and traceback."""
        for lane in self.lanes:
            score: Any = await self.redis.zscore(self._dead(lane), event_id)
            if score is None:
                continue
            keys = [self._letter(lane, event_id)]
            (values,) = await script.run(self.redis, _script("read"), keys, WHOLE)
            if values:
                letter = letter_of(event_id, lane, score, values[: len(SUMMARY)])
                queued: Any = await self.redis.hget(self._parked(lane), letter.place)
                return whole_of(letter, values[len(SUMMARY) :], int(queued or 0))
        return None

    async def _read(self, lane: int, page: Sequence[tuple[str, float]]) -> Iterable[Letter]:
        keys = [self._letter(lane, event_id) for event_id, _ in page]
        answers = await script.run(self.redis, _script("read"), keys, SUMMARY) if keys else []
        return [
            letter_of(event_id, lane, score, values)
            for (event_id, score), values in zip(page, answers, strict=True)
            if values
        ]

    async def _named(
        self, lane: int, ids: Iterable[str]
    ) -> AsyncIterator[Sequence[tuple[str, float]]]:
        scores: list[Any] = [await self.redis.zscore(self._dead(lane), each) for each in ids]
        yield [(each, score) for each, score in zip(ids, scores, strict=True) if score is not None]

    async def _pages(self, lane: int) -> AsyncIterator[Sequence[tuple[str, float]]]:
        """By the time they came, not by rank: those of earlier pages may be gone by now."""
        last, seen = float("-inf"), set[str]()
        while True:
            found: Any = await self.redis.zrangebyscore(
                self._dead(lane), last, "+inf", start=0, num=PAGE + len(seen), withscores=True
            )
            page = [(script.text(each), score) for each, score in found]
            page = [(each, score) for each, score in page if each not in seen]
            if not page:
                return
            yield page
            newest = page[-1][1]
            seen = {*(seen if newest == last else ()), *(i for i, at in page if at == newest)}
            last = newest

    # Acting

    async def retry(self, letter: Letter) -> Marked | Gone:
        """Let the group's consumers work it off: with the queue of its key, from its first event
        on, or alone if its key does not wait for it. A running one begins within seconds."""
        lane, keys = letter.lane, (letter.event_id, letter.place)
        answer = await script.run(
            self.redis,
            _script("retry"),
            [self._letter(lane, keys[0]), self._queue(lane, keys[1]), self._retries(lane)],
            keys,
        )
        told = script.text(answer)
        return Gone() if told == "gone" else Marked(before=told == "already")

    async def discard(self, letter: Letter) -> Discarded | Busy | Gone:
        """Remove it for good. What waits behind it goes on, or its key is free again."""
        lane, event_id, place = letter.lane, letter.event_id, letter.place
        keys = [
            self._record(lane, event_id),
            self._letter(lane, event_id),
            self._dead(lane),
            self._parked(lane),
            self._queue(lane, place),
            self._retries(lane),
            layout.watermarks(self.name, lane, self.group),
        ]
        kept = int(self.remembered / timedelta(milliseconds=1))
        answer = await script.run(
            self.redis, _script("discard", "running"), keys, [event_id, place, kept]
        )
        match script.text(answer[0]):
            case "gone":
                return Gone()
            case "running":
                return Busy(timedelta(milliseconds=answer[1]))
        return Discarded(answer[1] if answer[1] >= 0 else None)

    async def edit(self, whole: Whole, data: bytes) -> Edited | Changed | Busy | Gone:
        """Replace the data of a letter as it was read; what was emitted is kept beside it. Raises
        NotEdited if the data is not what its content type says."""
        letter = whole.letter
        check(whole, data)
        answer = await script.run(
            self.redis,
            _script("edit", "running"),
            [
                self._record(letter.lane, letter.event_id),
                self._letter(letter.lane, letter.event_id),
            ],
            [whole.data, data, datetime.now(UTC).isoformat(timespec="milliseconds")],
        )
        match script.text(answer[0]):
            case "gone":
                return Gone()
            case "running":
                return Busy(timedelta(milliseconds=answer[1]))
            case "changed":
                return Changed()
        return Edited()

    # All of it

    async def count(self) -> Census:
        """How many there are, on all lanes."""
        total = Census(self.group)
        for lane in self.lanes:
            (found,) = await census(self.redis, self.name, lane, [self.group])
            total += found
        return total

    async def consumers(self) -> int:
        """How many consumers of the group are alive."""
        members = [layout.members(self.name, self.group)]
        return len(await script.run(self.redis, "members", members, []))

    async def refuse_any(self) -> None:
        """Raises GroupHasLetters unless there are none."""
        found = await self.count()
        if found.dead or found.waiting:
            raise GroupHasLetters(self.group, found.dead, found.waiting, found.parked)

    async def drop(self) -> int:
        """Remove all that only this group uses, on every lane. How many letters. Claims of single
        events are left: they end by themselves."""
        count = 0
        for lane in self.lanes:
            async for page in self._pages(lane):
                await self.redis.unlink(*(self._letter(lane, each) for each, _ in page))
                count += len(page)
            places: Any = await self.redis.hkeys(self._parked(lane))
            for place in places:
                await self.redis.unlink(self._queue(lane, script.text(place)))
            rest = (self._dead(lane), self._parked(lane), self._retries(lane))
            marks = layout.watermarks(self.name, lane, self.group)
            await self.redis.unlink(*rest, marks, layout.lease(self.name, lane, self.group))
        await self.redis.unlink(layout.members(self.name, self.group))
        return count

    # Keys

    def _dead(self, lane: int) -> str:
        return layout.dead(self.name, lane, self.group)

    def _letter(self, lane: int, event_id: str) -> str:
        return layout.letter(self.name, lane, self.group, event_id)

    def _record(self, lane: int, event_id: str) -> str:
        return layout.record(self.name, lane, self.group, event_id)

    def _parked(self, lane: int) -> str:
        return layout.parked(self.name, lane, self.group)

    def _queue(self, lane: int, place: str) -> str:
        return layout.queue(self.name, lane, self.group, place)

    def _retries(self, lane: int) -> str:
        return layout.retries(self.name, lane, self.group)


def check(whole: Whole, data: bytes) -> None:
    """Raises NotEdited if the data is not what the letter's content type says."""
    try:
        codec.decode(data, whole.content_type)
    except NotDecodable as exc:
        raise NotEdited(whole.letter.event_id, f"it is {whole.content_type}, {exc}") from exc
