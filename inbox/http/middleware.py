"""An ASGI middleware after the IETF's draft of the Idempotency-Key header."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from fnmatch import fnmatchcase
from functools import partial
from hashlib import sha256
from typing import Any, Literal

from inbox.claims.key import Seconds, seconds, store_key
from inbox.claims.store import ClaimStore
from inbox.http import problem
from inbox.http.asgi import App, Message, Receive, Scope, Send
from inbox.http.exchange import Exchange
from inbox.http.header import key_of
from inbox.http.once import Once
from inbox.http.problem import Problem
from inbox.http.request import fingerprint, read_body
from inbox.http.response import is_stored_by_default
from inbox.metrics import METRICS, Metrics
from inbox.setting import at_least_one, one_of

log = logging.getLogger(__name__)

MEBIBYTE = 1024 * 1024
DAY = 86_400.0

STOP = 25.0
"""Seconds that a server's shutdown waits for requests whose clients have left."""

GUARDED = "inbox.idempotency"
"""In the scope of a request that a middleware of ours has taken: one further in lets it pass."""


class IdempotencyMiddleware:
    """Runs a request with an `Idempotency-Key` once, and answers its repetitions alike.

    store      which everyone who serves this API must share
    methods    that are guarded; others pass
    paths      that are guarded, as patterns such as "/orders*"; `*` stands for anything
    required   a guarded request without a key is refused with 400; else it passes
    tenant     who is asking, from the ASGI scope: a key means something to one tenant only
    is_stored  whether a response with this status is kept and given again; else the next attempt
               runs anew. Default: below 500, except 408, 425 and 429
    ttl        how long a response is kept
    lease      after which a crashed server's request may run again; renewed while it runs
    wait       how long a repetition waits for the first one before it is refused with 409
    max_body, max_response
               in bytes: a larger request is refused with 413, a larger response is not kept
    on_outage  without the store, "refuse" with 503, or "run" the request unguarded
    documentation
               the address of a page about these problems, for their `type`
    name       of this API, in the store and in metrics

    The work of a request is not undone when its client leaves.
    """

    def __init__(
        self,
        app: App,
        store: ClaimStore,
        *,
        methods: Iterable[str] = ("POST", "PATCH"),
        paths: str | Iterable[str] = "*",
        required: bool = False,
        tenant: Callable[[Scope], str | Awaitable[str]] | None = None,
        is_stored: Callable[[int], bool] = is_stored_by_default,
        ttl: Seconds = DAY,
        lease: Seconds = 60.0,
        wait: Seconds | None = None,
        max_body: int = MEBIBYTE,
        max_response: int = MEBIBYTE,
        on_outage: Literal["refuse", "run"] = "refuse",
        documentation: str | None = None,
        name: str = "http",
        metrics: Metrics = METRICS,
    ) -> None:
        self._app = app
        self._methods = frozenset(method.upper() for method in methods)
        self._paths = (paths,) if isinstance(paths, str) else tuple(paths)
        self._required, self._tenant = required, tenant
        self._max_body = at_least_one("max_body", max_body)
        self._max_response = at_least_one("max_response", max_response)
        one_of("on_outage", on_outage, "refuse", "run")
        self._documentation, self._name = documentation, name
        self._once = Once(
            app,
            store,
            is_stored=is_stored,
            ttl=seconds("ttl", ttl),
            lease=seconds("lease", lease),
            wait=None if wait is None else seconds("wait", wait),
            on_outage=on_outage,
            documentation=documentation,
            name=name,
            metrics=metrics,
        )
        self._running: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            receive = partial(self._receive_lifespan, receive)
        key = self._key(scope)
        if key is None:
            await self._app(scope, receive, send)
        elif isinstance(key, Problem):
            await self._refuse(send, key)
        else:
            await self._guard(key, scope, receive, send)

    def _key(self, scope: Scope) -> str | Problem | None:
        """None if the request is to pass."""
        if not self._is_guarded(scope):
            return None
        key = key_of(scope)
        return problem.missing_key() if key is None and self._required else key

    def _is_guarded(self, scope: Scope) -> bool:
        return (
            scope["type"] == "http"
            and GUARDED not in scope
            and scope["method"] in self._methods
            and any(fnmatchcase(scope["path"], pattern) for pattern in self._paths)
        )

    async def _guard(self, key: str, scope: Scope, receive: Receive, send: Send) -> None:
        place = await self._place(key, scope)
        body = await read_body(scope, receive, self._max_body)
        if isinstance(body, Problem):
            await self._refuse(send, body)
        elif body is not None:
            scope[GUARDED] = True
            exchange = Exchange(scope, body, receive, send, self._max_response)
            work = self._once.answer(place, fingerprint(scope, body), exchange)
            await self._shielded(work, exchange)

    async def _place(self, key: str, scope: Scope) -> str:
        """The key in the store. A digest, so that nothing that logs it tells the client's key."""
        tenant = self._tenant(scope) if self._tenant else ""
        if inspect.isawaitable(tenant):
            tenant = await tenant
        return store_key(sha256(key.encode()).hexdigest(), scope=self._name, tenant=tenant)

    async def _shielded(self, work: Coroutine[Any, Any, None], exchange: Exchange) -> None:
        """Some servers cancel a request whose client has left. Its work goes on."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            exchange.client_left = True
            task.add_done_callback(_log_failure)
            raise

    async def _receive_lifespan(self, receive: Receive) -> Message:
        message = await receive()
        if message["type"] == "lifespan.shutdown" and self._running:
            await asyncio.wait(self._running, timeout=STOP)
        return message

    async def _refuse(self, send: Send, why: Problem) -> None:
        await why.response(self._documentation).send(send)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (failure := task.exception()):
        log.error("a request whose client has left failed", exc_info=failure)
