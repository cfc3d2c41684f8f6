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
    BadHandler,
    ClaimLost,
    CorruptRecord,
    HandlerCommitted,
    InboxError,
    InvalidDuration,
    InvalidKey,
    InvalidOutcome,
    InvalidSource,
    NewerRecord,
    NoProjector,
    PermanentError,
    StoreUnavailable,
    WindowTooShort,
)
from inbox.outcome import Busy, Duplicate, Handled, Processed
from inbox.schema import InboxTables, tables

__all__ = [
    "Applied",
    "BadHandler",
    "Busy",
    "Claim",
    "ClaimLost",
    "ClaimStore",
    "Claimed",
    "Consumer",
    "CorruptRecord",
    "Done",
    "Duplicate",
    "FileStore",
    "Handled",
    "HandlerCommitted",
    "Held",
    "InboxError",
    "InboxTables",
    "InvalidDuration",
    "InvalidKey",
    "InvalidOutcome",
    "InvalidSource",
    "Lost",
    "MemoryStore",
    "Mismatch",
    "NewerRecord",
    "NoProjector",
    "PermanentError",
    "Processed",
    "Record",
    "RedisInbox",
    "RedisStore",
    "Retry",
    "Running",
    "SqlAlchemyStore",
    "SqlInbox",
    "State",
    "StoreUnavailable",
    "SyncClaimStore",
    "WindowTooShort",
    "current_claim",
    "new_token",
    "store_key",
    "tables",
]

if _TYPE_CHECKING:
    from inbox.claims.file import FileStore
    from inbox.claims.redis import RedisStore
    from inbox.claims.sql import SqlAlchemyStore
    from inbox.consumer.consumer import Consumer
    from inbox.consumer.retry import Retry
    from inbox.redis_inbox import RedisInbox
    from inbox.sql_inbox import SqlInbox

_LATER = {
    "FileStore": "inbox.claims.file",
    "RedisStore": "inbox.claims.redis",
    "SqlAlchemyStore": "inbox.claims.sql",
    "Consumer": "inbox.consumer.consumer",
    "Retry": "inbox.consumer.retry",
    "RedisInbox": "inbox.redis_inbox",
    "SqlInbox": "inbox.sql_inbox",
}
"""Names whose module needs a package that not everyone wants to wait for: imported when first asked
for."""


def __getattr__(name: str) -> _Any:
    if name not in _LATER:
        raise AttributeError(f"module 'inbox' has no attribute {name!r}")
    return getattr(_import_module(_LATER[name]), name)
