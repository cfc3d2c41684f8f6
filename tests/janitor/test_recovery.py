"""Entries of dead consumers are handed to living ones."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

from outbox import layout
from projector.janitor.consumers import Departed
from support.groups import AT_ONCE, LANE
from support.waiting import until

A_MOMENT = timedelta(milliseconds=50)


async def test_entries_of_a_consumer_that_is_gone_are_handed_to_one_that_lives(groups, caplog):
    """Without a delivery, and with a warning that names each."""
    await groups.create("ours")
    await groups.live("ours", "alive")
    await groups.greet("ours", "alive")
    ids = await groups.add(3)
    await groups.read("ours", 2, "dead")
    await groups.read("ours", 1, "alive")
    assert await groups.recover() == 2
    assert await groups.pending("ours") == dict.fromkeys(ids, "alive")
    found = await groups.redis.xpending_range(groups.stream, "ours", "-", "+", 10)
    assert {entry["times_delivered"] for entry in found} == {1}
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [(r.entry, vars(r)["from"], r.to) for r in warned] == [
        (entry, "dead", "alive") for entry in ids[:2]
    ]
    assert all(record.idle_seconds >= 0 for record in warned)
    assert await groups.recover() == 0


async def test_many_entries_go_page_by_page(groups):
    """All of them, also those behind entries of the living."""
    await groups.create("ours")
    await groups.live("ours", "alive")
    await groups.add(450)
    await groups.read("ours", 150, "alive")
    await groups.read("ours", 300, "dead")
    assert await groups.recover() == 300
    assert set((await groups.pending("ours")).values()) == {"alive"}


async def test_a_slow_consumer_that_lives_keeps_its_entries(groups):
    """However long they take: it says that it is alive."""
    await groups.create("ours")
    await groups.live("ours", "slow", "other")
    await groups.add(2)
    await groups.read("ours", 1, "slow")
    await groups.read("ours", 1, "other")
    assert await groups.recover() == 0


async def test_entries_wait_until_they_are_idle(groups):
    """Their consumer may just have started to work on them."""
    await groups.create("ours")
    await groups.live("ours", "alive")
    await groups.greet("ours", "alive")
    await groups.add(1)
    await groups.read("ours", 1, "dead")
    assert await groups.recover(timedelta(minutes=5)) == 0


async def test_ordered_lanes_are_left_alone(groups):
    """They recover by takeover: neither their consumer's entries, nor anything while a lease is
    held. And nothing is given to their consumer."""
    await groups.create("ours")
    await groups.live("ours", "alive")
    await groups.greet("ours", "alive")
    ids = await groups.add(2)
    await groups.read("ours", 1, layout.LANE_CONSUMER)
    await groups.read("ours", 1, "dead")
    lease = layout.lease(groups.name, LANE, "ours")
    await groups.redis.set(lease, "somebody")
    assert await groups.recover() == 0
    await groups.redis.delete(lease)
    assert await groups.recover() == 1
    assert await groups.pending("ours") == {ids[0]: "@lane", ids[1]: "alive"}


async def test_the_consumer_of_a_lane_is_nobodys_heir(groups):
    """Also if it is the only one there."""
    await groups.create("ours")
    await groups.live("ours", "@lane")
    await groups.add(2)
    await groups.read("ours", 1, "@lane")
    await groups.read("ours", 1, "dead")
    assert await groups.recover() == 0


async def test_groups_of_other_clients_are_asked_for(groups):
    """Who lives is told by when it was seen last; without anyone alive, entries stay."""
    await groups.create("plain", "strangers")
    await groups.add(2)
    for group in ("plain", "strangers"):
        await groups.read(group, 2, "dead")
    await asyncio.sleep(A_MOMENT.total_seconds())
    assert await groups.recover(A_MOMENT) == 0
    await groups.add(1)
    for group in ("plain", "strangers"):
        await groups.acknowledge(group, await groups.read(group, 1, "alive"))
    assert await groups.recover(A_MOMENT) == 2
    assert set((await groups.pending("plain")).values()) == {"alive"}
    assert set((await groups.pending("strangers")).values()) == {"dead"}


async def test_a_pending_entry_that_is_gone_is_a_loss(groups, caplog):
    """Nobody can handle it: it is acknowledged, counted once, and told loudly."""
    await groups.create("ours")
    await groups.live("ours", "alive")
    await groups.greet("ours", "alive")
    ids = await groups.add(3)
    await groups.read("ours", 3, "dead")
    await groups.redis.xdel(groups.stream, ids[1])
    assert await groups.recover() == 2
    assert set(await groups.pending("ours")) == {ids[0], ids[2]}
    assert [r.events for r in caplog.records if r.levelno == logging.ERROR] == [1]
    assert groups.problems() == [
        "at least 1 entries were gone before group ours had them (pending)"
    ]
    assert b'projector_entries_lost_total{lane="0",reason="pending",topic="t"} 1.0' in (
        groups.telemetry.render()
    )


async def test_consumers_that_are_gone_are_removed(groups):
    """Not one with something pending, nor that of an ordered lane, nor one that was seen."""
    await groups.create("a", "b")
    await groups.greet("a", "done")
    await groups.greet("a", "@lane")
    await groups.acknowledge("b", await groups.read("b", 1, "idle"))
    await groups.read("b", 1, "busy")
    assert await Departed(groups.redis, timedelta(hours=1)).remove(LANE, [groups.stream]) == 0
    await until(lambda: idle_for_long(groups))
    assert await Departed(groups.redis, AT_ONCE).remove(LANE, [groups.stream]) == 2
    assert await groups.consumers("a") == {"@lane"}
    assert await groups.consumers("b") == {"busy"}
    assert len(await groups.pending("b")) == 1


async def idle_for_long(groups) -> bool:
    found = await groups.redis.xinfo_consumers(groups.stream, "b")
    return all(consumer["idle"] > 0 for consumer in found)
