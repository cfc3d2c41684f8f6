"""A Valkey (or Redis) server of our own."""

import json
import secrets
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from projector.embedded.account import Account
from projector.embedded.binaries import Search, find_valkey
from projector.embedded.ports import LOOPBACK, Port
from projector.embedded.server import Server
from projector.embedded.settings import Settings, merged, valkey_line

OURS = frozenset({"port", "bind", "requirepass", "masterauth", "dir", "daemonize", "logfile"})
DEFAULTS: Settings = {
    "save": "",
    "maxmemory-policy": "noeviction",
    "repl-diskless-sync-delay": 0,  # replicas are few here: wait for no others
}


class Valkey(Server):
    """`settings` are those of valkey.conf; one with several words is one string, such as
    `{"save": "900 1 300 10"}`. By default nothing is saved, so a restart forgets everything:
    ask for `{"appendonly": "yes"}` to keep data.
    """

    name = "valkey"
    stop_signal = signal.SIGTERM
    last_signal = signal.SIGKILL
    passing_failure = "already used by a different Cluster node"

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        search: Search | None = None,
        ports: Callable[[], Port] = Port,
    ) -> None:
        super().__init__(merged(DEFAULTS, settings, OURS), ports)
        self.password = secrets.token_hex(16)
        self._search = search or Search.everywhere()
        self._program = Path()

    def url(self, database: int = 0) -> str:
        return f"redis://:{self.password}@{LOOPBACK}:{self.port}/{database}"

    def execute(self, *words: str | int) -> Any:
        """One command on a connection of its own, and the server's reply."""
        with self._client(socket_timeout=10) as client:
            return client.execute_command(*words)

    def replica(self, settings: Settings | None = None) -> "Replica":
        """Not started yet. It has the settings of this server, then its own."""
        return Replica(self, settings)

    def _find_programs(self) -> Account | None:
        self._program = find_valkey(self._search)
        return None

    def _prepare(self) -> None:
        (self.folder / "data").mkdir()

    def _command(self) -> Sequence[str | Path]:
        file = self.folder / "valkey.conf"
        file.touch(mode=0o600)  # it holds the password, which a command line would show to all
        lines = self.settings | {
            "port": self.port,
            "bind": LOOPBACK,
            "dir": json.dumps(str(self.folder / "data"), ensure_ascii=False),  # quoted
            "requirepass": self.password,
            "masterauth": self.password,
        }
        text = "".join(valkey_line(name, value) for name, value in lines.items())
        file.write_text(text, encoding="utf-8")
        return (self._program, file)

    def _accepts_connections(self) -> bool:
        # Soon given up: on a stolen port somebody may listen who never answers.
        try:
            with self._client(socket_timeout=0.5) as client:
                return bool(client.execute_command("PING"))
        except redis.RedisError:  # refused, or still loading
            return False

    def _client(self, socket_timeout: float) -> redis.Redis:
        return redis.Redis(
            LOOPBACK,
            self.port,
            password=self.password,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=socket_timeout,
            decode_responses=True,
        )


class Replica(Valkey):
    """Ready when it has all of its primary's data and follows it."""

    def __init__(self, primary: Valkey, settings: Settings | None) -> None:
        inherited = primary.settings | dict(settings or {})
        super().__init__(inherited, search=primary._search)
        self.password = primary.password
        self.settings["replicaof"] = f"{LOOPBACK} {primary.port}"
        self._following = False

    def promote(self) -> None:
        """From now on it takes writes and follows nobody, after a restart too."""
        self.execute("REPLICAOF", "NO", "ONE")
        self.settings.pop("replicaof", None)

    def _accepts_connections(self) -> bool:
        if not super()._accepts_connections():
            return False
        if not self._following:  # only at first: later the primary may be what is down
            state = self.execute("INFO", "replication")
            self._following = state.get("master_link_status") == "up"
        return self._following
