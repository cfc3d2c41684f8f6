"""A PostgreSQL server of our own."""

import secrets
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from projector.embedded.account import Account, server_account
from projector.embedded.binaries import Search, find_postgres
from projector.embedded.errors import NotRunningError
from projector.embedded.installation import Installation
from projector.embedded.ports import LOOPBACK, Port
from projector.embedded.server import Server
from projector.embedded.settings import Settings, merged, postgres_line
from projector.embedded.sql import fetch

if TYPE_CHECKING:
    from projector.embedded.standby import Standby

USER = "postgres"
OURS = frozenset({"port", "listen_addresses", "unix_socket_directories", "data_directory"})
DEFAULTS: Settings = {
    "fsync": "off",  # the data dies with the machine anyway, and a killed server needs none
    "dynamic_shared_memory_type": "mmap",  # containers have little /dev/shm
    "max_connections": 200,
    "timezone": "UTC",
    "log_timezone": "UTC",
    "wal_keep_size": "256MB",  # a standby may be down for a while
}
STATUS_LINE = 7  # of postmaster.pid, where pg_ctl looks too


class Postgres(Server):
    """`settings` are those of postgresql.conf. Only the password opens it, on the loopback.

    `version` is the major version; by default ONCEBOX_POSTGRES says it, else the newest is taken.
    As root it runs as an unprivileged user.
    """

    name = "postgres"
    stop_signal = signal.SIGINT  # the fast shutdown; the one by SIGTERM waits for clients
    last_signal = signal.SIGQUIT
    passing_failure = "shared memory block"

    def __init__(
        self,
        settings: Settings | None = None,
        version: int | None = None,
        *,
        search: Search | None = None,
        ports: Callable[[], Port] = Port,
    ) -> None:
        super().__init__(merged(DEFAULTS, settings, OURS), ports)
        self.version = version
        self.password = secrets.token_hex(16)
        self._search = search or Search.everywhere()
        self._runs_as: Account | None = None
        self._installation: Installation | None = None

    def url(self, driver: str | None = "asyncpg", database: str | None = None) -> str:
        """For SQLAlchemy; without a driver, for asyncpg and libpq."""
        scheme = f"postgresql+{driver}" if driver else "postgresql"
        login, name = f"{USER}:{self.password}", quote(database or USER, safe="")
        return f"{scheme}://{login}@{LOOPBACK}:{self.port}/{name}"

    def execute(self, statement: str, database: str | None = None) -> list[Any]:
        """One statement on a connection of its own, committed, and its rows."""
        return fetch(self.url(driver=None, database=database), statement)

    def create_database(self, name: str) -> str:
        """An empty database; returns its URL."""
        quoted = name.replace('"', '""')
        self.execute(f'CREATE DATABASE "{quoted}"')
        return self.url(database=name)

    def standby(self, settings: Settings | None = None) -> "Standby":
        """Not started yet. It has the settings of this server, then its own."""
        from projector.embedded.standby import Standby  # which is a Postgres itself

        return Standby(self, settings)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _program(self, name: str) -> Path:
        if self._installation is None:
            raise NotRunningError(self.name)
        return self._installation.programs / name

    def _find_programs(self) -> Account | None:
        self._installation = find_postgres(self.version, self._search)
        self.version = self._installation.version
        self._runs_as = server_account()
        return self._runs_as

    def _prepare(self) -> None:
        assert self._installation
        self._installation = self._installation.usable_by(self._runs_as, self.folder)
        self._make_data()

    def _make_data(self) -> None:
        secret = self._private_file("password", self.password)
        options = ("--no-sync", "--no-instructions", "--encoding=UTF8", "--locale=C")
        access = (f"--username={USER}", f"--pwfile={secret}", "--auth=scram-sha-256")
        self._run(self._program("initdb"), f"--pgdata={self._data}", *options, *access)
        secret.unlink()

    def _private_file(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.touch(mode=0o600)
        file.write_text(text)
        if self._runs_as:
            self._runs_as.own(file)
        return file

    def _command(self) -> Sequence[str | Path]:
        fixed: Settings = {
            "port": self.port,
            "listen_addresses": LOOPBACK,
            "unix_socket_directories": "",
        }
        lines = [postgres_line(name, value) for name, value in {**self.settings, **fixed}.items()]
        (self._data / "postgresql.conf").write_text("".join(lines), encoding="utf-8")
        return (self._program("postgres"), "-D", self._data)

    def _accepts_connections(self) -> bool:
        """By the lock file: asking over the network would cost a connection for every try."""
        try:
            lines = (self._data / "postmaster.pid").read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return False
        ours = lines[:1] == [str(self._pid)]  # and not of a killed predecessor
        return ours and [line.strip() for line in lines[STATUS_LINE:]] == ["ready"]
