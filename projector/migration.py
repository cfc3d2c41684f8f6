"""Gets the tables of an outbox into a database, and from one revision to the next.

Each function works on its own connection and in one transaction: a failure changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import URL, MetaData, NullPool, Table, create_engine, make_url, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine

from outbox import Outbox
from outbox.validation import differences, missing_tables
from projector.errors import MigrationError, TablesDiffer, TablesIncomplete

T = TypeVar("T")

HEAD = "head"
LAST_OF_OUTBOX = "0003"
"""The newest revision that made tables of the outbox. Those after it make what is missing."""
LOCK = 0x6F6E6365626F78  # "oncebox"
"""The advisory lock that lets one migration at a time into a PostgreSQL database."""


@dataclass(frozen=True, slots=True)
class Created:
    """There were no tables; now there are."""

    revision: str


@dataclass(frozen=True, slots=True)
class Adopted:
    """The tables were there already, as they should be; they are looked after from now on."""

    revision: str


@dataclass(frozen=True, slots=True)
class Upgraded:
    """The tables went from one revision to another."""

    before: str
    revision: str


@dataclass(frozen=True, slots=True)
class UpToDate:
    """There was nothing to do."""

    revision: str


Outcome = Created | Adopted | Upgraded | UpToDate


def upgrade(url: str | URL, outbox: Outbox, revision: str = HEAD) -> Outcome:
    """Create the tables, adopt those that are there already, or bring them to `revision`.

    Of several at once, one does the work and the others wait for it. Tables that are not as the
    outbox needs them, also at the newest revision, are an error that names every difference.
    """

    def body(connection: Connection) -> Outcome:
        _lock(connection)
        before = _revision(connection, outbox)
        if before is None and _adopt(connection, outbox):
            return Adopted(_known()[0])
        _alembic(connection, outbox, command.upgrade, revision)
        after = _revision(connection, outbox)
        assert after is not None
        if after == _known()[0] and (found := differences(connection, outbox)):
            raise TablesDiffer(found)
        if before is None:
            return Created(after)
        return UpToDate(after) if before == after else Upgraded(before, after)

    return _run(url, body)


def downgrade(url: str | URL, outbox: Outbox, revision: str) -> None:
    """Go back to an earlier revision; "base" drops the tables and every event in them."""

    def body(connection: Connection) -> None:
        _lock(connection)
        if _revision(connection, outbox) is None:
            raise MigrationError(
                "there is nothing to downgrade: `projector migrate` has made no tables here"
            )
        _alembic(connection, outbox, command.downgrade, revision)
        if _revision(connection, outbox) is None:
            options = _version_options(outbox)
            version = Table(options["version_table"], MetaData(), schema=outbox.tables.schema)
            version.drop(connection)

    _run(url, body)


def current(url: str | URL, outbox: Outbox) -> str | None:
    """The revision of the tables, or None where no migration of ours has run."""
    return _run(url, lambda connection: _revision(connection, outbox), reading=True)


def check(url: str | URL, outbox: Outbox) -> list[str]:
    """Every difference between the database and what the outbox needs; empty if none."""
    return _run(url, lambda connection: differences(connection, outbox), reading=True)


def sql(url: str | URL, outbox: Outbox) -> str:
    """The statements that create the tables in an empty database. Connects to nothing."""
    buffer = StringIO()
    config = _config(outbox, dialect=_parsed(url).get_backend_name())
    config.output_buffer = buffer
    command.upgrade(config, HEAD, sql=True)
    return buffer.getvalue()


def _adopt(connection: Connection, outbox: Outbox) -> bool:
    """Take over tables that others have made. False if there are none."""
    missing = missing_tables(connection, outbox)
    if len(missing) == len(outbox.tables.all()):
        return False
    if missing:
        raise TablesIncomplete(missing)
    if found := differences(connection, outbox):
        raise TablesDiffer(found)
    connection.execute(outbox.statements.claim_meta, {"name": outbox.name, "lanes": outbox.lanes})
    _alembic(connection, outbox, command.stamp, LAST_OF_OUTBOX)
    _alembic(connection, outbox, command.upgrade, HEAD)
    return True


def _lock(connection: Connection) -> None:
    """Wait until no other migration runs; held until this transaction ends."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
    else:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _revision(connection: Connection, outbox: Outbox) -> str | None:
    context = MigrationContext.configure(connection, opts=_version_options(outbox))
    revision = context.get_current_revision()
    if revision is not None and revision not in _known():
        raise MigrationError(
            f"the tables are at revision {revision}, which this version of oncebox does not know: "
            "install a newer one"
        )
    return revision


def _version_options(outbox: Outbox) -> dict[str, Any]:
    """A version table of our own: the user's Alembic may work in the same schema."""
    tables = outbox.tables
    return {
        "version_table": f"{tables.prefix}outbox_version",
        "version_table_schema": tables.schema,
    }


def _alembic(
    connection: Connection,
    outbox: Outbox,
    run: Callable[[Config, str], object],
    revision: str,
) -> None:
    run(_config(outbox, connection=connection), revision)


def _config(outbox: Outbox, **attributes: object) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_folder()).replace("%", "%%"))
    config.attributes.update(outbox=outbox, options=_version_options(outbox), **attributes)
    return config


def _known() -> list[str]:
    """Every revision, the newest first."""
    scripts = ScriptDirectory(str(_folder())).walk_revisions()
    return [script.revision for script in scripts]


def _folder() -> Path:
    """Inside the package in an installed wheel; beside it in a source checkout."""
    package = Path(__file__).parent
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parent / "migrations"


def _run(url: str | URL, body: Callable[[Connection], T], reading: bool = False) -> T:
    """`body` in a transaction of its own, whatever the driver."""
    target = _parsed(url)
    if reading:
        _check_file(target)
    with _explained(target):
        if not target.get_dialect().is_async:
            return _run_sync(target, body)
        # In a thread of its own: the caller's may have an event loop running.
        with ThreadPoolExecutor(max_workers=1) as thread:
            return thread.submit(asyncio.run, _run_async(target, body)).result()


def _run_sync(url: URL, body: Callable[[Connection], T]) -> T:
    engine = create_engine(url, poolclass=NullPool, **_engine_options(url))
    with _explained(url, *BAD_OPTIONS):
        connection = engine.connect()
    with connection, connection.begin():
        return body(connection)


async def _run_async(url: URL, body: Callable[[Connection], T]) -> T:
    engine = create_async_engine(url, poolclass=NullPool, **_engine_options(url))
    with _explained(url, *BAD_OPTIONS):
        connection = await engine.connect()
    try:
        async with connection.begin():
            return await connection.run_sync(body)
    finally:
        await connection.close()


def _engine_options(url: URL) -> dict[str, str]:
    # Who waited for the lock must see what the other has done meanwhile.
    on_postgresql = url.get_backend_name() == "postgresql"
    return {"isolation_level": "READ COMMITTED"} if on_postgresql else {}


def _parsed(url: str | URL) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # Not `from exc`, and not its text: it may quote the password.
        raise MigrationError("the database URL cannot be parsed") from None
    driver = parsed.drivername
    if driver in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+asyncpg")
    elif driver.startswith("sqlite"):
        parsed = parsed.set(drivername="sqlite")  # aiosqlite would do the same in a thread
    if parsed.get_backend_name() not in ("postgresql", "sqlite"):
        raise MigrationError(f"{driver} is not supported: use PostgreSQL or SQLite")
    if parsed.get_driver_name() == "asyncpg" and "sslmode" in parsed.query:
        query = {"ssl" if name == "sslmode" else name: v for name, v in parsed.query.items()}
        parsed = parsed.set(query=query)  # libpq's name for what asyncpg calls ssl
    return parsed


def _check_file(url: URL) -> None:
    """SQLite would create the file that is only to be looked at."""
    file = url.database
    if url.get_backend_name() == "sqlite" and file and not Path(file).exists():
        raise MigrationError(f"there is no database file {file}")


BAD_OPTIONS = (TypeError, ValueError)
"""What drivers raise for an option in the URL that they do not know."""


@contextmanager
def _explained(url: URL, *more: type[Exception]) -> Iterator[None]:
    """What drivers and Alembic raise, as a MigrationError that says in which database."""
    try:
        yield
    except ModuleNotFoundError as exc:
        raise MigrationError(f"{exc.name} is not installed: pip install {exc.name}") from exc
    except (SQLAlchemyError, CommandError, OSError, asyncpg.PostgresError, *more) as exc:
        raise MigrationError(f"{_place(url)}: {_reason(exc)}") from exc


def _place(url: URL) -> str:
    return url.set(query={}).render_as_string(hide_password=True)


def _reason(exc: BaseException) -> str:
    if isinstance(exc, DBAPIError) and exc.orig is not None:
        exc = exc.orig.__cause__ or exc.orig  # the driver's own words, without the statement
    return str(exc).strip().partition("\n")[0] or type(exc).__name__
