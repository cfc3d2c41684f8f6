"""Which outbox a command is about: options that many commands share, as one argument."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from projector.cli import options

if TYPE_CHECKING:
    from projector.daemon import Projector

P = ParamSpec("P")
T = TypeVar("T")


class Place(NamedTuple):
    """The two servers, and the outbox on them."""

    database_url: str
    redis_url: str
    name: str
    schema: str | None
    prefix: str

    def ask(self, question: Callable[[Projector], Awaitable[T]]) -> T:
        """What a projector of this outbox answers."""

        async def run() -> T:
            async with self._projector() as projector:
                return await question(projector)

        return asyncio.run(run())

    @asynccontextmanager
    async def _projector(self) -> AsyncIterator[Projector]:
        """For the length of a command: outages of its servers are the command's errors."""
        from projector import trouble
        from projector.connect import engine_of, redis_of
        from projector.daemon import OUTAGE, Projector
        from projector.errors import ProjectorError
        from projector.settings import Settings

        engine, redis = engine_of(self.database_url), redis_of(self.redis_url)
        settings = Settings(name=self.name, schema=self.schema, prefix=self.prefix)
        try:
            yield Projector(engine, redis, settings)
        except OUTAGE as problem:
            raise ProjectorError(trouble.told(problem)) from problem
        finally:
            await redis.aclose()
            await engine.dispose()


def _options(
    *,
    database_url: options.DatabaseUrl,
    redis_url: options.RedisUrl,
    name: options.Name,
    schema: options.Schema = None,
    prefix: options.Prefix = "",
    config: options.Config = None,  # noqa: ARG001  # its callback has done all there is to do
) -> Place:
    return Place(database_url, redis_url, name, schema, prefix)


def placed(command: Callable[Concatenate[Place, P], None]) -> Callable[P, None]:
    """A command whose first argument is a Place, with the options that make one up."""

    @wraps(command)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        mine: dict[str, Any] = {option: named.pop(option) for option in shared}
        command(_options(**mine), *arguments, **named)

    shared = inspect.signature(_options, eval_str=True).parameters
    _, *own = inspect.signature(command, eval_str=True).parameters.values()
    every = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *shared.values())]
    run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]  # what Typer reads
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
    return run
