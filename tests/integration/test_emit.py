"""The call itself: keys, bad input, sessions of every kind, headers, delays, lanes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from opentelemetry.sdk.trace import TracerProvider
from sqlalchemy import MetaData, create_engine, func, insert, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.schema import CreateSchema

from outbox import (
    AUTO,
    Event,
    EventTooLarge,
    InvalidField,
    KeyUnknown,
    NotASession,
    NotEncodable,
    NoTransaction,
    NotWritten,
    Outbox,
    OutboxMismatch,
    SessionNotUsable,
    TablesMissing,
)
from outbox.keys import lane_of
from outbox.testing import recording


def emit(shop, session, type="e", **fields):
    return shop.events.emit(session, type, **{"topic": "t", "key": "k", "data": None, **fields})


def test_keys_of_every_kind(shop, backend):
    """Text, numbers, UUIDs, and objects with one or several primary key columns."""
    uuid = uuid4()

    def body(session: Session) -> None:
        order = shop.Order(id=5)
        lines = [shop.Line(order_id=1, sku="a:b"), shop.Line(order_id=1, sku="a%3Ab")]
        session.add_all([order, *lines])
        for key in ("주문-1", 7, uuid, order, *lines):
            emit(shop, session, key=key)
        session.commit()

    backend.run(body)
    assert [row[0] for row in backend.rows(shop.events.table, "key")] == [
        "주문-1",
        "7",
        str(uuid),
        "5",
        "1:a%3Ab",
        "1:a%253Ab",
    ]


def test_every_row_has_the_lane_of_its_key(shop, backend):
    """Lanes are the key's crc32 modulo the count."""

    def body(session: Session) -> None:
        for number in range(50):
            emit(shop, session, key=number)
        session.commit()

    backend.run(body)
    rows = backend.rows(shop.events.table, "key", "lane")
    assert all(lane == lane_of(key, 8) for key, lane in rows)
    assert len({lane for _, lane in rows}) == 8


def test_a_key_that_never_becomes_known(shop, backend):
    """An object that was not added has no primary key at commit: an error that names the event."""

    def body(session: Session) -> None:
        made = emit(shop, session, "orphan", key=shop.Order())
        with pytest.raises(NotWritten, match="key"):
            _ = made.key
        with pytest.raises(KeyUnknown, match="orphan"):
            session.commit()
        session.rollback()
        emit(shop, session, "fine")
        session.commit()

    backend.run(body)
    assert backend.rows(shop.events.table, "type") == [("fine",)]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"topic": ""}, InvalidField),
        ({"key": ""}, InvalidField),
        ({"data": {"x": object()}}, NotEncodable),
        ({"data": b"x" * (1024 * 1024 + 1)}, EventTooLarge),
        ({"headers": {"a": 1}}, InvalidField),
        ({"deliver_at": datetime(2030, 1, 1)}, InvalidField),
        ({"on_duplicate": "ignore"}, InvalidField),
    ],
)
def test_bad_input_leaves_the_session_usable(shop, backend, fields, error):
    """The error comes at the call; what was emitted before and after is written."""

    def body(session: Session) -> None:
        session.add(shop.Order())
        emit(shop, session, "before")
        with pytest.raises(error):
            emit(shop, session, "bad", **fields)
        emit(shop, session, "after")
        session.commit()

    backend.run(body)
    assert backend.rows(shop.events.table, "type") == [("before",), ("after",)]


def test_the_size_limit_is_a_setting(backend):
    """Headers count too."""
    events = Outbox(MetaData(), name="small", max_size=10)
    with pytest.raises(EventTooLarge) as caught:
        events.emit(Session(), "e", topic="t", key="k", data=b"x" * 8, headers={"a": "bcd"})
    assert (caught.value.size, caught.value.limit) == (12, 10)


def test_a_wrong_object_instead_of_a_session(shop, backend):
    """A connection, an engine or None: the error says what to use."""

    def body(session: Session) -> None:
        for wrong in (session.connection(), backend.engine, None, "session"):
            with pytest.raises(NotASession, match="Session"):
                emit(shop, wrong)

    backend.run(body)


def test_a_session_that_is_closed_for_good(shop, backend):
    """Or that does not begin by itself: an error at the call, not a lost event."""

    def closed(session: Session) -> None:
        session.close()
        with pytest.raises(SessionNotUsable, match="closed"):
            emit(shop, session)

    def not_begun(session: Session) -> None:
        with pytest.raises(SessionNotUsable):
            emit(shop, session)
        with session.begin():
            emit(shop, session, "begun")

    backend.run(closed, close_resets_only=False)
    backend.run(not_begun, autobegin=False)
    assert backend.rows(shop.events.table, "type") == [("begun",)]


def test_an_autocommit_connection_is_refused(shop, backend):
    """Without a transaction an event could outlive the failure of its change."""
    if not backend.is_postgres:
        return  # SQLAlchemy's recipe for SQLite is AUTOCOMMIT with a BEGIN of its own

    def body(session: Session) -> None:
        emit(shop, session)
        with pytest.raises(NoTransaction):
            session.commit()
        session.rollback()

    engine = backend.engine.execution_options(isolation_level="AUTOCOMMIT")
    backend.run(body, bind=engine)
    assert backend.rows(shop.events.table, "type") == []


async def test_async_sessions_take_the_same_call(tmp_path, shop_of):
    """emit() is not awaited; commit, rollback and savepoints are the session's own."""
    shop, engine = await shop_of(tmp_path)
    sessions = async_sessionmaker(engine)
    async with sessions() as session, session.begin():
        order = shop.Order()
        session.add(order)
        placed = emit(shop, session, "placed", key=order)
        async with session.begin_nested() as savepoint:
            emit(shop, session, "dropped")
            await savepoint.rollback()
    assert placed.key == "1"
    scoped = async_scoped_session(sessions, scopefunc=lambda: 1)
    emit(shop, scoped, "scoped")
    await scoped.commit()
    await scoped.remove()
    async with AsyncSession(engine) as session:
        emit(shop, session, "lost")
    async with engine.connect() as connection:
        types = (await connection.execute(select(shop.events.table.c.type))).scalars().all()
    assert types == ["placed", "scoped"]
    await engine.dispose()


@pytest.fixture
def shop_of():
    from support.shop import make_shop

    async def make(folder):
        shop = make_shop()
        engine = create_async_engine(f"sqlite+aiosqlite:///{folder}/async.db")
        async with engine.begin() as connection:
            await connection.run_sync(shop.metadata.create_all)
        return shop, engine

    return make


def test_scoped_sessions_and_subclasses(shop, tmp_path):
    """scoped_session, sessionmaker and a Session subclass of the user's."""

    class MySession(Session):
        pass

    engine = create_engine(f"sqlite:///{tmp_path}/scoped.db")
    shop.metadata.create_all(engine)
    scoped = scoped_session(sessionmaker(engine, class_=MySession))
    emit(shop, scoped)
    scoped.commit()
    scoped.remove()
    with engine.connect() as connection:
        assert connection.execute(select(func.count()).select_from(shop.events.table)).scalar() == 1
    engine.dispose()


def test_insert_writes_at_once(shop, backend):
    """On a connection or in session.execute, without waiting for the commit."""

    def connection_body(connection) -> None:
        connection.execute(shop.events.insert(event("one"), event("two", seq=7)))
        assert len(connection.execute(select(shop.events.table)).all()) == 2
        connection.commit()
        connection.execute(shop.events.insert(event("rolled back")))

    def session_body(session: Session) -> None:
        session.execute(shop.events.insert(event("three")))
        session.commit()
        session.execute(shop.events.insert(event("again", seq=7), on_duplicate="skip"))
        session.commit()

    backend.connect(connection_body)
    backend.run(session_body)
    assert backend.rows(shop.events.table, "type", "seq") == [
        ("one", None),
        ("two", 7),
        ("three", None),
    ]


def test_insert_takes_auto_numbers(postgres):
    """On PostgreSQL also for connections, in the same statement."""
    from support.shop import make_shop

    shop = make_shop()
    postgres.create(shop.metadata)

    def body(connection) -> None:
        for _ in range(2):
            events = [event("a", seq=AUTO), event("b"), event("c", seq=AUTO)]
            connection.execute(shop.events.insert(*events))
        connection.commit()

    postgres.connect(body)
    assert [row[0] for row in postgres.rows(shop.events.table, "seq")] == [1, None, 2, 3, None, 4]


def test_insert_with_auto_does_not_swallow_repeats(postgres):
    """A repeated number is an error unless skipping was asked for, also next to AUTO."""
    from support.shop import make_shop

    shop = make_shop()
    postgres.create(shop.metadata)

    def body(connection) -> None:
        connection.execute(shop.events.insert(event("first", seq=1)))
        connection.commit()
        numbered = event("auto", key="other", seq=AUTO)
        with pytest.raises(IntegrityError):
            connection.execute(shop.events.insert(numbered, event("repeat", seq=1)))
        connection.rollback()
        again = shop.events.insert(numbered, event("repeat", seq=1), on_duplicate="skip")
        connection.execute(again)
        connection.commit()

    postgres.connect(body)
    assert postgres.rows(shop.events.table, "type") == [("first",), ("auto",)]


def test_insert_refuses_what_only_a_session_can_do(shop):
    """Late keys and delays."""
    for wrong in (event("x", key=shop.Order()), event("x", deliver_at=datetime.now(UTC))):
        with pytest.raises(InvalidField, match=r"emit\(\)"):
            shop.events.insert(wrong)
    for events in ([], [event("x")] * 2001):
        with pytest.raises(InvalidField, match="give 1 to"):
            shop.events.insert(*events)
    with pytest.raises(InvalidField, match="on_duplicate"):
        shop.events.insert(event("x"), on_duplicate="eror")


def event(type: str, **fields) -> Event[object]:
    return Event(type, **{"topic": "t", "key": "k", "data": None, **fields})


def test_an_event_can_be_made_first_and_emitted_later(shop, backend):
    """The outbox becomes its source; the seq is known on the same object."""

    def body(session: Session) -> None:
        made = event("ready", seq=AUTO)
        assert shop.events.emit(session, made) is made
        session.commit()
        assert (made.source, made.seq) == ("shop", 1)
        with pytest.raises(InvalidField, match="topic"):
            shop.events.emit(session, made, topic="other")

    backend.run(body)


def test_delayed_events_wait_in_their_own_table(shop, backend):
    """They are not in the log, they keep their moment, and AUTO is remembered for later."""
    due = datetime.now(UTC) + timedelta(hours=1)

    def body(session: Session) -> None:
        emit(shop, session, "later", deliver_at=due)
        emit(shop, session, "numbered", deliver_at=due, seq=AUTO)
        emit(shop, session, "now", seq=AUTO)
        session.commit()

    backend.run(body)
    assert backend.rows(shop.events.table, "type", "seq") == [("now", 1)]
    delayed = backend.rows(shop.events.tables.delayed, "type", "auto", "deliver_at")
    assert [row[:2] for row in delayed] == [("later", False), ("numbered", True)]
    assert all(moment.replace(tzinfo=UTC) == due for *_, moment in delayed)


def test_headers_have_columns_of_their_own_where_they_travel_so(shop, backend):
    """tenant and trace context by name, the caller's own headers as one JSON text."""
    headers = {"tenant": "acme", "traceparent": "00-a-b-01", "source-ip": "::1", "empty": ""}

    def body(session: Session) -> None:
        emit(shop, session, headers=headers)
        emit(shop, session)
        session.commit()

    backend.run(body)
    columns = ("tenant", "traceparent", "tracestate", "headers")
    assert backend.rows(shop.events.table, *columns) == [
        ("acme", "00-a-b-01", None, '{"source-ip":"::1","empty":""}'),
        (None, None, None, None),
    ]


def test_the_active_span_travels_with_the_event(shop, backend):
    """Its traceparent is taken at the call; without a span, or with the caller's own, it is not."""
    tracer = TracerProvider().get_tracer("test")

    def body(session: Session) -> None:
        with tracer.start_as_current_span("request") as span:
            traced = emit(shop, session, "traced")
            own = emit(shop, session, "own", headers={"traceparent": "mine"})
        plain = emit(shop, session, "plain")
        trace_id = format(span.get_span_context().trace_id, "032x")
        assert traced.headers["traceparent"].split("-")[1] == trace_id
        assert own.headers["traceparent"] == "mine"
        assert "traceparent" not in plain.headers

    backend.run(body)


def test_the_lane_count_lives_in_the_database(shop, backend):
    """The first writer stores it; whoever is configured otherwise gets an error, and no row."""

    def write(events: Outbox):
        def body(session: Session) -> None:
            session.add(shop.Order())
            events.emit(session, "e", topic="t", key="k", data=None)
            session.commit()

        return body

    backend.run(write(shop.events))
    meta = select(shop.events.tables.meta)
    assert backend.connect(lambda c: c.execute(meta).all()) == [(1, "shop", 8)]
    for wrong, field in ((Outbox(name="shop", lanes=16), "lanes"), (Outbox(name="other"), "name")):
        with pytest.raises(OutboxMismatch, match=field) as caught:
            backend.run(write(wrong))
        assert caught.value.field == field
    backend.run(write(Outbox(name="shop")))
    assert len(backend.rows(shop.events.table, "id")) == 2
    orders = select(func.count()).select_from(shop.Order)
    assert backend.connect(lambda c: c.execute(orders).scalar()) == 2


def test_a_count_that_was_rolled_back_is_not_believed(shop, backend):
    """The first transaction rolls back after it wrote the count; the next one writes it again."""

    def body(session: Session) -> None:
        emit(shop, session, seq=1)
        emit(shop, session, seq=1)
        with pytest.raises(Exception, match="repeats"):
            session.commit()
        session.rollback()
        emit(shop, session)
        session.commit()

    backend.run(body)
    meta = select(shop.events.tables.meta)
    assert backend.connect(lambda c: c.execute(meta).all()) == [(1, "shop", 8)]


def test_two_first_writers_agree_on_one_count(psycopg):
    """Both find no count; the slower one reads what the faster wrote, and its commit fails."""
    from support.shop import make_shop

    shop, other = make_shop(lanes=8), Outbox(name="shop", lanes=4)
    psycopg.create(shop.metadata)
    barrier = threading.Barrier(2)

    def write(events: Outbox) -> bool:
        with Session(psycopg.engine) as session:
            events.emit(session, "e", topic="t", key="k", data=None)
            session.connection()
            barrier.wait(10)
            try:
                session.commit()
            except OutboxMismatch:
                return False
            return True

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(write, [shop.events, other])) == [False, True]
    assert len(psycopg.rows(shop.events.table, "id")) == 1


def test_the_database_refuses_a_lane_above_the_count(shop, backend):
    """Also from writers that are not ours."""
    row = {"lane": 8, "event_id": uuid4(), "topic": "t", "type": "t", "key": "k"}
    row |= {"data": b"", "content_type": "x"}

    def body(connection) -> None:
        with pytest.raises(Exception, match=r"(?i)check"):
            connection.execute(insert(shop.events.table), row)
        connection.rollback()

    backend.connect(body)


def test_missing_tables_are_named(backend):
    """The error tells how to make them, and the business change is not committed."""
    events = Outbox(MetaData(), name="shop", prefix="missing_")

    def body(session: Session) -> None:
        session.execute(text("CREATE TABLE business (id int)"))
        events.emit(session, "e", topic="t", key="k", data=None)
        with pytest.raises(TablesMissing, match="projector migrate"):
            session.commit()
        session.rollback()

    backend.run(body)


def test_schema_and_prefix(postgres):
    """The seed's event_outbox, in a schema of its own; and schema_translate_map per tenant."""
    schemas = [f"s_{uuid4().hex[:8]}" for _ in range(2)]
    events = Outbox(MetaData(), name="shop", schema=schemas[0], prefix="event_")

    def make(connection) -> None:
        for schema in schemas:
            connection.execute(CreateSchema(schema))
            mapped = connection.execution_options(schema_translate_map={schemas[0]: schema})
            events.metadata.create_all(mapped)
        connection.commit()

    def body(session: Session) -> None:
        for seq in (None, 1, AUTO):
            events.emit(session, "e", topic="t", key=str(seq), data=None, seq=seq)
        session.commit()

    def count(connection) -> list[int]:
        tables = [text(f'SELECT count(*) FROM "{schema}".event_outbox') for schema in schemas]
        return [connection.execute(table).scalar() for table in tables]

    def drop(connection) -> None:
        for schema in schemas:
            connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))
        connection.commit()

    postgres.connect(make)
    try:
        postgres.run(body)
        assert postgres.connect(count) == [3, 0]
        tenant = postgres.engine.execution_options(schema_translate_map={schemas[0]: schemas[1]})
        postgres.run(body, bind=tenant)
        assert postgres.connect(count) == [3, 3]
    finally:
        postgres.connect(drop)


def test_a_recorder_shows_what_was_emitted_and_committed(shop, backend):
    """Rolled-back events were emitted and not committed; assertions say what they found."""

    def body(session: Session) -> None:
        emit(shop, session, "lost")
        session.rollback()
        emit(shop, session, "kept", key="a", data={"n": 1}, seq=AUTO)
        session.commit()

    with recording(shop.events) as recorder:
        recorder.assert_nothing_emitted()
        backend.run(body)
        recorder.assert_emitted("lost")
        kept = recorder.assert_committed("kept", key="a", data={"n": 1}, seq=1)
        assert recorder.committed == [kept]
        with pytest.raises(AssertionError, match="found 0 among"):
            recorder.assert_committed("lost")
        with pytest.raises(AssertionError, match="kept"):
            recorder.assert_nothing_committed()
        recorder.clear()
        recorder.assert_nothing_committed()
    backend.run(body)
    assert recorder.emitted == []
