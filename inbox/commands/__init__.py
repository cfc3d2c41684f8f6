"""One effect per command, in the transaction of the effect."""

from inbox.commands.guard import command_guard
from inbox.commands.idempotency import IdempotencyStore, SqlAlchemyIdempotency
from inbox.commands.ledger import Locked, StoredResponse
from inbox.commands.record import CommandState, IdempotencyRecord
from inbox.commands.request import hash_request

__all__ = [
    "CommandState",
    "IdempotencyRecord",
    "IdempotencyStore",
    "Locked",
    "SqlAlchemyIdempotency",
    "StoredResponse",
    "command_guard",
    "hash_request",
]
