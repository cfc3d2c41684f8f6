"""Claims in the files of a folder, for the processes of one machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec
from filelock import FileLock, Timeout

from inbox.claims import claim as machine
from inbox.claims.claim import VERSION, Record
from inbox.claims.clock import PATIENCE, FolderClock, write_durably
from inbox.claims.local import Change, Forget, LocalOperations, Purge, Request
from inbox.claims.operation import AsyncStore, SyncStore
from inbox.errors import CorruptRecord, NewerRecord, StoreUnavailable

LOCKS = 64
"""Keys share so many lock files, which are never removed: a lock file that goes away under a waiter
lets two in."""


class FileStore(AsyncStore):
    """Claims in `folder`, one file a key, for any number of processes; they survive a restart.

    Written whole and synced before anyone is told. The folder must be on a local disk: the locks of
    network file systems are not to be trusted. From async code, files are worked on in threads.
    """

    def __init__(self, folder: str | os.PathLike[str], clock: FolderClock | None = None) -> None:
        operations, perform = LocalOperations(), Files(Path(folder), clock).perform
        super().__init__(
            operations,
            lambda it: asyncio.to_thread(perform, it),
            lambda: SyncStore(operations, perform),
        )


class Files:
    def __init__(self, folder: Path, clock: FolderClock | None) -> None:
        self._folder = folder
        self._clock = clock or FolderClock(folder)
        # Threads queue here, so that they do not poll for the lock file against each other.
        self._queues = [Lock() for _ in range(LOCKS)]

    def perform(self, request: Request) -> Any:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            match request:
                case Change(key, step):
                    return self._change(key, step)
                case Forget(key):
                    return self._forget(key)
                case Purge(limit):
                    return self._purge(limit)
        except Timeout as exc:
            problem = f"a lock in {self._folder} was not free for {PATIENCE:.0f} seconds"
            raise StoreUnavailable("file", problem) from exc
        except OSError as exc:
            raise StoreUnavailable("file", str(exc)) from exc

    def _change(self, key: str, step: Any) -> Any:
        path = self._path(key)
        with self._locked(path):
            return self._write(path, key, step)

    def _write(self, path: Path, key: str, step: Any) -> Any:
        before, now = _read(path, key), self._clock.now()
        answer, after = step(before, now=now)
        if after is not before:
            write_durably(path, msgspec.json.encode(after), partial(self._clock.mark, now=now))
        return answer

    def _forget(self, key: str) -> bool:
        path = self._path(key)
        with self._locked(path):
            try:
                return bool(self._write(path, key, machine.forget))
            except CorruptRecord:
                path.unlink()
                return True

    def _purge(self, limit: int) -> int:
        gone = (path for path in self._folder.glob("*.record") if self._remove(path))
        count = sum(1 for _ in islice(gone, limit))
        if count:
            self._clock.mark_purged(self._clock.now())
        return count

    def _remove(self, path: Path) -> bool:
        with self._locked(path):
            try:
                record = _decode(path.read_bytes(), path.name)
            except (FileNotFoundError, CorruptRecord):
                return False  # what cannot be read stays until somebody forgets it
            if not machine.may_be_purged(record, self._clock.now()):
                return False
            path.unlink()
            return True

    def _path(self, key: str) -> Path:
        # A digest: keys may hold slashes, and file systems may not tell A from a.
        return self._folder / f"{sha256(key.encode()).hexdigest()}.record"

    @contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        number = int(path.name[:8], 16) % LOCKS
        lock = FileLock(self._folder / f"{number}.lock", timeout=PATIENCE, poll_interval=0.002)
        with self._queues[number], lock:
            yield


def _read(path: Path, key: str) -> Record | None:
    try:
        record = _decode(path.read_bytes(), key)
    except FileNotFoundError:
        return None
    if record.key != key:
        raise CorruptRecord(key, f"{path} holds the record of {record.key!r}")
    return record


class _Version(msgspec.Struct):
    version: int


def _decode(data: bytes, key: str) -> Record:
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version > VERSION:
            raise NewerRecord(key, version)
        return msgspec.json.decode(data, type=Record)
    except msgspec.DecodeError as exc:
        raise CorruptRecord(key, str(exc)) from exc
