"""A clock that the processes of one machine share, and that never goes back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock

PATIENCE = 10.0
"""Seconds to wait for a lock that is held for the time of one write."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Anchor(msgspec.Struct, frozen=True):
    """At `monotonic` of the boot `boot`, it was `time`."""

    boot: str
    monotonic: float
    time: float


def boot_id() -> str:
    """Another one after each start of the machine; empty where the system tells none."""
    try:
        return BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


class FolderClock:
    """Seconds since 1970, for everyone who works in one folder.

    The wall clock is read once a boot, when the first process comes; from then on the time is what
    the monotonic clock has counted since. So steps of the wall clock change nothing while the
    machine is up. After a restart the time goes on at the wall clock, but not before the latest
    time that any file in the folder bears, should the wall clock have been put back meanwhile.
    """

    def __init__(
        self,
        folder: Path,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        boot: Callable[[], str] = boot_id,
    ) -> None:
        self._folder = folder
        self._file = folder / "clock.json"
        self._wall, self._monotonic, self._boot = wall, monotonic, boot
        self._anchor: Anchor | None = None

    def now(self) -> float:
        if self._anchor is None:
            with FileLock(self._folder / "clock.lock", timeout=PATIENCE):
                self._anchor = self._read() or self._write()
        return self._anchor.time + (self._monotonic() - self._anchor.monotonic)

    def mark(self, path: Path, now: float) -> None:
        """Let the file bear the time `now`."""
        os.utime(path, (now, now))

    def mark_purged(self, now: float) -> None:
        """What was removed bears no time any more."""
        self.mark(self._file, now)

    def _read(self) -> Anchor | None:
        try:
            anchor = msgspec.json.decode(self._file.read_bytes(), type=Anchor)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        same_boot = anchor.boot == self._boot() and anchor.monotonic <= self._monotonic()
        return anchor if same_boot else None

    def _write(self) -> Anchor:
        latest = max((entry.stat().st_mtime for entry in os.scandir(self._folder)), default=0.0)
        now = max(self._wall(), latest)
        anchor = Anchor(self._boot(), self._monotonic(), now)
        write_durably(self._file, msgspec.json.encode(anchor), lambda it: self.mark(it, now))
        return anchor


def write_durably(path: Path, data: bytes, finish: Callable[[Path], Any]) -> None:
    """The whole file or the one before, whatever crashes. Under a lock of the caller."""
    draft = path.with_suffix(".draft")
    with draft.open("wb") as file:
        file.write(data)
        file.flush()
        finish(draft)
        os.fsync(file.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
