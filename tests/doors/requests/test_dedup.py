"""A request that arrives twice is carried out once, and gets one reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from pydantic import BaseModel
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from inbox import (
    ClaimLost,
    IdempotencyConflictError,
    InProgressError,
    InvalidDuration,
    InvalidKey,
    InvalidOutcome,
    MemoryStore,
    RedisStore,
    Reply,
    RequestDedup,
    ResultNotStored,
    ResultUnavailable,
    StoreUnavailable,
    current_claim,
)
from inbox.metrics import Metrics
from outbox.errors import NotEncodable
from support import waiting
from support.proxy import Proxy, proxy
from support.web import until

ASKED = ("table-1", "user-7", "client-abc-123-456")


class Table:
    """Counts the actions that were taken on it."""

    def __init__(self) -> None:
        self.actions = 0
        self.go = asyncio.Event()
        self.go.set()

    async def act(self) -> dict[str, Any]:
        self.actions += 1
        await self.go.wait()
        return {"success": True, "action": {"type": "raise", "amount": 100}}


@pytest.fixture
def table() -> Table:
    return Table()


async def test_the_same_request_again_gets_the_same_reply_marked_cached(store, table):
    """The reply of the seed: the result's fields, and `cached` among them."""
    requests = RequestDedup(store)
    first = await requests.process(*ASKED, table.act)
    second = await requests.process(*ASKED, table.act)
    assert table.actions == 1
    assert (first.cached, second.cached) == (False, True)
    assert first.result == second.result
    assert second.marked() == {
        "success": True,
        "cached": True,
        "action": {"type": "raise", "amount": 100},
    }
    assert first.marked()["cached"] is False


async def test_a_request_is_told_by_entity_user_and_id(store, table):
    """Another table, user or id is another request, wherever the colons are."""
    requests = RequestDedup(store)
    triples = [
        ("t", "u", "r"),
        ("x", "u", "r"),
        ("t", "x", "r"),
        ("t", "u", "x"),
        ("a:b", "c", "d"),
        ("a", "b:c", "d"),
        ("a", "b", "c:d"),
        ("1:a", "b", "c"),
        ("T", "u", "r"),
    ]
    for triple in triples:
        assert not (await requests.process(*triple, table.act)).cached
    assert table.actions == len(triples)


async def test_numbers_and_uuids_are_ids_too(store, table):
    """The same as their text."""
    requests, number = RequestDedup(store), UUID(int=7)
    await requests.process(1, number, 3, table.act)
    assert (await requests.process("1", str(number), "3", table.act)).cached


@pytest.mark.parametrize("bad", ["", None, True, 1.5, b"x", "\ud800"])
@pytest.mark.parametrize("place", [0, 1, 2])
async def test_what_is_no_id_is_refused(store, table, bad, place):
    """Before anything is done."""
    triple: list[Any] = ["t", "u", "r"]
    triple[place] = bad
    with pytest.raises(InvalidKey):
        await RequestDedup(store).process(*triple, table.act)
    assert table.actions == 0


async def test_replies_are_kept_for_five_minutes(store, table):
    """The seed's ttl."""
    requests = RequestDedup(store)
    await requests.process(*ASKED, table.act)
    record = await store.peek(requests._place(requests.key(*ASKED)))
    assert record is not None
    assert record.completed_at is not None
    assert record.expires_at - record.completed_at == pytest.approx(300)


async def test_after_its_time_a_request_is_new(store, table):
    """A ttl of less than a second works."""
    requests = RequestDedup(store, ttl=timedelta(milliseconds=20))
    await requests.process(*ASKED, table.act)

    async def ran_again() -> bool:
        return not (await requests.process(*ASKED, table.act)).cached

    await waiting.until(ran_again)
    assert table.actions == 2


async def test_of_fifty_at_once_one_is_carried_out(store, table):
    """The others wait, and get its result."""
    requests = RequestDedup(store, wait_timeout=15)
    replies = await asyncio.gather(*[requests.process(*ASKED, table.act) for _ in range(50)])
    assert table.actions == 1
    assert sorted(reply.cached for reply in replies) == [False] + [True] * 49
    assert all(reply.result == replies[0].result for reply in replies)


async def test_who_waited_in_vain_is_told(store, table):
    """The first one goes on undisturbed."""
    table.go.clear()
    requests = RequestDedup(store, wait_timeout=0.02)
    first = asyncio.create_task(requests.process(*ASKED, table.act))
    await until(lambda: table.actions)
    with pytest.raises(InProgressError) as caught:
        await requests.process(*ASKED, table.act)
    assert timedelta(0) < caught.value.retry_after <= timedelta(seconds=60)
    table.go.set()
    assert not (await first).cached


async def test_a_handler_that_raises_may_be_tried_again(store, table):
    """With its own error."""
    requests = RequestDedup(store)

    async def fail() -> None:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await requests.process(*ASKED, fail)
    assert not (await requests.process(*ASKED, table.act)).cached


async def test_a_handler_that_is_cancelled_may_be_tried_again(store, table):
    """At once, not only when the lease ends."""
    requests = RequestDedup(store)
    table.go.clear()
    running = asyncio.create_task(requests.process(*ASKED, table.act))
    await until(lambda: table.actions)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    table.go.set()
    assert not (await requests.process(*ASKED, table.act)).cached


async def test_the_same_id_with_another_payload_is_a_conflict(store, table):
    """Also while the first one runs; the order of keys does not matter."""
    requests = RequestDedup(store)
    table.go.clear()
    payload = {"actionType": "raise", "amount": 100}
    first = asyncio.create_task(requests.process(*ASKED, table.act, payload=payload))
    await until(lambda: table.actions)
    other = {"actionType": "raise", "amount": 200}
    with pytest.raises(IdempotencyConflictError):
        await requests.process(*ASKED, table.act, payload=other)
    table.go.set()
    await first
    with pytest.raises(IdempotencyConflictError):
        await requests.process(*ASKED, table.act, payload=other)
    turned = {"amount": 100, "actionType": "raise"}
    assert (await requests.process(*ASKED, table.act, payload=turned)).cached


@dataclass
class Bet:
    amount: int
    id: UUID


class Fold(BaseModel):
    seat: int


@pytest.mark.parametrize("result", [Bet(5, UUID(int=1)), Fold(seat=3)])
async def test_results_have_the_type_that_is_asked_for(store, result):
    """In every reply, the first one too."""
    requests = RequestDedup(store)

    async def act() -> Any:
        return result

    first = await requests.process(*ASKED, act, result_type=type(result))
    second = await requests.process(*ASKED, act, result_type=type(result))
    assert first.result == second.result == result
    assert second.marked()["cached"] is True


@pytest.mark.parametrize("result", [None, False, 0, "", [], {}, 7, [1, 2], b"\0\xff"])
async def test_every_result_is_kept(store, result):
    """Nothing that is false counts as missing; without a type, as JSON reads it."""
    requests, calls = RequestDedup(store), []

    async def act() -> Any:
        calls.append(1)
        return result

    first, second = await requests.process(*ASKED, act), await requests.process(*ASKED, act)
    assert (first.result, calls) == (second.result, [1])
    assert second.cached
    if not isinstance(result, dict):
        assert second.marked() == {"result": second.result, "cached": True}


async def test_a_result_that_cannot_be_kept_is_given_once(store):
    """The work is done: not again, and not another answer."""
    requests, result = RequestDedup(store), object()

    async def act() -> object:
        return result

    with pytest.warns(ResultNotStored):
        reply = await requests.process(*ASKED, act)
    assert reply == Reply(result, cached=False)
    with pytest.raises(ResultUnavailable):
        await requests.process(*ASKED, act)


async def test_check_and_set_keeps_the_first_result(store):
    """None if it was set, the kept one if there was one."""
    requests = RequestDedup(store)
    key = requests.key(*ASKED)
    assert await requests.check_and_set(key, {"amount": 100}) is None
    assert await requests.check_and_set(key, {"amount": 200}) == {"amount": 100}
    assert await requests.check_and_set("another", {"amount": 200}) is None


async def test_of_fifty_that_check_and_set_one_sets(store):
    """The seed's get-then-set lets several in."""
    requests = RequestDedup(store, wait_timeout=15)
    found = await asyncio.gather(*[requests.check_and_set("k", [n]) for n in range(50)])
    (winner,) = [n for n, it in enumerate(found) if it is None]
    assert [it for it in found if it is not None] == [[winner]] * 49


async def test_check_and_set_and_process_share_a_key(store, table):
    """So a service can move from one to the other."""
    requests = RequestDedup(store)
    await requests.check_and_set(requests.key(*ASKED), {"x": 1})
    assert (await requests.process(*ASKED, table.act)).result == {"x": 1}


@pytest.mark.parametrize("falsy", [False, 0, "", [], {}])
async def test_check_and_set_knows_what_is_false_from_what_is_missing(store, falsy):
    """None alone means: was not there."""
    requests = RequestDedup(store)
    assert await requests.check_and_set("k", falsy) is None
    assert await requests.check_and_set("k", 1) == falsy


async def test_check_and_set_refuses_what_it_cannot_keep(store):
    """And leaves the key free."""
    requests = RequestDedup(store)
    with pytest.raises(InvalidOutcome):
        await requests.check_and_set("k", None)
    with pytest.raises(NotEncodable):
        await requests.check_and_set("k", object())
    assert await requests.check_and_set("k", 1) is None


async def test_long_work_keeps_its_claim(store, table):
    """Many leases long."""
    requests = RequestDedup(store, lease=0.1, wait_timeout=0.4)
    table.go.clear()
    first = asyncio.create_task(requests.process(*ASKED, table.act))
    await until(lambda: table.actions)
    with pytest.raises(InProgressError):
        await requests.process(*ASKED, table.act)
    table.go.set()
    await first
    assert table.actions == 1


async def test_a_claim_that_was_taken_over_is_told(store, table):
    """Two ran; the other's reply stands."""
    requests = RequestDedup(store)

    async def act() -> str:
        held = current_claim()
        assert held is not None
        await store.forget(held.key)
        await requests.process(*ASKED, table.act)
        return "mine"

    with pytest.raises(ClaimLost):
        await requests.process(*ASKED, act)
    assert (await requests.process(*ASKED, table.act)).result["success"]


async def test_names_keep_kinds_of_requests_apart(store, table):
    """In one store."""
    assert not (await RequestDedup(store, name="a").process(*ASKED, table.act)).cached
    assert not (await RequestDedup(store, name="b").process(*ASKED, table.act)).cached


@pytest.fixture
async def bad_network(redis_url: str) -> AsyncIterator[Proxy]:
    async with proxy(redis_url) as made:
        yield made


@pytest.fixture
async def fragile(bad_network: Proxy) -> AsyncIterator[RequestDedup]:
    async with Redis.from_url(bad_network.url, retry=Retry(NoBackoff(), 0)) as redis:
        yield RequestDedup(RedisStore(redis, prefix=f"{uuid4().hex}:"))


async def test_without_the_store_nothing_is_done(bad_network, fragile, table):
    """The caller decides what to tell."""
    await bad_network.close()
    with pytest.raises(StoreUnavailable):
        await fragile.process(*ASKED, table.act)
    assert table.actions == 0


async def test_a_store_that_goes_away_meanwhile_does_not_hide_the_result(bad_network, fragile):
    """The caller gets it: an error would make him try again what has happened."""

    async def act() -> str:
        await bad_network.close()
        return "done"

    reply = await fragile.process(*ASKED, act)
    assert reply == Reply("done", cached=False)


async def test_an_error_is_told_also_when_the_claim_cannot_be_given_back(bad_network, fragile):
    """With a note that says until when the request is refused."""

    async def act() -> str:
        await bad_network.close()
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken") as caught:
        await fragile.process(*ASKED, act)
    assert "could not be given back" in caught.value.__notes__[0]


@pytest.mark.parametrize("problem", [None, RuntimeError("broken")])
async def test_a_cancellation_at_the_end_loses_nothing(redis_url, table, problem):
    """Cancelled at any step after the handler's end, before the store has heard of it: a result
    counts, and what failed may be tried again at once."""
    async with Redis.from_url(redis_url) as redis:
        requests = RequestDedup(RedisStore(redis, prefix=f"{uuid4().hex}:"), wait_timeout=0.01)
        for steps in range(30):
            ended = asyncio.Event()

            async def act(ended: asyncio.Event = ended) -> str:
                await redis.connection_pool.disconnect()  # the store has to be reached anew
                ended.set()
                if problem:
                    raise problem
                return "done"

            task = asyncio.create_task(requests.process("t", "u", steps, act))
            await ended.wait()
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            again = await requests.process("t", "u", steps, table.act)
            assert again.cached is (problem is None), steps


class SlowRenewals(MemoryStore):
    """Renews when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.renewing, self.go = asyncio.Event(), asyncio.Event()

    async def renew(self, *args: Any) -> bool:
        self.renewing.set()
        await self.go.wait()
        return await super().renew(*args)


async def test_a_cancellation_while_the_heartbeat_stops_loses_no_result(table):
    """The handler has ended; only a renewal is still under way."""
    store = SlowRenewals()
    requests = RequestDedup(store, lease=0.3)

    async def act() -> str:
        await store.renewing.wait()
        return "done"

    task = asyncio.create_task(requests.process(*ASKED, act))
    await store.renewing.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    store.go.set()
    assert (await requests.process(*ASKED, table.act)).result == "done"


async def test_hits_misses_conflicts_waits_and_failures_are_counted(store, table, registry):
    """The seed's hit rate is hits by all."""
    requests = RequestDedup(store, metrics=Metrics(registry), name="actions", wait_timeout=0.01)

    async def fail() -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        await requests.process(*ASKED, fail)
    table.go.clear()
    first = asyncio.create_task(requests.process(*ASKED, table.act))
    await until(lambda: table.actions)
    with pytest.raises(InProgressError):
        await requests.process(*ASKED, table.act)
    with pytest.raises(IdempotencyConflictError):
        await requests.process(*ASKED, table.act, payload=1)
    table.go.set()
    await first
    await requests.process(*ASKED, table.act)
    expected = {"miss": 2, "failed": 1, "wait": 1, "busy": 1, "conflict": 1, "hit": 1}
    assert registry.outcomes("actions") == expected
    labels = {"door": "request", "name": "actions"}
    assert registry.get_sample_value("inbox_processing_seconds_count", labels) == 2


def test_bad_settings_are_refused_at_once(store):
    """Durations of nothing."""
    for setting in ("ttl", "lease", "wait_timeout"):
        with pytest.raises(InvalidDuration, match=setting):
            RequestDedup(store, **{setting: 0})
