"""One effect per event, command, request and call."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

import outbox as _outbox

if getattr(_outbox, "__distribution__", None) != "oncebox":
    raise ImportError(
        f"the module 'outbox' at {_outbox.__file__} belongs to another package: uninstall that one "
        "(pip uninstall outbox), then this one anew (pip install --force-reinstall oncebox)"
    )

from inbox.claims.claim import (
    Applied,
    Claim,
    Claimed,
    Done,
    Lost,
    Mismatch,
    Record,
    Running,
    State,
    new_token,
)
from inbox.claims.held import Held, current_claim
from inbox.claims.key import store_key
from inbox.claims.memory import MemoryStore
from inbox.claims.store import ClaimStore, SyncClaimStore
from inbox.errors import (
    ArgumentNotEncodable,
    ClaimLost,
    CorruptRecord,
    DuplicateExecutionError,
    InboxError,
    InProgressError,
    InvalidDuration,
    InvalidGuard,
    InvalidKey,
    InvalidOutcome,
    InvalidSource,
    NewerRecord,
    ReplayedFailure,
    ResultNotStored,
    ResultUnavailable,
    StoreUnavailable,
)
from inbox.schema import InboxTables, tables

__all__ = [
    "Applied",
    "ArgumentNotEncodable",
    "CallRecord",
    "Claim",
    "ClaimLost",
    "ClaimStore",
    "Claimed",
    "CorruptRecord",
    "Done",
    "DuplicateExecutionError",
    "Failure",
    "FileStore",
    "Held",
    "InProgressError",
    "InboxError",
    "InboxTables",
    "InvalidDuration",
    "InvalidGuard",
    "InvalidKey",
    "InvalidOutcome",
    "InvalidSource",
    "Lost",
    "MemoryStore",
    "Mismatch",
    "NewerRecord",
    "Record",
    "RedisStore",
    "ReplayedFailure",
    "ResultNotStored",
    "ResultUnavailable",
    "Running",
    "SqlAlchemyStore",
    "State",
    "StoreUnavailable",
    "SyncClaimStore",
    "current_claim",
    "idempotent",
    "new_token",
    "store_key",
    "tables",
]

if _TYPE_CHECKING:
    from inbox.claims.file import FileStore
    from inbox.claims.redis import RedisStore
    from inbox.claims.sql import SqlAlchemyStore
    from inbox.guard.decorator import idempotent
    from inbox.guard.outcome import CallRecord, Failure

_LATER = {
    "CallRecord": "inbox.guard.outcome",
    "Failure": "inbox.guard.outcome",
    "FileStore": "inbox.claims.file",
    "RedisStore": "inbox.claims.redis",
    "SqlAlchemyStore": "inbox.claims.sql",
    "idempotent": "inbox.guard.decorator",
}
"""Names whose module needs a package that not everyone wants to wait for: imported when first asked
for."""


def __getattr__(name: str) -> _Any:
    if name not in _LATER:
        raise AttributeError(f"module 'inbox' has no attribute {name!r}")
    return getattr(_import_module(_LATER[name]), name)
