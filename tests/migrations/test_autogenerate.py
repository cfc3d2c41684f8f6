"""Users with their own Alembic: what `alembic revision --autogenerate` writes is right as it is."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import alembic
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Column, Engine, Integer, MetaData, Table, inspect

import inbox
from outbox import Outbox
from projector import migration

ENV = """
from alembic import context
from sqlalchemy import create_engine
from models import metadata

with create_engine({url!r}).connect() as connection:
    context.configure(connection=connection, target_metadata=metadata, {options})
    with context.begin_transaction():
        context.run_migrations()
"""
MODELS = """
from sqlalchemy import Column, Integer, MetaData, Table
from outbox import Outbox

metadata = MetaData({metadata})
orders = Table("orders", metadata, Column("id", Integer, primary_key=True))
events = Outbox(metadata, name="shop", {outbox})
"""
CONVENTION = {
    "ix": "ix_%(column_0_N_label)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "pk": "pk_%(table_name)s",
}
STRICT = "compare_type=True, compare_server_default=True"
CASES = {
    "as alembic init leaves it": ("", "", ""),
    "with every comparison, batches, a naming convention and a prefix": (
        f"{STRICT}, render_as_batch=True",
        f"naming_convention={CONVENTION}",
        "prefix='shop_', lanes=3",
    ),
}
ON_POSTGRESQL = {
    "in a schema that alembic does not look into": (STRICT, "", "schema='events'"),
    "in a schema among all, with a prefix for user types": (
        f"{STRICT}, include_schemas=True, user_module_prefix='mine.'",
        "",
        "schema='events'",
    ),
}
Snapshot = Callable[..., list[tuple[object, ...]]]


class Project:
    """A directory with an Alembic environment, worked on with the alembic command."""

    def __init__(
        self, folder: Path, engine: Engine, options: str, metadata: str, outbox: str
    ) -> None:
        self.folder = folder
        url = engine.url.render_as_string(hide_password=False)
        self.versions = folder / "scripts" / "versions"
        self.versions.mkdir(parents=True)
        template = Path(alembic.__file__).parent / "templates/generic/script.py.mako"
        shutil.copy(template, folder / "scripts")
        (folder / "scripts/env.py").write_text(ENV.format(url=url, options=options))
        (folder / "models.py").write_text(MODELS.format(metadata=metadata, outbox=outbox))
        (folder / "alembic.ini").write_text(
            "[alembic]\nscript_location = scripts\nprepend_sys_path = .\npath_separator = os\n"
        )

    def alembic(self, *arguments: str) -> str:
        command = [sys.executable, "-W", "error", "-m", "alembic", *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def generated(self) -> str:
        return "".join(file.read_text() for file in self.versions.glob("*.py"))

    def outbox(self) -> Outbox:
        names: dict[str, Any] = {}
        exec((self.folder / "models.py").read_text(), names)
        return names["events"]


def round_trip(engine: Engine, folder: Path, case: tuple[str, str, str], snapshot: Snapshot) -> str:
    """Generate, upgrade, generate nothing more, and go back; returns what was generated."""
    project = Project(folder, engine, *case)
    events = project.outbox()
    project.alembic("revision", "--autogenerate", "-m", "outbox")
    project.alembic("upgrade", "head")
    with engine.connect() as connection:
        assert events.validate(connection) == []
    generated = snapshot(engine, events.tables.schema)
    assert "No new upgrade operations" in project.alembic("check")
    project.alembic("downgrade", "base")
    assert snapshot(engine, events.tables.schema) == []
    events.metadata.create_all(engine)
    assert generated == snapshot(engine, events.tables.schema)
    return project.generated()


@pytest.mark.parametrize("case", [*CASES, *ON_POSTGRESQL])
def test_a_round_trip_on_postgresql(
    postgres_engine: Engine, tmp_path: Path, snapshot: Snapshot, case: str
) -> None:
    """The generated file runs without edits, makes what create_all makes, and is complete."""
    given = (CASES | ON_POSTGRESQL)[case]
    source = round_trip(postgres_engine, tmp_path / "project", given, snapshot)
    assert "import outbox.types\n" in source
    assert "sa.Column('xid', outbox.types.XID8(), " in source
    assert "with_variant" not in source


@pytest.mark.parametrize("case", CASES)
def test_a_round_trip_on_sqlite(
    sqlite_engine: Engine, tmp_path: Path, snapshot: Snapshot, case: str
) -> None:
    """The generated file runs without edits, needs nothing of ours, and is complete."""
    source = round_trip(sqlite_engine, tmp_path / "project", CASES[case], snapshot)
    assert "sa.PrimaryKeyConstraint('id', name=" in source
    assert source.count("sqlite_autoincrement=True") == 2
    assert "outbox.types" not in source
    assert "Identity" not in source


def diffs(engine: Engine, metadata: MetaData, **options: Any) -> list[Any]:
    with engine.connect() as connection:
        options = {"compare_type": True, "compare_server_default": True, **options}
        return compare_metadata(MigrationContext.configure(connection, opts=options), metadata)


def test_tables_of_create_all_have_nothing_to_migrate(engine: Engine) -> None:
    """Who used create_all so far, and starts with Alembic now, gets an empty first revision."""
    metadata = MetaData()
    Outbox(metadata, name="shop")
    metadata.create_all(engine)
    assert diffs(engine, metadata) == []


def test_a_foreign_alembic_does_not_drop_what_projector_migrate_made(engine: Engine) -> None:
    """Tables that your metadata does not know are normally dropped; ours are looked after."""
    events = Outbox(name="shop", prefix="my_")
    migration.upgrade(engine.url, events)
    assert diffs(engine, MetaData()) == []
    assert diffs(engine, events.metadata) == []


def test_the_inbox_tables_of_a_migration_are_yours_too(engine: Engine) -> None:
    """What `projector migrate` made and `inbox.tables` declares is the same to Alembic."""
    events = Outbox(name="shop", prefix="my_")
    migration.upgrade(engine.url, events)
    inbox.tables(events.metadata, prefix="my_")
    assert diffs(engine, events.metadata) == []


def test_tables_that_only_look_like_ours_are_yours(engine: Engine) -> None:
    """A table of yours that you took out of your metadata is dropped, as always."""
    yours = MetaData()
    Table("outbox_version", yours, Column("id", Integer, primary_key=True))
    Outbox(yours, name="shop", prefix="my_")
    yours.create_all(engine)
    dropped = {diff[1].name for diff in diffs(engine, MetaData()) if diff[0] == "remove_table"}
    expected = {table.name for table in Outbox(name="x", prefix="my_").tables.all()}
    assert dropped == {"outbox_version"} | expected


def test_taking_the_outbox_out_can_be_undone(
    postgres_engine: Engine, tmp_path: Path, snapshot: Snapshot
) -> None:
    """The downgrade of a revision that drops the tables makes them again, types and all."""
    project = Project(tmp_path / "project", postgres_engine, "", "", "")
    project.outbox().metadata.create_all(postgres_engine)
    before = snapshot(postgres_engine)
    models = project.folder / "models.py"
    models.write_text("from sqlalchemy import MetaData\nmetadata = MetaData()\n")
    project.alembic("revision", "--autogenerate", "-m", "no outbox")
    project.alembic("upgrade", "head")
    assert snapshot(postgres_engine) == []
    project.alembic("downgrade", "base")
    assert snapshot(postgres_engine) == before


def test_other_tables_in_our_schema_are_not_touched(postgres_engine: Engine) -> None:
    """Looking for our tables in their schema does not make Alembic drop the neighbours."""
    with postgres_engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA events")
        connection.exec_driver_sql("CREATE TABLE events.neighbour (id integer)")
    events = Outbox(name="shop", schema="events")
    added = {
        diff[1].name for diff in diffs(postgres_engine, events.metadata) if "_table" in diff[0]
    }
    assert added == {table.name for table in events.tables.all()}
    events.metadata.create_all(postgres_engine)
    assert diffs(postgres_engine, events.metadata) == []
    assert inspect(postgres_engine).has_table("neighbour", schema="events")


def test_a_missing_column_of_ours_is_generated_in_our_schema(postgres_engine: Engine) -> None:
    """Our tables are compared, not just found."""
    events = Outbox(name="shop", schema="events")
    with postgres_engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA events")
        events.metadata.create_all(connection)
        connection.exec_driver_sql("ALTER TABLE events.outbox DROP tenant")
    (diff,) = diffs(postgres_engine, events.metadata)
    assert (diff[0], diff[1], diff[2], diff[3].name) == ("add_column", "events", "outbox", "tenant")


def test_your_own_renderers_stay(postgres_engine: Engine, tmp_path: Path) -> None:
    """A render_item of your env.py has the first word, also about our types."""
    mine = "lambda kind, item, context: type(item).__name__ == 'XID8' and 'mine.Type()'"
    project = Project(tmp_path / "project", postgres_engine, f"render_item={mine}", "", "")
    project.alembic("revision", "--autogenerate", "-m", "outbox")
    assert "'xid', mine.Type()" in project.generated()


def test_your_own_filters_stay(engine: Engine) -> None:
    """An include_name of your env.py is asked as ever."""
    yours = MetaData()
    Table("yours", yours, Column("id", Integer, primary_key=True))
    yours.create_all(engine)
    assert len(diffs(engine, MetaData())) == 1
    assert diffs(engine, MetaData(), include_name=lambda name, *_: name != "yours") == []


def test_older_alembics_can_load_the_plugin() -> None:
    """Before 1.20.1, Alembic iterates over what an entry point names, and expects modules."""
    (entry_point,) = [e for e in entry_points(group="alembic.plugins") if "oncebox" in e.name]
    (module,) = entry_point.load()
    assert module is sys.modules["outbox.autogenerate"]


def test_importing_alembic_stays_light() -> None:
    """The plugin is loaded wherever alembic is; it must bring no driver, server or command line."""
    code = """
import sys, alembic.config, alembic.autogenerate
heavy = {"asyncpg", "redis", "typer", "psycopg", "aiosqlite", "prometheus_client", "projector"}
assert "outbox.autogenerate" in sys.modules
sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("first", ["outbox", "outbox.autogenerate", "alembic.op", "projector.cli"])
def test_the_order_of_imports_does_not_matter(first: str) -> None:
    """Neither alembic nor outbox is ever seen half imported."""
    code = f"import {first}, outbox, alembic.command, outbox.autogenerate"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
