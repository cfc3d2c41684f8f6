"""A process that outlives its parent just long enough to clean up after it.

Run as `python -I -S guardian.py FOLDER SIGNAL`. It owns one temporary folder and at most one
server, which is its child. Requests come as JSON lines on stdin and each gets one JSON line on
stdout. When stdin ends or the parent is gone, however it went, the server gets SIGNAL, then
SIGKILL, and the folder is removed.

Nothing but the standard library, and nothing of ours: it must work when the rest is gone.
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

PARENT_CHECK = 1.0  # seconds between looks at the parent, when its pipe stays silent
LAST_WORDS = 2.0  # seconds a server gets between the last signal and SIGKILL
REAP = 10.0  # seconds for killed processes to vanish; they need milliseconds


class Charge:
    """The server in our charge, together with every process it forks.

    All of them inherit the write end of a pipe, so the end of that pipe says that the last one
    is gone. It needs no process ids, which a dead server's children would have to be found by.
    """

    def __init__(self, command: list[str], account: dict[str, Any]) -> None:
        self._alive, inherited = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603 our parent chose the command
                command,
                stdin=subprocess.DEVNULL,  # ours is the line to the parent
                stdout=sys.stderr,  # which is the log
                pass_fds=[inherited],
                **account,
            )
        except BaseException:
            os.close(self._alive)
            raise
        finally:
            os.close(inherited)
        self.pid = self._process.pid

    def status(self) -> int | None:
        return self._process.poll()

    def send(self, number: int) -> None:
        self._process.send_signal(number)
        self._process.send_signal(signal.SIGCONT)  # a suspended server hears nothing else

    def gone(self, seconds: float) -> bool:
        if not select.select([self._alive], [], [], seconds)[0]:
            return False
        self._process.wait()
        return True

    def kill(self) -> bool:
        """Leaves no backend behind: a busy one would not notice its postmaster's death."""
        self._process.send_signal(signal.SIGSTOP)  # so that it forks and reaps no more
        children = [] if self.status() is not None else list(children_of(self.pid))
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.kill()
        return self.gone(REAP)

    def end(self, number: int, seconds: float) -> bool:
        """Whether the signal was enough."""
        self.send(number)
        if self.gone(seconds):
            return True
        self.kill()
        return False

    def close(self) -> None:
        os.close(self._alive)


def children_of(parent: int) -> Iterator[int]:
    return (pid for pid, its_parent in processes() if its_parent == parent)


def processes() -> Iterator[tuple[int, int]]:
    """Pairs of process and parent. Slim containers have no `ps`; macOS has no /proc."""
    if not Path("/proc/self/stat").exists():
        listing = subprocess.check_output(["/bin/ps", "-A", "-o", "pid=,ppid="], text=True)
        for line in listing.splitlines():
            pid, parent = line.split()
            yield int(pid), int(parent)
        return
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()
            yield int(entry.parent.name), int(fields[1])


class Guardian:
    def __init__(self, folder: Path, last_signal: int) -> None:
        self._folder = folder
        self._last_signal = last_signal
        self._charge: Charge | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            match request["do"]:
                case "run":
                    return {"status": self._run(request["command"], request["account"])}
                case "spawn":
                    return {"pid": self._spawn(request["command"], request["account"])}
                case "status":
                    return {"status": self._charge.status() if self._charge else 0}
                case "end":
                    return {"graceful": self._end(request["signal"], request["seconds"])}
                case unknown:
                    return {"error": f"unknown request {unknown!r}"}
        except (OSError, subprocess.SubprocessError) as exc:
            return {"error": f"{type(exc).__name__}: {exc}"}

    def _run(self, command: list[str], account: dict[str, Any]) -> int:
        return subprocess.run(  # noqa: S603 our parent chose the command
            command, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False, **account
        ).returncode

    def _spawn(self, command: list[str], account: dict[str, Any]) -> int:
        if self._charge:
            # Its children may outlive it for a moment and hold on to the data folder.
            self._charge.gone(REAP)
            self._charge.close()
        self._charge = Charge(command, account)
        return self._charge.pid

    def _end(self, number: int, seconds: float) -> bool:
        if self._charge is None or self._charge.gone(0):
            return True
        if number == signal.SIGKILL:
            return self._charge.kill()
        return self._charge.end(number, seconds)

    def leave(self) -> None:
        self._end(self._last_signal, LAST_WORDS)
        release_shared_memory(self._folder / "data" / "postmaster.pid")
        shutil.rmtree(self._folder, ignore_errors=True)


def release_shared_memory(lock: Path) -> None:
    """A killed Postgres leaves its System V segment behind, and macOS has room for 32."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        segment = int(lock.read_text(errors="replace").splitlines()[6].split()[1])
        ctypes.CDLL(None).shmctl(segment, 0, None)  # 0 is IPC_RMID


def requests() -> Iterator[dict[str, Any]]:
    """Ends with the parent. Its pipe alone would not tell: a process that the parent forked
    without exec has a copy of the write end and may live on."""
    parent, rest = os.getppid(), b""
    while os.getppid() == parent:
        if not select.select([0], [], [], PARENT_CHECK)[0]:
            continue
        chunk = os.read(0, 65536)
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        yield from map(json.loads, lines)


def leave_at_signal(*_: object) -> NoReturn:
    raise SystemExit


def main(folder: str, last_signal: str) -> None:
    endings = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in endings:
        signal.signal(number, leave_at_signal)
    guardian = Guardian(Path(folder), int(last_signal))
    try:
        for request in requests():
            reply = guardian.answer(request) | {"n": request["n"]}
            os.write(1, json.dumps(reply).encode() + b"\n")
    except BrokenPipeError:
        pass  # the parent is gone in the middle of a request
    finally:
        for number in endings:
            signal.signal(number, signal.SIG_IGN)
        guardian.leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
