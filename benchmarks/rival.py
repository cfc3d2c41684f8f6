"""Subjects that work in processes of their own, be it in an environment of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.timing import Subject

HERE = Path(__file__).parent
POWERTOOLS = ("aws-lambda-powertools>=3.8,<4", "boto3", "redis[hiredis]>=6,<9")


class Process:
    """The program works when it is told to, and tells the rate it had; see benchmarks/worker.py."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def rate(self, what: str, seconds: float) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what} {seconds}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


class ProcessSubject(Subject):
    """Its slices are worked in the other process, while we stand still."""

    def __init__(self, name: str, label: str, process: Process, what: str) -> None:
        async def nothing() -> None: ...

        super().__init__(name, label, nothing)
        self._process, self._what = process, what

    async def run(self, seconds: float) -> float:
        return self._process.rate(self._what, seconds)


@contextmanager
def guarded(redis_url: str) -> Iterator[Process]:
    with _worker(Path(sys.executable), "guarded.py", redis_url) as worker:
        if worker is None:
            raise RuntimeError("benchmarks/guarded.py does not start")
        yield worker


@contextmanager
def powertools(redis_url: str) -> Iterator[Process | str]:
    """The process; or why there is none."""
    try:
        python = _environment("powertools", *POWERTOOLS)
    except subprocess.CalledProcessError as exc:
        yield f"it cannot be installed: {exc.stderr.strip()[-300:]}"
        return
    with _worker(python, "powertools.py", redis_url) as worker:
        yield worker or "it does not start, as said above"


@contextmanager
def _worker(python: Path, program: str, redis_url: str) -> Iterator[Process | None]:
    process = subprocess.Popen(
        [python, "-W", "ignore", HERE / program, redis_url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield Process(process) if process.stdout.readline() == "ready\n" else None
    finally:
        process.communicate()


def _environment(name: str, *packages: str) -> Path:
    folder = HERE.parent / f".venv-{name}"
    python, ready = folder / "bin" / "python", folder / ".ready"
    if not ready.exists():
        _run(sys.executable, "-m", "venv", folder)
        _run(python, "-m", "pip", "install", "--quiet", *packages)
        ready.touch()
    return python


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
