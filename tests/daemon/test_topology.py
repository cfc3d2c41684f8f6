"""Declared topics: their groups, caps, and what a full stream does."""

from __future__ import annotations

import pytest

from projector import keys
from projector.connect import engine_of
from projector.daemon import Projector
from projector.settings import InvalidSetting, Settings
from projector.topology import Topic, with_groups
from support.daemons import eventually, projector
from support.lanes import pipeline


@pytest.fixture
async def engine(database):
    engine = engine_of(database)
    yield engine
    await engine.dispose()


def projector_of(house, engine, **topics: Topic) -> Projector:
    return Projector(engine, house.pipe.redis, Settings(name=house.pipe.name, topology=topics))


async def groups_of(house) -> set[str]:
    found = await house.pipe.redis.xinfo_groups(house.stream)
    return {info["name"].decode() for info in found}


async def test_declared_groups_are_there_before_the_first_event(house, engine):
    """So that a consumer that is deployed later still gets it; and they are kept for ever."""
    await house.pipe.write(house.connection, "k", 1)
    await projector_of(house, engine, t=Topic(groups=("billing", "mail"))).drain()
    assert await groups_of(house) == {"billing", "mail"}
    assert await house.checkpoints.groups() == {"t": {"billing", "mail"}}
    await house.consume("billing", 1)


async def test_groups_of_the_database_come_back_with_an_emptied_redis(house, engine):
    """Also those that no file declares: a consumer had registered them."""
    await house.checkpoints.register("t", {"registered"})
    await house.pipe.write(house.connection, "k", 1)
    await projector_of(house, engine).drain()
    assert await groups_of(house) == {"registered"}


async def test_a_group_that_is_declared_later_is_created_at_the_beginning(house, engine):
    """On streams that exist already."""
    await house.pipe.write(house.connection, "k", 1)
    await projector_of(house, engine).drain()
    assert await groups_of(house) == set()
    await projector_of(house, engine, t=Topic(groups=("late",))).drain()
    await house.consume("late", 1)


async def test_a_full_stream_that_may_be_trimmed_goes_on(house, engine):
    """`on_full="trim"`: the oldest entries go, the topic is never detached."""
    trimmed = Topic(high_water=3, on_full="trim", approximate=False)
    for seq in range(1, 8):
        await house.pipe.write(house.connection, "k", seq)
    assert await projector_of(house, engine, t=trimmed).drain() == 7
    assert await house.pipe.seqs() == {"k": [5, 6, 7]}


async def test_consumers_learn_lanes_and_retention(database, redis_url):
    """From one key, which comes back by itself when Redis was emptied."""
    async with pipeline(database, redis_url, lanes=3) as pipe:
        meta = keys.meta(pipe.name)

        async def told() -> bool:
            return await pipe.redis.hgetall(meta) == {b"lanes": b"3", b"retention": b"3600"}

        with projector(pipe, redis_url, "--lease", "0.3", "--retention", "3600"):
            await eventually(told)
            await pipe.redis.delete(meta)
            await eventually(told)


async def test_the_lane_count_is_what_the_database_says(database, redis_url, engine):
    """Without being told; and another number is refused."""
    async with pipeline(database, redis_url, lanes=3) as pipe:
        async with engine.begin() as connection:
            await connection.run_sync(pipe.outbox.meet)
        told = Projector(engine, pipe.redis, Settings(name=pipe.name))
        assert await told.rebase() == 3
        with pytest.raises(Exception, match="lanes"):
            await Projector(engine, pipe.redis, Settings(name=pipe.name, lanes=4)).drain()


async def test_the_file_declares_what_the_command_relays(house, redis_url, tmp_path):
    """Flags come before the file, and the file before the defaults."""
    file = tmp_path / "projector.toml"
    file.write_text(
        f'name = "nobody"\nredis_url = "{redis_url}"\nbatch = 10\n[topics.t]\ngroups = ["billing"]'
    )
    await house.pipe.write(house.connection, "k", 1)
    with projector(house.pipe, redis_url, "--once", "--config", str(file)) as process:
        assert process.wait(20) == 0
    assert await groups_of(house) == {"billing"}


def test_registered_groups_are_added_to_what_is_declared():
    declared = {"orders": Topic(groups=("billing",), maxlen=5)}
    merged = with_groups(declared, {"orders": {"mail"}, "users": {"crm"}})
    assert merged["orders"] == Topic(groups=("billing", "mail"), maxlen=5)
    assert merged["users"] == Topic(groups=("crm",))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"batch": 0}, "batch must be at least 1"),
        ({"lease": 0}, "lease must be longer than nothing"),
        ({"retention": -1}, "retention must not be negative"),
        ({"keep_at_most": 60}, "keep_at_most must not be shorter than the retention"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(settings, problem):
    with pytest.raises(InvalidSetting, match=problem):
        Settings(name="shop", **settings)
