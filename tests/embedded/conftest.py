"""Helpers for tests of servers, processes and folders."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

Condition = Callable[[], object]

PARENT = """
import contextlib, json, os, sys
from projector import embedded
with contextlib.ExitStack() as stack:
    servers = [stack.enter_context(getattr(embedded, name)()) for name in {names}]
    {extra}
    pids, folders = zip(*((server.pid, str(server.folder)) for server in servers))
    print(json.dumps({{"pids": pids, "folders": folders}}), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def until() -> Callable[[Condition], None]:
    """Waits for a condition; fails when it does not come true in time."""

    def wait(condition: Condition, seconds: float = 15) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true in time"
            time.sleep(0.01)

    return wait


@pytest.fixture
def alive() -> Callable[[int], bool]:
    """Whether a process runs; one that only waits to be reaped does not."""

    def check(pid: int) -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):  # it just ended, or there is no /proc
            return not Path("/proc/self").exists()
        return state != "Z"

    return check


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The place for temporary folders, empty and for this test alone; open to every account."""
    place = Path(tempfile.mkdtemp(prefix="oncebox-test-"))
    place.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place
    shutil.rmtree(place)


@dataclass
class Parent:
    """A process that has servers running."""

    process: subprocess.Popen[str]
    pids: list[int]
    folders: list[Path]

    def send(self, number: signal.Signals) -> None:
        """To its whole process group, as a terminal does."""
        os.killpg(self.process.pid, number)


@pytest.fixture
def start_parent() -> Iterator[Callable[..., Parent]]:
    """Starts a parent of the named servers; `extra` is a statement to run in it."""
    started: list[subprocess.Popen[str]] = []

    def start(*names: str, extra: str = "pass") -> Parent:
        process = subprocess.Popen(
            [sys.executable, "-c", PARENT.format(names=names, extra=extra)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout
        told = json.loads(process.stdout.readline())
        return Parent(process, told["pids"], [Path(folder) for folder in told["folders"]])

    yield start
    for process in started:
        process.kill()
        process.communicate()
