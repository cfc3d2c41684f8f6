"""What every embedded server has: a folder, a port, and a life of starts and ends."""

import shutil
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from projector.embedded.account import Account
from projector.embedded.errors import (
    EmbeddedError,
    NotRunningError,
    PortTakenError,
    ServerStartError,
)
from projector.embedded.folder import make_folder
from projector.embedded.ports import Port
from projector.embedded.process import GuardedProcess
from projector.embedded.settings import Settings

START_SECONDS = 30.0
STOP_SECONDS = 30.0
STEP = 0.01
PORTS_TO_TRY = 5
TAIL_LINES = 20
PORT_TAKEN = "Address already in use"


class Server(ABC):
    """Nothing happens before `start`. Folder and port stay the same until `close`, which ends
    the server and removes the folder; so does the end of this process, whatever its cause.

    Methods block and may be called from any thread, one at a time.
    """

    name: ClassVar[str]
    stop_signal: ClassVar[signal.Signals]
    last_signal: ClassVar[signal.Signals]
    passing_failure: ClassVar[str]
    """In the log of a failed start: trying again is all it takes."""

    def __init__(self, settings: Settings | None, ports: Callable[[], Port]) -> None:
        self.settings = dict(settings or {})
        self._ports = ports
        self._lock = threading.RLock()
        self._process: GuardedProcess | None = None
        self._folder: Path | None = None
        self._port: Port | None = None
        self._pid: int | None = None
        self._closed = False

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Returns when the server accepts connections; does nothing when it is running. Data
        survives `stop` and `kill` as far as the settings make it durable."""
        with self._lock:
            if self._closed:
                raise EmbeddedError(f"this {self.name} was closed: make a new one")
            if self.running:
                return
            if self._port is None:
                self._start_first_time()
            else:
                self._start_until(time.monotonic() + START_SECONDS)

    def stop(self) -> None:
        """A clean shutdown, which disconnects clients. The folder stays for `start`."""
        with self._lock:
            if self.running and not self._end(self.stop_signal, STOP_SECONDS):
                raise EmbeddedError(
                    f"{self.name} in {self.folder} did not stop within {STOP_SECONDS:.0f} s "
                    f"and was killed; its log ends:\n{tail(self._log_after(0))}"
                )

    def kill(self) -> None:
        """SIGKILL for the server and all its processes; when this returns none is left."""
        with self._lock:
            if self._process and not self._end(signal.SIGKILL, 0):
                raise EmbeddedError(f"processes of {self.name} in {self.folder} survive SIGKILL")

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """Ends the server without ceremony and removes its folder. It cannot start again."""
        with self._lock:
            self._closed = True
            self._discard()

    @property
    def running(self) -> bool:
        return self._pid is not None and self._guarded.running()

    @property
    def pid(self) -> int:
        if self._pid is None or not self.running:
            raise NotRunningError(self.name)
        return self._pid

    @property
    def port(self) -> int:
        if self._port is None:
            raise NotRunningError(self.name)
        return self._port.number

    @property
    def folder(self) -> Path:
        """The temporary folder with the data and the log."""
        if self._folder is None:
            raise NotRunningError(self.name)
        return self._folder

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @abstractmethod
    def _find_programs(self) -> Account | None:
        """Returns whom they have to run as; None for ourselves."""

    @abstractmethod
    def _prepare(self) -> None:
        """Makes the data in the new folder."""

    @abstractmethod
    def _command(self) -> Sequence[str | Path]:
        """Writes the settings for the port at hand; returns what starts the server with them."""

    @abstractmethod
    def _accepts_connections(self) -> bool: ...

    @property
    def _guarded(self) -> GuardedProcess:
        if self._process is None:
            raise NotRunningError(self.name)
        return self._process

    def _start_first_time(self) -> None:
        try:
            self._open()
            self._start_on_free_port()
        except BaseException:
            self._discard()
            raise

    def _open(self) -> None:
        account = self._find_programs()
        self._folder = make_folder(self.name, account)
        self._process = GuardedProcess(self._folder, self.log, account, self.last_signal)
        self._prepare()

    def _start_on_free_port(self) -> None:
        for _ in range(PORTS_TO_TRY - 1):
            self._port = self._ports()
            with suppress(PortTakenError):
                self._start_once()
                return
            self._port.release()
        self._port = self._ports()
        self._start_once()

    def _start_until(self, deadline: float) -> None:
        """Clients know the port by now: if it is taken, wait for it."""
        while True:
            try:
                self._start_once()
            except ServerStartError as exc:
                passing = isinstance(exc, PortTakenError) or self.passing_failure in exc.log
                if not passing or time.monotonic() > deadline:
                    raise
            else:
                return

    def _start_once(self) -> None:
        before = self.log.stat().st_size
        self._pid = self._guarded.spawn(self._command())
        deadline = time.monotonic() + START_SECONDS
        while not self._accepts_connections():
            if not self._guarded.running():
                raise self._failure(f"{self.name} ended instead of starting", before)
            if time.monotonic() > deadline:
                self.kill()
                raise self._failure(f"{self.name} was not ready in {START_SECONDS:.0f} s", before)
            time.sleep(STEP)

    def _run(self, program: Path, *arguments: str | Path) -> None:
        if status := self._guarded.run((program, *arguments)):
            raise self._failure(f"{program.name} failed with status {status}", 0)

    def _failure(self, what: str, since: int) -> ServerStartError:
        said = self._log_after(since)
        error = PortTakenError if PORT_TAKEN in said else ServerStartError
        return error(f"{what} in {self.folder}, check its settings", tail(said))

    def _log_after(self, offset: int) -> str:
        with self.log.open("rb") as log:
            log.seek(offset)
            return log.read().decode(errors="replace")

    def _end(self, number: signal.Signals, seconds: float) -> bool:
        try:
            return self._guarded.end(number, seconds)
        finally:
            self._pid = None

    def _discard(self) -> None:
        process, port, folder = self._process, self._port, self._folder
        self._process = self._port = self._folder = self._pid = None
        if port:
            port.release()
        if process:
            process.close()
        elif folder:  # no guardian came to be
            shutil.rmtree(folder)


def tail(log: str) -> str:
    return "\n".join(log.splitlines()[-TAIL_LINES:])
