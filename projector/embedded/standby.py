"""A streaming standby, for failover."""

from projector.embedded.errors import EmbeddedError
from projector.embedded.ports import LOOPBACK
from projector.embedded.postgres import USER, Postgres
from projector.embedded.settings import Settings

OF_A_PRIMARY = "synchronous_standby_names"  # inherited, a promoted standby would wait for itself
DEFAULTS: Settings = {"wal_retrieve_retry_interval": "100ms"}  # of 5 s, too long for a test
PROMOTION_SECONDS = 30


class Standby(Postgres):
    """A hot standby, made with pg_basebackup. Ready when it streams from its primary."""

    def __init__(self, primary: Postgres, settings: Settings | None) -> None:
        inherited = {
            name: value for name, value in primary.settings.items() if name != OF_A_PRIMARY
        }
        wanted = {**DEFAULTS, **inherited, **(settings or {})}
        super().__init__(wanted, primary.version, search=primary._search)
        self.password = primary.password
        self._primary_port = primary.port
        self._streaming = False

    def promote(self) -> None:
        """Returns when it takes writes. The former primary is left alone: end it first."""
        if not self.execute(f"SELECT pg_promote(true, {PROMOTION_SECONDS})")[0][0]:
            raise EmbeddedError(
                f"the standby in {self.folder} did not become a primary within "
                f"{PROMOTION_SECONDS} s: see {self.log}"
            )

    def _make_data(self) -> None:
        login = f"{LOOPBACK}:{self._primary_port}:*:{USER}:{self.password}\n"
        passfile = self._private_file("pgpass", login)
        address = f"host={LOOPBACK} port={self._primary_port} user={USER} passfile='{passfile}'"
        # The last option leaves the address for the standby to stream from.
        options = ("--checkpoint=fast", "--no-sync", "--no-password", "--write-recovery-conf")
        program = self._program("pg_basebackup")
        self._run(program, f"--dbname={address}", f"--pgdata={self._data}", *options)

    def _accepts_connections(self) -> bool:
        if not super()._accepts_connections():
            return False
        if not self._streaming:  # only at first: later the primary may be what is down
            self._streaming = bool(
                self.execute("SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming'")
            )
        return self._streaming
