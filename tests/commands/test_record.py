"""The table of the records: the columns, defaults and index names that are promised."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import JSON, DateTime, Integer, MetaData, String, insert, inspect, select

import inbox
from inbox import CommandState, IdempotencyRecord
from support.desk import Desk, done

COLUMNS = {
    "idempotency_key": (String, 64, False),
    "tenant_id": (String, 64, False),
    "operation": (String, 128, False),
    "request_hash": (String, 64, True),
    "response": (JSON, None, True),
    "status_code": (Integer, None, True),
    "state": (String, 20, False),
    "created_at": (DateTime, None, False),
    "expires_at": (DateTime, None, True),
}


def test_columns_in_their_order() -> None:
    """Names, types, lengths, and what may be NULL."""
    found = {
        column.name: (type(column.type), getattr(column.type, "length", None), column.nullable)
        for column in IdempotencyRecord.__table__.columns
    }
    assert list(found.items()) == list(COLUMNS.items())
    assert IdempotencyRecord.__table__.c.created_at.type.timezone
    assert IdempotencyRecord.__table__.c.expires_at.type.timezone


def test_the_tenant_is_part_of_the_primary_key() -> None:
    """Two tenants may use the same key."""
    table = IdempotencyRecord.__table__
    assert [column.name for column in table.primary_key] == ["tenant_id", "idempotency_key"]


def test_names_of_the_indexes() -> None:
    """With a prefix they are others, for two sets of tables share one namespace."""

    def indexes(prefix: str) -> dict[str, list[str]]:
        table = inbox.tables(MetaData(), prefix=prefix).idempotency
        return {str(it.name): [column.name for column in it.columns] for it in table.indexes}

    assert indexes("") == {
        "ix_idempotency_tenant": ["tenant_id"],
        "ix_idempotency_expires": ["expires_at"],
    }
    assert set(indexes("my_")) == {"ix_my_idempotency_tenant", "ix_my_idempotency_expires"}


def test_the_states() -> None:
    """Three, stored as they are written."""
    assert [str(state) for state in CommandState] == ["PENDING", "COMPLETED", "FAILED"]


def test_tables_on_your_metadata_are_put_there_once() -> None:
    """Called again, the same tables are given."""
    metadata = MetaData()
    assert inbox.tables(metadata) == inbox.tables(metadata)
    assert {"idempotency", "inbox_claims", "inbox_handled"} == set(metadata.tables)


async def test_defaults_of_the_database(desk: Desk) -> None:
    """A row of its key alone is pending, with status 200, made now."""
    row = {"idempotency_key": "k", "tenant_id": "default", "operation": "CreateOrder"}
    async with desk.open() as session:
        await done(session.execute(insert(IdempotencyRecord.__table__), [row]))
        record = (await done(session.scalars(select(IdempotencyRecord)))).one()
    assert (record.state, record.status_code) == ("PENDING", 200)
    assert (record.request_hash, record.response, record.expires_at) == (None, None, None)
    created = record.created_at.replace(tzinfo=UTC) if not desk.is_postgres else record.created_at
    assert abs(datetime.now(UTC) - created) < timedelta(minutes=5)


async def test_create_all_makes_the_indexes(asyncpg_desk: Desk) -> None:
    """In the database, and not in the metadata alone."""
    async with asyncpg_desk.engine.connect() as connection:  # type: ignore[union-attr]
        found = await connection.run_sync(lambda it: inspect(it).get_indexes("idempotency"))
    assert {index["name"] for index in found} == {
        "ix_idempotency_tenant",
        "ix_idempotency_expires",
    }


@pytest.mark.parametrize("name", ["IdempotencyRecord", "SqlAlchemyIdempotency", "hash_request"])
def test_everything_comes_from_inbox(name: str) -> None:
    """Names that are loaded when first asked for are listed and found."""
    assert name in inbox.__all__
    assert getattr(inbox, name)
