"""Claims in the files of a folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest

from inbox import Claimed, FileStore, Running, State, StoreUnavailable, new_token
from inbox.claims.clock import FolderClock
from inbox.claims.contract import SharedStoreContract
from support.stores import file_store


class TestFileStore(SharedStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> FileStore:
        return FileStore(tmp_path / "claims")

    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Callable[[], FileStore]:
        return partial(file_store, tmp_path / "claims")

    @pytest.fixture
    def spoil(self, tmp_path: Path) -> Callable[[str, str], None]:
        def spoil(key: str, how: str) -> None:
            (path,) = (tmp_path / "claims").glob("*.record")
            if how == "newer":
                record = msgspec.json.decode(path.read_bytes())
                path.write_bytes(msgspec.json.encode({**record, "version": 2, "more": 1}))
            else:
                path.write_bytes(path.read_bytes()[:-10])

        return spoil


class Machine:
    """A machine that can be restarted, and whose wall clock can be set."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.wall, self.uptime, self.boot = folder, 1_800_000_000.0, 100.0, "first"

    def store(self) -> FileStore:
        clock = FolderClock(self.folder, lambda: self.wall, lambda: self.uptime, lambda: self.boot)
        return FileStore(self.folder, clock)

    def wait(self, seconds: float) -> None:
        self.wall += seconds
        self.uptime += seconds

    def restart(self) -> None:
        self.uptime, self.boot = 5.0, f"after {self.boot}"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def ask(store: FileStore, lease: float = 60) -> Claimed | object:
    return store.sync.claim("k", fingerprint="f", token=new_token(), lease=lease)


@pytest.mark.parametrize("restart", [False, True])
def test_a_clock_put_back_before_a_restart_delays_nobody(machine: Machine, restart: bool):
    """A lease of a minute is over after a minute, though the wall clock lost an hour meanwhile."""
    first = ask(machine.store())
    machine.wall -= 3600
    if restart:
        machine.restart()
    assert isinstance(ask(machine.store()), Running)
    machine.wait(61)
    second = ask(machine.store())
    assert isinstance(first, Claimed)
    assert isinstance(second, Claimed)
    assert second.claim.fence > first.claim.fence


def test_a_clock_put_forward_takes_nothing_from_the_living(machine: Machine):
    """Processes that come and go see the same time, whatever the wall clock says."""
    assert isinstance(ask(machine.store()), Claimed)
    machine.wall += 3600
    assert isinstance(ask(machine.store()), Running)


@pytest.mark.parametrize("purged", [False, True])
def test_fences_grow_across_restarts_and_purges_with_the_clock_put_back(
    machine: Machine, purged: bool
):
    """Also when nothing is left of the record, and the wall clock of the new boot is behind."""
    fences = []
    for _ in range(3):
        claimed = ask(machine.store(), lease=1)
        assert isinstance(claimed, Claimed)
        fences.append(claimed.claim.fence)
        machine.wall -= 7200
        machine.restart()
        assert isinstance(ask(machine.store()), Running)  # its lease counts from here at the latest
        machine.wait(2)
        if purged:
            assert machine.store().sync.purge() == 1
            machine.restart()
    assert fences == sorted(set(fences))


def test_a_crash_while_writing_leaves_the_record_that_was(tmp_path: Path):
    """A draft that was never finished is ignored, and written over."""
    store = FileStore(tmp_path)
    claimed = ask(store)
    assert isinstance(claimed, Claimed)
    (path,) = tmp_path.glob("*.record")
    path.with_suffix(".draft").write_bytes(b'{"version": 1, "ke')
    assert isinstance(ask(store), Running)
    store.sync.settle(claimed.claim, State.COMPLETED, b"x", 60)
    assert not list(tmp_path.glob("*.draft"))


def test_files_say_nothing_of_each_others_keys(tmp_path: Path):
    """A record under the name of another key, as a bad copy leaves it, lets nobody in."""
    store = FileStore(tmp_path).sync
    store.claim("a", fingerprint="f", token="t", lease=60)
    (a,) = tmp_path.glob("*.record")
    store.claim("b", fingerprint="f", token="t", lease=60)
    (b,) = set(tmp_path.glob("*.record")) - {a}
    b.write_bytes(a.read_bytes())
    with pytest.raises(Exception, match="holds the record of 'a'"):
        store.peek("b")


def test_a_folder_that_cannot_be_used_is_a_store_away(tmp_path: Path):
    """The error is ours, names the trouble, and keeps the system's error."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="file store") as refused:
        ask(FileStore(tmp_path / "file"))
    assert isinstance(refused.value.__cause__, OSError)
