"""Checkpoints, pruning, due events: what happens beside relaying."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families

from outbox import layout
from projector import keys
from projector.checkpoint import PUBLISHED, Checkpoints, Hole
from projector.lane import LaneState
from projector.origin import OtherDatabase
from projector.position import Origin, Position
from projector.telemetry import Telemetry
from projector.topology import Topic
from support.house import House, command
from support.letters import Work
from support.streams import Streams

TOMORROW = datetime.now(UTC) + timedelta(days=2)


async def test_without_groups_what_is_published_and_old_is_pruned(house):
    """Not what is young, and not what is not published."""
    relay = await house.relay()
    await house.publish(relay, 1, 2)
    await house.pipe.write(house.connection, "k", 3)
    assert await house.pruner.prune(0) == 0
    assert await house.pruner.prune(0, TOMORROW) == 2
    assert await house.left() == [3]


async def test_rows_wait_for_every_group(house):
    """A group that has acknowledged less, or has entries pending, holds them back."""
    relay = await house.relay()
    await house.publish(relay, 1, 2)
    for group in ("billing", "mail"):
        await house.pipe.redis.xgroup_create(house.stream, group, "0")
    await house.janitor.checkpoint(relay)
    assert await house.pruner.prune(0, TOMORROW) == 0
    await house.publish(relay, 3, 4)
    await house.consume("billing", 4)
    await house.consume("mail", 2)
    await house.consume("mail", 1, acknowledge=False)
    await house.janitor.checkpoint(relay)
    assert await house.pruner.prune(0, TOMORROW) == 2
    assert await house.left() == [3, 4]
    await house.consume("mail", 1)
    await house.janitor.checkpoint(relay)
    assert await house.pruner.prune(0, TOMORROW) == 0
    await house.pipe.redis.xack(house.stream, "mail", *await pending(house, "mail"))
    await house.janitor.checkpoint(relay)
    assert await house.pruner.prune(0, TOMORROW) == 2


async def pending(house, group: str) -> list[bytes]:
    found = await house.pipe.redis.xpending_range(house.stream, group, "-", "+", 10)
    return [entry["message_id"] for entry in found]


async def test_a_dropped_group_holds_nothing_back(house):
    """Forgetting it in the database is enough."""
    relay = await house.relay()
    await house.publish(relay, 1)
    await house.pipe.redis.xgroup_create(house.stream, "gone", "0")
    await house.janitor.checkpoint(relay)
    assert await house.pruner.prune(0, TOMORROW) == 0
    await house.pipe.redis.xgroup_destroy(house.stream, "gone")
    await house.checkpoints.drop_group("gone")
    assert await house.pruner.prune(0, TOMORROW) == 1


async def test_rows_of_a_transaction_that_commits_late_are_not_pruned_unpublished(house):
    """Their ids lie below the head, but the checkpoint has not seen them."""
    relay = await house.relay()
    late = await house.pipe.connect()
    transaction = late.transaction()
    await transaction.start()
    await house.pipe.write(late, "late", 1)
    await house.publish(relay, 1, 2)
    await transaction.commit()
    await late.close()
    assert await house.pruner.prune(0, TOMORROW) == 2
    assert await house.left() == [1]
    await house.publish(relay)
    assert (await house.pipe.seqs())["late"] == [1]


async def test_an_emptied_redis_resumes_where_the_oldest_group_stood(house):
    """Not at the beginning of time, and before everything that was not acknowledged."""
    relay = await house.relay()
    await house.publish(relay, 1, 2)
    await house.pipe.redis.xgroup_create(house.stream, "billing", "0")
    await house.consume("billing", 2)
    await house.janitor.checkpoint(relay)
    await house.publish(relay, 3)
    names = [f"{{{house.pipe.name}:0}}:{key}" for key in ("t", "@position", "@tops")]
    await house.pipe.redis.delete(*names)
    relay = await house.relay()
    await house.pipe.turn(relay)
    assert await house.pipe.seqs() == {"k": [3]}


async def test_a_promotion_rewinds_to_the_databases_own_checkpoint(house):
    """And to the start if there is none; another database is refused."""
    relay = await house.relay()
    await house.publish(relay, 1, 2)
    await house.publish(relay, 3)
    stored = relay.state
    saved = (await house.checkpoints.load(0))[PUBLISHED]
    promoted = Origin(stored.main.origin.system, "00000002")
    after = Checkpoints(house.checkpoints.engine, house.pipe.outbox.tables, promoted)
    fitted = await after.fit(0, stored)
    assert (fitted.main.origin, fitted.main.base) == (promoted, saved.base)
    assert fitted.main.epoch != stored.main.epoch
    assert (await after.fit(7, stored)).main.head == 0
    restored = Checkpoints(
        house.checkpoints.engine, house.pipe.outbox.tables, Origin("another", "00000001")
    )
    with pytest.raises(OtherDatabase, match="projector rebase"):
        await restored.fit(0, LaneState(Position(promoted, "e1")))


async def test_groups_are_listed_and_dropped(house, redis_url):
    """A group that nobody runs any more is retired in Redis and in the database."""
    relay = await house.relay()
    await house.publish(relay, 1)
    await house.pipe.redis.xgroup_create(house.stream, "gone", "0")
    await house.janitor.checkpoint(relay)
    assert command(house, redis_url, "groups", "list") == "t: gone\n"
    assert "from 1 streams" in command(house, redis_url, "groups", "drop", "gone")
    await house.janitor.checkpoint(relay)
    assert command(house, redis_url, "groups", "list") == ""
    assert await house.pruner.prune(0, TOMORROW) == 1


async def test_a_rebase_publishes_what_is_retained_again(house, redis_url):
    """After a restore or a move: the stored state speaks of another database."""
    relay = await house.relay()
    await house.publish(relay, 1, 2)
    foreign = Position(Origin("another", "00000001"), "e1", head=99)
    await house.pipe.redis.set(keys.position(house.pipe.name, 0), str(LaneState(foreign)))
    with pytest.raises(OtherDatabase):
        await house.relay()
    assert "rebased 1 lanes" in command(house, redis_url, "rebase")
    await house.pipe.turn(await house.relay())
    assert await house.pipe.seqs() == {"k": [1, 2, 1, 2]}


async def test_a_redis_from_before_what_is_pruned_stops_the_lane(house, redis_url):
    """What lies between is gone for good: nothing is skipped in silence, and `rebase` goes on."""
    relay = await house.relay()
    await house.publish(relay, 1)
    old = await house.pipe.redis.get(keys.position(house.pipe.name, 0))
    await house.publish(relay, 2, 3)
    assert await house.pruner.prune(0, TOMORROW) == 3
    await house.publish(relay, 4)
    await house.pipe.redis.set(keys.position(house.pipe.name, 0), old)
    with pytest.raises(Hole, match="projector rebase"):
        await house.relay()
    command(house, redis_url, "rebase")
    await house.pipe.turn(await house.relay())
    assert (await house.pipe.seqs())["k"][-1] == 4


async def test_a_redis_that_lost_its_last_writes_is_not_stopped_by_pruning(house):
    """Rows go after a day; a position that fell back by a second has long published them."""
    relay = await house.relay()
    await house.publish(relay, 1, 2)
    assert await house.pruner.prune(0, TOMORROW) == 2
    before = await house.pipe.redis.get(keys.position(house.pipe.name, 0))
    await house.publish(relay, 3)
    await house.pipe.redis.set(keys.position(house.pipe.name, 0), before)
    await house.pipe.turn(await house.relay())
    assert (await house.pipe.seqs())["k"] == [1, 2, 3, 3]


async def test_what_redis_lost_is_counted_in_the_log(house, caplog):
    """Also when nobody remembers where the lane stood but the database."""
    relay = await house.relay()
    await house.publish(relay, 1)
    before = await house.pipe.redis.get(keys.position(house.pipe.name, 0))
    await house.publish(relay, 2, 3)
    await house.pipe.redis.set(keys.position(house.pipe.name, 0), before)
    await relay.save()
    await house.relay()
    lost = [record.events for record in caplog.records if "lost events" in record.message]
    assert lost == [2, 2]


async def test_after_a_promotion_and_a_loss_in_redis_the_older_one_counts(house):
    """The checkpoint may know of events that Redis has lost again."""
    relay = await house.relay()
    await house.publish(relay, 1)
    old = relay.state
    await house.publish(relay, 2, 3)
    promoted = Origin(old.main.origin.system, "00000002")
    after = Checkpoints(house.checkpoints.engine, house.pipe.outbox.tables, promoted)
    assert (await after.fit(0, old)).main.base == old.main.base
    # A checkpoint that was written after the promotion cannot tell where the two parted.
    moved = replace(relay.state.main, origin=promoted)
    await after.save(0, {PUBLISHED: moved})
    assert (await after.fit(0, old)).main.head == 0


async def test_a_group_that_lags_too_long_is_given_up_if_so_wished(house, caplog):
    """`keep_at_most`: what is deleted without its acknowledgement is reported."""
    relay = await house.relay()
    await house.publish(relay, 1, 2)
    await house.pipe.redis.xgroup_create(house.stream, "slow", "0")
    await house.janitor.checkpoint(relay)
    await house.pipe.write(house.connection, "k", 3)
    patient = replace(house.pruner, keep_at_most=timedelta(days=3))
    assert await patient.prune(0, TOMORROW) == 0
    impatient = replace(house.pruner, keep_at_most=timedelta(days=1))
    assert await impatient.prune(0, TOMORROW) == 2
    assert await house.left() == [3]
    assert [r.events for r in caplog.records if "for their age" in r.message] == [2]


async def test_a_stream_that_nobody_reads_is_reported_before_it_is_full(house):
    """Readiness names it; a group that reads it, or a cap, makes it well."""
    house.janitor.topology = {"t": Topic(high_water=10)}
    relay = await house.relay()
    await house.publish(relay, *range(1, 8))
    await house.publish(relay, 8)
    (problem,) = house.janitor.telemetry.health().problems[-1:]
    assert (problem.reason, problem.lane, problem.topic) == ("unread", 0, "t")
    assert problem.detail == "8 of 10 entries, and no group reads them"
    await house.pipe.redis.xgroup_create(house.stream, "billing", "0")
    await house.janitor.checkpoint(relay)
    assert not any(p.reason == "unread" for p in house.janitor.telemetry.health().problems)


async def test_something_else_at_a_streams_key_does_not_stop_the_checkpoints(house):
    """It stops its own topic only."""
    relay = await house.relay()
    await house.publish(relay, 1)
    before = (await house.checkpoints.load(0))[PUBLISHED]
    await house.pipe.redis.delete(house.stream)
    await house.pipe.redis.set(house.stream, "not a stream")
    await house.pipe.write(house.connection, "k", 1, "other")
    await house.pipe.turn(relay)
    await house.janitor.checkpoint(relay)
    assert (await house.checkpoints.load(0))[PUBLISHED] != before


async def consumers_of(house: House, group: str) -> Work:
    streams = Streams(house.pipe.redis, lanes=1)
    streams.name = house.pipe.name
    await streams.open()
    return Work(streams, group)


async def test_dead_letters_are_counted_with_the_checkpoint(house):
    """By group, in metrics and readiness, which stays green; no longer than the lane is held."""
    telemetry = house.janitor.telemetry
    telemetry.holds([0])
    billing, mail = [await consumers_of(house, group) for group in ("billing", "mail")]
    billing.bad.add(("k", 1))
    relay = await house.relay()
    await house.publish(relay, 1, 2, 3)
    await billing.drain()
    await mail.drain()
    await house.janitor.checkpoint(relay)
    assert gauges(telemetry) == {
        **{("dead_letters", "billing"): 1, ("waiting_letters", "billing"): 2},
        **{("dead_letters", "mail"): 0, ("waiting_letters", "mail"): 0},
        **{("parked_keys", "billing"): 1, ("parked_keys", "mail"): 0},
    }
    health = telemetry.health()
    assert health.ready
    assert [(each.group, each.dead, each.waiting) for each in health.letters] == [
        ("billing", 1, 2),
        ("mail", 0, 0),
    ]
    billing.bad.clear()
    await billing.letters.retry(await billing.one())
    await billing.drain()
    await house.janitor.checkpoint(relay)
    assert set(gauges(telemetry).values()) == {0}
    telemetry.holds([])
    assert gauges(telemetry) == {}
    assert telemetry.health().letters == ()


async def test_what_stands_in_the_way_of_counting_stops_nothing(house):
    """Something else is at a key of ours, and a stranger's group has the name of a letter."""
    await house.pipe.redis.set(layout.dead(house.pipe.name, 0, "billing"), "something else")
    relay = await house.relay()
    await house.publish(relay, 1)
    await house.pipe.redis.set(layout.dead(house.pipe.name, 0, "a:b"), "a letter")
    await house.pipe.redis.xgroup_create(house.stream, "a:b", "0")
    await house.janitor.checkpoint(relay)
    await house.pipe.redis.xgroup_create(house.stream, "billing", "0")
    await house.janitor.checkpoint(relay)
    assert gauges(house.janitor.telemetry) == {}


def gauges(telemetry: Telemetry) -> dict[tuple[str, str], float]:
    """What is told of letters: by name and group, on lane 0."""
    found = {}
    for family in text_string_to_metric_families(telemetry.render().decode()):
        for sample in family.samples:
            if "group" in sample.labels:
                assert sample.labels["lane"] == "0"
                name = sample.name.removeprefix("projector_")
                found[name, sample.labels["group"]] = sample.value
    return found
