"""How consumers work letters off, where it is easy to go wrong."""

from __future__ import annotations

import asyncio

import pytest

from outbox import layout
from outbox.keys import lane_of
from support.letters import Work
from support.waiting import until


@pytest.mark.parametrize("dedup", ["id", "seq"])
async def test_what_was_handled_does_not_wait_behind_a_dead_letter(streams, dedup):
    """Published again while its key is parked: it is acknowledged, and not handled twice."""
    work = Work(streams, dedup=dedup)
    first = await streams.add("k", 1)
    await work.drain()
    await streams.add("k", 2, data="bad")
    await streams.add("k", 1, event_id=first)
    await streams.add("k", 3)
    await work.drain()
    assert [letter.seq for letter in await work.find(waiting=True)] == ["2", "3"]
    work.handle = good(work)
    await work.letters.retry(await work.one())
    await work.drain()
    assert work.seqs("k") == [1, 2, 3]


async def test_a_letter_that_was_handled_elsewhere_is_not_handled_again(work):
    """Its record says so; the rest of the line goes on."""
    await parked(work)
    letter = await work.one()
    record = layout.record(work.streams.name, letter.lane, "billing", letter.event_id)
    await work.streams.redis.set(record, b"1\0completed")
    work.handle = good(work)
    await work.letters.retry(letter)
    await work.drain()
    assert work.seqs("k") == [2]
    assert await work.find(waiting=True) == []


async def test_a_letter_that_vanished_does_not_hold_the_line_up(work):
    """Somebody deleted its hash by hand."""
    await parked(work)
    letter = await work.one()
    await work.letters.retry(letter)
    await work.streams.redis.delete(
        layout.letter(work.streams.name, letter.lane, "billing", letter.event_id)
    )
    await work.drain()
    assert work.seqs("k") == [2]
    assert (await work.letters.count()).parked == 0


async def test_a_retry_keeps_its_claim_however_long_it_takes(streams):
    """Else it would be handled a second time, or never be done with."""
    work = Work(streams, claim_lease=0.3)
    await parked(work)
    letter = await work.one()
    record = layout.record(streams.name, letter.lane, "billing", letter.event_id)

    async def slow(event) -> None:
        first = await streams.redis.get(record)

        async def renewed() -> bool:
            return await streams.redis.get(record) != first

        if event.seq == 1:
            await until(renewed)
        work.seen.append((event.key, event.seq))

    work.handle = slow
    await work.letters.retry(letter)
    await work.drain()
    assert work.seqs("k") == [1, 2]


async def test_a_record_that_cannot_be_read_stops_its_own_letter_only(work):
    """The letter stays, and so does the wish to retry it."""
    await parked(work)
    letter = await work.one()
    record = layout.record(work.streams.name, letter.lane, "billing", letter.event_id)
    await work.streams.redis.set(record, b"nonsense")
    await work.letters.retry(letter)
    await work.streams.add("other", 1)
    await work.drain()
    assert work.seen == [("other", 1)]
    await work.streams.redis.delete(record)
    work.handle = good(work)
    await work.drain()
    assert work.seqs("k") == [1, 2]


async def test_two_unordered_consumers_retry_a_letter_once(streams):
    """They both see the mark; one of them has the claim."""
    work = Work(streams, ordered=False)
    await streams.add("k", 1, data="bad")
    await work.drain()
    work.handle = good(work)
    await work.letters.retry(await work.one())
    await asyncio.gather(work.drain(), work.drain())
    assert work.seqs("k") == [1]
    retries = layout.retries(streams.name, lane_of("k", streams.lanes), "billing")
    assert not await streams.redis.exists(retries)


async def parked(work: Work) -> None:
    """Of the key k: 1 is dead, 2 waits."""
    await work.streams.add("k", 1, data="bad")
    await work.streams.add("k", 2)
    await work.drain()


def good(work: Work):
    """A handler that nothing is bad for."""

    async def handle(event) -> None:
        await asyncio.sleep(0)
        work.seen.append((event.key, event.seq))

    return handle
