"""Dead letters: found, retried, discarded and edited, while real consumers come and go."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from outbox import layout
from outbox.keys import lane_of
from projector.dead.census import Census
from projector.dead.outcome import (
    Busy,
    Changed,
    Discarded,
    Edited,
    Gone,
    Marked,
    NotEdited,
)
from support.letters import Work
from support.waiting import until


async def poison(work: Work, *seqs: int, key: str = "k") -> None:
    """The first of them is bad."""
    work.bad.add((key, seqs[0]))
    for seq in seqs:
        await work.streams.add(key, seq, data={"seq": seq})
    await work.drain()


def lane(work: Work, key: str = "k") -> int:
    return lane_of(key, work.streams.lanes)


async def kept(work: Work) -> list[str]:
    """What is left of letters in Redis."""
    found = [key.decode() async for key in work.streams.redis.scan_iter(f"*{work.streams.name}*")]
    words = ("@dead", "@parked", "@queue", "@retry")
    return sorted(key for key in found if any(word in key for word in words))


async def test_poison_parks_its_key_and_the_others_flow(work):
    """One dead letter, the rest of its key behind it, in order; a hundred others are handled."""
    for number in range(100):
        await work.streams.add(f"other {number}", 1)
    await poison(work, 1, 2, 3)
    assert len(work.seen) == 100
    assert [(letter.key, letter.seq) for letter in await work.find()] == [("k", "1")]
    every = await work.find(waiting=True)
    assert [letter.seq for letter in every] == ["1", "2", "3"]
    assert [letter.state for letter in every] == ["dead", "waiting", "waiting"]
    counted = await work.letters.count()
    assert (counted.dead, counted.waiting, counted.parked) == (1, 2, 1)
    assert counted.oldest_age is not None


async def test_a_letter_tells_what_went_wrong(work):
    event_id = await work.streams.add("k", 7, topic="u", type="order.placed", data="bad")
    await work.streams.add("k", 8, topic="u")
    await work.drain()
    whole = await work.letters.whole(event_id)
    assert whole is not None
    letter = whole.letter
    assert (letter.event_id, letter.lane, letter.topic) == (event_id, lane(work), "u")
    assert (letter.type, letter.key, letter.seq) == ("order.placed", "k", "7")
    assert (letter.state, letter.attempts) == ("dead", 1)
    assert letter.cause == "PermanentError: no order.placed for k"
    assert "in handle" in whole.traceback
    assert (whole.data, whole.original, whole.behind) == (b'"bad"', None, 1)
    assert await work.letters.whole("no such id") is None


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, "abc"),
        ({"keys": ("a", "b")}, "ab"),
        ({"types": ("paid",)}, "c"),
        ({"topics": ("t",)}, "ac"),
        ({"topics": ("t",), "keys": ("b",)}, ""),
        ({"error": "NO PAID"}, "c"),
        ({"error": "nothing like it"}, ""),
        ({"newer_than": timedelta(minutes=1)}, "abc"),
        ({"older_than": timedelta(minutes=1)}, ""),
    ],
)
async def test_letters_are_found_by_what_they_are(work, wanted, found):
    """By key, type, topic, a part of the cause, and age; all of it must hold."""
    await work.streams.add("a", data="bad")
    await work.streams.add("b", data="bad", topic="u")
    await work.streams.add("c", data="bad", type="paid")
    await work.streams.add("fine")
    await work.drain()
    assert "".join(sorted(letter.key for letter in await work.find(**wanted))) == found


async def test_age_is_counted_from_when_the_letter_came(work):
    await poison(work, 1)
    await poison(work, 1, key="young")
    an_hour_ago = {(await work.one(keys=("k",))).event_id: 3_600_000}
    dead = layout.dead(work.streams.name, lane(work), "billing")
    for event_id, milliseconds in an_hour_ago.items():
        await work.streams.redis.zincrby(dead, -milliseconds, event_id)
    assert [each.key for each in await work.find(older_than=timedelta(minutes=59))] == ["k"]
    assert [each.key for each in await work.find(newer_than=timedelta(minutes=59))] == ["young"]


async def test_ids_mean_any_letter(work):
    """Also one that waits; what does not exist is not found."""
    await poison(work, 1, 2)
    ids = {letter.event_id for letter in await work.find(waiting=True)}
    assert {letter.event_id for letter in await work.find(ids=(*ids, "nobody"))} == ids


async def test_many_letters_are_found_once_each_also_while_they_go(streams):
    """Pages do not slip when those before are discarded, nor when many came at the same moment."""
    work = Work(streams, on_dead="skip")
    for number in range(350):
        await streams.add(f"key {number}", data="bad")
    await work.drain()
    for number in range(streams.lanes):
        dead = layout.dead(streams.name, number, "billing")
        for place, event_id in enumerate(await streams.redis.zrange(dead, 0, -1)):
            await streams.redis.zadd(dead, {event_id: 1000 + place // 150})
    assert len({letter.event_id for letter in await work.find()}) == 350
    count = 0
    from projector.dead.wanted import Wanted

    async for letter in work.letters.find(Wanted()):
        assert await work.letters.discard(letter) == Discarded(None)
        count += 1
    assert count == 350
    assert await kept(work) == []


async def test_a_retry_works_a_key_off_in_order_for_its_group_alone(streams, work):
    """Newer events of the key are in the stream by then, and wait their turn."""
    mail = Work(streams, "mail")
    await poison(work, 1, 2, 3)
    await mail.drain()
    work.bad.clear()
    for seq in (4, 5):
        await streams.add("k", seq)
    assert await work.letters.retry(await work.one()) == Marked(before=False)
    assert await work.letters.retry(await work.one()) == Marked(before=True)
    await work.drain()
    await mail.drain()
    assert work.seqs("k") == [1, 2, 3, 4, 5]
    assert mail.seqs("k") == [1, 2, 3, 4, 5]
    assert await mail.find(waiting=True) == []
    assert await kept(work) == []


async def test_a_running_consumer_takes_a_retry_up(work):
    """While new events of the key keep coming."""
    await poison(work, 1, 2)
    work.bad.clear()
    consumer = work.consumer()
    running = asyncio.create_task(consumer.run())
    await work.streams.add("k", 3)
    assert isinstance(await work.letters.retry(await work.one()), Marked)
    await work.streams.add("k", 4)

    async def handled() -> bool:
        return work.seqs("k") == [1, 2, 3, 4]

    await until(handled)
    consumer.stop()
    await running
    assert await kept(work) == []


async def test_a_retry_of_one_that_waits_begins_with_the_first(work):
    await poison(work, 1, 2)
    work.bad.clear()
    *_, last = await work.find(waiting=True)
    await work.letters.retry(last)
    await work.drain()
    assert work.seqs("k") == [1, 2]


async def test_a_retry_that_fails_again_says_so(work):
    """It waits for the next retry, and everything behind it still waits."""
    await poison(work, 1, 2)
    await work.letters.retry(await work.one())
    await work.drain()
    letter = await work.one()
    assert (letter.seq, letter.attempts) == ("1", 2)
    assert work.seqs("k") == []


@pytest.mark.parametrize("options", [{"on_dead": "skip"}, {"ordered": False}])
async def test_a_letter_that_parks_nothing_is_retried_alone(streams, options):
    """Its key went on without it."""
    work = Work(streams, **options)
    await poison(work, 1, 2)
    assert work.seqs("k") == [2]
    assert (await work.letters.count()).parked == 0
    work.bad.clear()
    await work.letters.retry(await work.one())
    await work.drain()
    assert work.seqs("k") == [2, 1]
    assert await kept(work) == []


async def test_an_edited_letter_is_handled_with_its_new_data(work):
    """What was emitted is kept, whatever is edited after."""
    await work.streams.add("k", 1, data="bad")
    await work.streams.add("k", 2)
    await work.drain()
    event_id = (await work.one()).event_id
    for data in (b'"better"', b'"good"'):
        whole = await work.letters.whole(event_id)
        assert await work.letters.edit(whole, data) == Edited()
    whole = await work.letters.whole(event_id)
    assert (whole.data, whole.original) == (b'"good"', b'"bad"')
    assert whole.letter.edited
    await work.letters.retry(whole.letter)
    await work.drain()
    assert work.seqs("k") == [1, 2]
    assert await kept(work) == []


async def test_an_edit_must_fit_the_content_type(work):
    await poison(work, 1)
    whole = await work.letters.whole((await work.one()).event_id)
    with pytest.raises(NotEdited, match="application/json"):
        await work.letters.edit(whole, b"{no json")
    assert await work.letters.whole(whole.letter.event_id) == whole


async def test_an_edit_does_not_overwrite_another(work):
    await poison(work, 1)
    whole = await work.letters.whole((await work.one()).event_id)
    assert await work.letters.edit(whole, b'"mine"') == Edited()
    assert await work.letters.edit(whole, b'"yours"') == Changed()
    found = await work.letters.whole(whole.letter.event_id)
    assert found.data == b'"mine"'


async def test_after_a_discard_the_rest_goes_on(work):
    """In order, and then the key is free."""
    await poison(work, 1, 2, 3)
    assert await work.letters.discard(await work.one()) == Discarded(2)
    await work.drain()
    await work.streams.add("k", 4)
    await work.drain()
    assert work.seqs("k") == [2, 3, 4]
    assert await kept(work) == []


async def test_discarding_the_last_letter_frees_its_key(work):
    await poison(work, 1)
    await work.letters.retry(await work.one())  # forgotten with it
    assert await work.letters.discard(await work.one()) == Discarded(0)
    assert await kept(work) == []
    await work.streams.add("k", 2)
    await work.drain()
    assert work.seqs("k") == [2]


async def test_discarding_one_that_waits_leaves_the_key_parked(work):
    await poison(work, 1, 2, 3)
    assert await work.letters.discard((await work.find(waiting=True))[1]) == Discarded(2)
    await work.drain()
    assert work.seen == []
    work.bad.clear()
    await work.letters.retry(await work.one())
    await work.drain()
    assert work.seqs("k") == [1, 3]


@pytest.mark.parametrize("dedup", ["id", "seq"])
async def test_what_was_discarded_does_not_come_back(streams, dedup):
    """Published again, as after a loss of data; and the next of its key is no hole."""
    work = Work(streams, dedup=dedup)
    await streams.add("k", 1)
    await work.drain()
    await poison(work, 2, 3)
    letter = await work.one()
    assert await work.letters.discard(letter) == Discarded(1)
    await work.drain()
    work.bad.clear()
    await streams.add("k", 2, event_id=letter.event_id)
    await streams.add("k", 4)
    await work.drain()
    assert work.seqs("k") == [1, 3, 4]
    assert await kept(work) == []


async def test_whoever_acts_on_a_letter_that_is_gone_is_told(work):
    """And nothing of it comes into being again."""
    await poison(work, 1, 2)
    letter = await work.one()
    whole = await work.letters.whole(letter.event_id)
    work.bad.clear()
    await work.letters.retry(letter)
    await work.drain()
    assert await work.letters.retry(letter) == Gone()
    assert await work.letters.discard(letter) == Gone()
    assert await work.letters.edit(whole, b'"x"') == Gone()
    assert await kept(work) == []


async def test_a_letter_that_is_being_handled_is_left_alone(work):
    """Neither discarded nor edited under the handler's hands."""
    await poison(work, 1, 2)
    letter = await work.one()
    whole = await work.letters.whole(letter.event_id)
    began, finish = asyncio.Event(), asyncio.Event()

    async def slow(event) -> None:
        began.set()
        await finish.wait()
        work.seen.append((event.key, event.seq))

    work.handle = slow
    await work.letters.retry(letter)
    running = asyncio.create_task(work.drain())
    await began.wait()
    discarded = await work.letters.discard(letter)
    edited = await work.letters.edit(whole, b'"x"')
    finish.set()
    await running
    assert isinstance(discarded, Busy)
    assert timedelta(0) < discarded.retry_after <= timedelta(seconds=60)
    assert isinstance(edited, Busy)
    assert work.seqs("k") == [1, 2]


async def test_a_consumer_that_died_at_a_letter_does_not_protect_it(work):
    """Its claim has run out; what it sends later is refused."""
    await poison(work, 1, 2)
    letter = await work.one()
    zombie = Work(work.streams, claim_lease=0.01).consumer()
    ledger = zombie._ledger(lane(work))
    opened = await ledger.reopen(letter.event_id)

    async def over() -> bool:
        return await work.letters.discard(letter) == Discarded(1)

    await until(over)
    assert await ledger.close(opened.message) == -1
    await work.drain()
    assert work.seqs("k") == [2]
    await zombie._redis.aclose()
    await zombie._waiting.aclose()


async def test_dropping_a_group_leaves_other_groups_alone(streams, work):
    mail = Work(streams, "mail")
    await poison(work, 1, 2)
    await poison(mail, 3)
    assert await work.letters.drop() == 2
    assert await work.letters.count() == Census("billing")
    assert not [key for key in await kept(work) if "billing" in key]
    assert [letter.seq for letter in await mail.find()] == ["3"]
