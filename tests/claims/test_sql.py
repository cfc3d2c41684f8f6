"""Claims in a table, on every driver."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.pool import NullPool

from inbox import SqlAlchemyStore
from inbox.claims.contract import SharedStoreContract
from support.stores import create_tables, sql_store


@pytest.fixture(scope="module")
def tables_of() -> Callable[[str], str]:
    """The prefix of a table in a database, made once for the file and emptied for each test."""
    made: dict[str, str] = {}

    def prefix(url: str) -> str:
        if url not in made:
            made[url] = f"t{uuid4().hex[:8]}_"
            create_tables(url, made[url])
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(text(f"DELETE FROM {made[url]}inbox_claims"))
        engine.dispose()
        return made[url]

    return prefix


class OnSql(SharedStoreContract):
    driver: str
    sync_driver: str

    @pytest.fixture
    def server(self, request: pytest.FixtureRequest, tmp_path: Path) -> str:
        """The URL of the database."""
        if self.driver.startswith("sqlite"):
            return f"sqlite:///{tmp_path / 'claims.db'}"
        return str(request.getfixturevalue("shared_postgres_url"))

    @pytest.fixture
    def url(self, server: str) -> str:
        return self.at(server, self.driver)

    @pytest.fixture
    def sync_url(self, server: str) -> str:
        return self.at(server, self.sync_driver)

    def at(self, server: str, driver: str) -> str:
        return make_url(server).set(drivername=driver).render_as_string(hide_password=False)

    @pytest.fixture
    def prefix(self, tables_of: Callable[[str], str], sync_url: str) -> str:
        return tables_of(sync_url)

    @pytest.fixture
    async def store(self, url: str, prefix: str) -> AsyncIterator[SqlAlchemyStore]:
        store = sql_store(url, prefix)
        yield store
        store.sync.close()
        if store.engine.dialect.is_async:
            await store.engine.dispose()
        else:
            store.engine.dispose()

    @pytest.fixture
    def reopen(self, sync_url: str, prefix: str) -> Callable[[], SqlAlchemyStore]:
        return partial(sql_store, sync_url, prefix, poolclass=NullPool)

    @pytest.fixture
    def spoil(self, sync_url: str, prefix: str) -> Callable[[str, str], None]:
        change = {"newer": "version = 2", "corrupt": "state = 'lost'"}

        def spoil(key: str, how: str) -> None:
            engine = create_engine(sync_url)
            with engine.begin() as connection:
                connection.execute(text(f"UPDATE {prefix}inbox_claims SET {change[how]}"))
            engine.dispose()

        return spoil


class TestAsyncpg(OnSql):
    driver, sync_driver = "postgresql+asyncpg", "postgresql+psycopg"


class TestPsycopg(OnSql):
    driver, sync_driver = "postgresql+psycopg", "postgresql+psycopg"


class TestAiosqlite(OnSql):
    driver, sync_driver = "sqlite+aiosqlite", "sqlite"


class TestSqlite(OnSql):
    driver, sync_driver = "sqlite", "sqlite"
