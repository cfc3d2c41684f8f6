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
    ClaimLost,
    CorruptRecord,
    InboxError,
    InvalidDuration,
    InvalidKey,
    InvalidOutcome,
    InvalidSource,
    NewerRecord,
    StoreUnavailable,
)
from inbox.schema import InboxTables, tables

__all__ = [
    "Applied",
    "Claim",
    "ClaimLost",
    "ClaimStore",
    "Claimed",
    "CorruptRecord",
    "Done",
    "FileStore",
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
    "Record",
    "Recovered",
    "RedisStore",
    "Running",
    "SqlAlchemyStore",
    "State",
    "StoreUnavailable",
    "SyncClaimStore",
    "current_claim",
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
    from inbox.processing import process_event_idempotent
    from inbox.recovery import Recovered, recover_pending_messages

_LATER = {
    "FileStore": "inbox.claims.file",
    "RedisStore": "inbox.claims.redis",
    "Recovered": "inbox.recovery",
    "SqlAlchemyStore": "inbox.claims.sql",
    "process_event_idempotent": "inbox.processing",
    "recover_pending_messages": "inbox.recovery",
}
"""Names whose module needs a package that not everyone wants to wait for: imported when first asked
for."""


def __getattr__(name: str) -> _Any:
    if name not in _LATER:
        raise AttributeError(f"module 'inbox' has no attribute {name!r}")
    return getattr(_import_module(_LATER[name]), name)
