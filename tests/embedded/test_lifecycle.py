"""One server: its starts and ends, and what survives them."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator

import pytest
import redis

from projector.embedded import EmbeddedError, NotRunningError, Postgres, ServerStartError, Valkey
from projector.embedded.ports import Port

DURABLE = {"appendonly": "yes", "appendfsync": "always"}
END = pytest.mark.parametrize("end", ["stop", "kill"])
KIND = pytest.mark.parametrize("kind", [Postgres, Valkey])


@pytest.fixture(scope="module")
def used_postgres() -> Iterator[Postgres]:
    """Making one takes far longer than starting it again."""
    with Postgres() as server:
        yield server


@pytest.fixture
def postgres(used_postgres: Postgres) -> Postgres:
    used_postgres.start()
    return used_postgres


@END
def test_postgres_keeps_its_data(end, postgres):
    """What was committed is there after a stop and after a kill, at the same URL."""
    url, folder, pid = postgres.url(), postgres.folder, postgres.pid
    postgres.execute(f"CREATE TABLE {end} AS SELECT generate_series(1, 1000)")
    getattr(postgres, end)()
    assert not postgres.running
    postgres.start()
    assert postgres.execute(f"SELECT count(*) FROM {end}") == [(1000,)]
    assert (postgres.url(), postgres.folder) == (url, folder)
    assert postgres.pid != pid


@END
def test_valkey_keeps_its_data_if_told_to(end):
    """With an append-only file writes survive a stop and a kill, at the same URL."""
    with Valkey(DURABLE) as server:
        url = server.url()
        server.execute("SET", "key", "value")
        getattr(server, end)()
        server.start()
        assert server.execute("GET", "key") == "value"
        assert server.url() == url


def test_restart_is_a_stop_and_a_start():
    """A restart gives a new process."""
    with Valkey() as server:
        pid = server.pid
        server.restart()
        assert server.pid != pid


def test_starting_twice_is_starting_once(postgres):
    """A running server is left alone by another start, a stopped one by another end."""
    pid = postgres.pid
    postgres.start()
    assert postgres.pid == pid
    postgres.stop()
    postgres.stop()
    postgres.kill()
    with pytest.raises(NotRunningError, match="not running"):
        postgres.pid  # noqa: B018 the property raises


def test_a_kill_leaves_no_backend(postgres, alive, until):
    """A backend that is busy computing does not notice its postmaster's death: kill ends it."""
    busy = _busy_backend(postgres)
    postgres.kill()
    until(lambda: not alive(busy))
    postgres.start()
    assert postgres.execute("SELECT 1") == [(1,)]


def test_a_start_follows_a_death_by_other_hands(postgres, until):
    """A server that died by itself starts again on its data."""
    os.kill(postgres.pid, signal.SIGKILL)
    until(lambda: not postgres.running)
    postgres.start()
    assert postgres.execute("SELECT 1") == [(1,)]


def test_a_suspended_server_can_be_ended(postgres, alive):
    """SIGSTOP, the usual way to play a hanging server, is no obstacle to any end."""
    os.kill(postgres.pid, signal.SIGSTOP)
    postgres.stop()
    postgres.start()
    os.kill(postgres.pid, signal.SIGSTOP)
    postgres.kill()
    with Valkey() as server:
        pid = server.pid
        os.kill(pid, signal.SIGSTOP)
    assert not alive(pid)


def test_closing_is_final_and_removes_the_folder(temporary):
    """After the block the folder is gone and the handle says that it cannot come back."""
    with Valkey() as server:
        assert server.folder.is_dir()
    assert not list(temporary.iterdir())
    with pytest.raises(EmbeddedError, match="was closed: make a new one"):
        server.start()


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(Postgres, {"wal_level": "nonsense"}), (Valkey, {"maxmemory-policy": "nonsense"})],
)
def test_a_server_that_cannot_start_shows_its_log(kind, settings, temporary):
    """The error carries the end of the server's log, and nothing is left behind."""
    with pytest.raises(ServerStartError, match=r"its log ends:\n(.|\n)*nonsense") as caught:
        kind(settings).start()
    assert "nonsense" in caught.value.log
    assert not list(temporary.iterdir())


@pytest.mark.parametrize(
    ("kind", "settings", "complaint"),
    [
        (Postgres, {"Listen_Addresses": "*"}, "listen_addresses of an embedded server are fixed"),
        (Valkey, {"bind": "0.0.0.0"}, "bind of an embedded server are fixed"),
        (Valkey, {"save": "\nrequirepass open"}, "must be one line"),
        (Postgres, {"fsync = off #": 1}, "is no name"),
    ],
)
def test_settings_cannot_open_a_server_to_others(kind, settings, complaint):
    """Address and password are fixed, and no value can smuggle in a line of its own."""
    with pytest.raises(EmbeddedError, match=complaint):
        kind(settings)


@KIND
def test_a_stolen_port_is_given_up_for_another(kind):
    """When somebody listens on the chosen port first, the next free one is taken."""
    thief = socket.socket()
    offered = []

    def choose() -> Port:
        port = Port()
        if not offered:
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            thief.bind(("127.0.0.1", port.number))
            thief.listen()
        offered.append(port.number)
        return port

    with thief, kind(ports=choose) as server:
        assert server.port == offered[1]


def test_no_other_failure_costs_a_second_port():
    """A server that fails for another reason fails at once."""
    offered = []

    def choose() -> Port:
        offered.append(Port())
        return offered[-1]

    with pytest.raises(ServerStartError):
        Valkey({"maxmemory-policy": "nonsense"}, ports=choose).start()
    assert len(offered) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a port be kept")
def test_the_port_of_a_stopped_server_goes_to_nobody_else():
    """While the server is down nobody gets its port by chance."""
    with Valkey() as server:
        server.stop()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", server.port))
        with pytest.raises(redis.ConnectionError):
            server.execute("PING")


def test_another_database(postgres):
    """A new database has a URL of its own, whatever its name."""
    name = 'odd "name"/'
    assert postgres.create_database(name).endswith("/odd%20%22name%22%2F")
    assert postgres.execute("SELECT current_database()", name) == [(name,)]


def _busy_backend(server: Postgres) -> int:
    """The process id of a backend that computes without end."""
    statement = "SELECT count(*) FROM generate_series(1, 1e15)"

    def compute() -> None:
        with pytest.raises(Exception, match="connection"):
            server.execute(statement)

    threading.Thread(target=compute, daemon=True).start()
    while True:
        found = server.execute(
            "SELECT pid FROM pg_stat_activity WHERE query LIKE '%1e15%' "
            "AND pid <> pg_backend_pid() AND state = 'active'"
        )
        if found:
            return int(found[0][0])
