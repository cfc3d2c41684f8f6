"""`projector migrate`, as it is typed in a shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, inspect, make_url

import projector
from outbox import Outbox

SOURCE = Path(projector.__file__).parent.parent


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: v for name, v in os.environ.items() if not name.startswith("PROJECTOR_")}
    return subprocess.run(
        [sys.executable, "-m", "projector", *arguments],
        env=clean | environment,
        capture_output=True,
        text=True,
    )


def migrate(url: str, *arguments: str, name: str = "shop") -> subprocess.CompletedProcess[str]:
    return run("migrate", "--database-url", url, "--name", name, *arguments)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/outbox.db"


def test_a_life_with_migrate(url: str) -> None:
    """Checked, created, up to date, checked again, and back: each says what it did."""
    create_engine(url).connect().close()
    checked = migrate(url, "--check")
    assert (checked.returncode, checked.stdout.count("is missing")) == (1, 8)
    said = [
        (["--lanes", "3"], "created the tables of outbox 'shop' (revision 0006)\n"),
        (["--lanes", "3"], "the tables of outbox 'shop' are already up to date (revision 0006)\n"),
        (["--lanes", "3", "--check"], "no differences\n"),
        (["--lanes", "3", "--downgrade", "base"], "downgraded the tables of outbox 'shop' to base"),
    ]
    for arguments, output in said:
        done = migrate(url, *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(output)


def test_postgresql_by_environment(database: str) -> None:
    """Every setting can come from the environment, and a bare postgresql:// is enough."""
    engine = create_engine(make_url(database).set(drivername="postgresql+psycopg"))
    done = run(
        "migrate",
        PROJECTOR_DATABASE_URL=database.replace("+asyncpg", ""),
        PROJECTOR_NAME="crm",
        PROJECTOR_LANES="4",
        PROJECTOR_SCHEMA="events",
        PROJECTOR_PREFIX="crm_",
    )
    assert done.stdout == "created the tables of outbox 'crm' (revision 0006)\n", done.stderr
    events = Outbox(name="crm", lanes=4, schema="events", prefix="crm_")
    with engine.connect() as connection:
        assert events.validate(connection) == []
        meta = connection.exec_driver_sql("SELECT name, lanes FROM events.crm_outbox_meta").all()
    assert [tuple(row) for row in meta] == [("crm", 4)]
    engine.dispose()


def test_tables_of_create_all_are_adopted(url: str) -> None:
    """Adoption is told as such."""
    Outbox(name="shop").metadata.create_all(create_engine(url))
    assert migrate(url).stdout.startswith("adopted the existing tables of outbox 'shop'")


def test_differences_stop_the_adoption(url: str) -> None:
    """Every difference is on stderr, a line each, with exit code 1 and no traceback."""
    engine = create_engine(url)
    Outbox(name="shop").metadata.create_all(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP INDEX outbox_xid_idx")
    done = migrate(url, "--lanes", "4")
    assert (done.returncode, done.stdout) == (1, "")
    first, *lines = done.stderr.splitlines()
    assert first.startswith("projector: the tables in this database are not what the outbox needs")
    assert len(lines) == 2


def test_the_sql_goes_to_stdout_and_runs(url: str, sqlite_engine: Engine) -> None:
    """`projector migrate --sql | sqlite3 outbox.db`, without touching the database itself."""
    done = migrate("sqlite:////nowhere/outbox.db", "--sql")
    assert (done.returncode, done.stderr) == (0, "")
    connection = sqlite_engine.raw_connection()
    connection.driver_connection.executescript(done.stdout)
    connection.close()
    assert inspect(sqlite_engine).has_table("outbox")
    assert migrate(url).stdout.startswith("the tables of outbox 'shop' are already up to date")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["migrate"], "Missing option '--database-url'"),
        (["migrate", "--database-url", "sqlite://"], "Missing option '--name'"),
        (["migrate", "--database-url", "sqlite://", "--name", "a b"], "--name"),
        (["migrate", "--database-url", "sqlite://", "--name", "a", "--lanes", "0"], "--lanes"),
        (
            ["migrate", "--database-url", "sqlite://", "--name", "a", "--sql", "--check"],
            "exclude each other",
        ),
        (["migrat"], "No such command 'migrat'"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], message: str) -> None:
    """What was typed wrong is named, on stderr."""
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://shop:s3cret@127.0.0.1:1/shop",
        "postgresql://shop@127.0.0.1:1/shop?password=s3cret",
        "postgresql://shop:s3cret@host:port/shop",
        "mysql://shop:s3cret@host/shop",
    ],
)
def test_errors_are_one_line_without_the_password(url: str) -> None:
    """Exit code 1, one line on stderr, no traceback, no secret."""
    done = migrate(url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("projector: ")
    assert len(done.stderr.splitlines()) == 1
    assert "s3cret" not in done.stderr


def test_help_does_not_show_the_settings_of_the_environment() -> None:
    """`--help` names the variables, not what is in them."""
    done = run("migrate", "--help", PROJECTOR_DATABASE_URL="postgresql://shop:s3cret@host/shop")
    assert "PROJECTOR_DATABASE_URL" in done.stdout
    assert "s3cret" not in done.stdout


def test_an_installed_wheel_finds_its_migrations(url: str, tmp_path: Path) -> None:
    """In a wheel, migrations/ lies inside the package and nothing lies beside it."""
    site = tmp_path / "50% site"
    for package in ("outbox", "projector"):
        shutil.copytree(SOURCE / package, site / package)
    shutil.copytree(SOURCE / "migrations", site / "projector" / "migrations")
    check = "import projector, sys; assert projector.__file__.startswith(sys.argv.pop(1));"
    command = [sys.executable, "-c", f"{check} from projector.cli import main; main()", str(site)]
    arguments = ["migrate", "--database-url", url, "--name", "shop"]
    environment = os.environ | {"PYTHONPATH": str(site)}
    done = subprocess.run(
        [*command, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.stdout.startswith("created"), done.stderr
