"""Our end of the line to a guardian process."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from projector.embedded.account import Account
from projector.embedded.errors import EmbeddedError

SCRIPT = Path(__file__).with_name("guardian.py")
GOODBYE = 30.0  # seconds for a guardian to end its server and remove the folder


class GuardedProcess:
    """One server and its temporary folder, both gone as soon as this process is.

    What the programs write goes to `log`. Safe to use from several threads.
    """

    def __init__(self, folder: Path, log: Path, account: Account | None, last: signal.Signals):
        self._folder = folder
        self._pid: int | None = None
        self._account = account.arguments() if account else {}
        self._lock = threading.Lock()
        self._asked = 0
        with log.open("ab") as output:
            self._guardian = subprocess.Popen(  # noqa: S603 our own script
                [sys.executable, "-I", "-S", str(SCRIPT), str(folder), str(int(last))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=folder,  # ours may be closed to the account
                env=environment(),
                start_new_session=True,  # the terminal's Ctrl-C is meant for us
            )
        assert self._guardian.stdin
        assert self._guardian.stdout
        self._to, self._from = self._guardian.stdin, self._guardian.stdout

    def run(self, command: Sequence[str | Path]) -> int:
        """Runs a program to its end, as the server's account, and returns its exit status."""
        return int(self._execute("run", command)["status"])

    def spawn(self, command: Sequence[str | Path]) -> int:
        """Starts the server and returns its process id. The former one must have ended."""
        pid = self._pid = int(self._execute("spawn", command)["pid"])
        return pid

    def running(self) -> bool:
        return self._ask("status")["status"] is None

    def end(self, number: signal.Signals, seconds: float) -> bool:
        """Whether the signal sufficed within the time; if not, the server was killed. Either
        way none of its processes is left."""
        return bool(self._ask("end", signal=int(number), seconds=seconds)["graceful"])

    def close(self) -> None:
        """Ends the server at once and removes the folder, the way the guardian does it for a
        dead parent, so that path is walked every day."""
        with contextlib.suppress(BrokenPipeError):
            self._to.close()
        self._from.close()
        try:
            status = self._guardian.wait(GOODBYE)
        except subprocess.TimeoutExpired as exc:
            raise self._lost("does not end its server") from exc
        if status != 0:
            self._clean_up()

    def _clean_up(self) -> None:
        """Somebody killed the guardian, so its work is left to us."""
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _execute(self, do: str, command: Sequence[str | Path]) -> dict[str, Any]:
        return self._ask(do, command=list(map(str, command)), account=self._account)

    def _ask(self, do: str, **details: Any) -> dict[str, Any]:
        with self._lock:
            self._asked += 1
            reply = self._exchange({"n": self._asked, "do": do, **details})
        if "error" in reply:
            raise EmbeddedError(f"cannot {do} {details.get('command', '')}: {reply['error']}")
        return reply

    def _exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            self._to.write(json.dumps(request).encode() + b"\n")
            self._to.flush()
            while line := self._from.readline():
                reply: dict[str, Any] = json.loads(line)
                # Older replies belong to requests that Ctrl-C interrupted.
                if reply["n"] == request["n"]:
                    return reply
        except BrokenPipeError:
            pass
        raise self._lost("is gone")

    def _lost(self, how: str) -> EmbeddedError:
        return EmbeddedError(
            f"the process {self._guardian.pid}, which guards the server in {self._folder}, {how}: "
            "close this server and make a new one"
        )


def environment() -> dict[str, str]:
    """Ours without what would steer a server or change the language of its log. A fixed time
    zone also spares initdb its search for the machine's."""
    steering = ("PG", "LC_", "LANG")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(steering)}
    return kept | {"LC_ALL": "C", "TZ": "UTC"}
