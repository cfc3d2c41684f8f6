"""Servers end with the process that started them, whatever ends that."""

import ctypes
import os
import signal

import pytest

from projector.embedded import EmbeddedError, Postgres, Valkey
from projector.embedded.process import GuardedProcess


def test_servers_do_not_outlive_a_killed_parent(start_parent, until, alive):
    """A parent killed with SIGKILL takes its servers and their folders along."""
    parent = start_parent("Postgres", "Valkey")
    assert all(map(alive, parent.pids))
    assert all(folder.is_dir() for folder in parent.folders)
    parent.send(signal.SIGKILL)
    until(lambda: not any(map(alive, parent.pids)))
    until(lambda: not any(folder.exists() for folder in parent.folders))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_servers_do_not_outlive_an_interrupted_parent(number, start_parent, until, alive):
    """Ctrl-C and the other ways to end a process end its servers too."""
    parent = start_parent("Valkey")
    parent.send(number)
    until(lambda: not any(map(alive, parent.pids)))
    until(lambda: not any(folder.exists() for folder in parent.folders))


def test_a_forked_child_does_not_keep_the_servers_alive(start_parent, until, alive):
    """A child made by fork has the parent's pipes; the guardian looks at the parent itself."""
    parent = start_parent("Valkey", extra="os.fork() or (sys.stdin.read(), os._exit(0))")
    os.kill(parent.process.pid, signal.SIGKILL)
    until(lambda: not any(map(alive, parent.pids)))
    until(lambda: not any(folder.exists() for folder in parent.folders))


def test_ctrl_c_in_a_terminal_is_for_us_alone():
    """A terminal's signals reach neither server nor guardian: we may still need them."""
    with Valkey() as server:
        assert os.getsid(server.pid) == os.getsid(_guardian_of(server)) != os.getsid(0)


def test_a_killed_postgres_leaves_no_shared_memory():
    """Its System V segment, of which some systems have few, is gone with the folder."""
    with Postgres() as server:
        segment = (server.folder / "data" / "postmaster.pid").read_text().splitlines()[6].split()[1]
        assert _segment_exists(int(segment))
        server.kill()
    assert not _segment_exists(int(segment))


def test_an_interrupted_request_does_not_confuse_the_next(tmp_path):
    """After Ctrl-C in the middle of a request its late reply is not taken for another one's."""
    process = GuardedProcess(tmp_path, tmp_path / "log", None, signal.SIGKILL)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            process.run(["/bin/sh", "-c", "sleep 0.3; exit 7"])
        assert process.run(["/bin/sh", "-c", "exit 0"]) == 0
    finally:
        signal.signal(signal.SIGALRM, before)
        process.close()
    assert not tmp_path.exists()


def test_a_guardian_that_is_asked_to_end_cleans_up_first(until, alive):
    """SIGTERM to the guardian, as at shutdown, ends its server; the handle says what to do."""
    with Valkey() as server:
        pid, folder = server.pid, server.folder
        os.kill(_guardian_of(server), signal.SIGTERM)
        until(lambda: not folder.exists())
        assert not alive(pid)
        with pytest.raises(EmbeddedError, match="close this server and make a new one"):
            server.start()


def test_a_killed_guardian_leaves_its_work_to_us(until, alive):
    """Closing ends the server and removes the folder even when the guardian was killed."""
    with Valkey() as server:
        pid, folder = server.pid, server.folder
        os.kill(_guardian_of(server), signal.SIGKILL)
    until(lambda: not alive(pid))
    assert not folder.exists()


def _guardian_of(server: Valkey) -> int:
    assert server._process
    return server._process._guardian.pid


def _segment_exists(segment: int) -> bool:
    """By attaching it for a moment."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    address = libc.shmat(segment, None, 0)
    if address == ctypes.c_void_p(-1).value:
        return False
    libc.shmdt(ctypes.c_void_p(address))
    return True
