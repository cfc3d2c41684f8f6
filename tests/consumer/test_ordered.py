"""Ordered consumers: one effect per event, in order per key."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import timedelta

import pytest
from msgspec import Struct

from inbox.claims.held import Held, current_claim
from inbox.consumer.consumer import Consumer
from inbox.consumer.ledger import LaneLost
from inbox.consumer.retry import Retry
from inbox.errors import BadHandler, PermanentError, WindowTooShort
from inbox.redis_inbox import RedisInbox
from outbox import Event, layout
from outbox.keys import lane_of
from support.daemons import eventually

QUICK = Retry(attempts=3, first=0.001, cap=0.002)


class Total(Struct):
    total: int


def consumer_of(streams, **options) -> Consumer:
    options = {"group": "billing", "inbox": RedisInbox(streams.redis), "retry": QUICK, **options}
    return Consumer(streams.redis, streams.name, **options)


async def drained(consumer: Consumer) -> None:
    await asyncio.wait_for(consumer.drain(), 20)


async def test_each_event_is_handled_once_in_order(streams):
    """And acknowledged; a second look finds nothing."""
    seen = defaultdict(list)
    for seq in range(1, 51):
        for key in "abcdef":
            await streams.add(key, seq)
    for _ in range(2):
        consumer = consumer_of(streams, batch=7)

        @consumer.on("changed", topic="t")
        async def handle(event: Event) -> None:
            await asyncio.sleep(0)
            seen[event.key].append(event.seq)

        await drained(consumer)
    assert seen == {key: list(range(1, 51)) for key in "abcdef"}
    assert await streams.pending("billing") == 0


async def test_a_handler_is_given_what_it_is_annotated_with(streams):
    """The event, its data decoded, the claim with its fence; in any order, sync or async."""
    await streams.add("k", 7, data={"total": 42})
    got = []
    for group in ("one", "two", "three"):
        consumer = consumer_of(streams, group=group)

        async def whole(claim: Held, event: Event[Total]) -> None:
            assert current_claim() is claim
            got.append((event.seq, event.data, claim.fence > 0))

        async def data_only(total: Total) -> None:
            got.append(total)

        def plain(event) -> None:
            got.append(event.key)

        handler = {"one": whole, "two": data_only, "three": plain}[group]
        consumer.on("changed", topic="t")(handler)
        await drained(consumer)
    assert got == [(7, Total(42), True), Total(42), "k"]


async def test_a_duplicate_is_acknowledged_and_not_handled(streams):
    """As when a projector publishes again what Redis had lost."""
    event_id = await streams.add("k", 1)
    await streams.add("k", 1, event_id=event_id)
    count = 0
    consumer = consumer_of(streams)

    @consumer.on("changed", topic="t")
    async def handle(event: Event) -> None:
        nonlocal count
        count += 1

    await drained(consumer)
    assert (count, await streams.pending("billing")) == (1, 0)


async def test_a_failure_is_tried_again_in_place(streams):
    """The key's later events wait, and other keys do not."""
    tries = defaultdict(int)
    order = []
    for seq in (1, 2):
        for key in "ab":
            await streams.add(key, seq)
    consumer = consumer_of(streams)

    @consumer.on("changed", topic="t")
    async def handle(event: Event) -> None:
        tries[event.key, event.seq] += 1
        if event.key == "a" and event.seq == 1 and tries["a", 1] < 3:
            raise RuntimeError("not yet")
        order.append((event.key, event.seq))

    await drained(consumer)
    assert tries["a", 1] == 3
    assert [seq for key, seq in order if key == "a"] == [1, 2]
    assert len(order) == 4


@pytest.mark.parametrize("how", ["fails", "permanent", "unknown type", "no event", "wrong shape"])
async def test_what_cannot_be_handled_is_a_dead_letter_and_parks_its_key(streams, how):
    """With cause, attempts and times; the key's later events wait behind it, in order."""
    seen = []
    type = "strange" if how == "unknown type" else "changed"
    data = "no total" if how == "wrong shape" else {"total": 1}
    if how == "no event":
        await streams.redis.xadd(streams.stream("bad"), {"subject": "bad", "type": "changed"})
    else:
        await streams.add("bad", 1, type=type, data=data)
    for seq in (2, 3):
        await streams.add("bad", seq, data={"total": seq})
        await streams.add("good", seq, data={"total": seq})
    consumer = consumer_of(streams)

    @consumer.on("changed", topic="t")
    async def handle(event: Event[Total]) -> None:
        if event.key == "bad" and event.seq == 1:
            raise PermanentError("never") if how == "permanent" else RuntimeError("always")
        seen.append((event.key, event.seq))

    await drained(consumer)
    assert seen == [("good", 2), ("good", 3)]
    assert await streams.pending("billing") == 0
    lane = lane_of("bad", streams.lanes)
    parked = await streams.redis.hgetall(layout.parked(streams.name, lane, "billing"))
    assert parked == {b"t:bad": b"3"}
    (letter,) = await letters(streams, lane, b"dead")
    causes = {
        **{"fails": b"RuntimeError: always", "permanent": b"PermanentError: never"},
        **{"unknown type": b"nobody handles 'strange' of topic 't'"},
        **{"no event": b"no field 'id'", "wrong shape": b"does not decode to Total"},
    }
    assert causes[how] in letter[b"@cause"]
    assert letter[b"@attempts"] == (b"3" if how == "fails" else b"1")


async def letters(streams, lane: int, state: bytes) -> list[dict[bytes, bytes]]:
    ids = await streams.redis.zrange(layout.dead(streams.name, lane, "billing"), 0, -1)
    names = [layout.letter(streams.name, lane, "billing", event_id.decode()) for event_id in ids]
    found = [await streams.redis.hgetall(name) for name in names]
    return [letter for letter in found if letter[b"@state"] == state]


async def test_a_retried_key_is_worked_off_in_order_and_unparked(streams):
    """Newer events that are in the stream by then wait for those in the queue."""
    broken, seen = True, []
    for seq in (1, 2):
        await streams.add("k", seq)

    def consumer() -> Consumer:
        made = consumer_of(streams, lane_lease=0.3)

        @made.on("changed", topic="t")
        async def handle(event: Event) -> None:
            if broken and event.seq == 1:
                raise PermanentError("broken")
            seen.append(event.seq)

        return made

    await drained(consumer())
    broken = False
    for seq in (3, 4):
        await streams.add("k", seq)
    lane = lane_of("k", streams.lanes)
    await streams.redis.sadd(layout.retries(streams.name, lane, "billing"), "t:k")
    await drained(consumer())
    await streams.add("k", 5)
    await drained(consumer())
    assert seen == [1, 2, 3, 4, 5]
    left = [key async for key in streams.redis.scan_iter(f"*{streams.name}*")]
    assert not [key for key in left if b"@parked" in key or b"@queue" in key or b"@retry" in key]
    assert not [key for key in left if b"@dead" in key]


async def test_a_retry_that_fails_again_stays_parked(streams):
    """With one more attempt, and what went wrong this time."""
    await streams.add("k", 1)
    await streams.add("k", 2)
    consumer = consumer_of(streams)
    consumer.on("changed", topic="t")(fails)
    await drained(consumer)
    lane = lane_of("k", streams.lanes)
    await streams.redis.sadd(layout.retries(streams.name, lane, "billing"), "t:k")
    consumer = consumer_of(streams)
    consumer.on("changed", topic="t")(fails)
    await drained(consumer)
    (letter,) = await letters(streams, lane, b"dead")
    assert letter[b"@attempts"] == b"4"
    assert len(await letters(streams, lane, b"waiting")) == 1
    assert not await streams.redis.exists(layout.retries(streams.name, lane, "billing"))


async def fails(event: Event) -> None:
    raise RuntimeError("still broken")


async def test_a_skipped_dead_letter_parks_nothing(streams):
    """`on_dead="skip"`: the key's later events go on."""
    seen = []
    for seq in (1, 2):
        await streams.add("k", seq)
    consumer = consumer_of(streams, on_dead="skip")

    @consumer.on("changed", topic="t")
    async def handle(event: Event) -> None:
        if event.seq == 1:
            raise PermanentError("never")
        seen.append(event.seq)

    await drained(consumer)
    assert seen == [2]


async def test_a_default_handler_gets_what_nobody_else_wants(streams):
    await streams.add("k", 1, type="strange")
    seen = []
    consumer = consumer_of(streams)
    consumer.on("changed", topic="t")(fails)

    @consumer.default(topic="t")
    async def handle(event: Event) -> None:
        seen.append(event.type)

    await drained(consumer)
    assert seen == ["strange"]


async def test_a_handler_that_takes_too_long_has_failed(streams):
    await streams.add("k", 1)
    consumer = consumer_of(streams)

    @consumer.on("changed", topic="t", timeout=0.01)
    async def handle(event: Event) -> None:
        await asyncio.Event().wait()

    await drained(consumer)
    lane = lane_of("k", streams.lanes)
    assert await streams.redis.zcard(layout.dead(streams.name, lane, "billing")) == 1


async def test_batches_are_handled_together_and_one_by_one_when_that_fails(streams):
    """In order per key; the one that fails is the only dead letter."""
    batches, seen = [], []
    for seq in range(1, 11):
        await streams.add("k", seq)
        await streams.add("l", seq)
    consumer = consumer_of(streams)

    @consumer.on_batch("changed", topic="t", size=4)
    async def handle(events: list[Event]) -> None:
        batches.append(len(events))
        if any((event.key, event.seq) == ("k", 5) for event in events):
            raise RuntimeError("poison")
        seen.extend((event.key, event.seq) for event in events)

    await drained(consumer)
    assert max(batches) == 4
    assert [seq for key, seq in seen if key == "k"] == [1, 2, 3, 4]
    assert [seq for key, seq in seen if key == "l"] == list(range(1, 11))
    lane = lane_of("k", streams.lanes)
    parked = await streams.redis.hgetall(layout.parked(streams.name, lane, "billing"))
    assert parked == {b"t:k": b"6"}


async def test_what_a_dead_process_had_pending_is_replayed_first(streams):
    """In id order, before anything new; also what another consumer of the group had read."""
    for seq in range(1, 6):
        await streams.add("k", seq)
    await streams.redis.xgroup_create(streams.stream("k"), "billing", "0")
    await streams.redis.xreadgroup("billing", "somebody", {streams.stream("k"): ">"}, count=3)
    seen = []
    consumer = consumer_of(streams)

    @consumer.on("changed", topic="t")
    async def handle(event: Event) -> None:
        seen.append(event.seq)

    await drained(consumer)
    assert seen == [1, 2, 3, 4, 5]
    assert await streams.pending("billing") == 0


async def test_a_zombie_reads_settles_and_acknowledges_nothing(streams):
    """Its lane and its claim were taken over while it was away."""
    await streams.add("k", 1)
    lane = lane_of("k", streams.lanes)
    old = consumer_of(streams, claim_lease=0.05)
    old.on("changed", topic="t")(fails)
    old_ledger, new_ledger = old._ledger(lane), old._ledger(lane)
    assert await old_ledger.hold(timedelta(seconds=0.05)) == []
    (message,) = (await old_ledger.read({"t": ">"}, 10)).messages
    assert [v.kind for v in await old_ledger.take([message])] == ["claimed"]
    await eventually(lambda: taken(new_ledger))
    with pytest.raises(LaneLost):
        await old_ledger.read({"t": ">"}, 10)
    (again,) = (await new_ledger.read({"t": "0"}, 10)).messages
    await eventually(lambda: suspected(new_ledger, again))
    assert [v.kind for v in await new_ledger.take([again], suspects=True)] == ["claimed"]
    assert await old_ledger.settle([message]) == [message]
    assert await old_ledger.keep([message]) == [message]
    assert not await old_ledger.attempt(message)
    assert await old_ledger.bury(message, "park", {}) == "lost"
    assert await streams.pending("billing") == 1
    assert await new_ledger.settle([again]) == []
    assert await streams.pending("billing") == 0
    assert again.fence > message.fence
    await old._redis.aclose()


async def taken(ledger) -> bool:
    return await ledger.hold(timedelta(seconds=10)) is not None


async def suspected(ledger, message) -> bool:
    return [v.kind for v in await ledger.take([message])] == ["suspect"]


async def test_an_emptied_redis_is_consumed_again_from_the_beginning(streams):
    """The group is made anew, at 0, while the consumer runs."""
    seen = []
    await streams.add("k", 1)
    consumer = consumer_of(streams, lane_lease=0.3)

    @consumer.on("changed", topic="t")
    async def handle(event: Event) -> None:
        seen.append(event.seq)

    running = asyncio.create_task(consumer.run())
    await eventually(lambda: equal(seen, [1]))
    for key in [key async for key in streams.redis.scan_iter(f"*{streams.name}*")]:
        await streams.redis.delete(key)
    await streams.open()
    await streams.add("k", 2)
    await eventually(lambda: equal(seen, [1, 2]))
    consumer.stop()
    await asyncio.wait_for(running, 5)


async def equal(found, expected) -> bool:
    return found == expected


async def test_stopping_lets_what_runs_finish_and_gives_the_rest_back(streams):
    """Nothing is lost, nothing is handled twice, and nobody has to wait for a lease."""
    began, finish, seen = asyncio.Event(), asyncio.Event(), []
    for seq in (1, 2, 3):
        await streams.add("k", seq)
    consumer = consumer_of(streams)

    @consumer.on("changed", topic="t")
    async def slow(event: Event) -> None:
        began.set()
        await finish.wait()
        seen.append(event.seq)

    running = asyncio.create_task(consumer.run())
    await began.wait()
    consumer.stop()
    await asyncio.sleep(0.05)
    finish.set()
    await asyncio.wait_for(running, 5)
    assert seen == [1]
    other = consumer_of(streams)

    @other.on("changed", topic="t")
    async def handle(event: Event) -> None:
        seen.append(event.seq)

    await drained(other)
    assert seen == [1, 2, 3]


async def test_an_inbox_that_forgets_too_soon_is_refused(streams):
    """Rows may be published again for as long as the outbox keeps them."""
    await streams.open(retention=8 * 86_400)
    consumer = consumer_of(streams)
    consumer.on("changed", topic="t")(fails)
    with pytest.raises(WindowTooShort, match="longer window"):
        await consumer.drain()


def test_handlers_that_cannot_be_are_refused_when_they_are_registered(streams_of_nobody):
    consumer = streams_of_nobody

    async def several(*events: Event) -> None: ...

    async def unknown(event: Nobody) -> None: ...  # noqa: F821

    for function in (several, unknown):
        with pytest.raises(BadHandler):
            consumer.on("changed", topic="t")(function)
    consumer.on("changed", topic="t")(fails)
    with pytest.raises(BadHandler, match="already"):
        consumer.on("changed", topic="t")(fails)


@pytest.fixture
async def streams_of_nobody(streams):
    return consumer_of(streams)


async def test_something_else_at_one_streams_key_stops_its_own_topic_only(streams):
    """The others are read."""
    seen = []
    await streams.redis.set(streams.stream("k", "broken"), "not a stream")
    await streams.add("k", 1)
    consumer = consumer_of(streams)
    consumer.on("changed", topic="broken")(fails)

    @consumer.on("changed", topic="t")
    async def handle(event: Event) -> None:
        seen.append(event.seq)

    running = asyncio.create_task(consumer.run())
    await eventually(lambda: equal(seen, [1]))
    await streams.add("k", 2)
    await eventually(lambda: equal(seen, [1, 2]))
    consumer.stop()
    await asyncio.wait_for(running, 10)
