"""Entries that were removed before a group had them are noticed."""

from __future__ import annotations

import logging
from dataclasses import replace

from projector.janitor.loss import Losses, missing
from projector.telemetry import LOSS_SHOWN


def reported(caplog) -> list[tuple[str, str, int]]:
    return [
        (record.group, record.they_were, record.events)
        for record in caplog.records
        if record.levelno == logging.ERROR
    ]


async def test_a_cap_that_trims_unread_entries_is_noticed(groups, caplog):
    """Exactly, if the server counts (since 7.0); once, and not again by another projector."""
    await groups.create("a", "b")
    await groups.add(10)
    await groups.read("a", 2)
    await groups.read("b", 10)
    await groups.look()
    await groups.redis.xtrim(groups.stream, maxlen=5, approximate=False)
    (look,) = await groups.look()
    exactly = 3 if look.added is not None else 1
    assert ("a", "unread", exactly) in reported(caplog)
    caplog.clear()
    groups.losses = Losses(groups.redis, groups.name, groups.telemetry)
    await groups.look()
    assert not any(why == "unread" for _, why, _ in reported(caplog))
    await groups.redis.xtrim(groups.stream, maxlen=4, approximate=False)
    await groups.look()
    assert ("a", "unread", 1) in reported(caplog)


async def test_the_next_entry_of_a_group_that_never_read_is_missed(groups, caplog):
    """The server has not counted anything for it yet."""
    await groups.create("a")
    await groups.add(3)
    await groups.look()
    await groups.redis.xtrim(groups.stream, maxlen=2, approximate=False)
    await groups.look()
    await groups.look()
    assert reported(caplog) == [("a", "unread", 1)]


async def test_a_server_that_does_not_count_misses_the_next_entry_too(groups, caplog):
    """As Redis before 7.0."""
    await groups.create("a")
    await groups.add(5)
    await groups.acknowledge("a", await groups.read("a", 2))
    (before,) = [uncounted(look) for look in await groups.look()]
    await groups.redis.xtrim(groups.stream, maxlen=1, approximate=False)
    losses = Losses(groups.redis, groups.name)
    await losses.look(0, [before])
    (after,) = await groups.look()
    caplog.clear()
    await losses.look(0, [uncounted(after)])
    assert reported(caplog) == [("a", "unread", 1)]


def uncounted(look):
    groups = {name: replace(group, read=None) for name, group in look.groups.items()}
    return replace(look, added=None, groups=groups)


async def test_pending_entries_that_are_gone_are_noticed(groups, caplog):
    """Also of groups that nobody asked us to recover; once each."""
    await groups.create("a")
    await groups.add(5)
    await groups.read("a", 5)
    await groups.redis.xtrim(groups.stream, maxlen=2, approximate=False)
    await groups.look()
    await groups.look()
    assert reported(caplog) == [("a", "pending", 3)]
    assert groups.problems() == ["at least 3 entries were gone before group a had them (pending)"]


async def test_a_group_that_comes_late_has_lost_nothing(groups, caplog):
    """It was not there when the others were done with the entries."""
    await groups.create("a")
    await groups.add(250)
    await groups.acknowledge("a", await groups.read("a", 250))
    await groups.look()
    assert await groups.trim("a") == 200
    await groups.create("late")
    await groups.look()
    await groups.acknowledge("late", await groups.read("late", 10))
    await groups.look()
    await groups.acknowledge("late", await groups.read("late", 250))
    await groups.look()
    assert reported(caplog) == []


async def test_a_batch_that_was_taken_back_is_no_loss(groups, caplog):
    """Publishing deletes what it has written if it cannot write all of it; nobody saw that."""
    await groups.create("a")
    await groups.add(250)
    await groups.acknowledge("a", await groups.read("a", 250))
    await groups.redis.xtrim(groups.stream, maxlen=0, approximate=False)
    await groups.look()
    taken_back = await groups.add(3)
    await groups.redis.xdel(groups.stream, *taken_back)
    await groups.look()
    await groups.add(3)
    await groups.look()
    await groups.acknowledge("a", await groups.read("a", 2))
    await groups.look()
    await groups.acknowledge("a", await groups.read("a", 2))
    await groups.look()
    assert reported(caplog) == []


async def test_a_group_that_starts_over_has_lost_nothing(groups, caplog):
    """By hand, or on a stream that was deleted and published again."""
    await groups.create("a")
    await groups.add(250)
    await groups.acknowledge("a", await groups.read("a", 250))
    await groups.trim("a")
    await groups.look()
    await groups.redis.xgroup_setid(groups.stream, "a", "0")
    await groups.look()
    await groups.redis.delete(groups.stream)
    await groups.look()
    await groups.create("a")
    await groups.add(5)
    await groups.look()
    assert reported(caplog) == []


async def test_a_loss_is_a_problem_for_a_while(groups):
    """Nothing heals it, so readiness does not wait for that."""
    await groups.create("a")
    await groups.add(5)
    await groups.read("a", 5)
    await groups.redis.xtrim(groups.stream, maxlen=0, approximate=False)
    await groups.look()
    telemetry = groups.telemetry
    assert [problem.reason for problem in telemetry.health().problems] == ["lost"]
    telemetry.looked()
    later = telemetry.now() + LOSS_SHOWN
    assert not [problem for problem in telemetry.health(later).problems if problem.topic]
    telemetry.holds(())
    assert not telemetry.health().problems


async def test_counters_tell_only_what_they_can(groups):
    """In the middle of its stream, a group's losses cannot be told by counting."""
    await groups.create("a")
    await groups.add(5)
    await groups.read("a", 2)
    (look,) = await groups.look()
    assert missing(look, look.groups["a"]) is None
    await groups.read("a", 5)
    (look,) = await groups.look()
    assert missing(look, look.groups["a"]) == (None if look.added is None else 0)


async def test_a_stream_that_was_replaced_is_known_by_its_counters(groups, caplog):
    """Also if nobody looked in between."""
    await groups.create("a")
    await groups.add(5)
    (look,) = await groups.look()
    await groups.redis.delete(groups.stream)
    await groups.create("a")
    await groups.add(3)
    await groups.look()
    assert reported(caplog) == ([] if look.added is not None else [("a", "unread", 1)])
