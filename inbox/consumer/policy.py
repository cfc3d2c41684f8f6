"""How a consumer works: what can be set, with its meaning and default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, Protocol

from inbox.claims.held import Held
from inbox.consumer.handlers import Handler, Handlers
from inbox.consumer.message import Message
from inbox.consumer.retry import Retry
from inbox.metrics import METRICS, Metrics


class Inbox(Protocol):
    """Lets an event have one effect."""

    @property
    def window(self) -> timedelta:
        """How long it is remembered that an event was handled."""

    @property
    def kept(self) -> timedelta:
        """How long of that in Redis; zero if it is remembered elsewhere."""

    def check(self, handler: Handler[Any]) -> None:
        """Raises BadHandler if a handler cannot work with this inbox."""

    async def purge(self) -> int:
        """Forget what is older than the window, where nothing does so by itself. How much."""

    async def run(
        self, group: str, messages: Sequence[Message], handler: Handler[Any], claim: Held | None
    ) -> None:
        """Run the handler on those that were not handled before. An error: none of them was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    inbox: Inbox
    handlers: Handlers
    group: str
    ordered: bool = True
    batch: int = 500
    """Entries read at once; about twice as many are on their way."""
    retry: Retry = field(default_factory=Retry)
    on_dead: Literal["park", "skip"] = "park"
    on_unknown: Literal["dead", "skip"] = "dead"
    claim_lease: timedelta = timedelta(seconds=60)
    pending_idle: timedelta = timedelta(minutes=5)
    metrics: Metrics = METRICS

    def retry_of(self, handler: Handler[Any]) -> Retry:
        return handler.retry or self.retry
