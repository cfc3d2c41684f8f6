"""The script that publishes: entries and the lane's state together, or neither."""

from __future__ import annotations

from uuid import uuid4

import pytest
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, OutOfMemoryError

from projector import keys
from projector.sink.outcome import Blocked, Moved, Published
from projector.sink.redis import RedisSink
from projector.source.batch import Row
from projector.topology import Topic
from support.lanes import client

LAST_ID = "18446744073709551615-18446744073709551615"


def row(number: int, topic: str = "t", **fields: object) -> Row:
    made = Row(
        id=number,
        event_id=str(uuid4()),
        topic=topic,
        type="changed",
        key="k",
        seq=number,
        data=b"{}",
        content_type="application/json",
        traceparent=None,
        tracestate=None,
        tenant=None,
        headers=None,
        time="2026-01-01T00:00:00.000000Z",
    )
    return made._replace(**fields)


@pytest.fixture
async def redis(own_valkey):
    async with client(own_valkey.url()) as made:
        yield made


@pytest.fixture
def sink(redis: Redis) -> RedisSink:
    return RedisSink(redis, "shop")


async def numbers(sink: RedisSink, topic: str = "t") -> list[int]:
    entries = await sink.redis.xrange(keys.stream(sink.name, 0, topic))
    return [int(entry[b"sequence"]) for _, entry in entries]


async def everything(redis: Redis) -> dict[bytes, bytes]:
    """All that is stored."""
    return {key: await redis.dump(key) for key in await redis.keys()}


async def test_a_doubled_request_writes_nothing(sink, redis):
    """Whoever asks twice is told where the lane stands."""
    assert await sink.state(0) == ""
    assert await sink.publish(0, "", "one", [row(1), row(2)]) == Published()
    before = await everything(redis)
    assert await sink.publish(0, "", "one", [row(1), row(2)]) == Moved("one")
    assert await sink.publish(0, "zero", "two", [row(3)]) == Moved("one")
    assert await sink.publish(0, "", "two", []) == Moved("one")
    assert await everything(redis) == before
    assert await sink.publish(0, "one", "two", [row(3)]) == Published()
    assert await sink.state(0) == "two"
    assert await numbers(sink) == [1, 2, 3]


async def test_lanes_do_not_touch_each_other(sink):
    """Each has a state and streams of its own."""
    await sink.publish(0, "", "zero", [row(1)])
    assert await sink.publish(1, "", "one", [row(1)]) == Published()
    assert (await sink.state(0), await sink.state(1)) == ("zero", "one")
    assert await numbers(sink) == [1]


async def test_a_forgotten_script_is_sent_again(sink, redis):
    """SCRIPT FLUSH, a restart or a failover costs one more trip and nothing else."""
    await sink.publish(0, "", "one", [row(1)])
    await redis.script_flush()
    assert await sink.publish(0, "one", "two", [row(2)]) == Published()
    assert await numbers(sink) == [1, 2]


async def test_entries_are_read_by_their_documented_names(sink, redis):
    """CloudEvents names; what an event does not have is absent, not empty."""
    full = {
        "id": "018f0000-0000-7000-8000-000000000001",
        "source": "shop",
        "type": "order.placed",
        "subject": "Łódź/7",
        "time": "2026-01-01T00:00:00.000001Z",
        "datacontenttype": "application/json",
        "data": '{"total":"42 €"}',
        "sequence": "7",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "vendor=x",
        "tenant": "acme",
        "headers": '{"a":"b"}',
    }
    rich = Row(
        id=1,
        event_id=full["id"],
        topic="t",
        type=full["type"],
        key=full["subject"],
        seq=7,
        data=full["data"].encode(),
        content_type=full["datacontenttype"],
        traceparent=full["traceparent"],
        tracestate=full["tracestate"],
        tenant=full["tenant"],
        headers=full["headers"],
        time=full["time"],
    )
    binary = rich._replace(data=b"\x00\xff\r\n", content_type="application/octet-stream")
    bare = binary._replace(
        id=3, seq=None, traceparent=None, tracestate=None, tenant=None, headers=None
    )
    await sink.publish(0, "", "one", [rich, bare])
    (_, first), (_, second) = await redis.xrange("{shop:0}:t")
    assert {name.decode(): value.decode() for name, value in first.items()} == full
    assert set(second) == {
        *(b"id", b"source", b"type", b"subject", b"time", b"datacontenttype", b"data")
    }
    assert second[b"data"] == b"\x00\xff\r\n"


async def test_declared_groups_are_created_at_the_beginning(sink, redis):
    """A consumer deployed after the producer still reads from the first entry."""
    sink = RedisSink(redis, "shop", {"t": Topic(groups=("billing", "mail"))})
    await sink.publish(0, "", "one", [row(1), row(1, "plain")])
    await sink.publish(0, "one", "two", [row(2)])
    groups = await redis.xinfo_groups("{shop:0}:t")
    assert [(g["name"], g["last-delivered-id"]) for g in groups] == [
        (b"billing", b"0-0"),
        (b"mail", b"0-0"),
    ]
    assert await redis.xinfo_groups("{shop:0}:plain") == []
    ((_, read),) = await redis.xreadgroup("billing", "c", {"{shop:0}:t": ">"})
    assert len(read) == 2


async def test_a_stranger_is_reported_and_stops_nothing(sink, redis):
    """An entry by somebody else, before ours or between them, costs no event and no order."""
    await redis.xadd("{shop:0}:t", {"sequence": 100})
    assert await sink.publish(0, "", "one", [row(1), row(1, "u")]) == Published(("{shop:0}:t",))
    assert await sink.publish(0, "one", "two", [row(2)]) == Published()
    ahead = 2**62
    await redis.xadd("{shop:0}:t", {"sequence": 200}, id=f"{ahead}-5")
    assert await sink.publish(0, "two", "three", [row(3), row(4)]) == Published(("{shop:0}:t",))
    assert await sink.publish(0, "three", "four", [row(5)]) == Published()
    assert await numbers(sink) == [100, 1, 2, 200, 3, 4, 5]


@pytest.mark.parametrize("bad", [1, 2, 3, 4, 5])
async def test_an_error_in_the_middle_takes_the_batch_back(sink, redis, bad):
    """One stream has run out of ids: no half batch stays in the others, wherever it stands."""
    await sink.publish(0, "", "one", [row(1, "a")])
    await redis.xadd("{shop:0}:bad", {"sequence": 0}, id=LAST_ID)
    batch = [row(2, "a"), row(1, "new"), row(3, "a"), row(2, "new"), row(4, "a")]
    broken = [*batch[: bad - 1], row(9, "bad"), *batch[bad - 1 :]]
    outcome = await sink.publish(0, "one", "two", broken)
    assert isinstance(outcome, Blocked)
    assert (outcome.topic, outcome.reason) == ("bad", "refused")
    assert await sink.state(0) == "one"
    assert (await numbers(sink, "a"), await numbers(sink, "new")) == ([1], [])
    assert await sink.publish(0, "one", "two", batch) == Published()
    assert await numbers(sink, "a") == [1, 2, 3, 4]
    assert await numbers(sink, "new") == [1, 2]


@pytest.mark.parametrize("right", ["~{shop:0}:a ~{shop:0}:@*", "%R~* ~{shop:0}:a ~{shop:0}:@*"])
async def test_a_missing_right_leaves_no_half_batch(sink, redis, own_valkey, right):
    """A user who may not write one of the streams writes none of them."""
    own_valkey.execute("ACL", "SETUSER", "narrow", "on", ">word", "+@all", *right.split())
    before = await everything(redis)
    url = f"redis://narrow:word@127.0.0.1:{own_valkey.port}"
    async with client(url) as narrow:
        restricted = RedisSink(narrow, "shop")
        outcome = await restricted.publish(0, "", "one", [row(1, "a"), row(1, "b"), row(2, "a")])
        assert isinstance(outcome, Blocked)
        assert (outcome.topic, outcome.reason) == ("b", "refused")
        assert await everything(redis) == before
        assert await restricted.publish(0, "", "one", [row(1, "a")]) == Published()


@pytest.mark.parametrize("command", ["xadd", "xdel", "type", "xinfo"])
async def test_a_missing_command_leaves_no_half_batch(sink, redis, own_valkey, command):
    """Whatever the script may not do, it finds out before it writes, or takes it back."""
    await sink.publish(0, "", "one", [row(1, "a"), row(1, "b")])
    rights = ["+@all", f"-{command}", "~*"]
    own_valkey.execute("ACL", "SETUSER", "narrow", "on", ">word", *rights)
    before = await everything(redis)
    url = f"redis://narrow:word@127.0.0.1:{own_valkey.port}"
    async with client(url) as narrow:
        outcome = await RedisSink(narrow, "shop").publish(0, "one", "two", [row(2, "a")])
    assert isinstance(outcome, Blocked)
    assert (outcome.topic, outcome.reason) == ("a", "refused")
    assert await everything(redis) == before


async def test_a_lane_without_rights_is_no_topics_fault(sink, own_valkey):
    """Who may not move the lane's state is told so, and no topic is blamed."""
    own_valkey.execute("ACL", "SETUSER", "narrow", "on", ">word", "+@all", "~{shop:0}:a")
    url = f"redis://narrow:word@127.0.0.1:{own_valkey.port}"
    async with client(url) as narrow:
        with pytest.raises(NoPermissionError):
            await RedisSink(narrow, "shop").publish(0, "", "one", [row(1, "a")])
    assert await sink.state(0) == ""


async def test_out_of_memory_refuses_before_it_writes(sink, redis):
    """At the limit nothing is written; with room again the same request goes through."""
    await sink.publish(0, "", "one", [row(1)])
    await redis.config_set("maxmemory", 1)
    with pytest.raises(OutOfMemoryError):
        await sink.publish(0, "one", "two", [row(2), row(1, "new")])
    assert await sink.state(0) == "one"
    assert await numbers(sink) == [1]
    await redis.config_set("maxmemory", 0)
    assert await sink.publish(0, "one", "two", [row(2), row(1, "new")]) == Published()
    assert (await numbers(sink), await numbers(sink, "new")) == ([1, 2], [1])


async def test_a_cap_trims_what_a_topic_declares(sink, redis):
    """Only a topic with maxlen is ever trimmed."""
    capped = RedisSink(redis, "shop", {"capped": Topic(maxlen=2, approximate=False)})
    rows = [row(n, topic) for n in range(1, 6) for topic in ("capped", "t")]
    await capped.publish(0, "", "one", rows)
    assert await numbers(sink, "capped") == [4, 5]
    assert await numbers(sink) == [1, 2, 3, 4, 5]


class TestBlocked:
    """A stream that takes no entries blocks its batch, which writes nothing at all."""

    async def blocked(self, sink: RedisSink, rows: list[Row]) -> Blocked:
        stored = await sink.state(0)
        before = await everything(sink.redis)
        outcome = await sink.publish(0, stored, "next", rows)
        assert await everything(sink.redis) == before
        assert isinstance(outcome, Blocked)
        return outcome

    async def test_by_the_wrong_type(self, sink, redis):
        """Somebody's string, list or hash stands where the stream should be."""
        await redis.set("{shop:0}:bad", "x")
        assert await self.blocked(sink, [row(1), row(1, "bad")]) == Blocked("bad", "type", "string")

    @pytest.mark.parametrize("length", [2, 3])
    async def test_by_its_high_water_mark(self, sink, redis, length):
        """At or above its mark it takes nothing more, and nothing is trimmed to make room."""
        full = RedisSink(redis, "shop", {"bad": Topic(high_water=2)})
        await full.publish(0, "", "one", [row(n, "bad") for n in range(length)])
        outcome = await self.blocked(full, [row(1), row(9, "bad")])
        assert outcome == Blocked("bad", "full", str(length))

    async def test_by_its_deletion(self, sink, redis):
        """What was published there is gone: going on would leave a hole."""
        await sink.publish(0, "", "one", [row(1), row(1, "bad")])
        await redis.delete("{shop:0}:bad")
        outcome = await self.blocked(sink, [row(2), row(2, "bad")])
        assert (outcome.topic, outcome.reason) == ("bad", "deleted")

    async def test_by_having_gone_back(self, sink, redis):
        """Somebody restored an older copy of it: its last entries are gone."""
        await sink.publish(0, "", "one", [row(1), row(1, "bad")])
        copy = await redis.dump("{shop:0}:bad")
        await sink.publish(0, "one", "two", [row(2, "bad")])
        await redis.restore("{shop:0}:bad", 0, copy, replace=True)
        outcome = await self.blocked(sink, [row(2), row(3, "bad")])
        assert (outcome.topic, outcome.reason) == ("bad", "deleted")
