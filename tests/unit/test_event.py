"""Events: what they take, what they refuse, what they give back."""

from __future__ import annotations

import copy
import enum
import json
import pickle
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox import AUTO, Event, InvalidField, NotWritten, OutboxError
from outbox.identity import new_id
from outbox.keys import key_text, lane_of


def event(**changes: object) -> Event[object]:
    fields = {"topic": "orders", "key": "o-1", "data": {"total": 42}} | changes
    return Event(str(fields.pop("type", "order.placed")), **fields)  # type: ignore[arg-type]


def test_an_event_has_its_id_at_once():
    """The id is a UUIDv7, there as soon as the event is."""
    made = event()
    assert made.id.version == 7
    assert made.id.variant == "specified in RFC 4122"
    assert abs(made.time - datetime.now(UTC)) < timedelta(minutes=1)


def test_ids_carry_the_time_and_do_not_repeat():
    """Ten thousand ids differ, and their first 48 bits are the milliseconds of now."""
    before = datetime.now(UTC)
    ids = {new_id() for _ in range(10_000)}
    assert len(ids) == 10_000
    stamp = datetime.fromtimestamp((next(iter(ids)).int >> 80) / 1000, UTC)
    assert abs(stamp - before) < timedelta(minutes=1)


def test_data_is_encoded_at_the_call():
    """Changing the dict afterwards changes nothing."""
    data = {"total": 42}
    made = event(data=data)
    data["total"] = 0
    assert made.data == {"total": 42}
    assert made.raw == b'{"total":42}'


def test_events_are_immutable_and_hashable():
    """No attribute can be set, and an event can stand in a set."""
    made = event()
    with pytest.raises(AttributeError):
        made.topic = "other"  # type: ignore[misc]
    assert made in {made}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"topic": ""}, "topic"),
        ({"topic": "a b"}, "topic"),
        ({"topic": "a{b}"}, "topic"),
        ({"topic": "x" * 256}, "topic"),
        ({"topic": None}, "topic"),
        ({"type": ""}, "type"),
        ({"type": "x" * 256}, "type"),
        ({"type": "a\0b"}, "type"),
        ({"key": ""}, "key"),
        ({"key": "x" * 1025}, "key"),
        ({"key": "ü" * 513}, "key"),
        ({"key": "a\0b"}, "key"),
        ({"key": "\ud800"}, "key"),
        ({"key": None}, "key"),
        ({"key": True}, "key"),
        ({"key": 1.5}, "key"),
        ({"key": 10**5000}, "key"),
        ({"content_type": 5}, "content_type"),
        ({"source": ""}, "source"),
        ({"seq": "1"}, "seq"),
        ({"seq": True}, "seq"),
        ({"seq": -1}, "seq"),
        ({"seq": 2**63}, "seq"),
        ({"headers": {"a": 1}}, "headers['a']"),
        ({"headers": {1: "a"}}, "headers"),
        ({"headers": [("a", "b")]}, "headers"),
        ({"headers": {"": "a"}}, "headers"),
        ({"time": datetime(2026, 1, 1)}, "time"),
        ({"deliver_at": datetime(2026, 1, 1)}, "deliver_at"),
        ({"deliver_at": "tomorrow"}, "deliver_at"),
        ({"deliver_at": datetime.now(UTC), "seq": 3}, "seq"),
        ({"event_id": "not-a-uuid"}, "event_id"),
        ({"content_type": "text/plain"}, "content_type"),
    ],
)
def test_bad_input_names_the_field(changes: dict[str, object], field: str):
    """Whatever cannot be stored or published is refused when the event is made."""
    with pytest.raises(InvalidField) as caught:
        event(**changes)
    assert caught.value.field == field
    assert str(caught.value).startswith(field)


def test_times_are_kept_as_utc():
    """A time of another zone is the same moment, in UTC."""
    local = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=9)))
    assert event(time=local).time == local
    assert event(time=local).time.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    ("key", "text"), [("a", "a"), (7, "7"), (UUID(int=1), str(UUID(int=1))), (-1, "-1")]
)
def test_keys_become_text(key: object, text: str):
    """A str, an int and a UUID are keys as they are."""
    assert key_text(key) == text
    assert event(key=key).key == text


@given(st.text(min_size=1, max_size=200), st.integers(1, 1000))
def test_a_key_has_one_lane(key: str, lanes: int):
    """The lane depends on the key alone, and lies below the count."""
    try:
        encoded = key.encode()
    except UnicodeEncodeError:
        return
    assert 0 <= lane_of(key, lanes) < lanes
    assert lane_of(key, lanes) == lane_of(encoded.decode(), lanes)


def test_lanes_are_a_contract():
    """Other writers compute the same: crc32 of the UTF-8 key, modulo the count."""
    check_value_of_crc32 = 0xCBF43926  # the published one, of "123456789"
    assert lane_of("123456789", 32767) == check_value_of_crc32 % 32767
    assert [lane_of(key, 8) for key in ("123456789", "o-1", "주문-1")] == [6, 2, 4]


def test_an_auto_seq_is_not_known_before_the_commit():
    """Reading it early says so, and does not give a wrong number."""
    with pytest.raises(NotWritten, match="seq"):
        _ = event(seq=AUTO).seq
    assert "AUTO" in repr(event(seq=AUTO))


headers = st.dictionaries(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20),
    max_size=4,
)
json_data = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    data=json_data | st.binary(),
    headers=headers,
    tenant=st.sampled_from([None, "acme"]),
    seq=st.none() | st.integers(0, 2**63 - 1),
    time=st.datetimes(timezones=st.just(UTC)),
)
def test_a_cloudevent_comes_back_equal(data, headers, tenant, seq, time):
    """Export, through real JSON, and import again: nothing is lost, not a byte."""
    if tenant:
        headers = headers | {"tenant": tenant, "traceparent": "00-1-2-01"}
    made = event(data=data, headers=headers, seq=seq, time=time, source="shop")
    there = json.loads(json.dumps(made.to_cloudevent()))
    back = Event.from_cloudevent(there)
    assert back == made
    assert back.raw == made.raw
    assert dict(back.headers) == dict(made.headers)


def test_a_cloudevent_has_the_standard_names():
    """Any CloudEvents reader finds its way: subject is the key, sequence the seq."""
    made = event(seq=3, headers={"tenant": "acme", "x": "y"}, source="shop")
    cloud = made.to_cloudevent()
    assert cloud == {
        "specversion": "1.0",
        "id": str(made.id),
        "source": "shop",
        "type": "order.placed",
        "subject": "o-1",
        "time": made.time.isoformat().replace("+00:00", "Z"),
        "datacontenttype": "application/json",
        "topic": "orders",
        "sequence": "3",
        "tenant": "acme",
        "headers": '{"x":"y"}',
        "data": {"total": 42},
    }


def test_json_bytes_of_another_encoder_survive_a_cloudevent():
    """Bytes that our encoder would write differently travel as base64, unchanged."""
    made = event(data=b'{ "total": 42 }', content_type="application/json")
    cloud = made.to_cloudevent()
    assert "data" not in cloud
    assert Event.from_cloudevent(cloud).raw == b'{ "total": 42 }'
    assert made.decode() == {"total": 42}


@pytest.mark.parametrize("field", ["id", "source", "type", "subject", "topic"])
def test_a_cloudevent_that_lacks_a_field_is_refused(field: str):
    """The error names what is missing."""
    cloud = event().to_cloudevent()
    del cloud[field]
    with pytest.raises(InvalidField) as caught:
        Event.from_cloudevent(cloud)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("time", "now"),
        ("sequence", "x"),
        ("sequence", 3.7),
        ("deliverat", "soon"),
        ("data_base64", "***"),
        ("headers", "[]"),
    ],
)
def test_a_cloudevent_with_a_bad_field_is_refused(field: str, value: str):
    """The error names what does not parse."""
    with pytest.raises(OutboxError, match=field):
        Event.from_cloudevent(event().to_cloudevent() | {field: value})


def test_equality_is_of_everything_that_travels():
    """Two events that differ in one field differ."""
    same = {"event_id": uuid4(), "time": datetime.now(UTC)}
    assert event(**same) == event(**same)
    for change in ({"seq": 1}, {"key": "o-2"}, {"data": 1}, {"headers": {"a": "b"}}):
        assert event(**same) != event(**same, **change)


def test_a_cloudevent_of_another_producer():
    """It has no topic, its id is no UUID, its data a plain text: the same event each time."""
    cloud = {
        "specversion": "1.0",
        "id": "42",
        "source": "https://example.org/things",
        "type": "org.example.thing",
        "subject": "thing-1",
        "datacontenttype": "text/plain",
        "data": "hello",
    }
    first, second = (Event.from_cloudevent(cloud, topic="things") for _ in range(2))
    assert (first.id, first.raw, first.topic) == (second.id, b"hello", "things")
    assert first.id != Event.from_cloudevent(cloud | {"id": "43"}, topic="things").id


def test_malformed_json_bytes_still_export():
    """They go as base64, and come back as they were."""
    made = event(data=b"{", content_type="application/json")
    assert Event.from_cloudevent(made.to_cloudevent()) == made


def test_events_can_be_copied_and_pickled():
    """For queues between processes, and for dataclasses that hold them."""
    made = event(headers={"a": "b"}, seq=3)
    for copied in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert copied == made
        assert copied.headers == {"a": "b"}


class Color(enum.IntEnum):
    RED = 1


class Kind(enum.StrEnum):
    A = "a"


@pytest.mark.parametrize(("key", "text"), [(Color.RED, "1"), (Kind.A, "a")])
def test_an_enum_is_the_key_that_its_value_is(key: object, text: str):
    """Not the name of the member."""
    assert event(key=key).key == text
