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
    AlreadyCompleted,
    AlreadyLocked,
    ArgumentNotEncodable,
    BadHandler,
    ClaimLost,
    CommitRefused,
    ConcurrentActionError,
    CorruptRecord,
    DuplicateExecutionError,
    ExecutorClosed,
    IdempotencyConflictError,
    InboxError,
    InProgressError,
    InvalidDuration,
    InvalidGuard,
    InvalidKey,
    InvalidOutcome,
    InvalidSetting,
    InvalidSource,
    NewerRecord,
    NoProjector,
    NotLocked,
    OutcomeNotVisible,
    PermanentError,
    QueueFull,
    ReplayedFailure,
    ResultNotStored,
    ResultUnavailable,
    StoreUnavailable,
    WaitsForItself,
    WindowTooShort,
)
from inbox.outcome import Busy, Duplicate, Handled, Processed
from inbox.schema import InboxTables, tables

__all__ = [
    "AlreadyCompleted",
    "AlreadyLocked",
    "Applied",
    "ArgumentNotEncodable",
    "BadHandler",
    "Busy",
    "CallRecord",
    "Claim",
    "ClaimLost",
    "ClaimStore",
    "Claimed",
    "CommandState",
    "CommitRefused",
    "ConcurrentActionError",
    "Consumer",
    "CorruptRecord",
    "Done",
    "Duplicate",
    "DuplicateExecutionError",
    "ExecutorClosed",
    "Failure",
    "FileStore",
    "Handled",
    "Held",
    "IdempotencyConflictError",
    "IdempotencyMiddleware",
    "IdempotencyRecord",
    "IdempotencyStore",
    "InProgressError",
    "InboxError",
    "InboxTables",
    "InvalidDuration",
    "InvalidGuard",
    "InvalidKey",
    "InvalidOutcome",
    "InvalidSetting",
    "InvalidSource",
    "KeyedExecutor",
    "Lost",
    "MemoryStore",
    "Mismatch",
    "NewerRecord",
    "NoProjector",
    "NotLocked",
    "OutcomeNotVisible",
    "PermanentError",
    "Processed",
    "QueueFull",
    "Record",
    "Recovered",
    "RedisInbox",
    "RedisStore",
    "ReplayedFailure",
    "Reply",
    "RequestDedup",
    "ResultNotStored",
    "ResultUnavailable",
    "Retry",
    "Running",
    "SqlAlchemyIdempotency",
    "SqlAlchemyStore",
    "SqlInbox",
    "State",
    "StoreUnavailable",
    "StoredResponse",
    "SyncClaimStore",
    "WaitsForItself",
    "WindowTooShort",
    "command_guard",
    "current_claim",
    "hash_request",
    "idempotent",
    "new_token",
    "process_event_idempotent",
    "recover_pending_messages",
    "store_key",
    "tables",
]

if _TYPE_CHECKING:
    from inbox.claims.file import FileStore
    from inbox.claims.redis import RedisStore
    from inbox.claims.sql import SqlAlchemyStore
    from inbox.commands import (
        CommandState,
        IdempotencyRecord,
        IdempotencyStore,
        SqlAlchemyIdempotency,
        StoredResponse,
        command_guard,
        hash_request,
    )
    from inbox.consumer.consumer import Consumer
    from inbox.consumer.retry import Retry
    from inbox.guard.decorator import idempotent
    from inbox.guard.outcome import CallRecord, Failure
    from inbox.http.middleware import IdempotencyMiddleware
    from inbox.processing import process_event_idempotent
    from inbox.recovery import Recovered, recover_pending_messages
    from inbox.redis_inbox import RedisInbox
    from inbox.requests.dedup import RequestDedup
    from inbox.requests.executor import KeyedExecutor
    from inbox.requests.reply import Reply
    from inbox.sql_inbox import SqlInbox

_LATER = {
    "CallRecord": "inbox.guard.outcome",
    "CommandState": "inbox.commands",
    "Consumer": "inbox.consumer.consumer",
    "Failure": "inbox.guard.outcome",
    "FileStore": "inbox.claims.file",
    "IdempotencyMiddleware": "inbox.http.middleware",
    "IdempotencyRecord": "inbox.commands",
    "IdempotencyStore": "inbox.commands",
    "KeyedExecutor": "inbox.requests.executor",
    "Recovered": "inbox.recovery",
    "RedisInbox": "inbox.redis_inbox",
    "RedisStore": "inbox.claims.redis",
    "Reply": "inbox.requests.reply",
    "RequestDedup": "inbox.requests.dedup",
    "Retry": "inbox.consumer.retry",
    "SqlAlchemyIdempotency": "inbox.commands",
    "SqlAlchemyStore": "inbox.claims.sql",
    "SqlInbox": "inbox.sql_inbox",
    "StoredResponse": "inbox.commands",
    "command_guard": "inbox.commands",
    "hash_request": "inbox.commands",
    "idempotent": "inbox.guard.decorator",
    "process_event_idempotent": "inbox.processing",
    "recover_pending_messages": "inbox.recovery",
}
"""Names whose module needs a package that not everyone wants to wait for: imported when first asked
for."""


def __getattr__(name: str) -> _Any:
    if name not in _LATER:
        raise AttributeError(f"module 'inbox' has no attribute {name!r}")
    return getattr(_import_module(_LATER[name]), name)
