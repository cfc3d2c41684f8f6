"""The named traps of reading committed rows: each has cost events in some relay."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from projector.position import StaleSnapshot
from projector.relay import Relay
from projector.source.postgres import InTransaction
from support.lanes import Pipeline
from support.waiting import until


async def head(pipe: Pipeline, relay: Relay) -> None:
    """Publishes a row of its own, so that every id drawn before now lies below the lane's head."""
    await pipe.write(await pipe.connect(), f"head-{uuid4().hex[:6]}", 1, topic="heads")
    assert await pipe.turn(relay) >= 1


@pytest.mark.parametrize("batch", [1, 1000])
@pytest.mark.parametrize("looks_between", [False, True])
async def test_a_key_is_published_in_the_order_of_its_commits(pipe, looks_between, batch):
    """Whoever held the key's lock first comes first, although the other one began before it."""
    relay = await pipe.loaded(batch=batch)
    early, late = await pipe.begin(), await pipe.begin()
    await late.execute("select pg_advisory_xact_lock(1)")
    await pipe.write(late, "k", 1)
    await late.execute("commit")
    if looks_between:
        assert await pipe.turn(relay) == 1
    await early.execute("select pg_advisory_xact_lock(1)")
    await pipe.write(early, "k", 2)
    await early.execute("commit")
    await pipe.settle(relay)
    assert await pipe.seqs() == {"k": [1, 2]}


async def test_a_running_transaction_that_no_snapshot_lists_is_not_forgotten(pipe):
    """Its xid lies at or above the snapshot's xmax, and its row below what is published already."""
    relay = await pipe.loaded()
    lower, higher = await pipe.begin(), await pipe.begin()
    xid = int(await higher.fetchval("select pg_current_xact_id()::text"))
    await pipe.write(higher, "higher", 1)
    await pipe.write(lower, "lower", 1)
    await lower.execute("commit")
    assert await pipe.turn(relay) == 1
    base = relay.state.main.base
    assert base.snapshot.xmax <= xid < base.next_xid
    await pipe.write(higher, "higher", 2)
    await higher.execute("commit")
    assert await pipe.turn(relay) == 2
    assert await pipe.seqs() == {"lower": [1], "higher": [1, 2]}


async def test_a_long_transaction_delays_only_its_own_events(pipe):
    """Others of the lane flow while it is open; its own come when it commits, once."""
    relay = await pipe.loaded()
    slow, quick = await pipe.begin(), await pipe.connect()
    for seq in range(1, 6):
        await pipe.write(slow, "slow", seq)
        await pipe.write(quick, "quick", seq)
        assert await pipe.turn(relay) == 1
    assert await pipe.seqs() == {"quick": [1, 2, 3, 4, 5]}
    await slow.execute("commit")
    await pipe.settle(relay)
    assert await pipe.seqs() == {"quick": [1, 2, 3, 4, 5], "slow": [1, 2, 3, 4, 5]}


async def test_what_commits_after_the_look_waits_for_the_next(pipe):
    """Read in this window already, it would be published again in the one that it belongs to."""
    relay, writer = await pipe.loaded(), await pipe.connect()
    slow = await pipe.begin()
    await pipe.write(slow, "slow", 1)
    await head(pipe, relay)
    await pipe.write(writer, "k", 1)
    moment = await pipe.source.look()
    await slow.execute("commit")
    await pipe.write(writer, "k", 2)
    assert await relay.advance(moment) == 1
    assert await pipe.seqs() == {"k": [1]}
    await pipe.settle(relay)
    assert await pipe.seqs() == {"k": [1, 2], "slow": [1]}


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_prepared_transaction_counts_when_it_is_committed(pipe, end):
    """Prepared before the lane moved on and ended after it, on another connection."""
    relay = await pipe.loaded()
    name = uuid4().hex
    prepared = await pipe.begin()
    await pipe.write(prepared, "k", 1)
    await prepared.execute(f"prepare transaction '{name}'")
    await prepared.close()
    await head(pipe, relay)
    assert await pipe.seqs() == {}
    await (await pipe.connect()).execute(f"{end} prepared '{name}'")
    await head(pipe, relay)
    assert await pipe.seqs() == ({"k": [1]} if end == "commit" else {})


async def test_savepoints_belong_to_their_transaction(pipe):
    """What a savepoint wrote comes if it was released, and not if it was rolled back."""
    relay = await pipe.loaded()
    writer = await pipe.connect()
    await writer.execute("begin; savepoint kept")
    await pipe.write(writer, "k", 1)
    await writer.execute("release kept; savepoint dropped; savepoint nested")
    await pipe.write(writer, "k", 2)
    await head(pipe, relay)
    await writer.execute("release nested; rollback to dropped")
    await pipe.write(writer, "k", 2)
    await writer.execute("savepoint last")
    await pipe.write(writer, "k", 3)
    await head(pipe, relay)
    await writer.execute("commit")
    await pipe.settle(relay)
    assert await pipe.seqs() == {"k": [1, 2, 3]}


async def test_rows_that_are_the_first_write_of_their_transaction(pipe):
    """One statement, no BEGIN, and half of its rows lie below what is published meanwhile."""
    relay = await pipe.loaded()
    gate, writer, watcher = await pipe.begin(), await pipe.connect(), await pipe.connect()
    await gate.execute("select pg_advisory_xact_lock(2)")
    pid = await writer.fetchval("select pg_backend_pid()")
    writing = asyncio.create_task(
        writer.execute(
            """insert into outbox (lane, event_id, topic, type, key, seq, data, content_type)
            select 0, gen_random_uuid(), 't',
                   case when n = 3 then 'c' || pg_advisory_xact_lock(2)::text else 'c' end,
                   'k', n, '{}', 'application/json'
              from generate_series(1, 4) n"""
        )
    )
    waits = "select wait_event_type = 'Lock' from pg_stat_activity where pid = $1"
    await until(lambda: watcher.fetchval(waits, pid))
    await head(pipe, relay)
    await gate.execute("commit")
    await writing
    await pipe.settle(relay)
    assert await pipe.seqs() == {"k": [1, 2, 3, 4]}
    order = await watcher.fetch("select topic from outbox order by id")
    assert [row["topic"] for row in order] == ["t", "t", "heads", "t", "t"]


@pytest.mark.parametrize("begin", ["begin", "begin isolation level repeatable read read only"])
async def test_no_window_is_opened_inside_a_transaction(pipe, begin):
    """Its bound of running transactions would be as old as the transaction."""
    await pipe.source._connection.execute(begin)
    with pytest.raises(InTransaction):
        await pipe.source.look()
    await pipe.source._connection.execute("rollback")
    await pipe.source.look()


async def test_a_moment_older_than_the_position_is_refused(pipe):
    """A look that was taken before the lane moved on publishes nothing, and moves nothing back."""
    relay, writer = await pipe.loaded(), await pipe.connect()
    stale = await pipe.source.look()
    await pipe.write(writer, "k", 1)
    assert await pipe.turn(relay) == 1
    await pipe.write(writer, "k", 2)
    with pytest.raises(StaleSnapshot):
        await relay.advance(stale)
    assert await pipe.seqs() == {"k": [1]}
    assert await pipe.turn(relay) == 1
    assert await pipe.seqs() == {"k": [1, 2]}


@pytest.mark.parametrize("batch", [1, 2, 3])
async def test_late_rows_and_fresh_rows_share_pages(pipe, batch):
    """Any number of late rows before any number of fresh ones: all come, late ones first, once."""
    relay = await pipe.loaded(batch=batch)
    writer = await pipe.connect()
    expected = {}
    for late in range(5):
        for fresh in range(4):
            key = f"{late}-{fresh}"
            slow = await pipe.begin()
            for seq in range(1, late + 1):
                await pipe.write(slow, key, seq)
            await pipe.write(writer, "heads", len(expected) + 1)
            await pipe.settle(relay)
            await slow.execute("commit")
            for seq in range(late + 1, late + fresh + 1):
                await pipe.write(writer, key, seq)
            await pipe.settle(relay)
            await slow.close()
            expected[key] = list(range(1, late + fresh + 1))
    found = await pipe.seqs()
    assert found.pop("heads") == list(range(1, len(expected) + 1))
    assert found == {key: seqs for key, seqs in expected.items() if seqs}


@pytest.mark.parametrize("batch", [1, 2, 3])
async def test_late_rows_of_several_transactions_are_merged(pipe, batch):
    """Their ids alternate, and a page ends in the middle: none is stepped over."""
    relay = await pipe.loaded(batch=batch)
    transactions = [await pipe.begin() for _ in range(3)]
    for seq in range(1, 4):
        for number, transaction in enumerate(transactions):
            await pipe.write(transaction, f"k{number}", seq)
    await head(pipe, relay)
    for transaction in transactions:
        await transaction.execute("commit")
    await pipe.write(await pipe.connect(), "k0", 4)
    await pipe.settle(relay)
    assert await pipe.seqs() == {"k0": [1, 2, 3, 4], "k1": [1, 2, 3], "k2": [1, 2, 3]}


async def test_large_rows_are_published_in_smaller_batches(own_pipe, own_valkey):
    """No request is larger than the limit, unless by one row; all rows come, in order."""
    relay = await own_pipe.loaded(batch_bytes=1000)
    sizes = [10, 400, 400, 400, 5000, 10, 999, 1, 1, 600, 600]
    await (await own_pipe.connect()).executemany(
        """insert into outbox (lane, event_id, topic, type, key, seq, data, content_type)
        select 0, gen_random_uuid(), 't', 'c', 'k', $1, convert_to(repeat('x', $2), 'utf8'), 'b'""",
        list(enumerate(sizes, 1)),
    )
    own_valkey.execute("CONFIG", "RESETSTAT")
    await own_pipe.settle(relay)
    entries = await own_pipe.redis.xrange(f"{{{own_pipe.name}:0}}:t")
    assert [len(entry[b"data"]) for _, entry in entries] == sizes
    assert await own_pipe.seqs() == {"k": list(range(1, len(sizes) + 1))}
    batches = [[10, 400, 400], [400], [5000], [10], [999, 1], [1, 600], [600]]
    asked = own_valkey.execute("INFO", "commandstats")["cmdstat_evalsha"]
    assert asked["calls"] == len(batches)
