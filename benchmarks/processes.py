"""A real `projector run`, and what a process costs. Linux only: it reads /proc."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
UTIME, STIME = 11, 12
"""Fields of /proc/PID/stat, counted from behind the command's name."""


class Usage(NamedTuple):
    cpu_seconds: float
    resident_mb: float


def usage(pid: int) -> Usage:
    """What the process has used of the processor so far, and has in memory now."""
    folder = Path("/proc") / str(pid)
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    pages = int((folder / "statm").read_text().split()[1])
    return Usage((int(fields[UTIME]) + int(fields[STIME])) / TICKS, pages * PAGE / 1e6)


@contextmanager
def running(
    database_url: str, redis_url: str, name: str, *options: str
) -> Iterator[subprocess.Popen[bytes]]:
    """`projector run`; ended with SIGTERM, as an operator does it."""
    urls = {"PROJECTOR_DATABASE_URL": database_url, "PROJECTOR_REDIS_URL": redis_url}
    process = subprocess.Popen(
        [sys.executable, "-m", "projector", "run", "--name", name, *options],
        env={**os.environ, **urls},
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)
