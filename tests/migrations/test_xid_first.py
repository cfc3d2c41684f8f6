"""A transaction has its xid before it draws its first id, however rows are inserted.

How it is seen: on the real table, the default of `xid` is replaced by a function that notes, when
it is first evaluated, how far the real sequence of `id` has got, and then does what the default
did. It is STABLE, as pg_current_xact_id() is, so that it is planned the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import psycopg
import pytest
from sqlalchemy import Connection, Engine, Identity, event, insert, make_url, text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outbox import AUTO, Event, Outbox
from projector import migration

PROBE = """
    CREATE FUNCTION probe() RETURNS xid8 LANGUAGE plpgsql STABLE AS $$
    BEGIN
        IF coalesce(current_setting('probe.ids', true), '') = '' THEN
            PERFORM set_config(
                'probe.ids', pg_sequence_last_value('outbox_id_seq'::regclass)::text, false);
        END IF;
        RETURN pg_current_xact_id();
    END $$;
"""
PLANT = "ALTER TABLE outbox ALTER xid SET DEFAULT probe()"
COLUMNS = "lane, event_id, topic, type, key, data, content_type"
VALUES = "0, gen_random_uuid(), 'orders', 'placed', 'k', ''::bytea, 'text/plain'"

FORMS = {
    "single values": f"INSERT INTO outbox ({COLUMNS}) VALUES ({VALUES})",
    "multi values": f"INSERT INTO outbox ({COLUMNS}) VALUES ({VALUES}), ({VALUES}), ({VALUES})",
    "select": f"INSERT INTO outbox ({COLUMNS}) SELECT {VALUES} FROM generate_series(1, 3)",
    "ordered select": f"INSERT INTO outbox ({COLUMNS}) SELECT {VALUES} FROM generate_series(1, 3) n"
    " ORDER BY n DESC",
    "defaults": f"INSERT INTO outbox (id, xid, {COLUMNS}) VALUES (DEFAULT, DEFAULT, {VALUES})",
    "many defaults": f"INSERT INTO outbox (id, xid, {COLUMNS})"
    f" VALUES (DEFAULT, DEFAULT, {VALUES}), (DEFAULT, DEFAULT, {VALUES})",
    "returning": f"INSERT INTO outbox ({COLUMNS}) VALUES ({VALUES}), ({VALUES}) RETURNING id",
    "cte": f"WITH rows AS (SELECT {VALUES}) INSERT INTO outbox ({COLUMNS}) SELECT * FROM rows",
}


@pytest.fixture
def events() -> Outbox:
    return Outbox(name="shop")


@pytest.fixture
def probed(postgres_engine: Engine, events: Outbox) -> Engine:
    """The real tables with the probe planted, and a sequence that is in use."""
    events.metadata.create_all(postgres_engine)
    plant(postgres_engine)
    return postgres_engine


def plant(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(PROBE)
        connection.exec_driver_sql(PLANT)
        connection.exec_driver_sql(FORMS["single values"])


def ids_before_xid(engine: Engine, act: Callable[[Connection], object]) -> int:
    """How many ids a fresh transaction had drawn when the default of xid was first evaluated."""
    with engine.begin() as connection:
        before = connection.scalar(text("SELECT pg_sequence_last_value('outbox_id_seq')"))
        assert connection.scalar(text("SELECT pg_current_xact_id_if_assigned()::text")) is None
        act(connection)
        noted = connection.scalar(text("SELECT current_setting('probe.ids')"))
        after = connection.scalar(text("SELECT pg_sequence_last_value('outbox_id_seq')"))
        assert after > before, "rows were inserted"
    return int(noted) - before


def executing(statement: str) -> Callable[[Connection], object]:
    return lambda connection: connection.exec_driver_sql(statement)


def row() -> dict[str, object]:
    fields = {"topic": "orders", "type": "placed", "key": "k", "content_type": "text/plain"}
    return {"lane": 0, "event_id": uuid4(), "data": b"", **fields}


@pytest.mark.parametrize("form", FORMS)
def test_the_xid_comes_first_in_plain_sql(probed: Engine, form: str) -> None:
    """No form of INSERT draws an id before the transaction id."""
    assert ids_before_xid(probed, executing(FORMS[form])) == 0


def test_the_xid_comes_first_in_sqlalchemy(probed: Engine, events: Outbox) -> None:
    """Core's many rows, with and without RETURNING, and those in the order of the parameters."""
    table = events.table
    for statement in (
        insert(table),
        insert(table).returning(table.c.id),
        insert(table).returning(table.c.id, sort_by_parameter_order=True),
    ):
        rows = [row() for _ in range(3)]
        assert ids_before_xid(probed, lambda c, s=statement, r=rows: c.execute(s, r)) == 0


def test_the_xid_comes_first_in_the_orm(probed: Engine) -> None:
    """The ORM's batched INSERT … SELECT … FROM (VALUES …) ORDER BY, for who maps id as the key."""
    statements: list[str] = []

    def add_all(connection: Connection) -> None:
        event.listen(connection, "before_cursor_execute", lambda *a: statements.append(a[2]))
        session = Session(connection)
        session.add_all([LogRow(**row()) for _ in range(3)])
        session.flush()

    assert ids_before_xid(probed, add_all) == 0
    assert any("ORDER BY sen_counter" in statement for statement in statements), statements


class Base(DeclarativeBase):
    pass


class LogRow(Base):
    """The log as somebody else may map it."""

    __tablename__ = "outbox"
    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    lane: Mapped[int]
    event_id: Mapped[UUID]
    topic: Mapped[str]
    type: Mapped[str]
    key: Mapped[str]
    data: Mapped[bytes]
    content_type: Mapped[str]


@pytest.mark.parametrize("seq", [None, 7, AUTO])
def test_the_xid_comes_first_in_our_own_statements(
    probed: Engine, events: Outbox, seq: Any
) -> None:
    """What emit() and insert() write, with every kind of seq."""
    fields = {"topic": "orders", "key": "k", "data": {}, "seq": seq}

    def emit(connection: Connection) -> None:
        session = Session(connection)
        events.emit(session, "placed", **fields | {"key": "other"})
        session.commit()

    insert_at_once = events.insert(Event("placed", **fields))
    assert ids_before_xid(probed, lambda c: c.execute(insert_at_once)) == 0
    assert ids_before_xid(probed, emit) == 0


def test_the_xid_comes_first_in_copy(probed: Engine) -> None:
    """psycopg's COPY, as bulk loaders use it."""

    def copy(connection: Connection) -> None:
        driver = connection.connection.driver_connection
        assert driver is not None
        with driver.cursor().copy(f"COPY outbox ({COLUMNS}) FROM STDIN") as stream:
            for _ in range(3):
                stream.write_row((0, uuid4(), "orders", "placed", "k", b"", "text/plain"))

    assert ids_before_xid(probed, copy) == 0


async def test_the_xid_comes_first_in_asyncpgs_copy(probed: Engine, database: str) -> None:
    """asyncpg's copy_records_to_table, in binary."""
    url = make_url(database).set(drivername="postgresql").render_as_string(hide_password=False)
    connection = await asyncpg.connect(url)
    async with connection.transaction():
        before = await connection.fetchval("SELECT pg_sequence_last_value('outbox_id_seq')")
        assert await connection.fetchval("SELECT pg_current_xact_id_if_assigned()::text") is None
        records = [(0, uuid4(), "orders", "placed", "k", b"", "text/plain") for _ in range(3)]
        columns = COLUMNS.split(", ")
        await connection.copy_records_to_table("outbox", records=records, columns=columns)
        assert int(await connection.fetchval("SELECT current_setting('probe.ids')")) == before
    await connection.close()


def test_the_migration_draws_the_xid_first_too(postgres_engine: Engine, events: Outbox) -> None:
    """Not only what create_all makes, also what `projector migrate` makes."""
    migration.upgrade(postgres_engine.url, events)
    plant(postgres_engine)
    for form in FORMS.values():
        assert ids_before_xid(postgres_engine, executing(form)) == 0


def test_the_method_sees_an_id_before_the_xid(postgres_engine: Engine) -> None:
    """On a table with id declared before xid, the same probe finds ids drawn too early."""
    with postgres_engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY, xid xid8 NOT NULL"
            " DEFAULT pg_current_xact_id(), lane smallint, event_id uuid, topic text, type text,"
            " key text, data bytea, content_type text)"
        )
    plant(postgres_engine)
    for form in ("single values", "multi values", "select", "returning", "cte"):
        assert ids_before_xid(postgres_engine, executing(FORMS[form])) == 1, form


def test_by_default_would_draw_the_id_first(probed: Engine) -> None:
    """Why id is GENERATED ALWAYS: with BY DEFAULT, a VALUES list of DEFAULTs draws it first."""
    with probed.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE outbox ALTER id SET GENERATED BY DEFAULT")
    assert ids_before_xid(probed, executing(FORMS["many defaults"])) == 1


def test_an_id_of_ones_own_is_refused(postgres_engine: Engine, events: Outbox) -> None:
    """Nobody can write below the relay's head by accident: explicit ids are an error."""
    events.metadata.create_all(postgres_engine)
    statement = f"INSERT INTO outbox (id, {COLUMNS}) VALUES (7, {VALUES})"
    with postgres_engine.begin() as connection, pytest.raises(ProgrammingError) as refused:
        connection.exec_driver_sql(statement)
    assert isinstance(refused.value.orig, psycopg.errors.GeneratedAlways)
