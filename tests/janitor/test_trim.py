"""Trimming by what the groups have acknowledged."""

from __future__ import annotations

import random

import pytest

from outbox import layout
from projector.janitor import trim
from projector.progress import stream_id


async def test_what_every_group_has_acknowledged_goes(groups):
    """Whole nodes of the stream; the rest stays."""
    await groups.create("a", "b")
    ids = await groups.add(350)
    await groups.acknowledge("a", await groups.read("a", 350))
    assert await groups.trim("a", "b") == 0
    await groups.acknowledge("b", await groups.read("b", 250))
    assert await groups.trim("a", "b") == 200
    assert await groups.left() == ids[200:]


async def test_an_entry_that_is_not_acknowledged_holds_back_what_follows(groups):
    """And not what came before it."""
    await groups.create("a")
    ids = await groups.add(350)
    read = await groups.read("a", 350)
    await groups.acknowledge("a", [entry for entry in read if entry != ids[150]])
    assert await groups.trim("a") == 100
    assert ids[150] in await groups.left()
    await groups.acknowledge("a", [ids[150]])
    assert await groups.trim("a") == 200


async def test_a_known_group_that_is_missing_keeps_everything(groups):
    """It is made anew at the beginning of the stream, and must find what it had not read."""
    await groups.create("a")
    await groups.add(300)
    await groups.acknowledge("a", await groups.read("a", 300))
    assert await groups.trim("a", "lost") == 0
    await groups.create("lost")
    assert await groups.trim("a", "lost") == 0
    assert await groups.trim("a") == 0  # nobody told of it, but there it is


async def test_a_stream_without_groups_is_not_trimmed(groups):
    """Nobody has read it, or nobody needs an acknowledgement to read it."""
    await groups.add(300)
    assert await groups.trim() == 0


async def test_a_group_that_starts_over_finds_everything_from_there_on(groups):
    """Its entries of before may still be pending, above where it stands."""
    await groups.create("a")
    ids = await groups.add(350)
    read = await groups.read("a", 350)
    await groups.acknowledge("a", read[:-1])
    await groups.redis.xgroup_setid(groups.stream, "a", ids[149])
    assert await groups.trim("a") == 100
    assert await groups.left() == ids[100:]


async def test_a_large_backlog_goes_in_small_steps(groups, monkeypatch):
    """Several scripts, each of which is short."""
    monkeypatch.setattr(trim, "AT_ONCE", 200)
    await groups.create("a")
    await groups.add(1050)
    await groups.acknowledge("a", await groups.read("a", 1050))
    assert await groups.trim("a") == 1000
    monkeypatch.setattr(trim, "STEPS", 2)
    await groups.add(1000)
    await groups.acknowledge("a", await groups.read("a", 1000))
    assert await groups.trim("a") == 400


async def test_something_else_at_the_streams_key_is_left_alone(groups):
    """It stops its own topic only."""
    await groups.redis.set(groups.stream, "not a stream")
    assert await groups.trim("a") == 0


async def test_a_stream_that_may_not_be_touched_does_not_stop_the_others(groups, redis_url):
    """The server refuses a script for any of its keys."""
    await groups.create("a")
    await groups.add(250)
    await groups.acknowledge("a", await groups.read("a", 250))
    user = f"u{groups.name}"
    await groups.redis.acl_setuser(
        user, enabled=True, nopass=True, commands=["+@all"], keys=[groups.stream]
    )
    connection = groups.redis.connection_pool.connection_kwargs
    limited = type(groups.redis)(
        host=connection["host"], port=connection["port"], username=user, password="any"
    )
    trimmer = trim.Trimmer(limited, groups.name)
    assert await trimmer.trim(0, ["forbidden", "t"], {}) == 200
    await limited.aclose()
    await groups.redis.acl_deluser(user)


@pytest.mark.parametrize("seed", range(6))
async def test_nothing_is_trimmed_that_a_group_has_not_acknowledged(groups, seed):
    """Whatever the groups do: read, acknowledge in any order, crash and be recovered. And none of
    it is mistaken for a loss."""
    chance = random.Random(seed)
    await groups.redis.config_set("stream-node-max-entries", 4)
    names = ["a", "b", "plain"]
    await groups.create(*names)
    await groups.live("a", "x", "y")  # what z reads there is handed over
    every: list[str] = []
    acknowledged: dict[str, set[str]] = {name: set() for name in names}
    trimmed = 0
    try:
        for _ in range(150):
            name = chance.choice(names)
            match chance.choice(["add", "read", "read", "ack", "ack", "trim", "recover", "look"]):
                case "add":
                    every += await groups.add(chance.randint(1, 12))
                case "read":
                    await groups.read(name, chance.randint(1, 12), chance.choice("xyz"))
                case "ack":
                    pending = list(await groups.pending(name))
                    count = chance.choice([chance.randint(0, len(pending)), len(pending)])
                    done = chance.sample(pending, count)
                    await groups.acknowledge(name, done)
                    acknowledged[name].update(done)
                case "recover":
                    await groups.recover()
                case "look":
                    await groups.look()
                case "trim":
                    trimmed += await groups.trim(*names)
                    removed = set(every) - set(await groups.left())
                    for group in names:
                        assert removed <= acknowledged[group]
                        assert set(await groups.pending(group)).isdisjoint(removed)
        await groups.look()
    finally:
        await groups.redis.config_set("stream-node-max-entries", 100)
    assert trimmed
    assert not groups.problems()
    assert not await groups.redis.exists(layout.lost(groups.name, 0))


async def test_a_trimmed_stream_keeps_its_last_id(groups):
    """By which publishing tells a stream that was emptied by us from one that was deleted."""
    await groups.create("a")
    ids = await groups.add(300)
    await groups.acknowledge("a", await groups.read("a", 300))
    await groups.redis.xtrim(groups.stream, maxlen=0, approximate=False)
    await groups.trim("a")
    info = await groups.redis.xinfo_stream(groups.stream)
    assert stream_id(info["last-generated-id"].decode()) == stream_id(ids[-1])
