"""`projector.migration`: tables get into a database once, whole, and without guessing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from time import monotonic
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, inspect, make_url, text
from sqlalchemy.orm import Session

import inbox
from outbox import Outbox
from projector import migration
from projector.errors import MigrationError, ProjectorError, TablesDiffer, TablesIncomplete
from projector.migration import Adopted, Created, Upgraded, UpToDate

HEAD = "0006"
OURS = ("", "_delayed", "_seq", "_meta", "_checkpoint", "_groups", "_rejected", "_paused")
TABLES = {f"outbox{name}" for name in (*OURS, "_version")} | {
    *("inbox_claims", "idempotency", "inbox_handled")
}
Snapshot = Callable[..., list[tuple[object, ...]]]


@pytest.fixture
def events() -> Outbox:
    return Outbox(name="shop")


@pytest.fixture(
    params=[
        "postgresql",
        "postgres",
        "postgresql+asyncpg",
        "postgresql+psycopg",
        "sqlite",
        "sqlite+aiosqlite",
    ]
)
def url(request: pytest.FixtureRequest) -> str:
    """An empty database under each kind of URL."""
    if request.param.startswith("sqlite"):
        return f"{request.param}:///{request.getfixturevalue('tmp_path')}/outbox.db"
    database = make_url(request.getfixturevalue("database"))
    return database.set(drivername=request.param).render_as_string(hide_password=False)


def execute(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def meta(engine: Engine, table: str = "outbox_meta", columns: str = "name, lanes") -> list[Any]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(f"SELECT {columns} FROM {table}")]


def tables(engine: Engine, schema: str | None = None) -> set[str]:
    return set(inspect(engine).get_table_names(schema=schema))


def test_every_kind_of_url_works(url: str, events: Outbox) -> None:
    """Create, be up to date, go back: on each driver, with a bare postgresql:// as asyncpg."""
    assert migration.upgrade(url, events) == Created(HEAD)
    assert migration.upgrade(url, events) == UpToDate(HEAD)
    assert migration.current(url, events) == HEAD
    assert migration.check(url, events) == []
    migration.downgrade(url, events, "base")
    assert migration.current(url, events) is None
    assert len(migration.check(url, events)) == len(events.tables.all())


@pytest.mark.parametrize(
    ("schema", "prefix", "lanes"), [(None, "", 8), (None, "my ", 3), ("Events", "shop_", 64)]
)
def test_the_migration_makes_what_create_all_makes_on_postgresql(
    postgres_engine: Engine, snapshot: Snapshot, schema: str | None, prefix: str, lanes: int
) -> None:
    """Columns in their order, defaults, identities, constraints, indexes and names: all equal."""
    events = Outbox(name="shop", schema=schema, prefix=prefix, lanes=lanes)
    migration.upgrade(postgres_engine.url, events)
    migrated = snapshot(postgres_engine, schema)
    migration.downgrade(postgres_engine.url, events, "base")
    assert snapshot(postgres_engine, schema) == []
    inbox.tables(events.metadata, schema=schema, prefix=prefix)
    events.metadata.create_all(postgres_engine)
    assert migrated == snapshot(postgres_engine, schema)
    assert len(migrated) > 50


@pytest.mark.parametrize(("prefix", "lanes"), [("", 8), ("my ", 3)])
def test_the_migration_makes_what_create_all_makes_on_sqlite(
    sqlite_engine: Engine, snapshot: Snapshot, prefix: str, lanes: int
) -> None:
    """The statements that SQLite keeps are the same, but for spaces and the order of words."""
    events = Outbox(name="shop", prefix=prefix, lanes=lanes)
    migration.upgrade(sqlite_engine.url, events)
    migrated = snapshot(sqlite_engine)
    migration.downgrade(sqlite_engine.url, events, "base")
    inbox.tables(events.metadata, prefix=prefix)
    events.metadata.create_all(sqlite_engine)
    assert migrated == snapshot(sqlite_engine)
    assert len(migrated) >= 7


def test_the_meta_row_comes_with_the_tables(engine: Engine) -> None:
    """The name and the lane count are written by the migration."""
    migration.upgrade(engine.url, Outbox(name="shop", lanes=5, prefix="my_"))
    assert meta(engine, "my_outbox_meta") == [("shop", 5)]


def test_events_can_be_written_after_the_migration(engine: Engine, events: Outbox) -> None:
    """What was created takes events at once."""
    migration.upgrade(engine.url, events)
    with Session(engine) as session, session.begin():
        events.emit(session, "order.placed", topic="orders", key="1", data={})
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM outbox")) == 1


def test_a_schema_is_created_with_the_tables(postgres_engine: Engine) -> None:
    """With schema=, everything is in it, also the version table."""
    events = Outbox(name="shop", schema="Events")
    assert migration.upgrade(postgres_engine.url, events) == Created(HEAD)
    assert tables(postgres_engine, "Events") == TABLES
    assert tables(postgres_engine) == set()


def test_an_existing_schema_needs_no_right_to_create_schemas(
    postgres_engine: Engine,
) -> None:
    """A role that may only work in its schema can migrate."""
    role = "schema_owner"
    execute(postgres_engine, f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    execute(postgres_engine, f"CREATE SCHEMA own AUTHORIZATION {role}")
    try:
        url = postgres_engine.url.set(username=role, password="x")
        events = Outbox(name="shop", schema="own")
        assert migration.upgrade(url, events) == Created(HEAD)
    finally:
        execute(postgres_engine, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_it_leaves_your_own_alembic_alone(engine: Engine, events: Outbox) -> None:
    """An alembic_version table of yours is neither read nor written."""
    execute(
        engine,
        "CREATE TABLE alembic_version (version_num varchar(32) NOT NULL)",
        "INSERT INTO alembic_version VALUES ('abc')",
    )
    assert migration.upgrade(engine.url, events) == Created(HEAD)
    migration.downgrade(engine.url, events, "base")
    assert tables(engine) == {"alembic_version"}
    assert meta(engine, "alembic_version", "*") == [("abc",)]


def test_two_outboxes_in_one_database_do_not_meet(engine: Engine) -> None:
    """Each prefix has its tables and its revision."""
    shop, crm = Outbox(name="shop"), Outbox(name="crm", prefix="crm_", lanes=2)
    assert migration.upgrade(engine.url, shop) == Created(HEAD)
    assert migration.current(engine.url, crm) is None
    assert migration.upgrade(engine.url, crm) == Created(HEAD)
    migration.downgrade(engine.url, shop, "base")
    assert tables(engine) == {f"crm_{name}" for name in TABLES}


def test_tables_of_create_all_are_adopted(engine: Engine, events: Outbox) -> None:
    """Tables that are as they should be are taken over, with their events and a meta row."""
    events.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        events.emit(session, "order.placed", topic="orders", key="1", data={})
    execute(engine, "DELETE FROM outbox_meta")
    assert migration.upgrade(engine.url, events) == Adopted(HEAD)
    assert migration.upgrade(engine.url, events) == UpToDate(HEAD)
    assert meta(engine) == [("shop", 8)]
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM outbox")) == 1


@pytest.mark.parametrize("there", [True, False])
def test_the_inbox_has_its_tables_after_an_adoption(
    engine: Engine, events: Outbox, there: bool
) -> None:
    """Those that create_all has made stay, and those that are missing come along."""
    if there:
        inbox.tables(events.metadata)
    events.metadata.create_all(engine)
    assert migration.upgrade(engine.url, events) == Adopted(HEAD)
    assert tables(engine) == TABLES


def test_an_existing_meta_row_stays_when_tables_are_adopted(engine: Engine, events: Outbox) -> None:
    """The row that a first writer wrote is not doubled."""
    events.metadata.create_all(engine)
    execute(engine, "INSERT INTO outbox_meta (name, lanes) VALUES ('shop', 8)")
    assert migration.upgrade(engine.url, events) == Adopted(HEAD)
    assert meta(engine) == [("shop", 8)]


def test_tables_that_differ_are_not_adopted(
    engine: Engine, events: Outbox, snapshot: Snapshot
) -> None:
    """Every difference is named, and nothing is changed."""
    events.metadata.create_all(engine)
    execute(engine, "DROP INDEX outbox_xid_idx", "DROP INDEX outbox_seq_idx")
    before = snapshot(engine)
    with pytest.raises(TablesDiffer) as refused:
        migration.upgrade(engine.url, events)
    assert len(refused.value.differences) == 2
    assert "no index on (xid, id)" in str(refused.value)
    assert "no index on (topic, key, seq)" in str(refused.value)
    assert snapshot(engine) == before
    assert meta(engine) == []
    assert "outbox_version" not in tables(engine)


def test_half_of_the_tables_is_an_error_that_names_the_rest(engine: Engine, events: Outbox) -> None:
    """What is missing is said, and nothing is added beside what is there."""
    events.metadata.create_all(engine, tables=[events.tables.log, events.tables.meta])
    with pytest.raises(TablesIncomplete) as refused:
        migration.upgrade(engine.url, events)
    assert refused.value.missing == (
        *("outbox_delayed", "outbox_seq", "outbox_checkpoint", "outbox_groups"),
        *("outbox_rejected", "outbox_paused"),
    )
    assert tables(engine) == {"outbox", "outbox_meta"}


@pytest.mark.parametrize("stored", ["('other', 8)", "('shop', 16)"])
@pytest.mark.parametrize("adopting", [True, False])
def test_a_database_of_another_outbox_is_refused(
    engine: Engine, events: Outbox, stored: str, adopting: bool
) -> None:
    """Another name or lane count in the meta row is an error, adopting or up to date."""
    if adopting:
        events.metadata.create_all(engine)
    else:
        migration.upgrade(engine.url, events)
    execute(
        engine, "DELETE FROM outbox_meta", f"INSERT INTO outbox_meta (name, lanes) VALUES {stored}"
    )
    with pytest.raises(TablesDiffer, match="says that these tables"):
        migration.upgrade(engine.url, events)


def test_tables_broken_after_the_migration_are_not_called_up_to_date(
    engine: Engine, events: Outbox
) -> None:
    """A revision is no proof: the tables themselves are looked at."""
    migration.upgrade(engine.url, events)
    execute(engine, "DROP TABLE outbox_delayed")
    with pytest.raises(TablesDiffer, match="table outbox_delayed is missing"):
        migration.upgrade(engine.url, events)


def test_a_migration_that_fails_halfway_leaves_nothing(engine: Engine, events: Outbox) -> None:
    """The tables, the version table and the meta row come in one transaction."""
    taken = "CREATE INDEX outbox_delayed_deliver_at_idx ON mine (id)"
    execute(engine, "CREATE TABLE mine (id integer)", taken)
    with pytest.raises(MigrationError, match="already exists"):
        migration.upgrade(engine.url, events)
    assert tables(engine) == {"mine"}


def test_down_and_up_again(engine: Engine, events: Outbox, snapshot: Snapshot) -> None:
    """Going back to base leaves nothing of ours, and the way up is open again."""
    migration.upgrade(engine.url, events)
    first = snapshot(engine)
    migration.downgrade(engine.url, events, "base")
    assert tables(engine) == set()
    assert migration.upgrade(engine.url, events) == Created(HEAD)
    assert snapshot(engine) == first


def test_there_is_nothing_to_downgrade_without_a_migration(engine: Engine, events: Outbox) -> None:
    """Tables that others made are not dropped by us."""
    events.metadata.create_all(engine)
    with pytest.raises(MigrationError, match="nothing to downgrade"):
        migration.downgrade(engine.url, events, "base")
    assert "outbox" in tables(engine)


def test_an_unknown_revision_is_an_error(engine: Engine, events: Outbox) -> None:
    """One that is asked for, and one that a newer version has left in the database."""
    with pytest.raises(MigrationError, match="Can't locate revision identified by '0815'"):
        migration.upgrade(engine.url, events, "0815")
    migration.upgrade(engine.url, events)
    execute(engine, "UPDATE outbox_version SET version_num = '9999'")
    with pytest.raises(MigrationError, match="revision 9999, which this version"):
        migration.upgrade(engine.url, events)


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_upgrades_at_once_on_postgresql(
    postgres_engine: Engine, events: Outbox, isolation: str
) -> None:
    """All wait for the lock before they look; one creates, the others see that it is done."""
    setting = f"ALTER DATABASE {postgres_engine.url.database} SET default_transaction_isolation"
    execute(postgres_engine, f"{setting} = '{isolation}'")
    drivers = ["postgresql+asyncpg", "postgresql+psycopg", "postgresql+asyncpg"]
    urls = [postgres_engine.url.set(drivername=driver) for driver in drivers]
    with ThreadPoolExecutor() as threads:
        with postgres_engine.begin() as blocker:
            take = text("SELECT pg_advisory_xact_lock(:lock)")
            blocker.execute(take, {"lock": migration.LOCK})
            upgrades = [threads.submit(migration.upgrade, url, events) for url in urls]
            wait_for_waiters(postgres_engine, len(urls))
        outcomes = sorted(str(upgrade.result(timeout=30)) for upgrade in upgrades)
    assert outcomes == [str(Created(HEAD)), *[str(UpToDate(HEAD))] * 2]
    assert meta(postgres_engine) == [("shop", 8)]
    execute(postgres_engine, f"{setting} TO DEFAULT")


def wait_for_waiters(engine: Engine, count: int) -> None:
    deadline = monotonic() + 30
    waiting = text(
        "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database"
        " WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted"
    )
    with engine.connect() as connection:
        while connection.scalar(waiting) != count:
            assert monotonic() < deadline, "the upgrades did not wait for the lock"


def test_upgrades_at_once_on_sqlite(tmp_path: Path, events: Outbox) -> None:
    """One creates, the others find it done, round after round."""
    for attempt in range(5):
        url = f"sqlite:///{tmp_path}/{attempt}.db"
        barrier = Barrier(4)

        def upgrade(url: str = url, barrier: Barrier = barrier) -> str:
            barrier.wait()
            return str(migration.upgrade(url, events))

        with ThreadPoolExecutor(4) as threads:
            outcomes = sorted(f.result() for f in [threads.submit(upgrade) for _ in range(4)])
        assert outcomes == [str(Created(HEAD)), *[str(UpToDate(HEAD))] * 3]


async def test_it_can_be_called_while_an_event_loop_runs(database: str, events: Outbox) -> None:
    """From async code too, though it blocks; to_thread keeps the loop free."""
    assert migration.upgrade(database, events) == Created(HEAD)
    assert await asyncio.to_thread(migration.upgrade, database, events) == UpToDate(HEAD)


def test_the_sql_makes_the_same_database_on_postgresql(
    postgres_engine: Engine, snapshot: Snapshot
) -> None:
    """What sql() prints, run by a plain driver, is what upgrade() does; it needs no server."""
    events = Outbox(name="shop", schema="Events", prefix="my_")
    script = migration.sql("postgresql://nobody@nowhere.invalid/none", events)
    url = postgres_engine.url.set(drivername="postgresql")
    with psycopg.connect(url.render_as_string(hide_password=False), autocommit=True) as connection:
        connection.execute(script)
    printed = snapshot(postgres_engine, "Events")
    assert migration.upgrade(postgres_engine.url, events) == UpToDate(HEAD)
    assert meta(postgres_engine, '"Events".my_outbox_meta') == [("shop", 8)]
    migration.downgrade(postgres_engine.url, events, "base")
    migration.upgrade(postgres_engine.url, events)
    assert snapshot(postgres_engine, "Events") == printed


def test_the_sql_makes_the_same_database_on_sqlite(
    sqlite_engine: Engine, snapshot: Snapshot, events: Outbox
) -> None:
    """The same for SQLite, in one transaction."""
    connection = sqlite_engine.raw_connection()
    connection.driver_connection.executescript(migration.sql("sqlite:///none.db", events))
    connection.close()
    printed = snapshot(sqlite_engine)
    assert migration.upgrade(sqlite_engine.url, events) == UpToDate(HEAD)
    migration.downgrade(sqlite_engine.url, events, "base")
    migration.upgrade(sqlite_engine.url, events)
    assert snapshot(sqlite_engine) == printed


def test_looking_at_a_sqlite_file_does_not_create_it(tmp_path: Path, events: Outbox) -> None:
    """A mistyped path is an error, not an empty database."""
    for look in (migration.current, migration.check):
        with pytest.raises(MigrationError, match="there is no database file"):
            look(f"sqlite:///{tmp_path}/typo.db", events)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://shop:s3cret@127.0.0.1:1/shop", "Connect call failed"),
        ("postgresql+psycopg://shop:s3cret@127.0.0.1:1/shop", "Connection refused"),
        ("postgresql://shop:s3cret@127.0.0.1:1/shop?colour=blue", "unexpected keyword argument"),
        ("postgresql://shop:s3cret@host:s3cret/shop", "URL cannot be parsed"),
        ("s3cret", "URL cannot be parsed"),
        ("mysql://shop:s3cret@host/shop", "mysql is not supported"),
        ("postgresql+psycopg2://shop:s3cret@host/shop", "psycopg2 is not installed"),
        ("sqlite:////nowhere/outbox.db", "unable to open database file"),
    ],
)
def test_what_goes_wrong_is_one_line_without_the_password(
    url: str, message: str, events: Outbox
) -> None:
    """Whatever the driver raises, the error is ours, short, and keeps the secret."""
    with pytest.raises(MigrationError, match=message) as raised:
        migration.upgrade(url, events)
    assert isinstance(raised.value, ProjectorError)
    assert "\n" not in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_libpqs_sslmode_works_with_asyncpg(database: str, events: Outbox) -> None:
    """Hosted databases hand out URLs with sslmode; asyncpg calls it ssl."""
    url = database.replace("+asyncpg", "") + "?sslmode=prefer"
    assert migration.upgrade(url, events) == Created(HEAD)


def test_a_database_of_an_earlier_revision_is_upgraded(engine: Engine, events: Outbox) -> None:
    """What is in it stays, and what is new comes along."""
    migration.upgrade(engine.url, events, "0001")
    assert "outbox_checkpoint" not in tables(engine)
    assert migration.upgrade(engine.url, events) == Upgraded("0001", HEAD)
    assert tables(engine) == TABLES
    assert meta(engine) == [("shop", 8)]
